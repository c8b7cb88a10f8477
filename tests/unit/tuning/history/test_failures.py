"""What disqualifies a strategy: its own failures, never those of the machine or of a comparison."""

from datetime import timedelta

from advisor.protocol.base import Value
from advisor.protocol.measured.trials import BlockState, Outcome, Purpose, SessionState
from advisor.tuning.stages.dead_ends import find_dead_end
from tests.unit.tuning.raced import BASE, Raced

SMALL: dict[str, Value] = {"fuse_grad_size_in_MB": 4.0}


def voided(state: SessionState, outcome: Outcome | None) -> Raced:
    """Three races of a strategy, each broken off by the end of its session."""
    raced = Raced().launch().race(BASE)
    for _ in range(3):
        raced.launch().race(BASE, (Purpose.SEARCH, SMALL, 0.1))
        raced.blocks[-2:] = [
            b.model_copy(update={"state": BlockState.VOID, "result": None, "summary": None})
            for b in raced.blocks[-2:]
        ]
        ended = {"state": state, "outcome": outcome, "ended_at": raced.now}
        raced.sessions[-1] = raced.sessions[-1].model_copy(update=ended)
    return raced


def test_lost_launches_say_nothing_of_a_strategy() -> None:
    assert not voided(SessionState.LOST, None).record.has_failed_anywhere(SMALL)
    assert not voided(SessionState.ENDED, Outcome.LOST).record.has_failed_anywhere(SMALL)
    assert voided(SessionState.ENDED, Outcome.FINISHED).record.has_failed_anywhere(SMALL)


def test_a_part_of_a_winner_that_is_another_part_in_force_has_not_failed() -> None:
    raced = Raced().launch().race(BASE).close(Purpose.REVERT, SMALL, Outcome.INEFFECTIVE)
    assert not raced.record.has_failed_anywhere(SMALL)
    assert raced.close(Purpose.REVERT, SMALL, Outcome.CRASHED).record.has_failed_anywhere(SMALL)


def test_a_continued_job_is_launched_again_after_a_row_of_lost_launches() -> None:
    raced = voided(SessionState.LOST, None)
    for _ in range(2):
        raced.launch()
        lost = {"state": SessionState.LOST, "ended_at": raced.now}
        raced.sessions[-1] = raced.sessions[-1].model_copy(update=lost)
    assert "lost" in (find_dead_end(raced.record) or "")
    raced.now += timedelta(hours=5)
    raced.job = raced.job.model_copy(update={"continued_at": (raced.now,)})
    assert find_dead_end(raced.record) is None
