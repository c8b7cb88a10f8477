"""Routes of the answer: the advice, and the strategy in other tools' formats."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from advisor.api.access import Reader
from advisor.api.context import Here
from advisor.exporters import Exported
from advisor.protocol.advice import Advice
from advisor.services.advice import get_advice
from advisor.services.exports import export_strategy

router = APIRouter(prefix="/jobs", tags=["advice"])


@router.get("/{job_id}/advice", summary="The answer to a job")
def read_advice(job_id: str, _: Reader, context: Here) -> Advice:
    """Return a finished job's advice; 409 `advice_not_ready` before that."""
    with context.database.read() as work:
        return get_advice(work, job_id)


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
        return Response(exported.content, media_type=exported.media_type, headers=headers)  # type: ignore[return-value]
    return exported
