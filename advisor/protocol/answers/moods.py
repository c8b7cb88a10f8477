"""The moods of a script as it stands: levels of speed that it jumps between, what makes them, and what ends them."""

from datetime import datetime
from enum import StrEnum

from advisor.protocol.base import Message
from advisor.protocol.gains import Quality, judge_quality, spell_likely
from advisor.protocol.measured.results import Phases

PIN = "OMP_NUM_THREADS, OMP_PROC_BIND=close, numactl or taskset"
"""What pins threads and cores: where they come to lie is then no matter of chance."""


class MoodCause(StrEnum):
    """What makes a mood slow."""

    THREADS = "threads"
    """The ranks of a node have more threads than it has cores."""
    OTHERS = "others"
    """Other processes take much of the machine."""
    PART = "part"
    """One part of the step takes most of what it is longer; why is not known."""
    UNKNOWN = "unknown"


class MoodGain(Message):
    """What the candidate (`Advice.candidate`) brings in one mood: a throughput ratio with its 95 % interval."""

    ratio: float
    low: float
    high: float
    is_confirmed: bool
    """Whether launches of the verdict met the mood; otherwise it is of the search's races."""


class MoodSpan(Message):
    """A stretch of one launch in which the baseline was in a mood."""

    session_id: str
    began_at: datetime
    ended_at: datetime
    samples_per_s: float
    """Mean rate of the baseline's turns in it."""


class Mood(Message):
    """One level of the baseline's speed."""

    samples_per_s: float
    """Mean rate over its time."""
    low: float
    """Rate of its slowest stretch in one launch, in samples per second."""
    high: float
    """Rate of its fastest stretch."""
    share: float
    """Share of the time in which the job measured the baseline, 0 to 1."""
    spans: tuple[MoodSpan, ...]
    """When, in order."""
    phases: Phases = Phases()
    """The account of a step, in seconds, of the races that were in it for most of their time; zeros without any."""
    longest_step_s: float
    """Longest step in it, in seconds."""
    gain: MoodGain | None = None
    """What the candidate brings in it; None where that was not measured."""


class Moods(Message):
    """Two levels between which the script as it stands jumps, with the same settings."""

    slow: Mood
    fast: Mood
    rate_unit: str = "samples/s"
    is_within_launch: bool
    """Whether one launch was in both; else each launch kept to one."""
    cause: MoodCause
    cause_told: str = ""
    """The cause in a clause: `the ranks' threads fight for the cores (2 × 2 threads on 2)`. Empty: not known."""
    remedy: str = ""
    """What ends the slow mood, as it is set: `OMP_NUM_THREADS=1`, or a setting in words. Empty: not known."""
    remedy_races: int = 0
    """Races with it; 0 where the remedy is likely, and not shown."""
    remedy_slow: int = 0
    """Those of them that were slow all the same: one in ten at most."""

    @property
    def samples_per_s(self) -> float:
        """Mean rate over the time of both."""
        return self.slow.share * self.slow.samples_per_s + self.fast.share * self.fast.samples_per_s

    @property
    def is_remedy_shown(self) -> bool:
        """Whether measurements show that the remedy ends the slow mood."""
        return self.remedy_races > 0


def say_moods(moods: Moods | None) -> str:
    """Return the first sentences after the result, for every screen; empty where there are no moods.

    `Your settings run at 20–113 and at 216–277 samples/s in one launch: the ranks' threads fight for the cores;
    OMP_NUM_THREADS=1 ends it. In the fast mood it brings 1.3x, in the slow one 4.1x.`
    """
    if moods is None:
        return ""
    where = "in one launch" if moods.is_within_launch else "from launch to launch"
    told = f"Your settings run at {_spell(moods.slow)} and at {_spell(moods.fast)} {moods.rate_unit} {where}"
    if moods.cause_told:
        told += f": {moods.cause_told}"
    if moods.is_remedy_shown:
        slow = moods.remedy_slow or "none"
        told += f"; {moods.remedy} ends it (with it slow in {slow} of {moods.remedy_races} races)"
    elif moods.remedy:
        told += f"; {moods.remedy} is likely to end it"
    elif moods.cause is MoodCause.OTHERS:
        told += "; tune where nothing else runs"
    else:
        told += f"; pinning threads and cores may end it ({PIN})"
    return f"{told}.{_say_gains(moods)}"


def _spell(mood: Mood) -> str:
    low, high = (f"{r:,.0f}".replace(",", " ") if r >= 100 else f"{r:.3g}" for r in (mood.low, mood.high))
    return low if low == high else f"{low}–{high}"


def _say_gains(moods: Moods) -> str:
    sides = (("fast mood", moods.fast.gain), ("slow one", moods.slow.gain))
    if all(gain is None for _, gain in sides):
        return ""
    told = ", ".join(f"in the {which} {_say_gain(gain)}" for which, gain in sides)
    return f" {told[:1].upper()}{told[1:]}."


def _say_gain(gain: MoodGain | None) -> str:
    if gain is None:
        return "it was not measured"
    if judge_quality(gain.low, gain.high) is Quality.UNKNOWN:
        return "what it brings is not known"
    where = "" if gain.is_confirmed else " (by the search's races)"
    return f"it brings {spell_likely(gain.ratio, gain.low, gain.high)}{where}"
