"""When a job cannot be advised: the same failure again and again, each with what to do about it."""

from advisor.protocol.measured.trials import Outcome, Session
from advisor.tuning.history.breakoffs import BreakOff, find_script_failure, list_break_offs
from advisor.tuning.history.record import Record
from advisor.tuning.stages.undecided import is_too_short, say_failure, say_too_short

_MOST_LOST = 5
_MOST_FAILED = 2
_MOST_EMPTY = 2


def find_dead_end(record: Record) -> str | None:
    """Return a sentence when another launch would fail like those before, else None."""
    began = record.began_at()
    ended = [s for s in record.sessions if s.state.is_final and (began is None or s.created_at >= began)]
    return _fails_again(record, ended) or _lost_again(ended) or _is_too_short(record, ended)


def _lost_again(ended: list[Session]) -> str | None:
    last = ended[-_MOST_LOST:]
    if len(last) < _MOST_LOST or not all(session.was_lost for session in last):
        return None
    reason = last[-1].reason or "No reason was recorded."
    return (
        f"{_MOST_LOST} launches in a row were lost. {reason} Check that every agent runs and reaches the server "
        "(advisor-agent doctor), then submit the job again."
    )


def _fails_again(record: Record, ended: list[Session]) -> str | None:
    """The script itself fails: at one step in two launches, or in two in a row that carried the baseline alone."""
    failure = find_script_failure(record)
    if failure is None:
        return None
    broken_off: dict[str, BreakOff] = {b.session.id: b for b in list_break_offs(record)}
    last = [broken_off.get(s.id) for s in ended if not s.was_lost][-_MOST_FAILED:]
    in_a_row = len(last) == _MOST_FAILED and all(b is not None and not b.in_force for b in last)
    again = failure.at_one_step and len(failure.launches) >= _MOST_FAILED
    return say_failure(record, failure) if again or in_a_row else None


def _is_too_short(record: Record, ended: list[Session]) -> str | None:
    """The script ends before a single comparison, or in two launches before a single block."""
    last = [session for session in ended if not session.was_lost][-_MOST_EMPTY:]
    if not last or any(s.outcome is not Outcome.FINISHED or not s.total_steps for s in last):
        return None
    is_empty = len(last) == _MOST_EMPTY and not any(record.usable_in(session.id) for session in last)
    has_too_few = record.probe is not None and is_too_short(record)
    return say_too_short(record) if is_empty or has_too_few else None
