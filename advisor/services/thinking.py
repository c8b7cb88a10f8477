"""Asking the planner outside any transaction; what it decides is applied only to the job it looked at."""

import logging
from dataclasses import dataclass
from datetime import datetime

from advisor.protocol.advice import Advice
from advisor.protocol.jobs import Job
from advisor.protocol.trials import JobHistory
from advisor.services.jobs import get_history, get_job
from advisor.services.tuning import Tuning
from advisor.storage import Database
from advisor.tuning.decisions import Decision, Fail, Finish, Measure, TrialDraft

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Thought:
    """A decision, and the job as it was when the decision was made."""

    job: Job
    history: JobHistory
    decision: Decision
    advice: Advice | None = None
    """The advice, when the decision is to finish."""


def think(database: Database, tuning: Tuning, job_id: str, now: datetime) -> Thought:
    """Ask the planner what comes next for a job.

    A planner that raises cannot be asked again with better luck, since it is a function of the history: the job fails
    with a sentence, and the log has the traceback.
    """
    with database.read() as work:
        # The job first: whatever changes while the rest is read makes its version too old to act upon.
        job = get_job(work, job_id)
        history = get_history(work, job_id)
        trouble = work.sessions.fatal_trouble(job_id)
    live = history.live_session() is not None
    try:
        decision = tuning.plan(job, history, now)
        if trouble and not live and not isinstance(decision, Finish):
            decision = Fail(trouble)
        _check_trial(decision, history)
        advice = tuning.advise(job, history, now) if isinstance(decision, Finish) and not live else None
    except Exception as error:
        _log.exception("The planner failed for job %s", job_id)
        return Thought(job, history, Fail(_apologise(error)))
    return Thought(job, history, decision, advice)


def _check_trial(decision: Decision, history: JobHistory) -> None:
    if isinstance(decision, Measure) and not isinstance(decision.trial, TrialDraft):
        history.trial(decision.trial)


def _apologise(error: Exception) -> str:
    return (
        f"The planner stopped with an internal error ({type(error).__name__}): this is a defect of the advisor. The "
        "server's log has the details; what was measured is kept."
    )
