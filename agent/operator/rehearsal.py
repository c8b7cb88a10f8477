"""One session without a server: the script as it stands, measured once, to see what tuning would find.

The agent is the real one; what it says is answered in this process, as a server would answer that has one session to
hand out: for a rehearsal with one arm to measure, for the checks of a GPU with the races that they are made of.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from pydantic import BaseModel

from advisor.protocol.answers.energy import TimedSample, find_window, measure_power
from advisor.protocol.base import Message
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.messages import (
    AgentRegistered,
    Assignment,
    Beat,
    BeatReply,
    HelloReport,
    NextReply,
    PollReply,
    RaceReport,
    RegisterAgent,
    SessionEnd,
)
from advisor.protocol.measured.results import BlockResult, RaceRules
from advisor.protocol.measured.trials import BlockPlan, RacePlan, SessionState
from advisor.protocol.nodes.cluster import Node
from advisor.protocol.training.workload import WITH_SECRETS, Workload, WorkloadFacts
from advisor.protocol.views import RaceAccepted
from agent.client import ServerClient
from agent.devices.gpus import Gpus
from agent.loop import Agent
from agent.settings import AgentSettings
from agent.trust.allowance import Allowance

SERVER_URL = "http://rehearsal.invalid"
"""No name that resolves: nothing may ever be asked over a network here."""
_SAMPLES_PER_S = 10
"""Of the node: the timed steps last two seconds, and what the devices used in them is asked for."""
_RULES = RaceRules(max_steps=100, target_s=2.0, ceiling=True, looks_closely=True)
_ARM = BlockPlan(block_id="as-it-stands", trial_number=0, rules=_RULES)
_RACE = RacePlan(arms=(_ARM,))


class Rehearsed(Message):
    """What one launch of the script as it stands showed."""

    ended: SessionEnd
    """How the session ended."""
    facts: WorkloadFacts | None = None
    """What the runtime saw; None when the ranks never came so far."""
    result: BlockResult | None = None
    """The block that was measured; None when it was not."""
    node: Node | None = None
    """The machine."""
    power_w: float | None = None
    """Mean power of all its visible devices in the timed steps; None where no device tells."""


@dataclass
class Heard:
    """What the agent said of one session."""

    node: Node | None = None
    hello: HelloReport | None = None
    results: dict[str, BlockResult] = field(default_factory=dict)
    """Of every arm, by its block id."""
    ended: SessionEnd | None = None
    samples: list[TimedSample] = field(default_factory=list)
    """What the agent saw of the node."""
    rendezvous: str | None = None
    handed_out: bool = False


class _Server:
    """Answers the agent's requests; the session's end calls `on_end`."""

    def __init__(self, assignment: Assignment, races: Sequence[RacePlan], on_end: Callable[[], None]) -> None:
        self._assignment, self._races, self._on_end = assignment, list(races), on_end
        self.heard = Heard()

    def answer(self, request: httpx.Request) -> httpx.Response:
        """Answer one message."""
        reply = self._take(request.url.path.removeprefix("/api/v1/").split("/"), request.content)
        return httpx.Response(200, content=reply.model_dump_json(context=WITH_SECRETS) if reply else b"{}")

    def _take(self, path: list[str], body: bytes) -> BaseModel | None:
        heard = self.heard
        match path:
            case ["agents"]:
                heard.node = RegisterAgent.model_validate_json(body).node
                return AgentRegistered(agent_id="rehearsal", poll_s=1.0, beat_s=0.5)
            case ["agents", _, "poll"]:
                assignment = None if heard.handed_out else self._assignment
                heard.handed_out = True
                return PollReply(assignment=assignment)
            case ["sessions", _, "beat"]:
                beat = Beat.model_validate_json(body)
                now_s = time.monotonic()
                heard.samples += [TimedSample(now_s - one.age_s, one) for one in beat.telemetry.samples]
                heard.rendezvous = beat.rendezvous or heard.rendezvous
                return BeatReply(state=SessionState.RUNNING, rendezvous=heard.rendezvous)
            case ["sessions", _, "hello"]:
                heard.hello = HelloReport.model_validate_json(body)
            case ["sessions", _, "next"]:
                waiting = [race for race in self._races if race.race_id not in heard.results]
                return NextReply(race=waiting[0]) if waiting else NextReply(end_because="It was measured.")
            case ["sessions", _, "races", race_id]:
                heard.results.update(RaceReport.model_validate_json(body).results)
                return RaceAccepted(race_id=race_id, sentence="It counts.")
            case ["sessions", _, "end"]:
                heard.ended = SessionEnd.model_validate_json(body)
                self._on_end()
        return None


def rehearse(
    workload: Workload,
    environment: Mapping[str, str],
    work_dir: Path,
    gpus: Gpus,
    listen: Callable[[Callable[[], None]], None],
    allow: Allowance = Allowance(),
) -> Rehearsed:
    """Launch the script as it stands, measure one block of it, end it, and return what came of that.

    `listen` is given the function that ends everything early: what a Ctrl-C is to call; `allow` is what may be started.
    Raises AgentError when the
    agent cannot work here.
    """
    settings = AgentSettings(
        server_url=SERVER_URL, name="diagnose", work_dir=work_dir, allow=allow, telemetry_hz=_SAMPLES_PER_S
    )
    heard = run_session(workload, [_RACE], environment, settings, gpus, listen, looks_only=True)
    assert heard.ended is not None  # every session's end is told before the agent leaves
    facts = heard.hello.facts if heard.hello is not None else None
    result = heard.results.get(_ARM.block_id)
    power_w = None if result is None else measure_power(heard.samples, find_window(result))
    return Rehearsed(ended=heard.ended, facts=facts, result=result, node=heard.node, power_w=power_w)


def run_session(
    workload: Workload,
    races: Sequence[RacePlan],
    environment: Mapping[str, str],
    settings: AgentSettings,
    gpus: Gpus,
    listen: Callable[[Callable[[], None]], None],
    cold: Changes = Changes(),
    limit_s: float = 3600.0,
    looks_only: bool = False,
) -> Heard:
    """Launch a workload once, with these cold knobs, hand out the races one after the other, return what was heard.

    `looks_only`: the races switch nothing.
    """
    assignment = Assignment(
        session_id="rehearsal",
        generation=1,
        job_id="rehearsal",
        node_rank=0,
        nnodes=1,
        workload=workload,
        cold=cold,
        looks_only=looks_only,
        session_timeout_s=limit_s,
    )
    server = _Server(assignment, races, on_end=lambda: agent.stop())
    client = ServerClient(SERVER_URL, "", transport=httpx.MockTransport(server.answer))
    agent = Agent(settings, client, gpus, environment)
    listen(agent.stop)
    agent.run()
    return server.heard
