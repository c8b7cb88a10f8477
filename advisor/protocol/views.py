"""What people ask the server for and are told: jobs by a query, events, log chunks, agents, tokens, and their pages."""

import math
from datetime import datetime
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from advisor.protocol.asked.jobs import Job, JobState
from advisor.protocol.base import Message, Moment, Spec
from advisor.protocol.measured.messages import MOST_SECONDS
from advisor.protocol.measured.telemetry import NodeFlag
from advisor.protocol.nodes.cluster import Node


class EventKind(StrEnum):
    """What an event is about."""

    JOB = "job"
    SESSION = "session"
    TRIAL = "trial"
    BLOCK = "block"
    PRODUCTION = "production"
    """A real training under the advised strategy."""


class Straggler(Message):
    """A rank that works longer than the others, and the agent that it is on."""

    agent: str
    rank: int


class NamedCombinations(Message):
    """What a job has to measure of the knobs that its owner named, as its budget is seen at its start."""

    combinations: int
    """Sound combinations of their values, today's left out."""
    is_whole: bool = True
    """Whether that is all there are; else so many were drawn from more."""
    first: int
    """Those of them that are measured before anything else."""
    each_s: float
    """What one of them is expected to take, in seconds."""
    needs_s: float
    """Budget that holds all of them and a verdict, in seconds."""
    needs_trials: int | None = None
    """Trials that they need; None where the job has as many."""

    def say(self) -> str:
        """Return it as a sentence."""
        count = self.combinations
        many = f"{count} combination{'s' if count > 1 else ''}"
        more = "" if self.is_whole else "more than "
        what = f"You named {more}{many} beside today's, about {self.each_s:.0f} s each"
        if self.first >= count and self.is_whole:
            return f"{what}: {'all of them' if count > 1 else 'it'} will be measured, before anything else."
        trials = f" --trials {self.needs_trials}" if self.needs_trials else ""
        remedy = (
            f"To measure all of them: --minutes {math.ceil(self.needs_s / 60)}{trials}, or name fewer values."
        )
        if not self.first:
            return f"{what}: the budget does not hold one of them. {remedy}"
        told = (
            f"{what}: {self.first} of them, spread over all values, are measured first, then what looks best."
        )
        return (
            f"{told} {remedy}" if self.is_whole else f"{told} Name fewer values to have all of them measured."
        )


class EventFacts(Message):
    """What an event tells, as data; None where it tells of something else."""

    smallest_gain: float | None = None
    """The smallest gain that the budget can find, as a fraction of the throughput."""
    named: NamedCombinations | None = None
    """What there is to measure of the knobs that the job's owner named."""
    straggler: Straggler | None = None
    earlier: tuple[str, ...] = ()
    """Similar earlier jobs whose strategies are tried early."""


class JobEvent(Message):
    """One transition of a job, as a sentence."""

    seq: int
    """From 1, grows by one with every event of the job."""
    at: datetime
    """When it happened (UTC)."""
    kind: EventKind
    sentence: str
    """What happened and why."""
    trial_number: int | None = None
    session_id: str | None = None
    facts: EventFacts | None = None
    """The same as data, for the events that programs look for; None for others."""


class EventPage(Message):
    """Events after a sequence number."""

    items: tuple[JobEvent, ...]
    next_after: int
    """What to pass as `after` to get the rest."""


_LARGEST_SEQ = 2**31 - 1


def read_last_event(header: str | None) -> int:
    """Return the number that a browser's `Last-Event-ID` names; 0 without one, and for what no event has."""
    if not header or not header.isascii() or not header.isdigit():
        return 0
    # Python refuses to read thousands of digits.
    return min(int(header[:12]), _LARGEST_SEQ)


class LogChunk(Message):
    """Lines that the training processes of one node wrote."""

    seq: int
    """From 1, grows by one with every chunk of the job."""
    session_id: str
    agent: str
    """Name of the agent that sent it."""
    text: str


class LogPage(Message):
    """Log chunks after a sequence number."""

    items: tuple[LogChunk, ...]
    next_after: int
    """What to pass as `after` to get the rest."""


class JobPage(Message):
    """One page of jobs, newest first."""

    items: tuple[Job, ...]
    next_cursor: str | None = None
    """What to pass as `cursor` to get the next page; None on the last one."""


class AgentState(StrEnum):
    """What an agent is doing, as far as the server knows."""

    IDLE = "idle"
    BUSY = "busy"
    """Holds a session."""
    SILENT = "silent"
    """Has neither asked for work nor renewed a session for a while."""
    REVOKED = "revoked"
    """Its token was revoked; it stays out until an administrator readmits it."""


class AgentView(Message):
    """One agent."""

    id: str
    name: str
    node: Node
    state: AgentState
    session_id: str | None = None
    """The session it holds."""
    job_id: str | None = None
    """The job of that session."""
    last_seen_at: datetime
    """When it was last heard of (UTC)."""
    last_seen_s: float
    """Seconds since it was last heard of."""
    flag: NodeFlag | None = None
    """What its latest measured blocks say against its node; None when nothing. It is set aside: jobs that others
    are enough for are measured on the others, until better blocks or an administrator's `:resume`."""
    drained_because: str | None = None
    """Why it takes no further session; None while it does."""
    ends_at: datetime | None = None
    """When its allocation ends and the agent with it (UTC); None: no end is known."""
    ends_in_s: float | None = None
    """Seconds until then."""


class Drain(Spec):
    """Take a node out of use: what runs there goes on to its end."""

    reason: str = Field(default="Drained by hand.", min_length=1, max_length=500)
    """What a user who waits for the node reads."""


class AgentPage(Message):
    """One page of agents, by name."""

    items: tuple[AgentView, ...]
    next_cursor: str | None = None
    """What to pass as `cursor` to get the next page; None on the last one."""


class Role(StrEnum):
    """What the bearer of a token may do."""

    VIEWER = "viewer"
    """Read jobs, advice and agents."""
    SUBMITTER = "submitter"
    """Also submit and cancel jobs."""
    ADMIN = "admin"
    """Also manage tokens."""
    AGENT = "agent"
    """Register agents; the token that registration hands out works for that one agent."""


class NewToken(Spec):
    """A token that is to be made."""

    role: Role
    label: str = Field(default="", max_length=200)
    """Whose it is: the owner of the jobs that it submits. Tokens with one label own the same jobs."""
    team: str = Field(default="", max_length=200)
    """The team whose jobs it may change besides its owner's; empty for none."""
    expires_s: float | None = Field(default=None, gt=0, le=MOST_SECONDS)
    """Seconds until it ends; None: when it is revoked."""
    uses: int | None = Field(default=None, ge=1, le=1_000_000)
    """How many agents may register with it; None: any number. For the role `agent`."""

    @model_validator(mode="after")
    def _refuse_uses_of_people(self) -> Self:
        if self.uses is not None and self.role is not Role.AGENT:
            raise ValueError(f"uses is for tokens of the role agent, and this one is a {self.role.value}'s")
        return self


class TokenRotation(Spec):
    """`POST /tokens/{id}:rotate`: a new token takes the place of one that soon ends."""

    grace_s: float = Field(default=3600.0, ge=0, le=MOST_SECONDS)
    """Seconds for which the old one still works; one with limited uses ends at once."""
    expires_s: float | None = Field(default=None, gt=0, le=MOST_SECONDS)
    """Seconds until the new one ends; None: when it is revoked."""


class TokenView(Message):
    """A token, without its secret."""

    id: str
    role: Role
    label: str = ""
    agent: str | None = None
    """Name of the agent that it belongs to, if it belongs to one."""
    team: str = ""
    """Whose jobs it may change besides its owner's."""
    created_at: datetime
    revoked_at: datetime | None = None
    expires_at: datetime | None = None
    """When it ends by itself; None: never."""
    uses_left: int | None = None
    """How many more agents may register with it; None: any number."""
    last_used_at: datetime | None = None
    """When it last opened something, to within five minutes; None: never."""

    def tell_state(self, now: datetime) -> str:
        """Return `valid`, or why it opens nothing any more: `revoked`, `expired`, `used up`."""
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and self.expires_at <= now:
            return "expired"
        return "used up" if self.uses_left == 0 else "valid"

    def list_limits(self) -> tuple[str, ...]:
        """Return `until 2026-11-30 12:00` and `for 3 more agents`, where it has such a limit."""
        limits = [] if self.expires_at is None else [f"until {self.expires_at:%Y-%m-%d %H:%M}"]
        if self.uses_left is not None:
            limits.append(f"for {self.uses_left} more agent{'s' if self.uses_left != 1 else ''}")
        return tuple(limits)


class CreatedToken(TokenView):
    """The answer to making a token."""

    token: str
    """The token itself. It is shown this once and cannot be looked up."""


class TokenPage(Message):
    """One page of tokens, newest first."""

    items: tuple[TokenView, ...]
    next_cursor: str | None = None
    """What to pass as `cursor` to get the next page; None on the last one."""


class RaceAccepted(Message):
    """The answer to a race's report, the same however often it is repeated."""

    race_id: str
    sentence: str
    """What the report led to."""


class JobQuery(Spec):
    """The jobs that every given field fits; without any, all that are not archived."""

    state: tuple[JobState, ...] = ()
    """Only jobs in one of these states; repeat it for several."""
    owner: str | None = Field(default=None, max_length=200)
    """Only jobs of this owner."""
    name: str | None = Field(default=None, max_length=200)
    """Only jobs of this name; with a `*` at its end, of every name that begins so."""
    id: str | None = Field(default=None, max_length=200)
    """Only the job with this id; with a `*` at its end, every one whose id begins so."""
    label: tuple[str, ...] = Field(default=(), max_length=32)
    """Only jobs with this label: `KEY=VALUE`, or `KEY` for any value. Of several, a job needs all."""
    created_since: Moment | None = None
    """Only jobs submitted then or later; with a time zone."""
    created_until: Moment | None = None
    """Only jobs submitted before then; with a time zone."""
    archived: bool = False
    """Archived jobs as well."""
    limit: int = Field(default=50, ge=1, le=1000)
    """Most jobs on a page, which ends earlier where its jobs are large."""
    cursor: str | None = Field(default=None, max_length=100)
    """`next_cursor` of the page before."""
