"""Why nothing was decided: the one function that answers, most fundamental reason first.

The script failed; it is too short; nothing could be measured; the machine is too noisy; the budget was too small.
"""

from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, stdev

from advisor.protocol.gains import spell_share
from advisor.protocol.measured.trials import Outcome
from advisor.protocol.training.launch_command import Command
from advisor.protocol.training.workload import WorkloadKind
from advisor.tuning.history.breakoffs import (
    ScriptFailure,
    find_script_failure,
    list_break_offs,
    may_end_there,
)
from advisor.tuning.history.comparisons import log_rate
from advisor.tuning.history.mood_causes import find_moods
from advisor.tuning.history.record import Record
from advisor.tuning.stages.turns import count_steps_needed

_NOISY = 0.1
"""Spread of the baseline from launch to launch from which it hides the gains that are usual."""
_HOW = {
    Outcome.OUT_OF_MEMORY: "runs out of memory",
    Outcome.HUNG: "hangs",
    Outcome.LOST: "is killed",
}
_REMEDY = {
    Outcome.OUT_OF_MEMORY: "Lower its batch size, or start it with `advisor run --set micro_batches=2 -- …`, which "
    "computes each batch in parts and makes more of them where memory is short.",
    Outcome.HUNG: "If a step may take that long, raise hang_timeout_s.",
}
_BY_HAND = "Run its command by hand to see the same, and mend it first."
_MISMATCH = "collective mismatch"
"""What gloo asks about in its own error."""
_UNPAIRED = (
    "Some rank makes a collective that another one does not make: look for a model, a branch or a batch that only some "
    "ranks train. By hand it need not fail as soon: exchanges of equal size pair up wrongly in silence, and the sizes "
    "differ where buckets or formats were varied."
)


class Why(StrEnum):
    """What stands in the way of a verdict, most fundamental first."""

    SCRIPT_FAILS = "script_fails"
    TOO_SHORT = "too_short"
    UNMEASURED = "unmeasured"
    NOISY = "noisy"
    BUDGET = "budget"

    @property
    def is_scripts(self) -> bool:
        """Whether only a change of the script helps, and no further budget."""
        return self in {Why.SCRIPT_FAILS, Why.TOO_SHORT}


@dataclass(frozen=True)
class Reason:
    """Why nothing was decided."""

    why: Why
    sentence: str
    """With figures, place and remedy; empty where the budget alone is the reason."""


def find_reason(record: Record) -> Reason:
    """Return why nothing was decided."""
    if (failure := find_script_failure(record)) is not None:
        return Reason(Why.SCRIPT_FAILS, say_failure(record, failure))
    if sentence := _say_unclear(record):
        return Reason(Why.SCRIPT_FAILS, sentence)
    if sentence := say_too_short(record):
        return Reason(Why.TOO_SHORT, sentence)
    if not record.baseline_blocks:
        return Reason(Why.UNMEASURED, _say_unmeasured(record))
    if (moods := find_moods(record)) is not None:
        told = f"{moods.slow.samples_per_s:.3g} or {moods.fast.samples_per_s:.3g} {moods.rate_unit}"
        return Reason(
            Why.NOISY, f"Your settings run at {told}, with nothing changed: end that first, then tune again."
        )
    noise = measure_launch_noise(record)
    if noise is not None and noise >= _NOISY:
        sentence = (
            f"The machine is too noisy: the baseline alone varied by {spell_share(noise)} from launch to launch; "
            "tune where nothing else runs, or give the job more time."
        )
        return Reason(Why.NOISY, sentence)
    return Reason(Why.BUDGET, "")


def say_failure(record: Record, failure: ScriptFailure) -> str:
    """Return what fails by itself, after how many steps, where, and what to do."""
    last, count = failure.last, len(failure.launches)
    how = _HOW.get(last.session.outcome or Outcome.CRASHED, "fails")
    steps = sorted({launch.steps for launch in failure.launches if launch.steps})
    step = f" after {' to '.join(map(str, dict.fromkeys((steps[0], steps[-1]))))} steps" if steps else ""
    bare = all(not launch.in_force for launch in failure.launches)
    what = "as it stands, without any change" if bare else "whatever settings are in force"
    launches = f"{count} of {len(record.sessions)} launches" if count > 1 else "in one launch"
    reason = last.session.reason or "No reason was recorded."
    remedy = _REMEDY.get(last.session.outcome or Outcome.CRASHED, "")
    remedy = "" if remedy and remedy.split()[-1].rstrip(".") in reason else remedy
    restarts = "" if last.session.outcome is Outcome.HUNG else _say_restarts(record)
    parts = [
        f"The script itself {how}{step}, {what} ({launches}).",
        reason,
        remedy,
        restarts,
        _conclude(reason),
    ]
    return " ".join(filter(None, parts))


def _conclude(reason: str) -> str:
    return _UNPAIRED if _MISMATCH in reason else _BY_HAND


def _say_restarts(record: Record) -> str:
    """That torchrun's restarts are not in force, where the command asks for some."""
    workload = record.job.spec.workload
    if workload.kind is not WorkloadKind.PYTORCH:
        return ""
    launch = Command.read(workload.command).launch
    typed = next(
        (words for words in (launch.replaced if launch else ()) if "max" in words and "restarts" in words), ""
    )
    return f"Its {typed} is not in force in trials: there a rank that dies ends its launch." if typed else ""


def _say_unclear(record: Record) -> str:
    """A launch that broke off further on than any other got, with no time left to see whether it does so by itself."""
    found = list_break_offs(record)
    if not found or not may_end_there(record.history, found[-1].session):
        return ""
    last = found[-1]
    return (
        f"A launch broke off after {last.steps} steps, further than any other got, and no time was left to see "
        f"whether the script does so by itself. {last.session.reason} {_conclude(last.session.reason)}"
    )


def is_too_short(record: Record) -> bool:
    """Whether the script was seen to end before two arms can take turns; where each has its launch it may be short."""
    capacity = record.capacity_steps
    return capacity is not None and not record.switches_at_launch and capacity < count_steps_needed(record)


def say_too_short(record: Record) -> str:
    """Return that the script ends before anything can be compared; empty where it does not."""
    capacity, needed = record.capacity_steps, count_steps_needed(record)
    if capacity is None or (record.probe is not None and not is_too_short(record)):
        return ""
    return (
        f"The script makes only {capacity} steps before it ends, and to hold one strategy against your settings takes "
        f"at least {needed} in one launch. Raise its steps or epochs, or give it a larger data set."
    )


def _say_unmeasured(record: Record) -> str:
    reasons = [session.reason for session in record.sessions if session.reason]
    told = f" {reasons[-1]}" if reasons else ""
    return (
        f"Not even the script as it stands was measured.{told} If all is well with it, give the job more time "
        "(--minutes), or tune where nothing else runs."
    )


def measure_launch_noise(record: Record) -> float | None:
    """Standard deviation of ln(the baseline's throughput) between launches; None below two."""
    rates: dict[str, list[float]] = {}
    for block in record.baseline_blocks:
        rates.setdefault(block.session_id, []).append(log_rate(block))
    return stdev(fmean(group) for group in rates.values()) if len(rates) > 1 else None
