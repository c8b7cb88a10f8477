"""For what starts and watches the server: whether it lives and can serve, without a token, and Prometheus' figures."""

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from advisor.api.access import Reader
from advisor.api.context import Here
from advisor.errors import DiskFull, Unavailable

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

router = APIRouter(tags=["health"])


@router.head("/livez", include_in_schema=False)
@router.get("/livez", summary="Is the process alive?")
async def livez() -> dict[str, str]:
    """Answer as long as the process runs: on the event loop, for the threads may all wait for the database."""
    return {"status": "alive"}


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", summary="Can requests be served?")
def readyz(context: Here) -> dict[str, str]:
    """Answer 200 while the database answers, 503 otherwise."""
    try:
        context.database.prove_ready()
    except DiskFull:
        raise
    except Unavailable as error:
        raise Unavailable("The database does not answer.") from error
    return {"status": "ready"}


@router.get("/metrics", response_class=PlainTextResponse, summary="Figures for Prometheus")
def read_metrics(_: Reader, context: Here) -> Response:
    """Return this server's figures in Prometheus' text format; what the database was asked is at most 5 s old."""
    return Response(context.metrics.write(), media_type=_CONTENT_TYPE)
