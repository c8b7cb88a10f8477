"""`advisor verify`: the strategy against the script as it stands, today and here, for people and for CI."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advisor.cli.exits import CommandFailed, Exit, exit_of_state
from advisor.cli.moments import read_minutes
from advisor.cli.options import (
    FailBelowOption,
    JsonOption,
    JunitOption,
    QuietOption,
    SignForOption,
    SignOption,
    SummaryOption,
    VerboseOption,
    screen_of,
    sign_as_asked,
)
from advisor.cli.tuning.gate import Gate, conclude_gate
from advisor.cli.tuning.job_options import TuneOptions
from advisor.cli.tuning.job_spec import WantedJob, spec_from_options
from advisor.cli.tuning.tune_anywhere import tune_anywhere
from advisor.protocol.answers.advice import Advice, Interval, Verdict
from advisor.protocol.answers.carried import Carried, read_carried
from advisor.protocol.answers.strategy_file import choose_changes
from advisor.protocol.asked.jobs import Job, JobState
from advisor.protocol.base import Message, Value
from advisor.protocol.gains import spell_range
from advisor.protocol.kinds import Allow
from advisor.protocol.knobs.catalogue import join_own
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.training.workload import WorkloadKind

if TYPE_CHECKING:  # It loads while server and agents start.
    from advisor.client import Client


class Verification(Message):
    """What a verification found."""

    job_id: str
    changes: Changes
    """The strategy that was verified."""
    against: Changes = Changes()
    """The strategy that it was held against; empty for the script as it stands."""
    verdict: Verdict
    """Change: it is faster. Keep: it brings nothing worth a change. Undecided: the time did not tell."""
    headline: str
    gain: Interval | None
    """Its throughput over the script's own, today."""
    advised: Interval | None
    """The same as the strategy file tells it."""
    fail_below: float | None
    """The ratio that was asked for."""
    passed: bool | None
    """Whether it is reached; None where that is not shown either way, or without one."""


def verify(
    context: typer.Context,
    strategy: Annotated[
        Path | None,
        typer.Argument(help="The strategy.json of a tuning job, or any other exported file.", show_default=False),
    ] = None,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[--] COMMAND…", help="Your launch command, exactly as you type it."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KNOB=VALUE", help="A setting beside the file's; repeatable."),
    ] = None,
    leave: Annotated[
        list[str] | None, typer.Option(metavar="KNOB", help="Leave this knob as the script has it; repeatable.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False,
                     help="Hold it against this strategy or export instead of the script as it stands."),
    ] = None,
    minutes: Annotated[
        float, typer.Option(parser=read_minutes, metavar="MINUTES", help="Most minutes to measure.")
    ] = 5.0,
    fail_below: FailBelowOption = None,
    junit: JunitOption = None,
    summary: SummaryOption = None,
    nodes: Annotated[int, typer.Option(min=1, help="Machines that train together.")] = 1,
    testbed: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Measure on shaped nodes made here; needs root.")
    ] = None,
    from_checkpoint: Annotated[
        bool, typer.Option("--from-checkpoint", help="The command resumes a training in its middle.")
    ] = False,
    sign: SignOption = None,
    sign_for: SignForOption = "7d",  # type: ignore[assignment]
    as_json: JsonOption = False,  # noqa: ARG001 - its callback tells the screen
    quiet: QuietOption = False,  # noqa: ARG001 - its callback tells the screen
    verbose: VerboseOption = False,  # noqa: ARG001 - its callback tells the screen
) -> None:  # fmt: skip
    """Measure today what a strategy brings here: it races your script as it stands, with the statistics of tuning.

    Of an export that cannot carry the whole strategy, what it carries is measured. With --against, another strategy (or
    export) takes the script's place.

    advisor verify advisor-train/strategy.json --fail-below 1.05 -- torchrun --nproc-per-node 2 train.py
    """
    screen = screen_of(context)
    file, words = _read(strategy, command or [])
    try:
        own = [knob.model_copy(update={"baseline": None}) for knob in file.own] if file else []
        catalogue = join_own(own)
        changes = choose_changes(file.changes if file else {}, settings or (), leave or (), catalogue)
    except ValueError as error:
        raise CommandFailed(Exit.INVALID_SPEC, str(error), "`advisor knobs` lists the knobs.") from error
    rival = _read_rival(against) if against is not None else None
    if rival is not None:
        changes = relate(changes, rival.changes, {**rival.baseline, **(file.baseline if file else {})})
        if not changes:
            raise CommandFailed(Exit.USAGE, f"There is nothing to verify: {against} comes to the same.")
    if not changes:
        raise CommandFailed(
            Exit.USAGE,
            "There is nothing to verify: it changes nothing.",
            "Give a strategy.json whose verdict is change (or an export that carries some of it), or --set KNOB=VALUE.",
        )
    options = TuneOptions(
        name=f"verify {file.job_name or file.job_id}" if file else "verify",
        nodes=nodes if testbed is None else None,
        testbed=testbed,
        kind=WorkloadKind(file.kind) if file else None,
        allow=Allow(catalogue.effect_of({**(rival.changes if rival is not None else {}), **changes}).value),
        minutes=minutes,
        min_gain=None if fail_below is None else max(0.0, (fail_below - 1.0) * 100.0),
        from_checkpoint=from_checkpoint,
    )
    held = {
        "verify": dict(changes),
        "workload": {"own": own, "base": dict(rival.changes) if rival is not None else {}},
    }
    spec = sign_as_asked(spec_from_options(words, options, Path.cwd(), held), sign, sign_for)
    wanted = WantedJob(spec, new=False)

    def finish(client: "Client", job: Job) -> None:
        if job.state is not JobState.FINISHED:
            raise CommandFailed(
                exit_of_state(job.state), f"Job {job.id} {job.state.predicate}: {job.state_reason}"
            )
        found = judge(client.advice(job.id), file if rival is None else None, changes, fail_below)
        if rival is not None:
            found = found.model_copy(update={"against": rival.changes})
        if screen.json:
            screen.print_json(found)
        else:
            screen.print_text("\n".join(describe(found)))
        conclude_gate(_gate_of(found), describe(found), junit, summary)

    tune_anywhere(wanted, None, finish, os.environ, screen)


def _read(strategy: Path | None, command: list[str]) -> tuple[Carried | None, list[str]]:
    """The file and the command: without a file, the first word that was typed is the command's."""
    if strategy is None:
        raise CommandFailed(Exit.USAGE, "What is to be verified?", "advisor verify strategy.json -- COMMAND…")
    file = _read_file(strategy) if strategy.suffix == ".json" or strategy.is_file() else None
    if file is None:
        return None, [str(strategy), *command]
    if not command:
        raise CommandFailed(Exit.USAGE, "The launch command is missing.", "Put it after --, as you type it.")
    return file, command


def _read_rival(path: Path) -> Carried:
    rival = _read_file(path)
    if rival is None:
        raise CommandFailed(
            Exit.INVALID_SPEC,
            f"{path} does not say what it carries.",
            "Give a strategy.json, or export the file anew.",
        )
    return rival


def _read_file(path: Path) -> Carried | None:
    """What a file carries; None where it is none of ours (a program of the command)."""
    try:
        return read_carried(path.read_text())
    except UnicodeDecodeError:
        return None
    except (OSError, ValueError) as error:
        raise CommandFailed(
            Exit.INVALID_SPEC, f"{path} cannot be read as a strategy file: {error}"
        ) from error


def relate(changes: Changes, rival: Changes, own: Mapping[str, Value]) -> Changes:
    """Return what has to be set beside the rival's changes to come from them to `changes`; `own` are the script's."""
    wanted = {**{knob: own[knob] for knob in rival if knob in own}, **changes}
    return Changes({knob: value for knob, value in wanted.items() if rival.get(knob, own.get(knob)) != value})


def judge(advice: Advice, file: Carried | None, changes: Changes, fail_below: float | None) -> Verification:
    """Return what was found, held against what was asked for and what was advised."""
    found = Verification(
        job_id=advice.job_id,
        changes=changes,
        verdict=advice.verdict,
        headline=advice.headline,
        gain=advice.gain,
        advised=file.gain if file and changes == file.changes else None,
        fail_below=fail_below,
        passed=None,
    )
    return found.model_copy(update={"passed": _gate_of(found).passed})


def _gate_of(found: Verification) -> Gate:
    gain = (found.gain.low, found.gain.ratio, found.gain.high) if found.gain else None
    return Gate(found.changes.describe(), found.headline, gain, found.fail_below)


def describe(found: Verification) -> list[str]:
    """Return the lines that people read."""
    lines = [f"TODAY    {found.headline}"]
    if found.against:
        lines.append(f"AGAINST  {found.against.describe()}")
    if found.advised is not None:
        told, gain = found.advised, found.gain
        lines.append(f"ADVISED  {spell_range(told.ratio, told.low, told.high)}")
        if gain is not None and not (gain.low <= told.high and told.low <= gain.high):
            lines[-1] += ", which today's interval does not reach: tune anew"
    if found.fail_below is not None:
        words = {True: "passed", False: "FAILED", None: "NOT SHOWN"}[found.passed]
        lines.append(f"CI       {words}: at least {found.fail_below:g}x was asked for")
    return lines
