"""Several gangs of one job: they search side by side, and everything that is compared happens in one session."""

from dataclasses import replace

from advisor.protocol.asked.jobs import Stage
from advisor.protocol.measured.trials import BlockState, JobHistory, Outcome, Purpose, Session, SessionState
from advisor.tuning.decisions import BASELINE, Candidate, EndSession, Launch, Race, Wait
from advisor.tuning.history.budget import limit_search_s
from advisor.tuning.history.record import Record
from advisor.tuning.stages.turns import Turn, probe_rules, search_rules

_TRIALS_EACH = 2
"""Strategies left for every gang below which another gang is not worth its launch."""
_RACES_EACH = 3
"""Arms that must still fit into the search's time after a launch."""
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


def settle_among_gangs(record: Record, live: Session, turn: Turn | str) -> Turn | EndSession | str:
    """Return what the session does while others are live: its turn, an anchor instead, or its end.

    The oldest running session leads. Probe, trimming and confirmation are its own, and it begins them
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
    busy = [session for session in others if _is_busy(record, session)]
    if not busy or live.cold or record.switches_at_launch or _anchors_in_a_row(record, live) >= _MOST_ANCHORS:
        return turn
    generations = ", ".join(str(session.generation) for session in busy)
    because = f"The baseline again while session {generations} finishes its last race: what follows happens here alone."
    rules = replace(probe_rules(record), calibrate=False)
    return Turn(Race(Stage.SEARCH, because, (BASELINE,), rules, record.next_race))


def resume_launch(record: Record, live: Session) -> Turn | None:
    """Return the race of the search that the session was launched for, if it still lacks one.

    Only where every strategy needs a launch and gangs search side by side: by the time a session runs, results of
    others may have changed what the search would launch next, and a launch is not to be wasted on that.
    """
    if record.job.spec.gangs == 1 or not record.switches_at_launch or record.usable_in(live.id):
        return None
    if record.probe is None or record.trials_for(Purpose.CONFIRM):
        return None
    arm = BASELINE
    if live.cold:
        trial = record.find_trial(Purpose.SEARCH, live.cold)
        if trial is not None and (record.has_failed(trial) or trial.number in record.usable_by_trial):
            return None
        arm = Candidate(Purpose.SEARCH, live.cold, trial.because if trial else live.because)
    rules = search_rules(record, (arm,), limit_search_s(record) - record.spent_s)
    return Turn(Race(Stage.SEARCH, arm.because, (arm,), rules, record.next_race))


def decline_another(record: Record) -> Wait | None:
    """Return why no further gang can join a job that holds sessions; None where one might, if the search has a use."""
    lives = record.history.live_sessions()
    because = ""
    left = record.job.spec.budget.max_trials - len(record.tried)
    needed_s = record.startup_s + _RACES_EACH * (record.trip_s + record.job.spec.measurement.block_s)
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
    """Return the launch of a further gang, whose first race would be `turn`; Wait where that is not for it."""
    if isinstance(turn, str) or turn.stage is not Stage.SEARCH:
        return Wait(record.job.stage, "Only the search happens in several sessions at once.")
    cold = record.required_cold(turn.arms[-1].changes)
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
    because = turn.race.because
    return Launch(Stage.SEARCH, because if cold else f"{joins} with the baseline: {because}", cold)


def _is_anchor_under_way(record: Record) -> bool:
    """Whether a live session measures the baseline, or was launched to."""
    return any(not s.cold and not record.usable_in(s.id) for s in record.history.live_sessions())


def _have_gangs_failed(record: Record) -> bool:
    measured = {block.session_id for block in record.history.blocks if block.state is BlockState.DONE}
    empty = [s for s in record.sessions if s.gang > 0 and s.state.is_final and s.id not in measured]
    lost = [s for s in empty if s.was_lost]
    failed = [s for s in empty if s not in lost and s.outcome not in {Outcome.FINISHED, Outcome.CANCELLED}]
    if record.switches_at_launch:
        failed = [s for s in failed if s.cold not in record.killers]
    return len(failed) >= _MOST_FAILED or len(lost) >= _MOST_LOST


def _leads(live: Session, others: list[Session]) -> bool:
    """Whether the session is the oldest of those that run."""
    running = [s.generation for s in others if s.state is SessionState.RUNNING]
    return live.generation < min(running, default=live.generation + 1)


def _is_busy(record: Record, session: Session) -> bool:
    """Whether the session runs a race now."""
    return any(block.state is BlockState.ISSUED for block in record.blocks_in(session.id))


def _anchors_in_a_row(record: Record, live: Session) -> int:
    """Blocks of the baseline alone that the session has measured last."""
    count = 0
    for block in reversed(record.usable_in(live.id)):
        if block.trial_number != record.baseline_number or len(record.races.get(block.race, ())) > 1:
            break
        count += 1
    return count
