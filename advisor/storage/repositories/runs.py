"""Real trainings under an advised strategy: one row each, with their latest windows."""

from sqlalchemy import Connection, delete, insert, select, update

from advisor.protocol.measured.runs import ProductionRun
from advisor.storage.tables import RunRow


class Runs:
    """The trainings of one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, job_id: str, run_id: str) -> ProductionRun | None:
        """Return a training."""
        query = select(RunRow.body).where(RunRow.job_id == job_id, RunRow.id == run_id)
        return self._connection.execute(query).scalar_one_or_none()

    def put(self, job_id: str, run: ProductionRun) -> None:
        """Store a training in the place of what was known of it."""
        values = {"reported_at": run.reported_at, "body": run}
        changed = self._connection.execute(
            update(RunRow).where(RunRow.job_id == job_id, RunRow.id == run.id).values(**values)
        )
        if not changed.rowcount:
            self._connection.execute(insert(RunRow).values(job_id=job_id, id=run.id, **values))

    def of_job(self, job_id: str) -> list[ProductionRun]:
        """Return the trainings of a job, the latest report first."""
        query = (
            select(RunRow.body).where(RunRow.job_id == job_id).order_by(RunRow.reported_at.desc(), RunRow.id)
        )
        return list(self._connection.execute(query).scalars())

    def prune(self, job_id: str, most: int) -> None:
        """Keep the `most` trainings of a job that reported last."""
        kept = (
            select(RunRow.id)
            .where(RunRow.job_id == job_id)
            .order_by(RunRow.reported_at.desc(), RunRow.id)
            .limit(most)
        )
        self._connection.execute(delete(RunRow).where(RunRow.job_id == job_id, RunRow.id.not_in(kept)))
