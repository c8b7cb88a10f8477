"""JSON over HTTP: thin routes under /api/v1, one file per noun."""

from fastapi import APIRouter

from advisor.api import advice, agents, job_actions, jobs, reference, runs, sessions, stories, tokens


def build_api() -> APIRouter:
    """Return all routes under /api/v1, without that."""
    router = APIRouter()
    # Looked through in this order for every request: what agents ask comes most often. All stand in one list, because
    # the framework looks through a router of its own three times.
    for module in (sessions, agents, jobs, job_actions, stories, advice, runs, tokens, reference):
        router.routes += module.router.routes
    return router
