"""Headers that keep a browser from doing more with an answer than show it, where the answer brings none itself."""

import base64
import hashlib
import re

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SAFE_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Of an answer that is no page."""
_RAW = [(name.encode(), value.encode()) for name, value in SAFE_HEADERS.items()]
_POLICY = b"content-security-policy"
_PAGE_POLICY = (
    "default-src 'self'; script-src 'self'{scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "object-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
)
_INLINE = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


class SafeAnswers:
    """Middleware that adds the headers. What an answer says itself stays, and so do the dashboard's stricter ones.

    The API's own pages at /docs hold scripts in their text: the policy names these very texts, by their hashes.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and add the headers to what comes back."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        held: Message | None = None

        async def send_with_headers(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.start":
                said = list(message.get("headers", []))
                names = {name.lower(): value for name, value in said}
                is_page = names.get(b"content-type", b"").startswith(b"text/html")
                needs_policy = is_page and _POLICY not in names
                message["headers"] = [*said, *(one for one in _RAW if one[0] not in names)]
                if needs_policy:
                    # It depends on the page's text, which comes next.
                    held = message
                    return
            elif held is not None:
                start, held = held, None
                MutableHeaders(scope=start)["content-security-policy"] = _write_policy(
                    message.get("body", b"")
                )
                await send(start)
            await send(message)

        await self.app(scope, receive, send_with_headers)


def _write_policy(page: bytes) -> str:
    digests = (base64.b64encode(hashlib.sha256(text).digest()).decode() for text in _INLINE.findall(page))
    return _PAGE_POLICY.format(scripts="".join(f" 'sha256-{digest}'" for digest in digests))
