"""How a session ended, from what its agents said of their parts."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from advisor.protocol.measured.messages import ENDED_ELSEWHERE, LIVED_OUT
from advisor.protocol.measured.trials import Outcome, Session, SessionState

_TELLING = (
    Outcome.OUT_OF_MEMORY,
    Outcome.DIVERGED,
    Outcome.LOST,
    Outcome.HUNG,
    Outcome.CRASHED,
    Outcome.INEFFECTIVE,
    Outcome.UNCERTIFIED,
    Outcome.PRUNED,
    Outcome.FINISHED,
    Outcome.CANCELLED,
)
"""The most telling first. One rank out of memory makes the others crash, a node that vanishes makes them crash or hang:
what is further down is most likely a consequence."""


class Part(Protocol):
    """An agent's part of a session, as it reported it."""

    @property
    def outcome(self) -> Outcome | None:
        """None while the agent has not said."""

    @property
    def reason(self) -> str:
        """A sentence."""

    @property
    def log_tail(self) -> str:
        """The last lines of its ranks."""

    @property
    def total_steps(self) -> int:
        """Steps of its ranks."""


def conclude_session(
    session: Session,
    parts: Sequence[Part],
    state: SessionState,
    reason: str,
    now: datetime,
    *,
    in_trouble: bool = False,
) -> Session:
    """Return the session as it ended: `state` is ENDED, or LOST where an agent fell silent; `reason` says why.

    Where the server had not asked it to end, the most telling part says how, and why unless the session had a
    trouble of its own. In a lost session a silent part counts as lost: only what certainly came first is told instead.
    """
    outcome, tail = session.outcome, ""
    if outcome is None or state is SessionState.LOST:
        told = min((part for part in parts if part.outcome), key=_rank, default=None)
        outcome = told.outcome if told and told.outcome else Outcome.LOST
        if state is SessionState.LOST and _TELLING.index(outcome) > _TELLING.index(Outcome.LOST):
            outcome = Outcome.LOST
        elif told is not None:
            tail, reason = told.log_tail, reason if in_trouble else told.reason or reason
    update = {
        "state": state,
        "outcome": outcome,
        "reason": reason,
        "log_tail": tail,
        # A node that loses the others may have begun one step more than they.
        "total_steps": min((part.total_steps for part in parts if part.total_steps), default=0),
        "ended_at": now,
    }
    return session.model_copy(update=update)


def _rank(part: Part) -> tuple[float, bool]:
    place: float = _TELLING.index(part.outcome or Outcome.CANCELLED)
    if part.reason.startswith(LIVED_OUT):
        place = _TELLING.index(Outcome.CRASHED) - 0.5
    return place, part.reason.startswith(ENDED_ELSEWHERE)
