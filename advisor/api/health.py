"""Whether the server lives and whether it can serve: for whatever starts and watches it. No token is needed."""

from fastapi import APIRouter

from advisor.api.context import Here
from advisor.errors import DiskFull, Standby, Unavailable

router = APIRouter(tags=["health"])


@router.head("/livez", include_in_schema=False)
@router.get("/livez", summary="Is the process alive?")
async def livez() -> dict[str, str]:
    """Answer as long as the process runs: on the event loop, for the threads may all wait for the database."""
    return {"status": "alive"}


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", summary="Can requests be served?")
def readyz(context: Here) -> dict[str, str]:
    """Answer 200 while the database answers, 503 otherwise: with the code `standby` where another server is active."""
    try:
        context.database.prove_ready()
    except (DiskFull, Standby):
        raise
    except Unavailable as error:
        raise Unavailable("The database does not answer.") from error
    return {"status": "ready"}
