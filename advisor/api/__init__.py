"""JSON over HTTP: thin routes under /api/v1, one file per noun."""

from fastapi import APIRouter, Depends

from advisor.api import advice, agents, job_actions, jobs, reference, runs, sessions, stories, tokens
from advisor.api.edge.requests import PREFIX, note_route


def build_api() -> APIRouter:
    """Return all routes under /api/v1."""
    router = APIRouter(prefix=PREFIX, dependencies=[Depends(note_route)])
    # Looked through in this order for every request: what agents ask comes most often.
    for module in (sessions, agents, jobs, job_actions, stories, advice, runs, tokens, reference):
        router.include_router(module.router)
    return router
