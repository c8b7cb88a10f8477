"""The trimming: which settings carry the gain of the search's winner, so that the verdict can stand on no more.

The *core* is the smallest part of a strategy that is expected to hold all of its gain but `min_gain`, by an additive
model over all races of the job (`shares.py`). The winner, its core, and the core without groups of settings that are
open race each other with time that the verdict does not need; where every strategy costs a launch, what the search saw
has to do. What is advised, the verdict's own launches decide (`parts.py`).
"""

from dataclasses import replace

from advisor.protocol.asked.jobs import Stage
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Purpose, Session
from advisor.tuning.decisions import Candidate, Race
from advisor.tuning.history.budget import limit_search_s
from advisor.tuning.history.record import Record
from advisor.tuning.search.shares import Shares
from advisor.tuning.search.state import SearchState, choose_winner
from advisor.tuning.space.composition import join_names
from advisor.tuning.space.reversion import take_back
from advisor.tuning.stages.turns import Turn, count_arms_that_fit, estimate_race_s, search_rules

_SURE = 0.95
"""Probability from which on another race is not worth its time."""
_MOST_ARMS = 5
"""Arms of a race, the winner included: more would make each one's turn rare."""
_MOST_RACES = 3
"""Races at most: each one parts the groups of settings that those before it left open."""


def choose_trimmed(state: SearchState) -> Candidate | None:
    """Return what goes into the verdict: the core of the search's winner; None without a winner."""
    winner = choose_winner(state)
    if winner is None or len(winner.changes) < 2:
        return winner
    core = Shares(state, winner.changes).find_core()
    if core == winner.changes:
        return winner
    because = f"{core.describe()}: what is expected to carry the gain of {winner.changes.describe()}."
    return Candidate(Purpose.CONFIRM, core, because)


def next_trimming(state: SearchState, winner: Candidate | None, live: Session | None) -> Turn | None:
    """Return the next race of the trimming; None when it is over, not needed, or the verdict needs the time."""
    record = state.record
    if winner is None or live is None or record.switches_at_launch or len(winner.changes) < 2:
        return None
    if record.has_launch_of_its_own(winner.changes) or _count_races(record, winner.changes) >= _MOST_RACES:
        return None
    arms = [Candidate(Purpose.REVERT, winner.changes, "The search's winner, to see what of it helps.")]
    for part in _choose_parts(Shares(state, winner.changes)):
        gone = [name for name in winner.changes if name not in part]
        because = f"The winner without {join_names(gone)}, to see what of the gain is left."
        arms.append(Candidate(Purpose.REVERT, part, because))
    left_s = limit_search_s(record) - record.spent_s
    rules = replace(search_rules(record, arms, 2.0 * max(left_s, 0.0)), give_up_ratio=None)
    line_up = tuple(arms[: count_arms_that_fit(record, rules)])
    if len(line_up) < 2 or estimate_race_s(record, line_up, rules) > left_s:
        return None
    because = f"Which of {join_names(winner.changes)} carry the gain."
    return Turn(Race(Stage.TRIM, because, line_up, rules, record.next_race))


def _choose_parts(shares: Shares) -> list[Changes]:
    """Return the parts whose race tells most: the core, and the core without each group of its open settings."""
    core, carriers = shares.find_core(), shares.carriers
    inside = shares.find_places(core)
    outside = frozenset(range(len(shares.units))) - inside
    chances = {place: carriers.chance_to_bring((place,), 0.0) for place in inside}
    doubtful = sorted((p for p in inside if chances[p] < _SURE), key=lambda p: chances[p])
    doubtful = doubtful if len(inside) > 1 else []
    is_open = bool(outside) and carriers.chance_to_bring(outside, shares.least) > 1.0 - _SURE
    parts: list[Changes | None] = [core] if outside and (is_open or doubtful) else []
    groups = min(_MOST_ARMS - 1 - len(parts), len(doubtful))
    for place in range(groups):
        gone = [name for unit in doubtful[place::groups] for name in shares.units[unit]]
        parts.append(take_back(shares.state.space.composer, core, gone))
    found = dict.fromkeys(part for part in parts if part)
    return [part for part in found if not shares.state.record.has_failed_anywhere(part)]


def _count_races(record: Record, winner: Changes) -> int:
    trial = record.find_trial(Purpose.REVERT, winner)
    return len({b.race for b in record.history.blocks if trial and b.trial_number == trial.number})
