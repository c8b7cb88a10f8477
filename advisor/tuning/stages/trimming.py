"""The trimming: knobs of the search's winner that are shown not to help go back to the baseline.

It comes before the confirmation, so that the strategy that is confirmed is the one that is advised, and takes only
time that the verdict does not need. The winner races itself without each of its knobs; what that measures is also the
evidence for each knob that stays. A knob goes back on evidence that it does not help, never for want of it. Where every
strategy costs a launch, the search's own evidence has to do.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

from advisor.protocol.asked.jobs import Stage
from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Purpose, Session, Trial
from advisor.tuning.decisions import Candidate, Race
from advisor.tuning.history.budget import limit_search_s
from advisor.tuning.history.comparisons import Comparison, list_comparisons
from advisor.tuning.history.record import Record
from advisor.tuning.history.scores import RACE_LUCK
from advisor.tuning.measure.slow_steps import settle
from advisor.tuning.measure.statistics import LogInterval
from advisor.tuning.measure.student_t import t_quantile
from advisor.tuning.search.state import SearchState, choose_winner
from advisor.tuning.space.composition import Composer, join_names
from advisor.tuning.space.reversion import Unit, list_units, take_back
from advisor.tuning.space.space import Space
from advisor.tuning.stages.turns import Turn, count_arms_that_fit, estimate_race_s, search_rules

NEGLIGIBLE = 0.005
"""A knob has to bring this much, in log units of throughput."""
_OF_LEAD = 0.03
"""The same as a share of the winner's whole lead, where that is more: of +140 %, what brings 3 % need not stay."""
_STILL_POSSIBLE = 0.25
"""Probability that a knob brings more than is negligible below which it goes back."""
_EXPECTED = 0.05
"""Standard deviation of what a knob of a winner brings before it was measured, in log units of throughput."""
_MOST_ARMS = 5
"""Arms of a race, the winner included: more would make each one's turn rare."""
_MOST_RACES = 2
"""Races for one knob: what two do not tell, a longer confirmation tells as well."""
_LEVEL = 0.05
"""Two-sided level of the intervals that are reported for single knobs."""


@dataclass(frozen=True)
class Removal:
    """The winner against itself without some knobs."""

    winner: Changes
    """Its changes."""
    without: Trial
    knobs: tuple[str, ...]
    """The knobs that went back to the baseline's value."""
    comparisons: tuple[Comparison, ...]
    """Races of the winner without the knobs against the winner with them."""
    brings: LogInterval | None
    """What the knobs bring: ln(rate with / without), with its 95 % interval; None where no race says."""
    is_taken_back: bool
    """Whether they are shown not to help."""
    negligible: float = NEGLIGIBLE
    """What they have to bring, in log units of throughput."""

    @property
    def is_open(self) -> bool:
        """Whether another race could still tell."""
        if self.is_taken_back or len(self.comparisons) >= _MOST_RACES:
            return False
        return self.brings is None or self.brings.low <= self.negligible <= self.brings.high


@dataclass(frozen=True)
class Trimming:
    """How the search's winner became the strategy that is confirmed."""

    winner: Changes
    """The strategy that goes into the confirmation."""
    because: str
    removals: tuple[Removal, ...] = ()


def trim(record: Record, space: Space, winner: Candidate | None) -> Trimming | None:
    """Return what the trimming has decided so far about the search's winner; None while there is none."""
    if winner is None:
        return None
    whole = record.find_trial(Purpose.REVERT, winner.changes)
    if whole is None:
        return Trimming(winner.changes, winner.because)
    negligible = max(NEGLIGIBLE, _OF_LEAD * _measure_lead(record, winner))
    removals = []
    for trial in record.trials_for(Purpose.REVERT):
        if trial.changes.items() < winner.changes.items():
            removals.append(_judge(record, winner.changes, trial, negligible))
    gone = {name for removal in removals if removal.is_taken_back for name in removal.knobs}
    left = winner.changes
    if gone:
        # Someone has to stay: of knobs that none is shown to help, the one that may bring most; also where what is
        # left has failed, or was given up as slow.
        smaller: Changes | None = take_back(space.composer, winner.changes, gone)
        spared = sorted((r for r in removals if r.is_taken_back), key=_promise)
        while spared and (smaller is None or record.has_failed_anywhere(smaller)):
            gone -= set(spared.pop(0).knobs)
            smaller = take_back(space.composer, winner.changes, gone) if gone else winner.changes
        left = smaller if smaller is not None else winner.changes
    if record.has_failed_anywhere(left):
        # What is left came to the script's own plan, or died, in the verdict: the winner as it was found goes there.
        left = winner.changes
    return Trimming(left, winner.because, tuple(removals))


def choose_trimmed(state: SearchState) -> Candidate | None:
    """Return what goes into the verdict: the search's winner without what was shown not to help; None without one."""
    trimmed = trim(state.record, state.space, choose_winner(state))
    if trimmed is None:
        return None
    simpler = _find_simpler(state, trimmed.winner)
    if simpler is not None:
        because = (
            f"{simpler.describe()}: as fast as {trimmed.winner.describe()} in the search, with fewer changes."
        )
        return Candidate(Purpose.CONFIRM, simpler, because)
    return Candidate(Purpose.CONFIRM, trimmed.winner, trimmed.because)


def next_trimming(
    record: Record, space: Space, winner: Candidate | None, live: Session | None
) -> Turn | None:
    """Return the next race of the trimming; None when it is over, not needed, or the verdict needs the time."""
    state = trim(record, space, winner)
    if state is None or winner is None or live is None or record.switches_at_launch:
        return None
    if record.has_launch_of_its_own(winner.changes):
        return None
    units = list_units(space.composer, winner.changes)
    if len(units) < 2:
        return None
    judged = {removal.knobs: removal for removal in state.removals}
    arms: list[Candidate] = []
    for unit in units:
        found = _without(space.composer, winner.changes, unit)
        if found is None or record.has_failed_anywhere(found[0]):
            continue
        smaller, knobs = found
        if knobs in judged and not judged[knobs].is_open:
            continue
        because = (
            f"The winner without {join_names(knobs)}, to see whether {_it(knobs)} still help{_s(knobs)}."
        )
        arms.append(Candidate(Purpose.REVERT, smaller, because))
    if not arms:
        return None
    first = Candidate(
        Purpose.REVERT, winner.changes, "The search's winner, to see which of its knobs still help."
    )
    left_s = limit_search_s(record) - record.spent_s
    line_up = (first, *arms[: _MOST_ARMS - 1])
    rules = replace(search_rules(record, line_up, 2.0 * max(left_s, 0.0)), give_up_ratio=None)
    line_up = line_up[: count_arms_that_fit(record, rules)]
    if len(line_up) < 2 or estimate_race_s(record, line_up, rules) > left_s:
        return None
    names = join_names(name for arm in line_up[1:] for name in winner.changes if name not in arm.changes)
    return Turn(Race(Stage.SIMPLIFY, f"Whether {names} still help.", line_up, rules, record.next_race))


def units_of(space: Space | None, changes: Mapping[str, Value]) -> list[Unit]:
    """Return the knobs of a strategy in the groups that can go back on their own; one group of all when unknown."""
    if space is None or len(changes) < 2:
        return [tuple(changes)]
    return list_units(space.composer, changes)


def _find_simpler(state: SearchState, winner: Changes) -> Changes | None:
    """Return a part of the winner that the search saw to be as fast, where launches are too dear for a trimming."""
    if not state.record.switches_at_launch:
        return None
    seen = {t.changes: score.mean for t in state.allowed if (score := state.scores.of(t)) is not None}
    lead = seen.get(winner, 0.0)
    least = lead - max(NEGLIGIBLE, _OF_LEAD * lead)
    parts = [part for part, mean in seen.items() if part and part.items() < winner.items() and mean >= least]
    alive = [part for part in parts if not state.record.has_failed_anywhere(part)]
    return min(alive, key=lambda part: (len(part), -seen[part]), default=None)


def _without(
    composer: Composer, changes: Mapping[str, Value], unit: Unit
) -> tuple[Changes, tuple[str, ...]] | None:
    smaller = take_back(composer, changes, unit)
    if smaller is None or not smaller:
        return None
    return smaller, tuple(name for name in changes if name not in smaller)


def _measure_lead(record: Record, winner: Candidate) -> float:
    """What the search saw of the winner, in ln(throughput over the baseline's); 0 where it saw nothing."""
    found = list_comparisons(record, Purpose.SEARCH, winner.changes)
    return max((settle(c.contrast)[0] for c in found), default=0.0)


def _judge(record: Record, winner: Changes, trial: Trial, negligible: float) -> Removal:
    twins = {record.trial[number].changes for number in _list_twins(record, trial)}
    # The winner without them was the very same plan in force; or it was the same without others, which raced for both.
    taken = winner in twins
    raced = (trial.changes, *twins) if not taken else ()
    found = tuple(
        c for changes in raced for c in list_comparisons(record, Purpose.REVERT, changes, against=winner)
    )
    knobs = tuple(name for name in winner if name not in trial.changes)
    brings = _combine(found)
    if not taken and brings is not None and found:
        # An expectation of its own keeps one lucky short race from deciding.
        mean, error = brings.mean, _error_of(found)
        shrunk = _EXPECTED**2 / (_EXPECTED**2 + error**2)
        spread = math.sqrt(shrunk) * error
        possible = 1.0 - NormalDist(shrunk * mean, spread).cdf(negligible)
        taken = possible < _STILL_POSSIBLE
    return Removal(winner, trial, knobs, found, brings, taken, negligible)


def _list_twins(record: Record, trial: Trial) -> set[int]:
    """The numbers of the trials whose plan in force was this one's, so that they raced for it."""
    named = {b.result.same_as for b in record.history.blocks if b.trial_number == trial.number and b.result}
    return {b.trial_number for b in record.history.blocks if b.id in named}


def _error_of(found: tuple[Comparison, ...]) -> float:
    return 1.0 / math.sqrt(math.fsum(1.0 / (settle(c.contrast)[1] ** 2 + RACE_LUCK**2) for c in found))


def _combine(found: tuple[Comparison, ...]) -> LogInterval | None:
    """What the knobs bring: minus what taking them back brings; races are weighted by their precision."""
    if not found:
        return None
    settled = [settle(c.contrast) for c in found]
    weights = [1.0 / (error**2 + RACE_LUCK**2) for _, error in settled]
    total = math.fsum(weights)
    mean = -math.fsum(w * mean for w, (mean, _) in zip(weights, settled, strict=True)) / total
    freedom = max(1.0, math.fsum(c.contrast.freedom for c in found))
    half = t_quantile(1.0 - _LEVEL / 2.0, int(freedom)) / math.sqrt(total)
    cycles = sum(c.contrast.cycles for c in found)
    return LogInterval(mean=mean, low=mean - half, high=mean + half, rounds=cycles)


def _promise(removal: Removal) -> float:
    """The less the knobs may bring, the larger; those that are the same plan in force bring nothing at all."""
    return -removal.brings.high if removal.brings else math.inf


def _it(knobs: tuple[str, ...]) -> str:
    return "it" if len(knobs) == 1 else "they"


def _s(knobs: tuple[str, ...]) -> str:
    return "s" if len(knobs) == 1 else ""
