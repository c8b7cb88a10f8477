"""The ladder: what the best strategies of other rungs bring is raced beside the verdict, in the same launches."""

from collections.abc import Collection

from advisor.protocol.asked.jobs import Stage
from advisor.protocol.kinds import Effect
from advisor.protocol.measured.trials import Purpose, Session, Trial
from advisor.tuning.decisions import BASELINE, Candidate, Race
from advisor.tuning.history.budget import Reserve
from advisor.tuning.history.comparisons import list_comparisons
from advisor.tuning.history.record import Record
from advisor.tuning.search.state import SearchState
from advisor.tuning.stages.turns import Turn, estimate_race_s, fits_behind, verdict_rules

_SHARE = 0.5
"""Length of the ladder's races over the verdict's: they inform, and the verdict does not stand on them."""
_LAUNCHES = 2
"""Launches in which a rung beside the verdict is raced."""


def race_rung(
    record: Record,
    live: Session | None,
    ladder: tuple[Candidate, ...],
    reserve: Reserve,
    launches: Collection[str],
    *,
    over: bool,
) -> Turn | None:
    """Return the next race of a rung, in a launch that has held the winner's race already; None without one.

    `launches` are those in which the winner raced; once the verdict is `over`, or without a winner, any launch will do.
    """
    if record.switches_at_launch:
        return None
    left = reserve.plan.launches - len(launches)
    spare_s = record.remaining_s - (0.0 if over else max(0, left) * reserve.launch_s)
    race_s = _SHARE * reserve.plan.race_s
    for rung in ladder:
        if record.required_cold(rung.changes) or record.has_died_anywhere(rung.changes):
            continue
        done = list_comparisons(record, Purpose.CONFIRM, rung.changes)
        seen = {c.launch for c in done}
        if len(seen) >= _LAUNCHES or (live is not None and live.id in seen):
            continue
        arms = (BASELINE, Candidate(Purpose.CONFIRM, rung.changes, rung.because))
        rules = verdict_rules(record, arms, race_s)
        fresh = live is not None and live.cold != {}
        if not over and (live is None or live.id not in launches):
            continue
        asked_s = estimate_race_s(record, arms, rules)
        if asked_s + (record.startup_s if live is None else 0.0) > spare_s:
            continue
        if live is not None and not fits_behind(record, record.blocks_in(live.id), 2, rules):
            continue
        because = f"What the {record.effect_of(rung.changes).value} rung brings: {rung.changes.describe()}."
        return Turn(Race(Stage.CONFIRM, because, arms, rules, record.next_race), fresh)
    return None


def list_ladder(state: SearchState, winner: Candidate | None) -> list[Trial]:
    """Return the best strategy of every rung that is measured beside the verdict.

    Those above what the job allows, and those below the winner's own; only where the search saw a gain.
    """
    if state.record.job.spec.verify:
        return []
    top, allowed = (
        state.record.effect_of(winner.changes).rank if winner else 0,
        state.record.job.spec.allow.rank,
    )
    found = [state.best_of(effect) for effect in Effect if effect.rank > allowed or effect.rank < top]
    return [trial for trial in found if trial is not None]
