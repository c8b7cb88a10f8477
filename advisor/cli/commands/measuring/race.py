"""`advisor race`: which of two launch commands trains faster, with an interval and what it costs in loss."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advisor.cli.exits import CommandFailed, Exit, exit_of_state
from advisor.cli.moments import read_minutes
from advisor.cli.options import JsonOption, QuietOption, VerboseOption, screen_of
from advisor.cli.tuning.job_options import TuneOptions
from advisor.cli.tuning.job_spec import WantedJob, spec_from_options
from advisor.cli.tuning.tune_anywhere import tune_anywhere
from advisor.protocol.answers.advice import Advice, Interval, Verdict
from advisor.protocol.asked.jobs import Job, JobState
from advisor.protocol.base import Message
from advisor.protocol.gains import describe_ratio
from advisor.protocol.kinds import Allow, Effect
from advisor.protocol.training.own_knob_texts import read_commands
from advisor.protocol.training.own_knobs import split_variables
from advisor.protocol.training.workload import SAMPLES_PER_S, WorkloadKind

if TYPE_CHECKING:  # It loads while server and agents start.
    from advisor.client import Client


class CommandRace(Message):
    """What a race of two commands found."""

    job_id: str
    verdict: Verdict
    """Change: B is faster. Keep: it is not, by more than the smallest gain asked for. Undecided: the time did not
    tell."""
    gain: Interval | None
    """B's throughput over A's."""
    a_samples_per_s: float
    b_samples_per_s: float | None
    rate_unit: str = SAMPLES_PER_S
    """What these two count a second: `steps/s` where the runtime finds no samples to count."""
    headline: str
    device_hours: float


def race(
    context: typer.Context,
    commands: Annotated[
        list[str],
        typer.Argument(metavar="'COMMAND A' 'COMMAND B'", help="Two launch commands, each quoted as one word."),
    ],
    minutes: Annotated[
        float, typer.Option(parser=read_minutes, metavar="MINUTES", help="Most minutes to measure.")
    ] = 10.0,
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
    testbed: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Measure on shaped nodes made here; needs root.")
    ] = None,
    as_json: JsonOption = False,  # noqa: ARG001 - its callback tells the screen
    quiet: QuietOption = False,  # noqa: ARG001 - its callback tells the screen
    verbose: VerboseOption = False,  # noqa: ARG001 - its callback tells the screen
) -> None:  # fmt: skip
    """Say which of two launch commands trains faster: two engines, two scripts, two configurations.

    They are launched in turns, in random order, and compared in samples per second with the statistics of tuning.

    advisor race 'torchrun --nproc-per-node 2 ddp.py' 'torchrun --nproc-per-node 2 fsdp.py'
    """
    screen = screen_of(context)
    if len(commands) != 2:
        raise CommandFailed(
            Exit.USAGE,
            f"A race has two commands, and {len(commands)} were given.",
            "Quote each as one word: advisor race 'torchrun a.py' 'torchrun b.py'. Of more than two: advisor tune "
            "--variant 'one: …' --variant 'two: …' -- COMMAND",
        )
    own = read_commands(commands, effect)
    options = TuneOptions(
        name="race",
        minutes=minutes,
        allow=Allow(effect.value),
        nodes=nodes if testbed is None else None,
        testbed=testbed,
        kind=kind,
        min_gain=min_gain,
        from_checkpoint=effect is Effect.CONVERGENCE,
    )
    held = {"workload": {"own": [own]}, "verify": {own["name"]: "B"}}
    # The knob's values hold each command with the variables in front of it: those of A are not B's.
    _, words = split_variables(shlex.split(commands[0]))
    spec = spec_from_options(words, options, Path.cwd(), held)

    def finish(client: "Client", job: Job) -> None:
        if job.state is not JobState.FINISHED:
            raise CommandFailed(
                exit_of_state(job.state), f"Job {job.id} {job.state.predicate}: {job.state_reason}"
            )
        found = judge(client.advice(job.id))
        if screen.json:
            screen.print_json(found)
        else:
            screen.print_text("\n".join(describe(found, commands)))

    tune_anywhere(WantedJob(spec, new=True), None, finish, os.environ, screen)


def judge(advice: Advice) -> CommandRace:
    """Return what the advice of such a job says of its two commands."""
    gain = advice.gain
    return CommandRace(
        job_id=advice.job_id,
        verdict=advice.verdict,
        gain=gain,
        a_samples_per_s=advice.baseline_samples_per_s,
        b_samples_per_s=advice.baseline_samples_per_s * gain.ratio if gain else None,
        rate_unit=advice.rate_unit,
        headline=advice.headline,
        device_hours=advice.cost.device_hours,
    )


def describe(found: CommandRace, commands: list[str]) -> list[str]:
    """Return the lines that people read."""
    rates = (found.a_samples_per_s, found.b_samples_per_s)
    lines = [f"RESULT   {_say_answer(found)}"]
    for name, command, rate in zip("AB", commands, rates, strict=True):
        told = f"{rate:,.0f} {found.rate_unit}" if rate is not None else "not measured"
        lines.append(f"{name}        {told:>18}   {command}")
    lines.append(f"COST     {found.device_hours:.2f} device-hours")
    lines.append(f"MORE     advisor advice {found.job_id} -v   every launch, and the losses")
    return lines


def _say_answer(found: CommandRace) -> str:
    if found.gain is None:
        return found.headline
    ratio = describe_ratio(found.gain.ratio, found.gain.low, found.gain.high)
    if found.verdict is Verdict.CHANGE:
        return f"B is faster than A: {ratio}"
    if found.gain.high < 1.0:
        return f"A is faster; of B against A: {ratio}"
    if found.verdict is Verdict.KEEP:
        return f"B is not worth a change against A: {ratio}. {found.headline}"
    return f"not decided, of B against A: {ratio}. {found.headline}"
