"""How a command ends: exit codes, and errors that say what happened, why, and what to do."""

from collections.abc import Mapping
from enum import IntEnum
from errno import EIO, ENOSPC
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # A command that goes well has no use for what its errors are made of.
    from advisor.protocol.asked.jobs import JobState


class Exit(IntEnum):
    """The exit codes of `advisor`; those from 100 tell how the job stands."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    """Given by the parser of options."""
    INVALID_SPEC = 3
    NOT_ALLOWED = 4
    UNREACHABLE = 5
    JOB_FAILED = 100
    JOB_NOT_FINISHED = 101
    NOT_FOUND = 102
    JOB_CANCELLED = 103
    BELOW = 104
    """A verification showed less than was asked for."""
    NOT_SHOWN = 105
    """A verification's time did not tell."""
    INTERRUPTED = 130


class CommandFailed(Exception):
    """A command cannot do what was asked. `what` happened, `hint`: what to do; `details` are a line for each fault."""

    def __init__(self, exit_code: Exit, what: str, hint: str = "", details: str = "") -> None:
        super().__init__(what)
        self.exit_code = exit_code
        self.what = what
        self.hint = hint
        self.details = details


_CODES_OF_STATUS = {
    400: Exit.INVALID_SPEC,
    401: Exit.NOT_ALLOWED,
    403: Exit.NOT_ALLOWED,
    404: Exit.NOT_FOUND,
    422: Exit.INVALID_SPEC,
}
_HINTS_OF_STATUS = {403: "Ask an administrator of the server for a token of a higher role."}
_CODES_OF_PROBLEMS = {
    "advice_not_ready": Exit.JOB_NOT_FINISHED,
    "job_is_final": Exit.INVALID_SPEC,
    "job_is_live": Exit.JOB_NOT_FINISHED,
}
_HINTS: Mapping[str | int, str] = {
    401: "Sign in with `advisor login`, or set ADVISOR_TOKEN or ADVISOR_TOKEN_FILE to a token of this server; "
    "the person who runs it makes one with `advisor token create`.",
    "unknown_format": "`advisor export --help` names the formats; docs/exports.md says what each is for.",
}
"""By code or status, in place of the server's own: it speaks to programs, of headers and addresses."""


def exit_of_state(state: "JobState") -> Exit:
    """Return the exit code for a job in that state."""
    return {"finished": Exit.OK, "failed": Exit.JOB_FAILED, "cancelled": Exit.JOB_CANCELLED}.get(
        state.value, Exit.JOB_NOT_FINISHED
    )


def exit_code_of(error: BaseException | None) -> int:
    """Return the exit code of a command that ends with `error`; None: it ends well."""
    if error is None or isinstance(error, KeyboardInterrupt):
        return Exit.OK if error is None else Exit.INTERRUPTED
    if (code := getattr(error, "exit_code", None)) is not None:
        return int(code)
    failure = explain_failure(error) if isinstance(error, Exception) else None
    return failure.exit_code if failure else Exit.INTERNAL


def explain_failure(error: Exception) -> CommandFailed | None:
    """Return what a person needs to know about `error`; None when it is a defect of ours."""
    if isinstance(error, CommandFailed):
        return error
    from advisor.client import ApiProblem, ServerUnreachable
    from advisor.data_dir import NotPrivate
    from advisor.lab.ledger import LedgerFault
    from advisor.local.server import LocalModeFailed
    from advisor.protocol.reading import Unreadable

    if isinstance(error, ServerUnreachable):
        return CommandFailed(
            Exit.UNREACHABLE,
            str(error),
            error.hint
            or "Check ADVISOR_URL, and that the server runs: `advisor serve` starts one. Without ADVISOR_URL, "
            "`advisor tune` starts its own.",
        )
    if isinstance(error, ApiProblem):
        code = _CODES_OF_STATUS.get(error.status, Exit.INTERNAL)
        code = _CODES_OF_PROBLEMS.get(error.code, code)
        hint = (
            _HINTS.get(error.code)
            or _HINTS.get(error.status)
            or error.hint
            or _HINTS_OF_STATUS.get(error.status, "")
        )
        return CommandFailed(code, error.detail, hint)
    if isinstance(error, OSError) and error.errno in {ENOSPC, EIO} and error.filename is None:
        return CommandFailed(
            Exit.INTERNAL,
            f"The result cannot be written: {error.strerror}.",
            "Send standard output elsewhere, or make room on its disk.",
        )
    if isinstance(error, LedgerFault):
        return CommandFailed(Exit.INVALID_SPEC, str(error))
    if isinstance(error, NotPrivate):
        return CommandFailed(Exit.INTERNAL, str(error), error.hint)
    if isinstance(error, LocalModeFailed):
        return CommandFailed(Exit.INTERNAL, str(error), error.hint, error.log_tail)
    if isinstance(error, Unreadable):
        return CommandFailed(
            Exit.INTERNAL,
            f"The server's answer is not understood ({error}).",
            "Server and command line are of different versions: `advisor version` and the server's /readyz "
            "tell which. Upgrade the older one.",
        )
    return None
