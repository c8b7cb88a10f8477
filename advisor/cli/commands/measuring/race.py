"""`advisor race`: which of two launch commands trains faster, with an interval and what it costs in loss."""

from pathlib import Path
from typing import Annotated

import typer

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.options import (
    IN_LAB,
    ByOption,
    FailBelowOption,
    JsonOption,
    JunitOption,
    MinutesOption,
    QuietOption,
    SummaryOption,
    VerboseOption,
    screen_of,
)
from advisor.cli.tuning.gate import Gate, conclude_gate
from advisor.cli.tuning.job_spec import WantedJob
from advisor.cli.tuning.lab_race import name_asker, race_idea
from advisor.cli.tuning.race_job import AskedRace, run_race
from advisor.cli.tuning.two_sides import Side, vary
from advisor.lab.report import say_next
from advisor.protocol.answers.raced import RaceAnswer
from advisor.protocol.gains import spell_share
from advisor.protocol.kinds import Effect
from advisor.protocol.states import Verdict
from advisor.protocol.training.workload import WorkloadKind

_OTHER_B = "One command in two environments"


def race(
    context: typer.Context,
    commands: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="'COMMAND A' ['COMMAND B']",
            help="Two launch commands, each quoted as one word. One, where B is the same elsewhere, or in a lab, whose "
            "baseline is A.",
        ),
    ] = None,
    minutes: MinutesOption = 10.0,
    effect: Annotated[
        Effect,
        typer.Option(
            help="What B changes besides the speed. exact: the same mathematics, so losses are not compared; numeric "
            "and convergence: it must not learn worse at equal samples."
        ),
    ] = Effect.CONVERGENCE,
    min_gain: Annotated[float, typer.Option(min=0.0, help="Smallest difference worth telling, in percent.")] = 1.0,
    nodes: Annotated[int, typer.Option(min=1, help="Machines that train together.")] = 1,
    kind: Annotated[WorkloadKind, typer.Option(help="How they are started and measured.")] = WorkloadKind.PYTORCH,
    fail_below: FailBelowOption = None,
    junit: JunitOption = None,
    summary: SummaryOption = None,
    testbed: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Measure on shaped nodes made here; needs root.")
    ] = None,
    python_b: Annotated[
        str | None,
        typer.Option(metavar="PYTHON", help="B runs under this interpreter.", rich_help_panel=_OTHER_B),
    ] = None,
    env_b: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="B has this variable; repeatable.", rich_help_panel=_OTHER_B),
    ] = None,
    worktree_b: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="B starts in this folder, such as another git worktree.", rich_help_panel=_OTHER_B
        ),
    ] = None,
    lab: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Hold B against the baseline of the lab of this folder.", rich_help_panel=IN_LAB
        ),
    ] = None,
    idea: Annotated[
        str, typer.Option(metavar="TEXT", help="What B tries, in words; a lab needs it.", rich_help_panel=IN_LAB)
    ] = "",
    by: ByOption = "",
    as_json: JsonOption = False,  # noqa: ARG001 - its callback tells the screen
    quiet: QuietOption = False,  # noqa: ARG001 - its callback tells the screen
    verbose: VerboseOption = False,  # noqa: ARG001 - its callback tells the screen
) -> None:  # fmt: skip
    """Say which of two launch commands trains faster: two engines, two scripts, two configurations.

    They are launched in turns, in random order, and compared in samples per second with the statistics of tuning.

    advisor race 'torchrun --nproc-per-node 2 ddp.py' 'torchrun --nproc-per-node 2 fsdp.py'
    """
    screen, here = screen_of(context), Path.cwd()
    typed, is_varied = list(commands or ()), any((python_b, env_b, worktree_b))
    if lab is not None:
        if len(typed) > 1 or not (typed or is_varied) or not idea:
            raise CommandFailed(
                Exit.USAGE,
                f"{len(typed)} commands and {'an' if idea else 'no'} idea were given: in a lab A is its baseline, and "
                "B is asked for with the idea in words.",
                "advisor race --lab . --idea 'larger buckets' 'COMMAND B'; or, where B is the baseline's own command "
                "elsewhere, --worktree-b, --env-b or --python-b in place of it.",
            )

        def vary_b(base: Side) -> Side:
            return vary(Side.read(typed[0], here) if typed else base, python_b, env_b or (), worktree_b)

        asker = by or name_asker()
        found = race_idea(lab, idea, asker, vary_b, effect, minutes, min_gain, screen)
    else:
        if len(typed) != (1 if is_varied and len(typed) < 2 else 2):
            raise CommandFailed(
                Exit.USAGE,
                f"A race has two commands, and {len(typed)} were given.",
                "Quote each as one word: advisor race 'torchrun a.py' 'torchrun b.py'. Of more than two: advisor tune "
                "--variant 'one: …' --variant 'two: …' -- COMMAND",
            )
        a = Side.read(typed[0], here)
        b = vary(Side.read(typed[-1], here), python_b, env_b or (), worktree_b)
        # What is to be held against a ratio is measured as exactly as the time allows, faster or not.
        least = min_gain if fail_below is None else max(0.0, (fail_below - 1.0) * 100.0)
        if a == b:
            screen.warn("A and B are the same: what is told apart here is this machine's luck.")
        asked = AskedRace(a, b, effect, minutes, least, nodes, kind, testbed)
        answers: list[RaceAnswer] = []
        run_race(WantedJob(asked.build_spec(), new=True), answers.append, screen)
        found = answers[0]
    if screen.json:
        screen.print_json(found)
    else:
        screen.print_text("\n".join(describe(found)))
    conclude_gate(_gate_of(found, fail_below), describe(found), junit, summary)


def _gate_of(found: RaceAnswer, fail_below: float | None) -> Gate:
    """Where samples of B are other work than A's, their rates hold nothing against each other."""
    gain = found.gain if found.is_like_for_like else None
    ends = (gain.low, gain.likely, gain.high) if gain else None
    return Gate("B against A", say_answer(found), ends, fail_below)


def describe(found: RaceAnswer) -> list[str]:
    """Return the lines that people read."""
    lines = [f"RESULT   {say_answer(found)}"]
    for name, side in (("A", found.a), ("B", found.b)):
        told = f"{side.rate:,.0f} {side.rate_unit}" if side.rate is not None else "not measured"
        lines.append(f"{name}        {told:>18}   {side.command}")
    lines += [f"DIFFERS  {difference.sentence}" for difference in found.differences]
    if found.lab is not None:
        spent = spell_share(found.lab.error, 2) if found.lab.error else "none"
        next_step = f" {say_next(found.lab.number)}" if found.lab.is_told else ""
        lines.append(
            f"LAB      race {found.lab.number}, error spent: {spent}. {found.lab.sentence}{next_step}"
        )
    lines.append(f"COST     {found.cost.device_hours:.2f} device-hours")
    lines.append(f"AGAIN    {found.verify_again}")
    lines.append(f"MORE     advisor advice {found.job_id} -v   every launch, and the losses")
    return lines


def say_answer(found: RaceAnswer) -> str:
    """Return the answer in a line or two."""
    if found.gain is None:
        return found.because
    ratio = found.describe_gain()
    if found.verdict is Verdict.CHANGE:
        return f"B is faster than A: {ratio}"
    if found.gain.high < 1.0:
        return f"A is faster; of B against A: {ratio}"
    if found.verdict is Verdict.KEEP:
        return f"B is not worth a change against A: {ratio}. {found.because}"
    return f"not decided, of B against A: {ratio}. {found.because}"
