"""The agent's settings: made in the CLI, passed down, never read anywhere else."""

import re
import socket
from pathlib import Path

from pydantic import Field, SecretStr, field_validator

from advisor.protocol.base import Spec
from advisor.protocol.measured.messages import MOST_SECONDS
from advisor.protocol.nodes.cluster import Labels, Pool
from advisor.protocol.nodes.testbed import Testbed
from agent.trust.allowance import Allowance

RUNTIME_SCRIPT = Path(__file__).parent / "runtime" / "launch.py"


class AgentSettings(Spec):
    """How an agent reaches its server, and what it allows on its node."""

    server_url: str
    """Where the server listens, e.g. http://10.0.0.1:8765."""
    token: SecretStr = SecretStr("")
    """Agent token; empty only against a server that needs none."""
    name: str = Field(default_factory=socket.gethostname, min_length=1, max_length=100)
    """Stable name, unique on the server."""
    work_dir: Path
    """Sessions' logs, the spool and overlay scratch; one agent per work directory."""
    advertise_address: str | None = None
    """Address that other nodes reach this one at; None takes the one that reaches the server."""
    testbed: Testbed | None = None
    """The testbed that this node is a part of; None for a real node."""
    pool: Pool = ""
    """The pool that this node is in: only jobs that name it are measured here."""
    labels: Labels = Field(default_factory=dict)
    """What jobs may choose this node by."""
    ends_in_s: float | None = Field(default=None, ge=0, le=MOST_SECONDS)
    """Seconds from the agent's start until its allocation ends; None: no end is known."""
    allow: Allowance = Allowance()
    """What workloads may do here."""
    require_signed: Path | None = None
    """File with the public keys of which one has to have signed a job; None: jobs need no signature."""
    run_as: str = ""
    """User that training scripts run as, where the agent is root; empty: the agent's own."""
    hide: tuple[Path, ...] = ()
    """Files and directories that training scripts find empty, besides the work directory: the agent's token."""
    isolate: bool = True
    """Whether trials get a private overlay over the directories they may write to."""
    startup_timeout_s: float = Field(default=900.0, gt=0)
    """Longest time from launch until every local rank has made its first step."""
    end_grace_s: float = Field(default=3.0, ge=0)
    """Time that ranks get to leave by themselves after the session's regular end."""
    telemetry_hz: float = Field(default=1.0, ge=0.1, le=10)
    """Samples of the node a second while a session runs."""
    allow_busy_gpus: bool = False
    """Whether sessions may start on GPUs that another process computes on."""
    runtime_script: Path = RUNTIME_SCRIPT
    """What is put in front of the user's script."""

    @field_validator("server_url")
    @classmethod
    def _refuse_other_urls(cls, url: str) -> str:
        if not re.match(r"https?://[^/\s]+", url):
            raise ValueError(
                f"{url!r} is not a server's URL: give it as http://host:8765 (--server or ADVISOR_URL)"
            )
        return url.rstrip("/")


def default_work_dir(name: str, home: Path) -> Path:
    """Return the work directory of the agent with that name."""
    return home / ".local" / "share" / "fleet-advisor" / "agents" / re.sub(r"[^\w.-]+", "_", name)
