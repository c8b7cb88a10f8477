"""What tunings of this machine have left in their database, read without a server and without writing anything.

It answers what commands that only look ask for, as `advisor.client.Client` does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from advisor.client.answers import ApiProblem, ExportedFile
from advisor.errors import AdvisorError
from advisor.protocol.answers.advice import Advice
from advisor.protocol.answers.forecast import Forecast
from advisor.protocol.asked.jobs import Job
from advisor.protocol.measured.trials import JobHistory
from advisor.protocol.views import JobPage, JobQuery, LogPage
from advisor.services import jobs
from advisor.storage import Database, DatabaseRefused, UnitOfWork

_PAGE = 500


class LocalBook:
    """The jobs of a data directory whose server does not run. Methods raise `ApiProblem`, as a server's answers do."""

    def __init__(self, file: Path) -> None:
        """`file` is the SQLite database."""
        self.url = str(file)
        self._database = Database(f"sqlite:///{file}", lambda: "unused", only_read=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def is_current(self) -> bool:
        """Whether the tables have this release's form; where not, a server has to bring them there first."""
        try:
            self._database.prove_current()
        except (DatabaseRefused, AdvisorError):
            return False
        return True

    def list_jobs(self, wanted: JobQuery) -> JobPage:
        """Return a page of jobs, newest first."""
        with self._reading() as work:
            return jobs.list_jobs(work, wanted)

    def job(self, job_id: str) -> Job:
        """Return one job by its full id."""
        with self._reading() as work:
            return jobs.get_job(work, job_id)

    def history(self, job_id: str) -> JobHistory:
        """Return everything measured for a job so far."""
        with self._reading() as work:
            return jobs.get_history(work, job_id)

    def logs(self, job_id: str, after: int) -> LogPage:
        """Return what the training processes wrote after sequence number `after`."""
        with self._reading() as work:
            chunks = jobs.read_log(work, job_id, after, _PAGE)
        return LogPage(items=tuple(chunks), next_after=chunks[-1].seq if chunks else after)

    def advice(self, job_id: str) -> Advice:
        """Return the advice; an `ApiProblem` with code `advice_not_ready` while there is none."""
        from advisor.services.answers.advice import get_advice  # it loads all formats of exports

        with self._reading() as work:
            return get_advice(work, job_id)

    def export_strategy(self, job_id: str, name: str, target: str | None = None) -> ExportedFile:
        """Return the advised strategy in format `name`, for version `target` of the tool that reads it."""
        from advisor.services.answers.advice import export_strategy

        with self._reading() as work:
            exported = export_strategy(work, job_id, name, target)
        return ExportedFile(exported.filename, exported.content.encode())

    def forecast(
        self, job_id: str, nodes: int | None = None, rate: str | None = None, batch: float | None = None
    ) -> Forecast:
        """Return what the cost model expects elsewhere."""
        from advisor.services.answers.advice import predict
        from advisor.tuning.asked import Tuning

        with _told():
            now = datetime.now(UTC)
            return predict(self._database, Tuning(), job_id, nodes, rate, batch or 1.0, now)

    @contextmanager
    def _reading(self) -> Iterator[UnitOfWork]:
        with _told(), self._database.read() as work:
            yield work


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except AdvisorError as error:
        raise ApiProblem(error.status, error.code, error.sentence, error.hint) from error
