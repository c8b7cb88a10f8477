"""Repeating: a strategy that the search has measured races the baseline once more, because a user asked for it.

What the search recommends rests on all races of a strategy together, and the verdict on races of its own: asking for
more of them can refine the choice, and bias no number that is reported.
"""

from collections.abc import Sequence
from datetime import datetime

from advisor.errors import NotFound, NotRepeatable
from advisor.protocol.asked.jobs import Job, Stage
from advisor.protocol.measured.trials import Outcome, Purpose, Trial
from advisor.protocol.views import EventKind
from advisor.services.jobs import get_history, get_job, lock_own_job, refuse_ended
from advisor.services.tokens import Principal
from advisor.storage import UnitOfWork
from advisor.storage.fault_points import FaultPoint


def repeat_trial(
    work: UnitOfWork, job_id: str, number: int, asker: Principal, now: datetime, if_match: str | None = None
) -> Job:
    """Let a trial race once more as soon as the search asks for its next race. Repeating it changes nothing.

    Raises JobNotFound, NotYourJob, VersionMismatch, JobIsFinal, NotFound for a number that no trial has, and
    NotRepeatable.
    """
    job = lock_own_job(work, job_id, asker, if_match)
    history = get_history(work, job_id)
    try:
        trial = history.trial(number)
    except KeyError:
        raise NotFound(
            f"Job {job_id} has no trial {number}.", hint="Its page of trials lists those that it has."
        ) from None
    refuse_ended(job)
    if sentence := say_why_not(job, history.trials, trial):
        raise NotRepeatable(sentence)
    if history.awaits_repeat(trial):
        return job
    work.trials.ask_again(job_id, number, now)
    work.reach(FaultPoint.TRIAL_REPEATED)
    work.call_scheduler()
    sentence = f"{asker.name} asked for another race of trial {number}."
    work.events.append(job_id, EventKind.TRIAL, sentence, now, trial_number=number)
    return get_job(work, job_id)


def say_why_not(job: Job, trials: Sequence[Trial], trial: Trial) -> str:
    """Return why another race of a trial would be of no use to a job that goes on; "" where it would."""
    if trial.purpose is Purpose.BASELINE:
        return "The baseline takes part in every race: it is measured again with each."
    searches = job.stage in {Stage.PROBE, Stage.SEARCH}
    if not searches or any(other.purpose not in {Purpose.BASELINE, Purpose.SEARCH} for other in trials):
        return "The search is over: what it chose is measured afresh for the verdict."
    if trial.outcome is None:
        return f"Trial {trial.number} has not been measured yet."
    if trial.outcome is not Outcome.FINISHED:
        return f"Trial {trial.number} {trial.outcome.words}: the search does not try it again."
    return ""
