"""Posting one notice: to the address that was judged, signed, without following anybody elsewhere."""

import asyncio
import hashlib
import hmac
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress

import httpx

from advisor.protocol.asked.jobs import Notice
from advisor.protocol.asked.webhook import hide_path
from advisor.services.webhooks.receivers import Receivers

SIGNATURE = "X-Advisor-Signature"
"""Header `sha256=…`, the HMAC of the body: as `advisor run --webhook` signs."""
EVENT_ID = "X-Advisor-Event-Id"
"""Header with the event's id: who has seen it before was told before."""
POST_S = 10.0
"""Longest time of one post, looking the name up included."""
_TEMPORARY = frozenset({408, 425, 429})

Resolve = Callable[[str, int], list[str]]
"""The addresses of a host's port; raises OSError."""


class NotTaken(Exception):
    """No receiver took the notice; another try may help. Its text is the sentence that says why."""


class Refused(Exception):
    """Trying again would not help. Its text is the sentence that says why."""


def resolve_host(host: str, port: int) -> list[str]:
    """Return a host's addresses as this machine finds them."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def sign(secret: bytes, body: bytes) -> str:
    """Return the signature's header."""
    return f"sha256={hmac.new(secret, body, hashlib.sha256).hexdigest()}"


class WebhookSender:
    """Posts notices to receivers that the operator listed."""

    def __init__(
        self,
        receivers: Receivers,
        secret: str,
        resolve: Resolve = resolve_host,
        tls: ssl.SSLContext | None = None,
        limit_s: float = POST_S,
    ) -> None:
        """`tls` is what receivers' certificates are judged with; None is this system's own list."""
        self._receivers, self._secret, self._resolve = receivers, secret.encode(), resolve
        self._tls, self._limit_s = tls or ssl.create_default_context(), limit_s

    async def post(self, notice: Notice) -> None:
        """Post a notice once. Raises NotTaken and Refused."""
        if refusal := self._receivers.explain_refusal(notice.url):
            raise Refused(refusal)
        try:
            async with asyncio.timeout(self._limit_s):
                await self._post(notice, httpx.URL(notice.url))
        except TimeoutError:
            raise NotTaken(f"{hide_path(notice.url)} took longer than {self._limit_s:g} s.") from None
        except (OSError, httpx.HTTPError) as error:
            # Not the library's sentence: it may repeat the address.
            raise NotTaken(f"{hide_path(notice.url)} cannot be reached ({type(error).__name__}).") from None

    async def _post(self, notice: Notice, url: httpx.URL) -> None:
        port = url.port or (443 if url.scheme == "https" else 80)
        addresses = await _call_apart(lambda: self._resolve(url.host, port))
        address = self._receivers.choose(addresses)
        if address is None:
            raise Refused(
                f"{url.host} has no public address, and ADVISOR_WEBHOOK_HOSTS lists no network that it is in."
            )
        body = notice.body.encode()
        headers = {
            "Host": url.netloc.decode("ascii"),
            "Content-Type": "application/json",
            "User-Agent": "fleet-advisor",
            EVENT_ID: notice.event_id,
            SIGNATURE: sign(self._secret, body),
        }
        named = {"sni_hostname": url.raw_host.decode("ascii")}
        # No proxy of the environment either: it would resolve the name once more.
        async with httpx.AsyncClient(verify=self._tls, trust_env=False, timeout=self._limit_s) as client:
            request = client.build_request(
                "POST", url.copy_with(host=address), content=body, headers=headers, extensions=named
            )
            reply = await client.send(request, stream=True, follow_redirects=False)
            # Only the status counts: the answer's text is not read.
            await reply.aclose()
        if not reply.is_success:
            is_temporary = reply.status_code >= 500 or reply.status_code in _TEMPORARY
            raise (NotTaken if is_temporary else Refused)(
                f"{hide_path(notice.url)} answered {reply.status_code}."
            )


async def _call_apart(look_up: Callable[[], list[str]]) -> list[str]:
    """Return what `look_up` does, in a thread of its own, which a server that stops does not wait for."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def settle(found: list[str], error: OSError | None) -> None:
        if not answer.done():
            answer.set_result(found) if error is None else answer.set_exception(error)

    def run() -> None:
        found: list[str] = []
        failed: OSError | None = None
        try:
            found = look_up()
        except (OSError, UnicodeError) as error:
            failed = error if isinstance(error, OSError) else OSError(str(error))
        # The server may have stopped by now.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, found, failed)

    threading.Thread(target=run, name="resolve", daemon=True).start()
    return await answer
