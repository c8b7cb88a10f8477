"""Routes of the answer: the advice, and the strategy in other tools' formats."""

from typing import Annotated

from fastapi import Query, Response

from advisor.api.access import Reader
from advisor.api.context import Here
from advisor.api.strict_json import make_router
from advisor.exporters import Exported
from advisor.protocol.answers.advice import Advice, ParetoPoint
from advisor.protocol.answers.forecast import Forecast
from advisor.protocol.answers.raced import RaceAnswer
from advisor.services.answers.advice import export_strategy, get_advice, get_pareto, get_race, predict

router = make_router(prefix="/jobs", tags=["advice"])


@router.get("/{job_id}/advice", summary="The answer to a job")
def read_advice(job_id: str, _: Reader, context: Here) -> Advice:
    """Return a finished job's advice; 409 `advice_not_ready` before that."""
    with context.database.read() as work:
        return get_advice(work, job_id)


@router.get("/{job_id}/race", summary="The answer to a race of two commands")
def read_race(job_id: str, _: Reader, context: Here) -> RaceAnswer:
    """Return what a finished race found: verdict, gain, both accounts and what else differs; 409 before that."""
    with context.database.read() as work:
        return get_race(work, job_id)


@router.get("/{job_id}/pareto", summary="Throughput against loss of what was measured")
def read_pareto(job_id: str, _: Reader, context: Here) -> tuple[ParetoPoint, ...]:
    """Return a point for every strategy measured so far, fastest first, the front marked; also while the job runs."""
    return get_pareto(context.database, job_id, context.clock())


@router.get("/{job_id}/forecast", summary="What the job would gain on another cluster")
def read_forecast(
    job_id: str,
    _: Reader,
    context: Here,
    nodes: Annotated[
        int | None, Query(ge=1, le=4096, description="Nodes, each with as many ranks as measured.")
    ] = None,
    rate: Annotated[
        str | None,
        Query(
            max_length=20,
            description="What a node's link carries, e.g. 25gbit; the measured links without it.",
        ),
    ] = None,
    batch: Annotated[
        float,
        Query(ge=0.0625, le=64, description="Batch factor: a multiple of the measured per-rank batch."),
    ] = 1.0,
) -> Forecast:
    """Return the cost model's throughput and best strategy there, with a band: a prediction, not a measurement."""
    return predict(context.database, context.tuning, job_id, nodes, rate, batch, context.clock())


@router.get("/{job_id}/strategy", summary="The advised strategy in another tool's format")
def read_strategy(
    job_id: str,
    _: Reader,
    context: Here,
    format: Annotated[str, Query(max_length=100, description="A name from /export-formats.")] = "json",
    target: Annotated[
        str | None, Query(max_length=100, description="Version of the tool that is to read it.")
    ] = None,
    download: Annotated[bool, Query(description="Answer with the bare file.")] = False,
) -> Exported:
    """Return the file with its warnings and what it cannot express; with `download` the file alone."""
    with context.database.read() as work:
        exported = export_strategy(work, job_id, format, target)
    if download:
        disposition = f'attachment; filename="{exported.filename}"'
        headers = {"Content-Disposition": disposition, "X-Content-Type-Options": "nosniff"}
        return Response(exported.data, media_type=exported.media_type, headers=headers)  # type: ignore[return-value]
    return exported
