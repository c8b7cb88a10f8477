"""The ladder: what is raced beside the verdict, so that users see what other rungs would bring."""

from advisor.protocol.kinds import Effect
from advisor.protocol.measured.trials import Trial
from advisor.tuning.decisions import Candidate
from advisor.tuning.search.state import SearchState


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
