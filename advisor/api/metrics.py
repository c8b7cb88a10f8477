"""The route that Prometheus reads: figures of this server, for every token that may read jobs."""

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from advisor.api.access import Reader
from advisor.api.context import Here

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

router = APIRouter(tags=["health"])


@router.get("/metrics", response_class=PlainTextResponse, summary="Figures for Prometheus")
def read_metrics(_: Reader, context: Here) -> Response:
    """Return this server's figures in Prometheus' text format; what the database was asked is at most 5 s old."""
    return Response(context.metrics.write(), media_type=_CONTENT_TYPE)
