"""Several gangs of one job: they search side by side, and everything that is compared happens in one session."""

from advisor.protocol.base import Value
from advisor.protocol.jobs import Stage
from advisor.protocol.trials import BlockState, JobHistory, Outcome, Purpose, Session, SessionState, Trial
from advisor.tuning.allowance import limit_search_s
from advisor.tuning.composition import key_of
from advisor.tuning.contender import BASELINE, Contender, Turn
from advisor.tuning.decisions import EndSession, Launch, Wait
from advisor.tuning.record import PROBE_BLOCKS, Record

_TRIALS_EACH = 2
"""Strategies left for every gang below which another gang is not worth its launch."""
_BLOCKS_EACH = 3
"""Blocks that must still fit into the search's time after a launch."""
_MOST_FAILED = 1
_MOST_LOST = 3
"""Further gangs that may end without one measured block, by their own fault or lost, before no more are launched."""
_MOST_ANCHORS = 3
"""Anchors that the leading gang measures while the others finish their last blocks."""


def find_asking(history: JobHistory, session_id: str | None, gangs: int) -> Session | None:
    """Return the live session that asks; without an id the only one of a job that has one gang."""
    if session_id is None:
        return history.live_session() if gangs == 1 else None
    return next((session for session in history.live_sessions() if session.id == session_id), None)


def list_pending(record: Record) -> tuple[dict[str, Value], ...]:
    """Return the strategies that the search has handed out and that nobody has measured yet.

    Those of blocks that live sessions measure now, and those that live sessions were launched for.
    """
    pending: list[dict[str, Value]] = []
    for session in record.history.live_sessions():
        issued = _issued_in(record, session)
        if issued is not None:
            pending.append(dict(issued.changes))
        elif session.cold and not any(b.session_id == session.id for b in record.history.blocks):
            pending.append(dict(session.cold))
    return tuple(changes for changes in pending if changes)


def is_measured_now(record: Record, trial: Trial) -> bool:
    """Whether a live session measures a block of the trial at this moment, so that no other gang may take it up."""
    return any(_issued_in(record, session) is trial for session in record.history.live_sessions())


def settle_among_gangs(record: Record, live: Session, turn: Turn | str) -> Turn | EndSession | str:
    """Return what the session does while others are live: its turn, an anchor instead, or its end.

    The oldest running session leads. Probe, finals, simplification and confirmation are its own, and it begins them
    when no other one measures any more. The others end where they would do anything else than search.
    """
    others = [session for session in record.history.live_sessions() if session.id != live.id]
    if not others or isinstance(turn, str) or turn.stage is Stage.SEARCH:
        return turn
    if not _leads(live, others):
        because = (
            f"The {turn.stage.value} stage happens in one session: this gang has nothing more to search."
        )
        return EndSession(turn.stage, because)
    busy = [session for session in others if _issued_in(record, session) is not None]
    if not busy or live.cold or record.switches_at_launch or _anchors_in_a_row(record, live) >= _MOST_ANCHORS:
        return turn
    generations = ", ".join(str(session.generation) for session in busy)
    because = (
        f"An anchor while session {generations} finishes its last strategy: what follows happens here alone."
    )
    return Turn(Stage.SEARCH, BASELINE, because)


def resume_launch(record: Record, live: Session) -> Turn | None:
    """Return the block of the search that the session was launched for, if it still lacks one.

    Only where every strategy needs a launch and gangs search side by side: by the time a session runs, results of
    others may have changed what the search would launch next, and a launch is not to be wasted on that.
    """
    if record.job.spec.gangs == 1 or not record.switches_at_launch or record.usable_in(live.id):
        return None
    if len(record.probe_blocks) < PROBE_BLOCKS or any(b.round is not None for b in record.history.blocks):
        return None
    if not live.cold:
        return Turn(Stage.SEARCH, BASELINE, "An anchor: the baseline again, to see drift.")
    trial = record.find_trial(Purpose.SEARCH, live.cold)
    if trial is not None and (record.has_failed(trial) or record.settled(trial) is not None):
        return None
    because = trial.because if trial else live.because
    return Turn(Stage.SEARCH, Contender(Purpose.SEARCH, dict(live.cold), because), because)


def decline_another(record: Record) -> Wait | None:
    """Return why no further gang can join a job that holds sessions; None where one might, if the search has a use."""
    lives = record.history.live_sessions()
    because = ""
    left = record.job.spec.budget.max_trials - len(record.tried)
    needed_s = record.startup_s + _BLOCKS_EACH * record.strategy_s
    if len(lives) >= record.job.spec.gangs:
        because = f"All {record.job.spec.gangs} gangs of the job hold a session."
    elif any(session.state is SessionState.ENDING for session in lives) and not record.switches_at_launch:
        because = "A session is ending: what follows it is decided first."
    elif left < _TRIALS_EACH * (len(lives) + 1):
        because = f"The {left} search trials that are left are not worth another launch."
    elif record.spent_s + needed_s > limit_search_s(record):
        because = "The search's time that is left is not worth another launch."
    elif _have_gangs_failed(record):
        because = "Further gangs ended before they measured anything: the search goes on in one session."
    return Wait(record.job.stage, because) if because else None


def join_search(record: Record, turn: Turn | str) -> Launch | Wait:
    """Return the launch of a further gang, whose first block would be `turn`; Wait where that is not for it."""
    if isinstance(turn, str) or turn.stage is not Stage.SEARCH:
        return Wait(record.job.stage, "Only the search happens in several sessions at once.")
    cold = record.required_cold(turn.contender.changes)
    number = len(record.history.live_sessions()) + 1
    joins = f"Gang {number} of {record.job.spec.gangs} joins the search"
    if not record.switches_at_launch:
        if cold:
            because = (
                "The next strategy needs a launch of its own, which waits for the sessions that are live."
            )
            return Wait(record.job.stage, because)
        return Launch(Stage.SEARCH, f"{joins}, where strategies are left to try.")
    if not cold and _is_anchor_under_way(record):
        return Wait(
            record.job.stage, "The baseline is being measured again; another strategy comes after that."
        )
    return Launch(Stage.SEARCH, turn.because if cold else f"{joins} with an anchor: {turn.because}", cold)


def _is_anchor_under_way(record: Record) -> bool:
    """Whether a live session measures the baseline, or was launched to."""
    return any(not s.cold and not record.usable_in(s.id) for s in record.history.live_sessions())


def _have_gangs_failed(record: Record) -> bool:
    measured = {block.session_id for block in record.history.blocks if block.state is BlockState.DONE}
    empty = [s for s in record.sessions if s.gang > 0 and s.state.is_final and s.id not in measured]
    lost = [s for s in empty if s.state is SessionState.LOST or s.outcome is Outcome.LOST]
    failed = [s for s in empty if s not in lost and s.outcome not in {Outcome.FINISHED, Outcome.CANCELLED}]
    if record.switches_at_launch:
        failed = [s for s in failed if key_of(s.cold) not in {key_of(killer) for killer in record.killers}]
    return len(failed) >= _MOST_FAILED or len(lost) >= _MOST_LOST


def _leads(live: Session, others: list[Session]) -> bool:
    """Whether the session is the oldest of those that run."""
    running = [s.generation for s in others if s.state is SessionState.RUNNING]
    return live.generation < min(running, default=live.generation + 1)


def _issued_in(record: Record, session: Session) -> Trial | None:
    for block in reversed(record.history.blocks):
        if block.session_id == session.id and block.state is BlockState.ISSUED:
            return next((t for t in record.history.trials if t.number == block.trial_number), None)
    return None


def _anchors_in_a_row(record: Record, live: Session) -> int:
    count = 0
    for block in reversed(record.usable_in(live.id)):
        if block.trial_number != record.baseline_number or block.round is not None:
            break
        count += 1
    return count
