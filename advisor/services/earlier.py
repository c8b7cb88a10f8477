"""What similar earlier jobs found, chosen once for a job and kept with it, so that its search stays reproducible."""

from datetime import datetime

from advisor.protocol.trials import EarlierJob
from advisor.protocol.views import EventKind
from advisor.storage import Database
from advisor.storage.fault_points import FaultPoint
from advisor.tuning.space.similarity import choose_earlier

_MOST_LOOKED_AT = 200
"""Finished jobs that are compared, the latest first: older ones ran on older software."""


def settle_earlier(database: Database, job_id: str, now: datetime) -> None:
    """Choose the strategies of similar finished jobs, unless that was done or the script was not seen yet.

    The choice is made in a transaction that only reads; of two servers that choose at once the first one counts.
    """
    with database.read() as work:
        job = work.jobs.get(job_id)
        if job is None or job.facts is None or work.jobs.earlier(job_id) is not None:
            return
        finished = work.jobs.finished_with_advice(job_id, _MOST_LOOKED_AT)
    chosen = choose_earlier(job, finished)
    with database.begin() as work:
        work.reach(FaultPoint.EARLIER_CHOSEN)
        if work.jobs.choose_earlier(job_id, chosen) and chosen:
            work.events.append(job_id, EventKind.JOB, _describe(chosen), now)


def _describe(chosen: tuple[EarlierJob, ...]) -> str:
    count = f"{len(chosen)} similar earlier job{'s' if len(chosen) != 1 else ''}"
    each = "; ".join(
        f"{earlier.job_id} ({earlier.likeness:.0%} alike, {earlier.ratio - 1:+.1%} confirmed: {earlier.because})"
        for earlier in chosen
    )
    return f"{count}: {each}. Their strategies are tried early."
