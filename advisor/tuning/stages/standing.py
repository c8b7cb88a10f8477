"""The strategy that is best so far, with the interval that the next decision stands on: what screens tell meanwhile."""

import math

from advisor.protocol.measured.trials import Purpose, Trial
from advisor.protocol.standing import SoFar, Standing
from advisor.tuning.history.launches import believe_luck
from advisor.tuning.search.state import SURELY, SearchState
from advisor.tuning.stages.confirmation import confirm, find_confirmed


def find_standing(state: SearchState) -> Standing | None:
    """Return the strategy that is being confirmed, once it raced; before that the search's choice.

    None where no measured strategy is expected to beat the baseline, and where the planner has no time to believe.
    """
    record = state.record
    winner = find_confirmed(record)
    if winner is not None:
        trial = record.find_trial(Purpose.CONFIRM, winner.changes)
        verdict = confirm(record, winner.changes, forced=False)
        if trial is None or verdict.look is None:
            return None
        look, races = verdict.look, len(verdict.comparisons)
        return _stand(trial, (look.mean, look.low, look.high), races, len(verdict.launches))
    if record.quick:
        return None
    leader = state.recommendation.chosen
    trial = next((t for t in state.allowed if leader.changes and t.changes == leader.changes), None)
    if trial is None:
        return None
    off = SURELY * math.hypot(leader.sd, believe_luck(record, leader.changes).spread)
    launches = len({block.session_id for block in record.usable_by_trial.get(trial.number, ())})
    spread = (leader.mean, leader.mean - off, leader.mean + off)
    return _stand(trial, spread, leader.measurements, launches, leader.best)


def _stand(
    trial: Trial, gain: tuple[float, float, float], races: int, launches: int, chance: float | None = None
) -> Standing:
    ratio, low, high = map(math.exp, gain)
    found = SoFar(ratio=ratio, low=low, high=high, races=races, launches=launches)
    return Standing(trial_number=trial.number, gain=found, chance=chance)
