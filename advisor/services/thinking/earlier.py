"""What similar earlier jobs found, chosen once for a job and kept with it, so that its search stays reproducible."""

from dataclasses import dataclass
from datetime import datetime

from advisor.protocol.asked.jobs import Job
from advisor.protocol.measured.trials import EarlierJob, EarlierLaunches
from advisor.protocol.views import EventKind
from advisor.storage import Database, UnitOfWork
from advisor.storage.fault_points import FaultPoint
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
            work.events.append(choice.job_id, EventKind.JOB, _describe(choice.earlier), now)


def _describe(chosen: tuple[EarlierJob, ...]) -> str:
    count = f"{len(chosen)} similar earlier job{'s' if len(chosen) != 1 else ''}"
    each = "; ".join(
        f"{earlier.job_id} ({earlier.likeness:.0%} alike, {earlier.ratio - 1:+.1%} confirmed: {earlier.because})"
        for earlier in chosen
    )
    return f"{count}: {each}. Their strategies are tried early."
