"""The size of request bodies: more than a mebibyte is answered with 413, whether the request says so or not."""

from contextlib import suppress

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from advisor.api.edge.problems import build_problem
from advisor.protocol.measured.messages import MOST_MESSAGE_BYTES


class SizeCheck:
    """Middleware that stops reading a request's body at the limit."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 413."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "")
        too_large = length.isdigit() and (len(length) > 15 or int(length) > MOST_MESSAGE_BYTES)
        read = 0

        async def receive_within_limit() -> Message:
            nonlocal read, too_large
            message = await receive()
            read += len(message.get("body", b""))
            too_large = too_large or read > MOST_MESSAGE_BYTES
            # To the application it looks as if the client had gone; what it answers then is not sent.
            return {"type": "http.disconnect"} if too_large else message

        async def send_unless_too_large(message: Message) -> None:
            if not too_large:
                await send(message)

        if not too_large:
            with suppress(ClientDisconnect):
                await self.app(scope, receive_within_limit, send_unless_too_large)
        if too_large:
            detail = f"The request's body has more than {MOST_MESSAGE_BYTES} bytes."
            await build_problem(413, "content_too_large", detail, "Send less at once.")(scope, receive, send)
