"""Verdict and figures -> the headline, and the one line that says what to do: pure functions, no history.

Every case of an answer has its sentence here, so that command line, pages and exported files say the same.
"""

import math
from collections import Counter
from dataclasses import dataclass

from advisor.protocol.answers.advice import CONTINUE_S, Action, Interval, Verdict, continue_command
from advisor.protocol.gains import (
    End,
    Quality,
    say_smallest_gain,
    spell_gain,
    spell_likely,
    spell_range,
)
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes
from advisor.tuning.history.ended_search import Others

_KEEP = "Keep your settings:"
_LIKELY_Z = 0.84
"""Four chances in five, one-sided: what may be called probable."""
_INTERVAL_Z = 1.96


@dataclass(frozen=True)
class Grounds:
    """What an answer stands on."""

    job_id: str
    verdict: Verdict
    min_gain: float
    """Smallest gain worth a change, as a fraction."""
    changes: Changes = Changes()
    """Of the strategy that the interval belongs to, or that is verified; empty where none was chosen."""
    effect: Effect = Effect.EXACT
    """Its rung."""
    interval: Interval | None = None
    """Its confirmed gain; None where nothing was confirmed."""
    unproven: str = ""
    """A clause: why an interval above no gain proves none; empty where it does, or where it reaches no gain."""
    guard: str = ""
    """What the losses say about it, in sentences; empty for exact strategies."""
    is_verified: bool = True
    """Whether its loss was shown not to be worse; exact strategies are."""
    is_harmful: bool = False
    """Whether its loss was shown to be worse, or what a sample teaches less eats the gain up."""
    is_check: bool = False
    """The job only verified a given strategy."""
    no_knob: bool = False
    """No knob that the job allows can matter."""
    unrepeated: str = ""
    """A sentence: why no strategy can be certified, where that is the script's; empty elsewhere."""
    tried: int = 0
    """Strategies that the search measured."""
    searched: Interval | None = None
    """What the search measured of `nearest`, the best of strategies that are all surely slower; None elsewhere."""
    nearest: Changes = Changes()
    given_up: int = 0
    """Those of them that were given up because they were surely slower."""
    failed: tuple[str, ...] = ()
    """How those that failed did, each as in `crashed`."""
    others: Others | None = None
    """What the search saw of the strategies beside this one."""
    ended_by: str = "the budget ended"
    """A clause: what ended the job."""
    fallen: str = ""
    """A clause: the strategy that was to be confirmed, and how it failed."""
    none_promised: bool = False
    """The search ended with time left, because nothing that it tried looked faster."""
    reason: str = ""
    """A sentence: why nothing was decided; empty where only the budget is."""
    is_scripts: bool = False
    """Whether that is the script's, so that no further budget helps."""
    smallest_gain: float | None = None
    """Smallest gain that the budget could find with 80 % power, as a fraction."""
    more_s: float | None = None
    """Seconds of further budget that are likely to decide; None where that cannot be told."""
    load: str = ""
    """A sentence: that other processes took much of the machine meanwhile."""
    where: str = ""
    """What it was measured on, where that is no real cluster."""


@dataclass(frozen=True)
class Headline:
    """What is said, and what is to be done."""

    headline: str
    what_to_do: str
    """One line."""
    action: Action
    continue_s: float | None
    """With the action to continue: seconds that are worth trying."""


def say_headline(grounds: Grounds) -> Headline:
    """Return the headline with its figures and the one line that says what to do."""
    headline = _say_headline(grounds)
    if grounds.load and grounds.verdict is Verdict.UNDECIDED:
        headline += f" {grounds.load}"
    if grounds.where:
        headline += f" Measured on {grounds.where}."
    action = choose_action(grounds)
    continue_s = (grounds.more_s or CONTINUE_S) if action is Action.CONTINUE else None
    return Headline(headline, _say_what_to_do(grounds, action, continue_s), action, continue_s)


def choose_action(grounds: Grounds) -> Action:
    """Return what a reader of the answer should do."""
    if grounds.verdict is Verdict.CHANGE:
        return Action.USE
    # What failed is not tried again: a check has nothing else to go on with.
    if grounds.verdict is Verdict.KEEP or (grounds.is_check and grounds.failed and not grounds.is_scripts):
        return Action.KEEP
    if _is_faster_unverified(grounds):
        return Action.CHECK_ACCURACY
    return Action.MEND_SCRIPT if grounds.is_scripts else Action.CONTINUE


def _say_what_to_do(grounds: Grounds, action: Action, continue_s: float | None) -> str:
    if action is Action.USE:
        use = f"Use the strategy: `advisor export {grounds.job_id}` writes it for your framework."
        if grounds.is_verified:
            return use
        return f"{use} Compare the accuracy of one full training, because rounding changes."
    if action is Action.KEEP:
        return "Change nothing."
    if action is Action.CHECK_ACCURACY:
        return "Keep your settings until one full training with the strategy has reached the same accuracy."
    if action is Action.MEND_SCRIPT:
        return "Mend the script, then tune it again: more time would not decide."
    return f"Continue, nothing measured is lost: `{continue_command(grounds.job_id, continue_s)}`"


def _say_headline(grounds: Grounds) -> str:
    if grounds.verdict is Verdict.CHANGE:
        return _say_change(grounds)
    return _say_keep(grounds) if grounds.verdict is Verdict.KEEP else _say_undecided(grounds)


def _say_change(grounds: Grounds) -> str:
    if grounds.interval is None:
        return f"Use {grounds.changes.describe()}."
    told = grounds.interval.describe()
    told = f"{told[0].upper()}{told[1:]}" if "x faster" in told else f"Faster: {told}"
    sentence = f"{told} with {grounds.changes.describe()}."
    if not grounds.is_verified:
        sentence += " Rounding changes, and its effect on the accuracy is not verified."
    return sentence


def _say_keep(grounds: Grounds) -> str:
    interval = grounds.interval
    if grounds.no_knob and grounds.unrepeated:
        return f"{_KEEP} {grounds.unrepeated[0].lower()}{grounds.unrepeated[1:]}"
    if grounds.no_knob:
        return f"{_KEEP} no knob that the job allows can matter here; each was dropped with its reason."
    if interval is None and grounds.searched is not None:
        more = "is faster" if grounds.searched.high <= 1.0 else f"brings {grounds.min_gain * 100:g} %"
        best = f"The best, {grounds.nearest.describe()}: {_say_measured(grounds.searched)}, in the search."
        return f"{_KEEP} nothing that was tried {more}. {best}"
    if interval is None:
        return f"{_KEEP} {_say_slower(grounds)}"
    what = grounds.changes.describe()
    if interval.low > 1.0 and grounds.is_harmful:
        return f"{_KEEP} {what} is faster ({interval.describe()}) but not advised. {grounds.guard}".rstrip()
    found = "is not faster" if interval.high <= 1.0 else f"brings less than {grounds.min_gain * 100:g} %"
    if grounds.is_check:
        return f"{_KEEP} {what} {found}: {_say_measured(interval)}."
    told = f"{_KEEP} the strategy that looked best, {what}, {found}: {_say_measured(interval)}."
    return f"{told} {_say_others(grounds.others)}" if grounds.others else told


def _say_others(others: Others) -> str:
    """What the search, which confirms nothing, leaves open of the strategies that were not confirmed."""
    who, verb = (f"The {others.count} others", "were") if others.count > 1 else ("The other one", "was")
    if others.most <= 0.0:
        return f"{who} that the search measured {verb} slower."
    best, most = spell_gain(math.exp(others.best)), spell_gain(math.exp(others.most), End.HIGH)
    return (
        f"{who} that the search measured looked no better than {best}; gains up to {most} are not excluded."
    )


def _say_undecided(grounds: Grounds) -> str:
    if grounds.interval is None:
        return _say_unmeasured(grounds)
    told = _say_measured_so_far(grounds, grounds.interval)
    return f"{told} {grounds.reason}" if grounds.is_scripts and not _is_faster_unverified(grounds) else told


def _say_measured_so_far(grounds: Grounds, interval: Interval) -> str:
    what = grounds.changes.describe()
    if _is_faster_unverified(grounds):
        told = f"Faster, accuracy unverified: {interval.describe()} with {what}."
        return f"{told} {grounds.guard}".rstrip()
    if interval.low > 1.0 and interval.ratio < 1.0 + grounds.min_gain:
        return (
            f"Faster, but perhaps by less than the {grounds.min_gain * 100:g} % worth a change "
            f"({_say_measured(interval)}) with {what}."
        )
    if interval.ratio > 1.0 and _is_likely(interval):
        because = grounds.unproven or "the interval still reaches no gain"
        return f"Probably faster ({_say_measured(interval)}) with {what}, not proven yet: {because}."
    best = "" if grounds.is_check else ", the best that was tried"
    told = f"No difference shown yet ({_say_measured(interval)}) with {what}{best}."
    return f"{told} {say_smallest_gain(grounds.smallest_gain)}" if grounds.smallest_gain else told


def _say_unmeasured(grounds: Grounds) -> str:
    why = grounds.reason[:1].lower() + grounds.reason[1:]
    if grounds.is_scripts:
        return f"Not decided: {why}"
    if grounds.failed and len(grounds.failed) + grounds.given_up >= grounds.tried:
        return f"Not decided: {_say_failed(grounds)}"
    if grounds.given_up >= grounds.tried > 0:
        return f"Not decided: {_say_slower(grounds)[:-1]}, and {grounds.ended_by}."
    if grounds.fallen and not grounds.is_check:
        return f"Not decided: {grounds.fallen} when it was to be confirmed. {grounds.reason}".rstrip()
    if grounds.none_promised:
        tried = "the one strategy" if grounds.tried == 1 else f"none of the {grounds.tried} strategies"
        looked = "did not look" if grounds.tried == 1 else "looked"
        return (
            f"Not decided: {tried} tried {looked} faster than your settings, so there was nothing to confirm."
        )
    if why:
        return f"Not decided: {why}"
    if grounds.is_check:
        return f"Not decided: {grounds.ended_by} before {grounds.changes.describe()} was held against your settings."
    if not grounds.tried:
        return f"Not decided: {grounds.ended_by} before any strategy was measured."
    best = f" ({grounds.changes.describe()})" if grounds.changes else ""
    strategies = "strategy" if grounds.tried == 1 else f"best of {grounds.tried} strategies"
    return f"Not decided: {grounds.ended_by} before the {strategies}{best} was held against your settings."


def _say_failed(grounds: Grounds) -> str:
    """What became of strategies none of which can be held against the script; the log of each is with its trial."""
    if grounds.tried == 1:
        which = grounds.changes.describe() if grounds.changes else "the one strategy tried"
        return f"{which} {grounds.failed[0]}."
    ways = ", ".join(f"{count} {way}" for way, count in Counter(grounds.failed).most_common())
    slower = (
        f", {grounds.given_up} {'was' if grounds.given_up == 1 else 'were'} slower"
        if grounds.given_up
        else ""
    )
    return f"none of the {grounds.tried} strategies tried can be used: {ways}{slower}."


def _say_slower(grounds: Grounds) -> str:
    if grounds.tried == 1:
        return "the one strategy tried was slower."
    return f"all {grounds.tried} strategies tried were slower." if grounds.tried else "nothing was tried."


def _say_measured(interval: Interval) -> str:
    if interval.quality is not Quality.KNOWN:
        return interval.describe()
    figures = (interval.ratio, interval.low, interval.high)
    return f"{spell_likely(*figures)} measured, 95 % CI {spell_range(*figures)}"


def _is_faster_unverified(grounds: Grounds) -> bool:
    """Whether its losses alone stand in the way: those of a numeric strategy do only where they show harm."""
    interval = grounds.interval
    return (
        interval is not None
        and (grounds.effect is Effect.CONVERGENCE or grounds.is_harmful)
        and not grounds.is_verified
        and not grounds.unproven
        and interval.low > 1.0
        and interval.ratio >= 1.0 + grounds.min_gain
    )


def _is_likely(interval: Interval) -> bool:
    if interval.low <= 0.0:
        return False
    spread = math.log(interval.high / interval.low) / (2.0 * _INTERVAL_Z)
    return math.log(interval.ratio) >= _LIKELY_Z * spread
