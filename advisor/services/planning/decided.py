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
from advisor.protocol.asked.jobs import Job, JobState
from advisor.protocol.gains import End, spell_gain
from advisor.protocol.measured.trials import EarlierJob, EarlierLaunches, Session
from advisor.protocol.views import EventFacts, EventKind
from advisor.services.jobs import get_job, read_history
from advisor.services.timers import Timers
from advisor.storage import Database, UnitOfWork
from advisor.storage.fault_points import FaultPoint
from advisor.tuning.asked import Tuning
from advisor.tuning.decisions import Decision, EndSession, Fail, Finish
from advisor.tuning.space.similarity import choose_earlier, choose_earlier_launches

_MOST_LOOKED_AT = 200
"""Finished jobs that are compared, the latest first: older ones ran on older software."""


@dataclass(frozen=True)
class Choice:
    """Strategies of similar finished jobs that a job is to begin with, and how much launches on its nodes differed."""

    job_id: str
    earlier: tuple[EarlierJob, ...]
    launches: tuple[EarlierLaunches, ...]


def choose(work: UnitOfWork, job: Job) -> Choice | None:
    """Choose the strategies of similar finished jobs; None where that was done, or the script was not seen yet."""
    if job.facts is None or work.jobs.earlier(job.id) is not None:
        return None
    finished = work.jobs.finished_with_advice(job.id, _MOST_LOOKED_AT)
    return Choice(job.id, choose_earlier(job, finished), choose_earlier_launches(job, finished))


def keep(database: Database, choice: Choice, now: datetime) -> None:
    """Keep what was chosen with the job; of two choices made at once the first one counts."""
    with database.begin() as work:
        work.reach(FaultPoint.EARLIER_CHOSEN)
        if work.jobs.choose_earlier(choice.job_id, choice.earlier, choice.launches) and choice.earlier:
            facts = EventFacts(earlier=tuple(earlier.job_id for earlier in choice.earlier))
            work.events.append(choice.job_id, EventKind.JOB, _describe(choice.earlier), now, facts=facts)


def _describe(chosen: tuple[EarlierJob, ...]) -> str:
    count = f"{len(chosen)} similar earlier job{'s' if len(chosen) != 1 else ''}"
    each = "; ".join(
        f"{earlier.job_id} ({earlier.likeness:.0%} alike, at least {spell_gain(earlier.ratio, End.LOW)} confirmed: "
        f"{earlier.because})"
        for earlier in chosen
    )
    return f"{count}: {each}. Their strategies are tried early."


_log = logging.getLogger(__name__)
Overdue = dict[str, threading.Thread]
"""A job -> the thread that thinks about it beyond its deadline: it cannot be stopped, so no second one is started."""


@dataclass(frozen=True)
class VersionedDecision:
    """A decision, and what it rests on."""

    job_id: str
    version: int
    """The job's, when the decision was made."""
    sessions: tuple[Session, ...]
    decision: Decision
    advice: Advice | None = None
    """The advice, when the decision is to finish."""
    late: str = ""
    """A sentence when the planner took too long or raised, so that this is the simpler decision."""
    took_s: float = 0.0
    """What the planner needed for it, in seconds."""

    @property
    def is_for_session(self) -> bool:
        """Whether the job held a session, which asks for it."""
        return any(not session.state.is_final for session in self.sessions)


Look = Callable[[], VersionedDecision | Choice]
"""Asks the planner, which may have to be told first what earlier jobs teach."""


def think(
    database: Database,
    tuning: Tuning,
    job_id: str,
    now: datetime,
    timers: Timers = Timers(),
    overdue: Overdue | None = None,
) -> VersionedDecision:
    """Ask the planner what comes next for a job; `overdue` is one for all calls."""
    spent = {} if overdue is None else overdue
    return settle(database, lambda: look(database, tuning, job_id, now, timers.think_s, spent), now)


def settle(database: Database, look: Look, now: datetime) -> VersionedDecision:
    """Return the decision that `look` finds, once what it chose of earlier jobs is kept."""
    while isinstance(found := look(), Choice):
        keep(database, found, now)
    return found


def look(
    database: Database,
    tuning: Tuning,
    job_id: str,
    now: datetime,
    limit_s: float,
    overdue: Overdue,
) -> VersionedDecision | Choice:
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
    decided = VersionedDecision(
        job_id,
        job.version,
        history.sessions,
        EndSession(job.stage, "The job was paused."),
    )
    if job.state is JobState.PAUSED:
        return decided
    live = history.live_session() is not None
    late, began_s = "", time.perf_counter()
    try:
        decision, late = _plan_in_time(
            job_id, overdue, lambda quick: tuning.plan(job, history, now, quick=quick), limit_s
        )
        if trouble and not live and not isinstance(decision, Finish):
            decision = Fail(trouble)
        advice = tuning.advise(job, history, now) if isinstance(decision, Finish) and not live else None
    except Exception as error:
        _log.exception("The planner failed for job %s", job_id)
        decision, advice = Fail(_name_defect(error)), None
    took_s = time.perf_counter() - began_s
    return replace(decided, decision=decision, advice=advice, late=late, took_s=took_s)


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
