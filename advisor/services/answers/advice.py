"""Advice: the answer to a finished job, and throughput against loss of what is measured so far."""

from datetime import datetime

from advisor.errors import AdviceNotReady
from advisor.protocol.answers.advice import Advice, ParetoPoint
from advisor.services.jobs import get_job, read_history
from advisor.storage import Database, UnitOfWork


def get_advice(work: UnitOfWork, job_id: str) -> Advice:
    """Return a job's advice. Raises JobNotFound, and AdviceNotReady while there is none.

    A job that is being continued has none until it ends again; if it is cancelled, what it said before still holds.
    """
    job = get_job(work, job_id)
    advice = work.advice.get(job_id)
    if advice is None or not job.state.is_final:
        raise AdviceNotReady(
            f"Job {job_id} {job.state.predicate} and has no advice. {job.state_reason}".strip()
        )
    return advice


def get_pareto(database: Database, job_id: str, now: datetime) -> tuple[ParetoPoint, ...]:
    """Return throughput against loss of every strategy measured so far, fastest first; also while the job runs.

    Raises JobNotFound.
    """
    # Its libraries are large, and the advice itself needs none of them.
    from advisor.tuning.explain.pareto import build_pareto
    from advisor.tuning.history.record import Record

    with database.read() as work:
        job, history = get_job(work, job_id), read_history(work, job_id)
    return build_pareto(Record(job, history, now))
