"""What comes back from the server: files, problem documents, and no answer at all."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

_FILE_NAME = "filename="
_MOMENTARY = frozenset({408, 425, 429, 502, 503, 504})
"""Statuses that say nothing about the request itself: the same one may be answered a moment later."""
_TOO_MANY = 429
_TRUST = (
    "Name the certificate, or that of the authority which signed it: SSL_CERT_FILE=/path/to/server.pem. It has to be "
    "valid today and for the host in the server's address."
)
_LONGEST_WAIT_S = 30.0
"""More than this is not waited for because a Retry-After asks for it."""


class ServerUnreachable(Exception):
    """No answer came from the server: it is not running, the address is wrong, or the network is down."""

    def __init__(self, url: str, reason: str, hint: str = "") -> None:
        super().__init__(f"No answer from the server at {url}: {reason}.")
        self.url = url
        self.hint = hint
        """What to do, where it is something else than to start the server."""


class ApiProblem(Exception):
    """The server answered that it cannot do what was asked (RFC 9457 problem document)."""

    def __init__(
        self, status: int, code: str, detail: str, hint: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.hint = hint
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class ExportedFile:
    """An exported strategy: a text file, or a zip for the formats of several files."""

    name: str
    content: bytes


def choose_wait(error: Exception) -> bool | float:
    """Return whether a call that failed so may be repeated, or after how many seconds the server wants it to be."""
    if isinstance(error, ServerUnreachable):
        return True
    if not isinstance(error, ApiProblem) or error.status not in _MOMENTARY:
        return False
    return True if error.retry_after_s is None else min(error.retry_after_s, _LONGEST_WAIT_S)


def choose_wait_untouched(error: Exception) -> bool | float:
    """The same for a call that must not be done twice: only what the server refused to look at is repeated."""
    untouched = isinstance(error, ApiProblem) and error.status == _TOO_MANY
    return choose_wait(error) if untouched else False


def explain_silence(url: str, error: BaseException, *, late: bool) -> ServerUnreachable:
    """Return what a failed connection means; `late`: for want of an answer in time."""
    if late:
        return ServerUnreachable(url, "it did not answer in time")
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        reason = str(error).rpartition("certificate verify failed: ")[2].partition(" (_ssl")[0]
        return ServerUnreachable(url, f"its certificate is not trusted here ({reason})", _TRUST)
    return ServerUnreachable(url, str(error) or type(error).__name__)


def read_file(reply: "httpx.Response", default: str) -> ExportedFile:
    """Return the file that a reply carries, under the name that it gives."""
    disposition = reply.headers.get("content-disposition", "")
    name = disposition.rpartition(_FILE_NAME)[2].strip().strip('"') if _FILE_NAME in disposition else ""
    return ExportedFile(name.replace("\\", "/").rpartition("/")[2] or default, reply.content)


def read_problem(status: int, headers: Mapping[str, str], content: bytes) -> ApiProblem:
    """Return what the server refused; a proxy's answer, which is no problem document, by its status alone."""
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        body = {}
    code = str(body.get("code") or body.get("type") or f"http_{status}")
    detail = body.get("detail") or body.get("title") or f"The server answered {status}."
    hint = _as_text(body.get("hint") or "")
    if status >= 500 and (request_id := body.get("request_id")):
        hint = f"{hint} The server's log has it as request {request_id}.".strip()
    after = headers.get("retry-after", "")
    return ApiProblem(
        status,
        code,
        _as_text(detail),
        hint,
        float(after) if after.isdigit() else None,
    )


def _as_text(value: Any) -> str:
    """A sentence from a problem's field; a validation error's field is a list of findings."""
    if not isinstance(value, list):
        return str(value)
    findings = []
    for finding in value:
        where = ".".join(str(part) for part in finding.get("loc", ()) if part != "body")
        findings.append(f"{where}: {finding.get('msg', '')}" if where else str(finding.get("msg", "")))
    return "; ".join(findings)
