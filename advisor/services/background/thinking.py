"""Asking the planner outside any transaction; what it decides is applied only to the job it looked at.

A suggestion never blocks a session: the planner thinks in a thread of its own, and after a deadline a simpler
suggestion takes the place of the one it still looks for.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from structlog.contextvars import bind_contextvars

from advisor.protocol.advice import Advice
from advisor.protocol.jobs import Job, JobState
from advisor.protocol.trials import JobHistory
from advisor.services.earlier import settle_earlier
from advisor.services.jobs import get_history, get_job
from advisor.services.tuning import Timers, Tuning
from advisor.storage import Database
from advisor.tuning.decisions import Decision, EndSession, Fail, Finish

_log = logging.getLogger(__name__)
Overdue = dict[str, threading.Thread]
"""A job -> the thread that thinks about it beyond its deadline: it cannot be stopped, so no second one is started."""


@dataclass(frozen=True)
class Thought:
    """A decision, and the job as it was when the decision was made."""

    job: Job
    history: JobHistory
    decision: Decision
    advice: Advice | None = None
    """The advice, when the decision is to finish."""
    late: str = ""
    """A sentence when the planner took too long, so that this is the simpler decision."""


def think(
    database: Database,
    tuning: Tuning,
    job_id: str,
    now: datetime,
    session_id: str | None = None,
    timers: Timers = Timers(),
    overdue: Overdue | None = None,
) -> Thought:
    """Ask the planner what comes next for a session, or without one for the job.

    `overdue` is one for all calls of a server.

    A planner that raises cannot be asked again with better luck, since it is a function of the history: the job fails
    with a sentence, and the log has the traceback.
    """
    bind_contextvars(job_id=job_id)
    settle_earlier(database, job_id, now)
    with database.read() as work:
        # The job first: whatever changes while the rest is read makes its version too old to act upon.
        job = get_job(work, job_id)
        history = get_history(work, job_id)
        trouble = work.sessions.fatal_trouble(job_id)
    if job.state is JobState.PAUSED:
        return Thought(job, history, EndSession(job.stage, "The job was paused."))
    live = history.live_session() is not None
    late = ""
    try:
        decision, late = _plan_in_time(
            job_id,
            {} if overdue is None else overdue,
            lambda quick: tuning.plan(job, history, now, session_id, quick=quick),
            timers.think_s,
        )
        if trouble and not live and not isinstance(decision, Finish):
            decision = Fail(trouble)
        advice = tuning.advise(job, history, now) if isinstance(decision, Finish) and not live else None
    except Exception as error:
        _log.exception("The planner failed for job %s", job_id)
        return Thought(job, history, Fail(_apologise(error)), late=late)
    return Thought(job, history, decision, advice, late)


def _plan_in_time(
    job_id: str, overdue: Overdue, plan: Callable[[bool], Decision], limit_s: float
) -> tuple[Decision, str]:
    """Return `plan(False)`, or `plan(True)`, the quick one, with a sentence when the other is not there in time."""
    found: list[Decision] = []
    errors: list[Exception] = []

    def look() -> None:
        try:
            found.append(plan(False))
        except Exception as error:
            errors.append(error)

    thinking = overdue.get(job_id)
    if thinking is None or not thinking.is_alive():
        overdue.pop(job_id, None)
        thread = threading.Thread(target=look, name=f"planner-{job_id}", daemon=True)
        thread.start()
        thread.join(limit_s)
        if errors:
            raise errors[0]
        if found:
            return found[0], ""
        overdue[job_id] = thread
    sentence = f"The next suggestion was not found within {limit_s:g} s: a simpler one takes its place."
    _log.warning("Job %s: %s", job_id, sentence)
    return plan(True), sentence


def _apologise(error: Exception) -> str:
    return (
        f"The planner stopped with an internal error ({type(error).__name__}): this is a defect of the advisor. The "
        "server's log has the details; what was measured is kept."
    )
