"""Who may do what: every route under /api/v1 names the roles that may use it; without a name none may."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool

from advisor.api.context import Context
from advisor.api.edge.limits import Buckets
from advisor.errors import Forbidden, TooManyFailures, TooManyRequests, Unauthenticated
from advisor.protocol.views import Role
from advisor.services.tokens import Principal, identify

_BEARER = HTTPBearer(auto_error=False, description="A token: `adv_<role>_<id>_<secret>`.")
_FAILURES = 30
"""Wrong tokens of one address that are looked at within a minute."""

READERS = (Role.VIEWER, Role.SUBMITTER, Role.ADMIN)
SUBMITTERS = (Role.SUBMITTER, Role.ADMIN)
ADMINS = (Role.ADMIN,)
AGENTS = (Role.AGENT,)


class FailureCounter:
    """Counts wrong tokens per address, so that guessing one is slow. A right token is always let in."""

    def __init__(self, elapsed: Callable[[], float]) -> None:
        """`elapsed` is a monotonic clock of seconds."""
        self._buckets = Buckets(_FAILURES / 60.0, _FAILURES, elapsed)

    def count(self, address: str) -> None:
        """Note a wrong token. Raises TooManyFailures when there were more than 30 within a minute."""
        try:
            self._buckets.take(address)
        except TooManyRequests as error:
            raise TooManyFailures(
                f"More than {_FAILURES} wrong tokens within a minute came from this address."
            ) from error


class Allow:
    """The dependency of a route: lets in tokens of certain roles and says who is asking."""

    def __init__(self, *roles: Role, even_spent: bool = False) -> None:
        """`even_spent` lets in tokens that have expired or were revoked too: the route looks at them itself."""
        self.roles = roles
        self._registers = even_spent

    async def __call__(
        self,
        request: Request,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
    ) -> Principal:
        """Return who is asking. Raises Unauthenticated, TooManyFailures, TooManyRequests or Forbidden."""
        if credentials is None:
            raise Unauthenticated("The request carries no token.")
        try:
            principal = await self._find(request.app.state.context, credentials.credentials)
        except Unauthenticated:
            counter: FailureCounter = request.app.state.failures
            counter.count(request.client.host if request.client else "unknown")
            raise
        request.state.principal = principal.name
        if not self._registers:
            # A whole cluster of agents registers with one token, all at the moment when it is switched on.
            buckets: Buckets = request.app.state.buckets
            buckets.take(principal.token_id)
        if principal.role not in self.roles:
            needed = " or ".join(role.value for role in self.roles)
            raise Forbidden(
                f"This needs a token with the role {needed}; yours is a {principal.role.value}'s."
            )
        return principal

    async def _find(self, context: Context, token: str) -> Principal:
        if self._registers:
            return await run_in_threadpool(_identify, context, token)
        now = context.clock()
        if (known := context.known_tokens.find(token, now)) is not None:
            return known
        return await run_in_threadpool(context.known_tokens.authenticate, token, now)


def _identify(context: Context, token: str) -> Principal:
    with context.database.read() as work:
        return identify(work, token, context.clock())


def find_agent_id(principal: Principal) -> str:
    """Return which agent is asking. Raises Forbidden for a token that agents only register with."""
    if principal.agent_id is None:
        raise Forbidden(
            "This token is for registering agents; it is no agent's own.",
            hint="Use the token in the answer to POST /api/v1/agents.",
        )
    return principal.agent_id


Reader: Any = Annotated[Principal, Depends(Allow(*READERS))]
Submitter: Any = Annotated[Principal, Depends(Allow(*SUBMITTERS))]
Admin: Any = Annotated[Principal, Depends(Allow(*ADMINS))]
AgentPrincipal: Any = Annotated[Principal, Depends(Allow(*AGENTS))]
Registrant: Any = Annotated[Principal, Depends(Allow(*AGENTS, even_spent=True))]
"""An agent that registers: its enrolment token may have ended since it first did."""


Limit = Annotated[
    int, Query(ge=1, le=1000, description="Most items on a page, which ends earlier where they are large.")
]
Cursor = Annotated[str | None, Query(max_length=600, description="`next_cursor` of the page before.")]
