"""How a session is told to have ended, from what its agents said."""

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from advisor.course.sessions import conclude_session
from advisor.protocol.measured.messages import ENDED_ELSEWHERE
from advisor.protocol.measured.trials import Outcome, Session, SessionState

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SILENT = "Agent b was silent for 60 s."


@dataclass(frozen=True)
class Said:
    outcome: Outcome | None = None
    reason: str = ""
    log_tail: str = "its last lines"
    total_steps: int = 0


def conclude(
    *parts: Said,
    state: SessionState = SessionState.ENDED,
    asked: Outcome | None = None,
    reason: str = "",
    in_trouble: bool = False,
) -> Session:
    session = Session(
        id="s", job_id="j", generation=0, state=SessionState.ENDING, outcome=asked, created_at=NOW
    )
    return conclude_session(session, parts, state, reason, NOW, in_trouble=in_trouble)


def test_a_session_that_was_asked_to_end_ended_so_whatever_its_ranks_made_of_it() -> None:
    ended = conclude(Said(Outcome.CRASHED, "Killed."), asked=Outcome.FINISHED, reason="Asked to end.")
    assert (ended.state, ended.outcome, ended.reason) == (
        SessionState.ENDED,
        Outcome.FINISHED,
        "Asked to end.",
    )
    assert not ended.log_tail
    assert ended.ended_at == NOW


def test_the_cause_is_told_and_not_what_followed_from_it() -> None:
    ended = conclude(
        Said(Outcome.CRASHED, "Rank 0 lost rank 1.", total_steps=41),
        Said(Outcome.OUT_OF_MEMORY, "Rank 1 ran out of memory.", "CUDA out of memory", 40),
    )
    assert (ended.outcome, ended.reason) == (Outcome.OUT_OF_MEMORY, "Rank 1 ran out of memory.")
    assert (ended.log_tail, ended.total_steps) == ("CUDA out of memory", 40)


def test_of_two_alike_the_one_that_names_another_as_the_cause_is_not_told() -> None:
    elsewhere = f"{ENDED_ELSEWHERE} on b."
    ended = conclude(Said(Outcome.CRASHED, elsewhere), Said(Outcome.CRASHED, "ValueError in train.py:3."))
    assert ended.reason == "ValueError in train.py:3."


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (Said(Outcome.CRASHED, "Rank 0 lost rank 1."), Outcome.LOST),
        (Said(Outcome.OUT_OF_MEMORY, "Rank 0 ran out of memory."), Outcome.OUT_OF_MEMORY),
        (Said(), Outcome.LOST),
    ],
)
def test_a_silent_agent_is_the_cause_of_all_but_what_came_first(said: Said, outcome: Outcome) -> None:
    ended = conclude(said, Said(), state=SessionState.LOST, reason=SILENT)
    assert ended.outcome is outcome
    assert ended.reason == (SILENT if outcome is Outcome.LOST else said.reason)


def test_a_trouble_of_the_session_is_its_reason() -> None:
    trouble = "The script trains without DistributedDataParallel."
    ended = conclude(Said(Outcome.CRASHED, "Exit code 1."), reason=trouble, in_trouble=True)
    assert (ended.outcome, ended.reason) == (Outcome.CRASHED, trouble)


def test_parts_without_steps_say_nothing_of_them() -> None:
    assert conclude(Said(Outcome.CRASHED, "x", total_steps=0), Said(total_steps=7)).total_steps == 7
