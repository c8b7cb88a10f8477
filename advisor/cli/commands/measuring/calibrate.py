"""`advisor calibrate`: a race of a command against itself, which says how small a difference this machine can tell."""

import math
import shlex
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from advisor.cli.exits import Exit
from advisor.cli.options import JsonOption, MinutesOption, QuietOption, VerboseOption, screen_of
from advisor.cli.tuning.job_spec import WantedJob
from advisor.cli.tuning.race_job import AskedRace, run_race
from advisor.cli.tuning.two_sides import Side
from advisor.protocol.answers.raced import Gain, RaceAnswer
from advisor.protocol.base import Message
from advisor.protocol.gains import spell_fraction, spell_range
from advisor.protocol.kinds import Effect
from advisor.protocol.training.workload import WorkloadKind

_SURE = (1.959964 + 0.841621) / 1.959964
"""A difference of so many half-widths is found with 80 % probability (normal quantiles of 97.5 % and 80 %)."""
_PASSES = (1.959964 + 1.281552) / 1.959964
"""With so many half-widths of room, equal commands pass a gate with 90 % probability."""
_LONGER = (2, 4, 16)


class Calibration(Message):
    """How small a difference can be told here."""

    job_id: str
    minutes: float
    """Most minutes that were to be measured."""
    gain: Gain | None
    """Of the command over itself; None where nothing was measured."""
    half_width: float | None = None
    """Half of the 95 % interval, as a fraction of the throughput."""
    tells: float | None = None
    """Smallest difference that so many minutes find with 80 % probability."""
    fail_below: float | None = None
    """Largest ratio to ask for that equal commands reach with 90 % probability."""
    longer: dict[str, float] = Field(default_factory=dict)
    """What more minutes would tell, if launches went on to differ as these did: by the root of the time."""
    is_biased: bool = False
    """Whether the interval leaves out 1, which it does in one of twenty calibrations, or where something is wrong."""


def calibrate(
    context: typer.Context,
    command: Annotated[
        list[str], typer.Argument(metavar="[--] COMMAND…", help="A launch command, exactly as you type it.")
    ],
    minutes: MinutesOption = 5.0,
    nodes: Annotated[int, typer.Option(min=1, help="Machines that train together.")] = 1,
    kind: Annotated[WorkloadKind, typer.Option(help="How it is started and measured.")] = WorkloadKind.PYTORCH,
    as_json: JsonOption = False,  # noqa: ARG001 - its callback tells the screen
    quiet: QuietOption = False,  # noqa: ARG001 - its callback tells the screen
    verbose: VerboseOption = False,  # noqa: ARG001 - its callback tells the screen
) -> None:  # fmt: skip
    """Say how small a difference this machine can tell: the command races itself, by the rules of every race.

    advisor calibrate --minutes 5 -- torchrun --nproc-per-node 2 train.py
    """
    screen = screen_of(context)
    side = Side.read(shlex.join(command), Path.cwd())
    asked = AskedRace(side, side, Effect.EXACT, minutes, 0.0, nodes, kind, name="calibrate")
    answers: list[RaceAnswer] = []
    run_race(WantedJob(asked.build_spec(), new=True), answers.append, screen)
    found = judge(answers[0], minutes)
    if screen.json:
        screen.print_json(found)
    else:
        screen.print_text("\n".join(describe(found, answers[0].because)))
    if found.tells is None:
        raise typer.Exit(Exit.NOT_SHOWN)


def judge(answer: RaceAnswer, minutes: float) -> Calibration:
    """Return what a race of a command against itself says of the machine."""
    gain = answer.gain
    if gain is None or gain.low <= 0.0:
        return Calibration(job_id=answer.job_id, minutes=minutes, gain=gain)
    half = math.log(gain.high / gain.low) / 2.0
    return Calibration(
        job_id=answer.job_id,
        minutes=minutes,
        gain=gain,
        half_width=math.expm1(half),
        tells=math.expm1(_SURE * half),
        fail_below=math.floor(math.exp(-_PASSES * half) * 1000.0) / 1000.0,
        longer={f"{minutes * times:g}": math.expm1(_SURE * half / math.sqrt(times)) for times in _LONGER},
        is_biased=not gain.low <= 1.0 <= gain.high,
    )


def describe(found: Calibration, because: str = "") -> list[str]:
    """Return the lines that people read."""
    if found.gain is None or found.tells is None or found.half_width is None or found.fail_below is None:
        return [f"RESULT   This machine told nothing in {found.minutes:g} minutes. {because}"]
    span = spell_range(found.gain.likely, found.gain.low, found.gain.high)
    longer = ", ".join(f"{spell_fraction(tells)} in {minutes}" for minutes, tells in found.longer.items())
    lines = [
        f"RESULT   This machine can tell {spell_fraction(found.tells)} in {found.minutes:g} "
        f"minute{'s' if found.minutes != 1 else ''}",
        f"SEEN     the command against itself: 95 % CI {span}, ± {spell_fraction(found.half_width)}, in "
        f"{found.gain.launches} launches",
        f"LONGER   {longer} minutes, if its launches go on to differ as these did",
        f"GATE     --fail-below {found.fail_below:g} lets equal commands pass nine times in ten",
    ]
    if found.is_biased:
        lines.append(
            "CAREFUL  the interval leaves out 1 although both were the same, as one calibration in twenty does: run it "
            "again, and gate nothing on this machine where that happens more often"
        )
    return lines
