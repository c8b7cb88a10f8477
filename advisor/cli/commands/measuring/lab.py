"""`advisor lab`: races under one budget of errors: open one, see how it stands, adopt what was shown, report it."""

import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from advisor.answers.lab_page import write_lab_page
from advisor.cli.commands.measuring.race import describe
from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.options import ByOption, JsonOption, MinutesOption, QuietOption, VerboseOption, screen_of
from advisor.cli.tuning.lab_race import is_confirmed, name_asker, resume_race, verify_race
from advisor.cli.tuning.strategy_files import write_files
from advisor.cli.tuning.two_sides import Side
from advisor.lab.ledger import Ledger
from advisor.lab.report import render_report, render_status
from advisor.lab.rules import describe_lab, name_changed
from advisor.protocol.answers.raced import RaceAnswer
from advisor.protocol.lab import Adopted, Launch, Opened, Purpose
from advisor.protocol.training.workload import WorkloadKind

LabOption = Annotated[
    Path, typer.Option("--lab", metavar="DIR", help="The folder whose .advisor/ holds the lab.")
]
RaceArgument = Annotated[int, typer.Argument(metavar="RACE", min=1, help="Its number in the lab.")]


def build_app() -> typer.Typer:
    """Race many ideas under one budget of errors: of the gains told at most 5 % are none, however many are asked."""
    app = typer.Typer(no_args_is_help=True)
    app.command("open")(open_lab)
    app.command("status")(status)
    app.command("adopt")(adopt)
    app.command("resume")(resume)
    app.command("report")(report)
    return app


def read_percent(text: str) -> float:
    """`5%` and `5` as 0.05."""
    try:
        share = float(str(text).strip().removesuffix("%")) / 100.0
    except ValueError:
        share = -1.0
    if not 0.0 < share <= 0.5:
        raise typer.BadParameter(f"{text!r} is no share of gains: write 5%, and 50% at most")
    return share


def open_lab(
    context: typer.Context,
    command: Annotated[
        str, typer.Argument(metavar="'COMMAND'", help="The baseline's launch command, quoted as one word.")
    ],
    minutes: MinutesOption = 120.0,
    false_gains: Annotated[
        float,
        typer.Option(
            parser=read_percent, metavar="SHARE", help="Of the gains told at most so many are none, in expectation."
        ),
    ] = "5%",  # type: ignore[assignment]
    ideas: Annotated[
        int,
        typer.Option(
            min=1, help="So many ideas are expected, which share most of the error; more may be asked all the same."
        ),
    ] = 40,
    nodes: Annotated[int, typer.Option(min=1, help="Machines that train together.")] = 1,
    kind: Annotated[
        WorkloadKind, typer.Option(help="How commands are started and measured.")
    ] = WorkloadKind.PYTORCH,
    lab: LabOption = Path(),
    as_json: JsonOption = False,  # noqa: ARG001 - its callback tells the screen
    quiet: QuietOption = False,  # noqa: ARG001 - its callback tells the screen
) -> None:  # fmt: skip
    """Open a lab: its baseline is this command in this folder, unmodified.

    advisor lab open --minutes 120 --false-gains 5% 'torchrun --nproc-per-node 2 train.py'
    """
    if kind is WorkloadKind.COMMAND:
        raise CommandFailed(
            Exit.USAGE,
            "--kind command: the steps of such a program are what it prints of itself, and a lab counts by itself.",
            "Open the lab on a PyTorch or Paddle training.",
        )
    side = Side.read(command, Path.cwd())
    opened = Opened(
        lab=secrets.token_hex(3),
        minutes=minutes,
        false_gains=false_gains,
        ideas=ideas,
        baseline=Launch(command=side.command, folder=str(side.folder)),
        kind_of_workload=kind.value,
        nodes=nodes,
    )
    Ledger(lab).open_lab(opened, datetime.now(UTC))
    _show_status(context, lab)


def status(context: typer.Context, lab: LabOption = Path(), as_json: JsonOption = False) -> None:  # noqa: ARG001
    """Say what was asked, what was told, what is left, and what the next race may spend."""
    _show_status(context, lab)


def adopt(
    context: typer.Context,
    race: RaceArgument,
    minutes: MinutesOption = 10.0,
    by: ByOption = "",
    lab: LabOption = Path(),
    as_json: JsonOption = False,  # noqa: ARG001 - its callback tells the screen
    quiet: QuietOption = False,  # noqa: ARG001 - its callback tells the screen
    verbose: VerboseOption = False,  # noqa: ARG001 - its callback tells the screen
) -> None:  # fmt: skip
    """Verify a told gain again in fresh launches against today's baseline; where it holds, it is the baseline.

    Exit code 105 where it does not hold, or the time did not tell: then the baseline stays.
    """
    screen, ledger = screen_of(context), Ledger(lab)
    known = ledger.read()
    end, started = known.ended.get(race), known.started.get(race)
    if end is None or not end.is_told:
        why = "told no gain"
        if started is not None and started.purpose is not Purpose.IDEA:
            why = f"raced no idea of its own ({started.idea})"
        raise CommandFailed(
            Exit.USAGE,
            f"Race {race} {why}{f': {end.sentence}' if end else '.'}",
            "`advisor lab status` names the races that told a gain.",
        )
    if race in describe_lab(known).adopted:
        raise CommandFailed(
            Exit.USAGE, f"Race {race} is adopted already.", "`advisor lab status` says the rest."
        )
    answer = verify_race(ledger, race, Purpose.ADOPT, by or name_asker(), minutes, screen)
    _show(context, answer)
    _conclude(context, ledger, answer)


def resume(
    context: typer.Context,
    race: RaceArgument,
    lab: LabOption = Path(),
    as_json: JsonOption = False,  # noqa: ARG001 - its callback tells the screen
    quiet: QuietOption = False,  # noqa: ARG001 - its callback tells the screen
    verbose: VerboseOption = False,  # noqa: ARG001 - its callback tells the screen
) -> None:  # fmt: skip
    """Go on with a race that was started and has no end, because it was killed or the ledger's disk was full.

    It spends nothing more. One that was to adopt an idea adopts it where that is shown.
    """
    ledger = Ledger(lab)
    answer = resume_race(ledger, race, screen_of(context))
    _show(context, answer)
    if ledger.read().started[race].purpose is Purpose.ADOPT:
        _conclude(context, ledger, answer)


def report(
    context: typer.Context,
    measure: Annotated[
        bool, typer.Option("--measure", help="First race today's baseline against that of the start.")
    ] = False,
    minutes: MinutesOption = 10.0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write it to this file, as HTML where it ends in .html."),
    ] = None,
    by: ByOption = "",
    lab: LabOption = Path(),
    quiet: QuietOption = False,  # noqa: ARG001 - its callback tells the screen
) -> None:  # fmt: skip
    """Print the lab as a page in Markdown, or write it: promise, ideas, intervals, what was adopted and brought.

    advisor lab report -o lab.html
    """
    screen, ledger = screen_of(context), Ledger(lab)
    if measure:
        if not ledger.read().adopted:
            raise CommandFailed(
                Exit.USAGE,
                "Nothing was adopted, so that today's baseline is that of the start.",
                "Leave --measure out.",
            )
        verify_race(ledger, 0, Purpose.MEASURE, by or name_asker(), minutes, screen)
    known = ledger.read()
    if output is None:
        screen.print_text(render_report(known))
        return
    page = write_lab_page(known) if output.suffix in (".html", ".htm") else render_report(known)
    written = write_files({output.name: page.encode()}, output.parent)[0]
    screen.tell(f"Written: {written}")


def _conclude(context: typer.Context, ledger: Ledger, answer: RaceAnswer) -> None:
    """Make the idea that the answer verifies again the baseline where it is shown; say so."""
    screen, lab = screen_of(context), ledger.read()
    by = answer.lab.number if answer.lab else 0
    race = lab.started[lab.started[by].of]
    first = lab.ended[race.race].answer
    changed = name_changed(first.b, answer.b) if first else ""
    is_shown = is_confirmed(answer) and not changed
    if is_shown:
        adopted = Adopted(race=race.race, verified_by=by, baseline=race.b)
        ledger.append(datetime.now(UTC), lambda _: adopted)
        told = f"ADOPTED  race {race.race}: {race.idea}. Ideas are held against it from now on."
    elif changed:
        told = f"NOT      adopted: {changed} changed since race {race.race}. Race it as another idea."
    else:
        told = f"NOT      adopted: the gain of race {race.race} is not shown again. The baseline stays."
    if screen.json:
        screen.tell(told)
    else:
        screen.print_text(told)
    if not is_shown:
        raise typer.Exit(Exit.NOT_SHOWN)


def _show(context: typer.Context, answer: RaceAnswer) -> None:
    screen = screen_of(context)
    if screen.json:
        screen.print_json(answer)
    else:
        screen.print_text("\n".join(describe(answer)))


def _show_status(context: typer.Context, folder: Path) -> None:
    screen, lab = screen_of(context), Ledger(folder).read()
    if screen.json:
        screen.print_json(describe_lab(lab))
    else:
        screen.print_text(render_status(lab))
