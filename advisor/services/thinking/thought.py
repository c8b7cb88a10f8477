"""Asking the planner outside any transaction; what it decides is applied only to the job it looked at.

A suggestion never blocks a session: the planner thinks in a thread of its own, and after a deadline a simpler
suggestion takes the place of the one it still looks for. What is read and decided needs no other transaction, so that
a process of its own can do it (`processes`).
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from structlog.contextvars import bind_contextvars

from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import JobState
from advisor.protocol.measured.trials import Session
from advisor.services.jobs import get_job, read_history
from advisor.services.thinking.earlier import Choice, choose, keep
from advisor.services.timers import Timers
from advisor.services.tuning import Tuning
from advisor.storage import Database
from advisor.tuning.decisions import Decision, EndSession, Fail, Finish

_log = logging.getLogger(__name__)
Overdue = dict[str, threading.Thread]
"""A job -> the thread that thinks about it beyond its deadline: it cannot be stopped, so no second one is started."""


@dataclass(frozen=True)
class Thought:
    """A decision, and what it rests on."""

    job_id: str
    version: int
    """The job's, when the decision was made."""
    sessions: tuple[Session, ...]
    trials: frozenset[int]
    """Numbers of the trials that were known."""
    decision: Decision
    advice: Advice | None = None
    """The advice, when the decision is to finish."""
    late: str = ""
    """A sentence when the planner took too long or raised, so that this is the simpler decision."""
    took_s: float = 0.0
    """What the planner needed for it, in seconds."""


Look = Callable[[], Thought | Choice]
"""Asks the planner, which may have to be told first what earlier jobs teach."""


def think(
    database: Database,
    tuning: Tuning,
    job_id: str,
    now: datetime,
    session_id: str | None = None,
    timers: Timers = Timers(),
    overdue: Overdue | None = None,
) -> Thought:
    """Ask the planner what comes next for a session, or without one for the job; `overdue` is one for all calls."""
    spent = {} if overdue is None else overdue
    return settle(
        database, lambda: look(database, tuning, job_id, now, session_id, timers.think_s, spent), now
    )


def settle(database: Database, look: Look, now: datetime) -> Thought:
    """Return the thought that `look` finds, once what it chose of earlier jobs is kept."""
    while isinstance(found := look(), Choice):
        keep(database, found, now)
    return found


def look(
    database: Database,
    tuning: Tuning,
    job_id: str,
    now: datetime,
    session_id: str | None,
    limit_s: float,
    overdue: Overdue,
) -> Thought | Choice:
    """Read what is known of a job and ask the planner, for `limit_s` seconds at most; nothing is written.

    A planner that raises fails alike whenever it is asked with this history, but the quick one computes less: its
    answer takes the place, and the search goes on. Only where that raises too the job fails, with a sentence; the log
    has the traceback of each.
    """
    bind_contextvars(job_id=job_id)
    with database.read() as work:
        # The job first: whatever changes while the rest is read makes its version too old to act upon.
        job = get_job(work, job_id)
        if (choice := choose(work, job)) is not None:
            return choice
        history = read_history(work, job_id)
        trouble = work.sessions.fatal_trouble(job_id)
    thought = Thought(
        job_id,
        job.version,
        history.sessions,
        frozenset(trial.number for trial in history.trials),
        EndSession(job.stage, "The job was paused."),
    )
    if job.state is JobState.PAUSED:
        return thought
    live = history.live_session() is not None
    late, began_s = "", time.perf_counter()
    try:
        decision, late = _plan_in_time(
            job_id, overdue, lambda quick: tuning.plan(job, history, now, session_id, quick=quick), limit_s
        )
        if trouble and not live and not isinstance(decision, Finish):
            decision = Fail(trouble)
        advice = tuning.advise(job, history, now) if isinstance(decision, Finish) and not live else None
    except Exception as error:
        _log.exception("The planner failed for job %s", job_id)
        decision, advice = Fail(_name_defect(error)), None
    took_s = time.perf_counter() - began_s
    return replace(thought, decision=decision, advice=advice, late=late, took_s=took_s)


def _plan_in_time(
    job_id: str, overdue: Overdue, plan: Callable[[bool], Decision], limit_s: float
) -> tuple[Decision, str]:
    """Return `plan(False)`, or `plan(True)`, the quick one, with a sentence when the other is late or raises."""
    found: list[Decision] = []
    errors: list[Exception] = []

    def plan_whole() -> None:
        try:
            found.append(plan(False))
        except Exception as error:
            errors.append(error)

    thinking = overdue.get(job_id)
    if thinking is None or not thinking.is_alive():
        overdue.pop(job_id, None)
        thread = threading.Thread(target=plan_whole, name=f"planner-{job_id}", daemon=True)
        thread.start()
        thread.join(limit_s)
        if found:
            return found[0], ""
        if errors:
            _log.error("The planner failed for job %s", job_id, exc_info=errors[0])
            return plan(True), f"{_name_defect(errors[0])} A simpler suggestion takes its place."
        overdue[job_id] = thread
    sentence = f"The next suggestion was not found within {limit_s:g} s: a simpler one takes its place."
    _log.warning("Job %s: %s", job_id, sentence)
    return plan(True), sentence


def _name_defect(error: Exception) -> str:
    return (
        f"The planner stopped with an internal error ({type(error).__name__}): this is a defect of the advisor. The "
        "server's log has the details; what was measured is kept."
    )
