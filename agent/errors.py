"""The agent's errors: what happened, why, and what to do.

AgentError
├── ServerUnreachable      no server answered, or only with "try again"
│   └── ServerFailed       the server is there, and fails at this very request
├── ServerRefused          the server understood and said no
│   ├── StaleSession       the session is no longer this agent's
│   ├── NotCounted         a measurement went into the server's quarantine; the session may go on
│   └── NotWelcome         token or protocol version refused: retrying is useless
├── UnknownAssignment      a newer server's job that this release does not understand
├── NotSigned              no key that this agent's operator trusts stands for the job
├── NotTheServer           something else than Fleet Advisor answers at that URL
├── BadConfiguration       the agent's own configuration cannot be used
├── Unlaunchable           the workload cannot be started on this node
├── AgentStopped           the agent was asked to stop while it prepared a launch
├── DevicesBusy            another process computes on the node's GPUs
└── WorkDirInUse           another agent runs in the same work directory
"""


class AgentError(Exception):
    """Base of every error of the agent; `str()` is complete sentences for a person."""


class ServerUnreachable(AgentError):
    """No usable answer until the caller gave up: check the server's URL, the network and the server's log."""


class ServerFailed(ServerUnreachable):
    """The server failed at this request, and does at others' only perhaps: its log says why."""


class ServerRefused(AgentError):
    """The server refused a request; repeating it unchanged is useless."""

    def __init__(self, status: int, code: str, detail: str, hint: str = "") -> None:
        super().__init__(f"{detail} {hint}".strip())
        self.status = status
        self.code = code


class StaleSession(ServerRefused):
    """The session was given to another agent or is over: its ranks must go, its result is not wanted."""


class NotCounted(ServerRefused):
    """The server put a measurement into its quarantine, where it does not count: it is not sent again."""


class NotWelcome(ServerRefused):
    """The server refuses this agent itself: give it a valid agent token, or a matching version."""


class UnknownAssignment(AgentError):
    """The place is this agent's, but what it is to start holds words of another release: update the agent."""

    def __init__(self, session_id: str, generation: int, what: str) -> None:
        super().__init__(
            f"This agent's release does not understand the job ({what}). Install the server's release of fleet-advisor "
            "on the node."
        )
        self.session_id = session_id
        self.generation = generation


class NotSigned(AgentError):
    """The operator wants jobs signed, and this one is not, or not as it is; the sentence says what to do."""


class NotTheServer(AgentError):
    """The answer is not Fleet Advisor's: check --server."""


class BadConfiguration(AgentError):
    """The configuration names something that does not exist; the sentence names the key and the remedy."""


class Unlaunchable(AgentError):
    """The workload cannot be started; the sentence names the word at fault and the remedy."""


class AgentStopped(AgentError):
    """The agent is to stop, and waits for nothing more."""


class DevicesBusy(AgentError):
    """Another process computes on this node's GPUs; they are left alone, and nothing is measured beside them."""

    def __init__(self, agent: str, who: str) -> None:
        super().__init__(
            f"Another process computes on the GPUs of {agent}, and a measurement beside that would be worth nothing: "
            f"{who}. Wait until it has ended, give the agent other GPUs with CUDA_VISIBLE_DEVICES, or start it with "
            "--allow-busy-gpus (ADVISOR_ALLOW_BUSY_GPUS=1)."
        )


class WorkDirInUse(AgentError):
    """Two agents must not share a work directory: give each its own with --work-dir or --name."""
