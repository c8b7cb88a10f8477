"""Routes of real trainings under an advised strategy: their reports, and how they do."""

from typing import Annotated

from fastapi import Path

from advisor.api.access import Reader, Submitter
from advisor.api.context import Here
from advisor.api.strict_json import make_router
from advisor.protocol.measured.runs import ProductionRun, RunPage, RunReport
from advisor.services.answers.runs import list_runs, report_run

router = make_router(prefix="/jobs", tags=["production"])

RunId = Annotated[str, Path(pattern=r"^[0-9a-f]{8,32}$", description="Chosen by the training, once.")]


@router.put("/{job_id}/runs/{run_id}", summary="Report a real training's steps")
def put_run(
    job_id: str, run_id: RunId, report: RunReport, principal: Submitter, context: Here
) -> ProductionRun:
    """Store the latest window; an event becomes one of the job's. Repeating a report adds a window, nothing else."""
    with context.database.begin() as work:
        return report_run(work, job_id, run_id, report, principal, context.clock())


@router.get("/{job_id}/runs", summary="Real trainings under the strategy")
def read_runs(job_id: str, _: Reader, context: Here) -> RunPage:
    """Return the trainings that reported, the latest report first."""
    with context.database.read() as work:
        return RunPage(items=list_runs(work, job_id))
