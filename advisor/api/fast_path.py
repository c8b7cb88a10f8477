"""What agents say all the time, answered without the framework where nothing is out of the ordinary.

The framework takes a millisecond for a request, more than what is asked for: routing, dependencies, a thread that waits
for the commit. A message of `FREQUENT` whose sender is known and whose body is in order is taken here, within the same
middleware as all others, and what is short the event loop writes itself, many in one commit. Everything else goes the
long way, and so does whatever goes wrong: the error that was met is raised there, so that it is told as always.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, TypeAdapter
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from advisor.api.context import Context
from advisor.api.edge.buckets import Buckets
from advisor.api.edge.requests import FAILURE, PREFIX, begin_request
from advisor.api.strict_json import read_strictly
from advisor.errors import InvalidRequest, TooManyRequests
from advisor.protocol.views import Role
from advisor.services.tokens import Principal
from advisor.storage import Database, UnitOfWork

Headers = dict[str, str]

_SHORT_BYTES = 32 * 1024
"""What a larger body holds takes longer than the event loop may be kept from others."""


@dataclass(frozen=True)
class Errand:
    """What a message asks for."""

    write: Callable[[UnitOfWork], Any]
    """Run in a transaction."""
    conclude: Callable[[Any], tuple[BaseModel, Headers]]
    """Told what it returned, once that is committed: the answer, and headers that come with it."""
    is_short: bool = True
    """Whether the event loop may do it itself: it takes a millisecond, however long the job's story is."""

    def run(self, context: Context, response: Response) -> Any:
        """Do it in this thread, the long way."""
        reply, headers = self.conclude(self.do(context.database))
        response.headers.update(headers)
        return reply

    def do(self, database: Database) -> Any:
        """Write it in this thread."""
        with database.begin() as work:
            return self.write(work)


class Frequent:
    """A kind of message that agents send all the time."""

    def __init__(self, path: str, message: type[BaseModel], take: Callable[..., Errand]) -> None:
        """`path` is the route's, under the API. `take(context, agent_id, message, **names in path)` says what to do."""
        self.path, self.take = path, take
        self.shape = re.compile(PREFIX + re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path))
        self.message: TypeAdapter[Any] = TypeAdapter(message)


class FastPath:
    """Middleware within all others, right before the framework."""

    def __init__(
        self, app: ASGIApp, context: Context, buckets: Buckets, frequent: tuple[Frequent, ...]
    ) -> None:
        self.app, self._context, self._buckets, self._frequent = app, context, buckets, frequent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass the request on."""
        if scope["type"] == "http" and scope["method"] == "POST":
            for kind in self._frequent:
                named = kind.shape.fullmatch(scope["path"])
                if named is not None and (sender := self._find_sender(scope)) is not None:
                    await self._answer(kind, named.groupdict(), sender, scope, receive, send)
                    return
        await self.app(scope, receive, send)

    def _find_sender(self, scope: Scope) -> Principal | None:
        """Return the agent that asks; None unless it is known, and says JSON of a known length."""
        headers = dict(scope["headers"])
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if (
            scheme != b"Bearer"
            or headers.get(b"content-type") != b"application/json"
            or b"content-length" not in headers
            or len(headers) != len(scope["headers"])
        ):
            return None
        context = self._context
        principal = context.known_tokens.find(token.decode("latin-1"), context.clock())
        if principal is None or principal.role is not Role.AGENT or principal.agent_id is None:
            return None
        scope.setdefault("state", {})["principal"] = principal.name
        return principal

    async def _answer(
        self,
        kind: Frequent,
        named: dict[str, str],
        sender: Principal,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        try:
            if message["type"] != "http.request":
                raise InvalidRequest("The body did not come in full.")
            said = read_strictly(body, kind.message)
            # Last: what goes the long way takes from the bucket there.
            self._buckets.take(sender.token_id)
        except (InvalidRequest, RequestValidationError, TooManyRequests):
            await self.app(scope, _Again(message, body, receive), send)
            return
        scope["route"] = kind
        begin_request(scope, named, self._context.metrics)
        try:
            errand = kind.take(self._context, sender.agent_id, said, **named)
            database = self._context.database
            if errand.is_short and len(body) <= _SHORT_BYTES:
                written = await database.write(errand.write)
            else:
                written = await run_in_threadpool(errand.do, database)
            reply, headers = errand.conclude(written)
        except Exception as error:
            scope["state"][FAILURE] = error
            await self.app(scope, _Again(message, body, receive), send)
            return
        content = reply.model_dump_json().encode()
        told = {"content-type": "application/json", "content-length": str(len(content)), **headers}
        raw = [(name.encode(), value.encode()) for name, value in told.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        await send({"type": "http.response.body", "body": content})


class _Again:
    """Gives a body that was read once more."""

    def __init__(self, last: Message, body: bytes, receive: Receive) -> None:
        self._last: Message | None = {**last, "body": body} if last["type"] == "http.request" else last
        self._receive = receive

    async def __call__(self) -> Message:
        last, self._last = self._last, None
        return last if last is not None else await self._receive()
