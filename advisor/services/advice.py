"""Advice: the answer to a finished job."""

from advisor.errors import AdviceNotReady
from advisor.protocol.advice import Advice
from advisor.services.jobs import get_job
from advisor.storage import UnitOfWork


def get_advice(work: UnitOfWork, job_id: str) -> Advice:
    """Return a job's advice. Raises JobNotFound, and AdviceNotReady while there is none."""
    job = get_job(work, job_id)
    if (advice := work.advice.get(job_id)) is None:
        raise AdviceNotReady(
            f"Job {job_id} is {job.state.value} and has no advice. {job.state_reason}".strip()
        )
    return advice
