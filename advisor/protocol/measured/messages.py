"""The messages between an agent and the server (`/api/v1/agents…`, `/api/v1/sessions…`)."""

from enum import StrEnum

from pydantic import Field

from advisor.protocol.asked.jobs import Signature
from advisor.protocol.base import Message, Value
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.telemetry import TelemetryBatch
from advisor.protocol.measured.trials import Outcome, RacePlan, SessionState
from advisor.protocol.nodes.cluster import Node
from advisor.protocol.training.workload import Workload, WorkloadFacts

PROTOCOL_MAJOR = 2
"""A peer with another major version is refused."""
MOST_SECONDS = 10 * 365 * 24 * 3600.0
"""Longest span of time that anybody may name."""
MOST_MESSAGE_BYTES = 2**20
"""Largest body of a request, and what proxies usually let pass: the server answers a larger one with 413."""


class RegisterAgent(Message):
    """`POST /agents`: an agent introduces itself (again after every restart)."""

    name: str = Field(min_length=1, max_length=100)
    """Stable name of the agent, unique on the server."""
    node: Node
    secret: str = Field(min_length=1, max_length=200, repr=False)
    """Made once by the agent and kept on its disk: a process that has it is this agent."""
    ends_in_s: float | None = Field(default=None, ge=0, le=MOST_SECONDS)
    """Seconds until its allocation ends and the agent with it; None: no end is known."""
    protocol_major: int = PROTOCOL_MAJOR


class AgentRegistered(Message):
    """The answer to it."""

    agent_id: str
    token: str = ""
    """A token of this agent's own: every later call carries it instead of the token it registered with."""
    poll_s: float = 20.0
    """How long a poll may be held open."""
    beat_s: float = 2.0
    """How often a session is to be renewed."""
    lease_s: float = 30.0
    """A session whose gang is silent for this long is lost."""
    fence_s: float = 18.0
    """An agent that had no renewal acknowledged for this long kills its ranks itself."""


class Place(Message):
    """What every release understands of an assignment: whose place it is."""

    session_id: str
    generation: int


class Assignment(Place):
    """A place in a gang: what an agent is to start."""

    job_id: str
    node_rank: int
    """0 offers the rendezvous."""
    nnodes: int
    workload: Workload
    cold: Changes = Changes()
    """Cold changes to launch with."""
    looks_only: bool = False
    """Nothing will be switched (a diagnosis): then the ranks also time a training that no lever reaches."""
    hang_timeout_s: float = 120.0
    session_timeout_s: float = 3600.0
    signed: Signature | None = None
    """What the job's owner signed. An agent that wants it runs what it says, not what stands above."""


class PollReply(Message):
    """`POST /agents/{id}/poll`: held open until there is work or the poll time is over."""

    assignment: Assignment | None = None


class PlaceReply(Message):
    """What every release understands of it: an agent that is to be updated can say so of this place."""

    assignment: Place | None = None


class MemberState(StrEnum):
    """What an agent's part of a session is doing."""

    PREPARING = "preparing"
    READY = "ready"
    """Can launch as soon as the gang is complete."""
    RUNNING = "running"
    GONE = "gone"
    """Every rank of this node is gone."""


class Beat(Message):
    """`POST /sessions/{id}/beat`: renews the lease, reports progress and telemetry."""

    generation: int
    state: MemberState
    rendezvous: str | None = None
    """`host:port` that node rank 0 offers."""
    steps: int | None = None
    """Steps the slowest local rank has made: for people who read the messages; the server keeps none."""
    news: int = Field(default=0, ge=0, lt=2**31)
    """Number of what `telemetry` and `log` bring. Where no answer came, the next beat brings the same under the same
    number: it is kept once. 0: it brings none."""
    telemetry: TelemetryBatch = TelemetryBatch()
    log: str = Field(default="", max_length=65536)
    """New lines of the session's log on this node."""


class BeatReply(Message):
    """The server's view of the session; `ending` and the final states mean: kill every rank."""

    state: SessionState
    rendezvous: str | None = None
    """Set once the gang is complete: launch."""
    beat_s: float | None = Field(default=None, gt=0)
    """How often to renew from now on: the more agents hold sessions, the less often. None: as at registration."""
    fence_s: float | None = Field(default=None, gt=0)
    """An agent without an acknowledged renewal for this long kills its ranks. None: as at registration."""


class HelloReport(Message):
    """`POST /sessions/{id}/hello`: the runtime's first words, passed on by node rank 0's agent."""

    generation: int
    facts: WorkloadFacts
    baseline: dict[str, Value]
    refusals: dict[str, str] = Field(default_factory=dict)


class NextRequest(Message):
    """`POST /sessions/{id}/next`: what is to be measured now? Repeating it gives the same answer."""

    generation: int


class NextReply(Message):
    """A race to run, or the end of the session."""

    race: RacePlan | None = None
    end_because: str = ""
    """Sentence when `race` is None: the session is over."""
    settle: Changes | None = None
    """What a real training that tunes itself goes on with; None ends the ranks."""


class RaceReport(Message):
    """`POST /sessions/{id}/races/{race_id}`: a race that was run. Repeating it changes nothing."""

    generation: int
    results: dict[str, BlockResult] = Field(min_length=1)
    """What was measured, by the arms' block ids: of every arm."""


class Trouble(Message):
    """Something about the script that no strategy can change, in a sentence that says what to do."""

    code: str
    """no_ddp, own_engine, spawns_own_ranks, single_rank, too_short, fsdp, never_steps, script_changed, …"""
    sentence: str
    fatal: bool = True
    """False: this session only (the script ended by itself); another launch may go on."""


LAUNCH_FAILED = "launch_failed"
"""A trouble's code: a node's training failed before its first step, as far as this node knows."""
ENDED_ELSEWHERE = "A rank lost its connection to another one, which ended first"
"""How the reason begins of a node whose ranks ended because those of another one did: that one's tells more."""
LIVED_OUT = "The session reached its longest life"
"""How the reason begins of a node whose agent ended its ranks for that: those of the others lost theirs by it."""


class SessionEnd(Message):
    """`POST /sessions/{id}/end`: every rank of this node is gone."""

    generation: int
    outcome: Outcome
    reason: str
    """A sentence."""
    log_tail: str = Field(default="", max_length=65536)
    trouble: Trouble | None = None
    total_steps: int = 0
    """Steps the script made, where it ended or failed by itself."""
