"""What a server answers, as plain JSON: a list of jobs needs ten fields of it, and none of what `Client` loads."""

import json
import os
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from advisor.client.answers import explain_silence, read_problem

Query = dict[str, str | Sequence[str]]
Asker = Callable[[str, Query], Any]
"""Answers a GET of the API in plain JSON."""


class _StayHere(HTTPRedirectHandler):
    """The token is for the server that was named, and for no other that it names."""

    def redirect_request(self, *_: Any) -> None:
        return None


def ask(
    url: str, token: str | None, path: str, params: Mapping[str, str | Sequence[str]], timeout_s: float = 30.0
) -> Any:
    """Return what `GET /api/v1{path}` answers. Raises `ServerUnreachable`, `ApiProblem`, and ValueError for no JSON."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        address = f"{url.rstrip('/')}/api/v1{path}?{urlencode(params, doseq=True)}"
        request = Request(address, headers=headers)  # noqa: S310 - of two schemes
        if request.type not in {"http", "https"}:
            raise ValueError("an address begins with http:// or https://")
        handlers = [HTTPSHandler(context=_trust())] if request.type == "https" else []
        with build_opener(_StayHere, *handlers).open(request, timeout=timeout_s) as reply:
            content = reply.read()
    except HTTPError as error:
        raise read_problem(
            error.code, {k.lower(): v for k, v in error.headers.items()}, error.read()
        ) from error
    except (OSError, HTTPException, ValueError) as error:
        cause = error.reason if isinstance(error, URLError) and isinstance(error.reason, OSError) else error
        raise explain_silence(url, cause, late=isinstance(cause, TimeoutError)) from error
    return json.loads(content)


def fetch_jobs(asked: Asker, wanted: Query, most: int) -> list[dict[str, Any]]:
    """Return the newest jobs that `wanted` names, page by page, at most so many."""
    jobs: list[dict[str, Any]] = []
    query: Query = {**wanted, "limit": str(most)}
    while True:
        with understood():
            page = asked("/jobs", query)
            jobs += page["items"]
            if len(jobs) >= most or not page["next_cursor"]:
                return jobs[:most]
            query["cursor"] = page["next_cursor"]


@contextmanager
def understood() -> Iterator[None]:
    """What a server of another release says may lack what this one reads."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        from advisor.protocol.reading import Unreadable

        raise Unreadable(f"{type(error).__name__}: {error}") from error


def _trust() -> ssl.SSLContext:
    """Whose certificates count: those that httpx, and with it every other command, lets count."""
    if os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR"):
        return ssl.create_default_context()
    import certifi

    return ssl.create_default_context(cafile=certifi.where())
