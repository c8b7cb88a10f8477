"""Every error that the server answers with: one hierarchy, each with status, code and hint.

    AdvisorError
    ├── InvalidRequest           422 invalid_request
    │   ├── InvalidJob           422 invalid_job
    │   ├── InvalidResult        422 invalid_result
    │   └── UnknownFormat        422 unknown_format
    ├── Unauthenticated          401 unauthenticated
    ├── TooManyFailures          429 too_many_failures
    ├── TooManyRequests          429 too_many_requests
    ├── TooManyStreams           429 too_many_streams
    ├── Forbidden                403 forbidden
    │   ├── AgentTurnedOut       403 agent_turned_out
    │   └── NotYourJob           403 not_your_job
    ├── WrongHost                421 wrong_host
    ├── ProtocolMismatch         426 protocol_mismatch
    ├── NotFound                 404 not_found
    │   ├── JobNotFound          404 job_not_found
    │   ├── AgentNotFound        404 agent_not_found
    │   └── TokenNotFound        404 token_not_found
    ├── Conflict                 409 conflict
    │   ├── AgentNameTaken       409 agent_name_taken
    │   ├── AgentIsBusy          409 agent_is_busy
    │   ├── AdviceNotReady       409 advice_not_ready
    │   ├── NoForecast           409 no_forecast
    │   ├── JobIsFinal           409 job_is_final
    │   ├── JobIsLive            409 job_is_live
    │   ├── NothingToContinue    409 nothing_to_continue
    │   ├── NotRepeatable        409 not_repeatable
    │   ├── IdempotencyConflict  409 idempotency_conflict
    │   ├── UnreadableRecord     409 unreadable_record
    │   ├── StaleSession         409 stale_session
    │   └── ResultQuarantined    409 result_quarantined | result_differs
    ├── VersionMismatch          412 version_mismatch
    ├── SessionNotRunning        425 session_not_running
    └── Unavailable              503 unavailable
        ├── DiskFull             503 disk_full
        └── LostRace             503 lost_race

An error's docstring explains its code; its message says what happened this time; its hint says what to do.
"""

from collections.abc import Sequence
from typing import ClassVar


class AdvisorError(Exception):
    """The server cannot do what was asked."""

    status: ClassVar[int] = 500
    code: str = "error"
    hint: str = ""

    def __init__(self, sentence: str, *, hint: str | None = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        if hint is not None:
            self.hint = hint

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers that belong to the answer."""
        return {}


class InvalidRequest(AdvisorError):
    """What was sent breaks a rule; the detail names every field that does."""

    status = 422
    code = "invalid_request"
    hint = "Correct the named fields and send it again."


class InvalidJob(InvalidRequest):
    """The job's specification contradicts itself or asks for more than the server allows."""

    code = "invalid_job"

    def __init__(self, sentence: str, *, faults: Sequence[tuple[str, str]] = ()) -> None:
        """`faults`: fields of the job, each with what is wrong with it, to be read after its name: ` has more …`,
        `: it pipes.`"""
        super().__init__(sentence)
        self.faults = tuple(faults)


class InvalidResult(InvalidRequest):
    """A block's result holds numbers that no measurement can give."""

    code = "invalid_result"
    hint = "This is a defect of the runtime that measured it: report it with the session's log."


class UnknownFormat(InvalidRequest):
    """There is no exporter of that name, or it cannot write for that version."""

    code = "unknown_format"
    hint = "GET /api/v1/export-formats lists the formats and their targets."


class Unauthenticated(AdvisorError):
    """The request carries no token, or one that is unknown or revoked."""

    status = 401
    code = "unauthenticated"
    hint = (
        "Send `Authorization: Bearer …`; the first administrator's token is in the server's data directory."
    )

    @property
    def headers(self) -> dict[str, str]:
        """Tell the client how to authenticate, as RFC 9110 asks."""
        return {"WWW-Authenticate": "Bearer"}


class TooManyFailures(AdvisorError):
    """Too many requests with wrong tokens came from this address."""

    status = 429
    code = "too_many_failures"
    hint = "Wait a minute, and check the token."

    @property
    def headers(self) -> dict[str, str]:
        """Tell the client how long to wait."""
        return {"Retry-After": "60"}


class TooManyRequests(AdvisorError):
    """One token asks faster than the server lets any; nothing was done."""

    status = 429
    code = "too_many_requests"
    hint = "Wait as long as Retry-After says; if it is many programs that ask, give each a token of its own."

    def __init__(self, per_s: float, after_s: int) -> None:
        super().__init__(f"This token sent more requests than {per_s:g} a second for too long.")
        self._after_s = after_s

    @property
    def headers(self) -> dict[str, str]:
        """Tell the client how long to wait."""
        return {"Retry-After": str(self._after_s)}


class TooManyStreams(AdvisorError):
    """One token holds as many streams of events open as the server lets any."""

    status = 429
    code = "too_many_streams"
    hint = (
        "Close one, or give each program a token of its own; the server's ADVISOR_MOST_STREAMS allows more."
    )

    def __init__(self, most: int) -> None:
        super().__init__(f"This token holds {most} streams of events open, which is as many as one may.")

    @property
    def headers(self) -> dict[str, str]:
        """Tell the client how long to wait."""
        return {"Retry-After": "10"}


class Forbidden(AdvisorError):
    """The token is valid, but its role does not allow this."""

    status = 403
    code = "forbidden"
    hint = "Ask an administrator for a token with the role that this needs."


class AgentTurnedOut(Forbidden):
    """The agent's own token was revoked, so that it may not come in again by itself."""

    code = "agent_turned_out"
    hint = "An administrator lets it in again: `advisor token readmit NAME`."


class NotYourJob(Forbidden):
    """The job belongs to another owner, and to no team of yours."""

    code = "not_your_job"
    hint = "Ask its owner or an administrator; tokens of one team (`advisor token create --team`) share their jobs."


class WrongHost(AdvisorError):
    """The request names a host that this server does not answer for."""

    status = 421
    code = "wrong_host"
    hint = "Use localhost, or add the name to ADVISOR_ALLOWED_HOSTS on the server."


class ProtocolMismatch(AdvisorError):
    """The agent speaks another major version of the protocol."""

    status = 426
    code = "protocol_mismatch"
    hint = "Install the same release of fleet-advisor on the agent and on the server."


class NotFound(AdvisorError):
    """There is nothing at this address."""

    status = 404
    code = "not_found"
    hint = "The documentation at /docs lists every address."


class JobNotFound(NotFound):
    """No job has that id."""

    code = "job_not_found"
    hint = "`advisor jobs` lists the jobs."


class AgentNotFound(NotFound):
    """No agent has that id."""

    code = "agent_not_found"
    hint = "The agent has to register first."


class TokenNotFound(NotFound):
    """No token has that id."""

    code = "token_not_found"
    hint = "`advisor token list` lists the tokens."


class Conflict(AdvisorError):
    """The request does not fit the present state."""

    status = 409
    code = "conflict"


class AgentNameTaken(Conflict):
    """Another agent of that name is at work, and this one does not prove to be it."""

    code = "agent_name_taken"
    hint = (
        "Give this agent a name of its own (--name). If it is the same one and has lost its work directory, it is let "
        "in once the other has been silent for half a minute, or after `advisor token readmit NAME`."
    )


class AgentIsBusy(Conflict):
    """The agent holds a session: only one that holds none can be removed."""

    code = "agent_is_busy"
    hint = "Drain it first (`advisor agents drain NAME`), and remove it when its session has ended."


class AdviceNotReady(Conflict):
    """The job has no advice: it is still running, or it ended without one."""

    code = "advice_not_ready"
    hint = "Watch the job with `advisor watch`; the advice is there when it has finished."


class NoForecast(Conflict):
    """Too little is known of the job to predict anything; the detail says what is missing."""

    code = "no_forecast"
    hint = "What is measured on a cluster needs no forecast: tune there."


class JobIsFinal(Conflict):
    """The job has ended, or is about to: there is nothing to stop, to pause, to resume or to prioritise."""

    code = "job_is_final"
    hint = "More time makes it go on: `advisor tune --continue JOB --minutes 5`."


class JobIsLive(Conflict):
    """The job has not ended: only one that has can be continued, archived or deleted."""

    code = "job_is_live"
    hint = "Watch it with `advisor watch`; when it has ended it can be given more time."


class VersionMismatch(AdvisorError):
    """The job is not the version that If-Match names: a user or the server changed it since."""

    status = 412
    code = "version_mismatch"
    hint = "Look at the job again, and repeat the request with the ETag that it has now."

    def __init__(self, sentence: str, etag: str) -> None:
        super().__init__(sentence)
        self._etag = etag

    @property
    def headers(self) -> dict[str, str]:
        """Tell the client which version there is."""
        return {"ETag": self._etag}


class NothingToContinue(Conflict):
    """The job ended before it had measured anything: continuing it would be starting it."""

    code = "nothing_to_continue"
    hint = "Submit the job again."


class NotRepeatable(Conflict):
    """Another race of this trial would tell nothing that the job can use: its search is over, or it never ran."""

    code = "not_repeatable"
    hint = "While a job searches, every strategy that its search has measured can be measured again."


class IdempotencyConflict(Conflict):
    """The same Idempotency-Key came before with another request."""

    code = "idempotency_conflict"
    hint = "Use a new key for a new job."


class UnreadableRecord(Conflict):
    """What is stored of this cannot be read."""

    code = "unreadable_record"
    hint = "This is a defect, or the database was changed by hand: report it. Everything else goes on."


class StaleSession(Conflict):
    """The session is not this agent's, has ended, or has been superseded by a newer generation."""

    code = "stale_session"
    hint = "End every process of that session and ask for work again."


class ResultQuarantined(Conflict):
    """A block's result was not accepted; it is kept in quarantine and does not count."""

    code = "result_quarantined"
    hint = "Nothing is to be done: do not send it again."


class SessionNotRunning(AdvisorError):
    """The session's gang is not complete yet, so there is nothing to measure."""

    status = 425
    code = "session_not_running"
    hint = "Launch the processes when the beat's answer names the rendezvous, then ask again."


class Unavailable(AdvisorError):
    """The database cannot be reached or is busy."""

    status = 503
    code = "unavailable"
    hint = "Try again in a moment; agents keep what they measured and send it later."

    @property
    def headers(self) -> dict[str, str]:
        """Tell the client when to come back."""
        return {"Retry-After": "2"}


class DiskFull(Unavailable):
    """The disk that holds the database is full, so that nothing more can be written."""

    # Not 507: agents wait for a server that answers 503.
    code = "disk_full"
    hint = (
        "Free space on it, and the server goes on by itself. Nothing that was accepted is lost; agents keep what they "
        "measured and send it later."
    )

    def __init__(self) -> None:
        super().__init__("The disk of the server's database is full.")


class LostRace(Unavailable):
    """Something else changed the same thing at the same moment; nothing was done."""

    code = "lost_race"
    hint = "Send the same request again."
