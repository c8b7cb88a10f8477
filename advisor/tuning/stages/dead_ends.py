"""When a job cannot be advised: the same failure again and again, each with what to do about it."""

from advisor.protocol.measured.trials import BlockState, Outcome, Session
from advisor.tuning.history.record import Record
from advisor.tuning.stages.turns import probe_rules

_MOST_LOST = 5
_MOST_CRASHES = 2
_MOST_EMPTY = 2


def find_dead_end(record: Record) -> str | None:
    """Return a sentence when another launch would fail like those before, else None."""
    began = record.began_at()
    ended = [s for s in record.sessions if s.state.is_final and (began is None or s.created_at >= began)]
    return _lost_again(ended) or _crashed_again(record, ended) or _ended_empty_again(record, ended)


def _lost_again(ended: list[Session]) -> str | None:
    last = ended[-_MOST_LOST:]
    if len(last) < _MOST_LOST or not all(session.was_lost for session in last):
        return None
    reason = last[-1].reason or "No reason was recorded."
    return (
        f"{_MOST_LOST} launches in a row were lost. {reason} Check that every agent runs and reaches the server "
        "(advisor-agent doctor), then submit the job again."
    )


def _crashed_again(record: Record, ended: list[Session]) -> str | None:
    """The script itself fails: no knob was set when its session died, in two launches in a row."""
    last = [session for session in ended if not session.was_lost][-_MOST_CRASHES:]
    if len(last) < _MOST_CRASHES or not all(_failed_as_it_stands(record, session) for session in last):
        return None
    outcome = last[-1].outcome
    how = {
        Outcome.OUT_OF_MEMORY: "ran out of memory; lower its batch size",
        Outcome.HUNG: "made no progress; raise hang_timeout_s if its first step takes that long, or look for the rank "
        "that waits",
        Outcome.DIVERGED: "met a loss that was not finite; lower its learning rate",
    }.get(outcome or Outcome.CRASHED, "crashed; run its command by hand and read the end of its log")
    reason = last[-1].reason or "No reason was recorded."
    return f"The script as it stands, without any change, failed in two launches in a row: it {how}. {reason}"


def _failed_as_it_stands(record: Record, session: Session) -> bool:
    if session.outcome is None or not session.outcome.is_configurations_fault or session.cold:
        return False
    blocks = [b for b in record.history.blocks if b.session_id == session.id]
    broken_off = [b for b in blocks if b.state is not BlockState.DONE]
    return all(not b.plan.overrides for b in broken_off) and (bool(broken_off) or not blocks)


def _ended_empty_again(record: Record, ended: list[Session]) -> str | None:
    """The script ends before a single block is measured."""
    last = [session for session in ended if not session.was_lost][-_MOST_EMPTY:]
    if len(last) < _MOST_EMPTY or any(
        session.outcome is not Outcome.FINISHED or record.usable_in(session.id) for session in last
    ):
        return None
    if any(
        _asked_for_relaunch(record, session) or _broke_off_a_strategy(record, session) for session in last
    ):
        return None
    rules = probe_rules(record)
    needed = rules.warmup_steps + rules.min_steps
    steps = max(session.total_steps for session in last)
    made = f"makes only {steps} steps before it ends" if steps else "ended before a block was measured"
    return (
        f"The script {made}, in two launches in a row; a block needs {needed} ({rules.warmup_steps} to warm up, "
        f"{rules.min_steps} timed). Raise its steps or epochs."
    )


def _broke_off_a_strategy(record: Record, session: Session) -> bool:
    """Whether the script ended in a strategy's block, which may be longer than the baseline's: it alone is given up."""
    return any(
        b.session_id == session.id and b.state is BlockState.VOID and b.plan.overrides
        for b in record.history.blocks
    )


def _asked_for_relaunch(record: Record, session: Session) -> bool:
    return any(
        b.session_id == session.id and b.result and b.result.relaunch_needed for b in record.history.blocks
    )
