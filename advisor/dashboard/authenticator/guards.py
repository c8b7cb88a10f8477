"""What protects the pages in the browser: response headers, and the refusal of forms sent by other sites."""

from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from advisor.errors import Forbidden

# Plotly paints through the style object, which this policy allows, and would add a style element of its own, which
# it does not; base.html carries the marker that makes Plotly leave that out, and advisor.css has its rules.
CONTENT_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "frame-ancestors 'none'; form-action 'self'"
)
_HARMLESS = frozenset({"GET", "HEAD", "OPTIONS"})
_HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class SafeHeaders:
    """Middleware that sets the headers on every answer; pages are never cached, static files say so themselves."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and add the headers to what comes back."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self.app(scope, receive, send_with_headers)


def _read_host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # half an IPv6 address
        return None


def refuse_other_sites(request: Request) -> None:
    """Raise Forbidden unless a request that may change something was sent from our own pages.

    Every route of the pages depends on it, so that none can be forgotten. Browsers say where a request comes from in
    Sec-Fetch-Site, older ones in Origin; a request with neither does not come from a browser's form.
    """
    if request.method in _HARMLESS:
        return
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    foreign = site not in {None, "same-origin", "none"}
    if not foreign and origin is not None:
        foreign = _read_host(origin) != request.headers.get("host", "")
    if foreign:
        raise Forbidden(
            "This form was sent from another site, so nothing was done.",
            hint="Open the dashboard itself and try again.",
        )
