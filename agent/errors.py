"""The agent's errors: what happened, why, and what to do.

AgentError
├── ServerUnreachable      nobody answered, or only with "try again"
├── ServerRefused          the server understood and said no
│   ├── StaleSession       the session is no longer this agent's
│   └── NotWelcome         token or protocol version refused: retrying is useless
├── NotTheServer           something else than Fleet Advisor answers at that URL
├── Unlaunchable           the workload cannot be started on this node
└── WorkDirInUse           another agent runs in the same work directory
"""


class AgentError(Exception):
    """Base of every error of the agent; `str()` is complete sentences for a person."""


class ServerUnreachable(AgentError):
    """No usable answer until the caller gave up: check the server's URL, the network and the server's log."""


class ServerRefused(AgentError):
    """The server refused a request; repeating it unchanged is useless."""

    def __init__(self, status: int, code: str, detail: str, hint: str = "") -> None:
        super().__init__(f"{detail} {hint}".strip())
        self.status = status
        self.code = code


class StaleSession(ServerRefused):
    """The session was given to somebody else or is over: its ranks must go, its result is not wanted."""


class NotWelcome(ServerRefused):
    """The server refuses this agent itself: give it a valid agent token, or a matching version."""


class NotTheServer(AgentError):
    """The answer is not Fleet Advisor's: check --server."""


class Unlaunchable(AgentError):
    """The workload cannot be started; the sentence names the word at fault and the remedy."""


class WorkDirInUse(AgentError):
    """Two agents must not share a work directory: give each its own with --work-dir or --name."""
