"""One session without a server: the script as it stands, measured once, to see what tuning would find.

The agent is the real one; what it says is answered in this process, as a server would answer that has one session to
hand out and one arm to measure.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
from pydantic import BaseModel, Field

from advisor.protocol.base import Message, Value
from advisor.protocol.cluster import Cluster, Node
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.knob import KnobContext
from advisor.protocol.messages import (
    AgentRegistered,
    Assignment,
    BeatReply,
    HelloReport,
    NextReply,
    PollReply,
    RaceReport,
    RegisterAgent,
    SessionEnd,
)
from advisor.protocol.races import BlockPlan, RacePlan
from advisor.protocol.trials import BlockResult, SessionState
from advisor.protocol.views import RaceAccepted
from advisor.protocol.workload import WITH_SECRETS, Workload, WorkloadFacts
from agent.client import ServerClient
from agent.devices.gpus import Gpus
from agent.loop import Agent
from agent.settings import AgentSettings

_URL = "http://rehearsal.invalid"
"""No name that resolves: nothing may ever be asked over a network here."""
_ARM = BlockPlan(block_id="as-it-stands", trial_number=0)
_RACE = RacePlan(arms=(_ARM,))


class Rehearsed(Message):
    """What one launch of the script as it stands showed."""

    ended: SessionEnd
    """How the session ended."""
    facts: WorkloadFacts | None = None
    """What the runtime saw; None when the ranks never came so far."""
    result: BlockResult | None = None
    """The block that was measured; None when it was not."""
    tunable: dict[str, Value] = Field(default_factory=dict)
    """Knobs that can be tuned for this script, each with its value now."""
    refused: dict[str, str] = Field(default_factory=dict)
    """Knobs that cannot, each with its sentence."""

    @property
    def samples_per_s(self) -> float:
        """Samples of all ranks per second."""
        return self.result.samples / self.result.wall_s if self.result else 0.0

    @property
    def steps_per_s(self) -> float:
        """Training steps per second."""
        return self.samples_per_s / self.result.samples_per_step if self.result else 0.0


@dataclass
class _Heard:
    """What the agent said."""

    node: Node | None = None
    hello: HelloReport | None = None
    result: BlockResult | None = None
    ended: SessionEnd | None = None
    rendezvous: str | None = None
    handed_out: bool = False


class _Server:
    """Answers the agent's requests; the session's end calls `on_end`."""

    def __init__(self, assignment: Assignment, on_end: Callable[[], None]) -> None:
        self._assignment, self._on_end = assignment, on_end
        self.heard = _Heard()

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
                heard.rendezvous = json.loads(body)["rendezvous"] or heard.rendezvous
                return BeatReply(state=SessionState.RUNNING, rendezvous=heard.rendezvous)
            case ["sessions", _, "hello"]:
                heard.hello = HelloReport.model_validate_json(body)
            case ["sessions", _, "next"]:
                is_done = heard.result is not None
                return NextReply(end_because="It was measured.") if is_done else NextReply(race=_RACE)
            case ["sessions", _, "races", race_id]:
                heard.result = RaceReport.model_validate_json(body).results[_ARM.block_id]
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
) -> Rehearsed:
    """Launch the script as it stands, measure one block of it, end it, and return what came of that.

    `listen` is given the function that ends everything early: what a Ctrl-C is to call. Raises AgentError when the
    agent cannot work here.
    """
    assignment = Assignment(
        session_id="rehearsal", generation=1, job_id="rehearsal", node_rank=0, nnodes=1, workload=workload
    )
    server = _Server(assignment, on_end=lambda: agent.stop())
    client = ServerClient(_URL, "", transport=httpx.MockTransport(server.answer))
    agent = Agent(AgentSettings(server_url=_URL, name="exec", work_dir=work_dir), client, gpus, environment)
    listen(agent.stop)
    agent.run()
    heard = server.heard
    assert heard.ended is not None  # every session's end is told before the agent leaves
    if heard.hello is None or heard.node is None:
        return Rehearsed(ended=heard.ended)
    tunable, refused = _sort_knobs(heard.hello, heard.node)
    return Rehearsed(
        ended=heard.ended, facts=heard.hello.facts, result=heard.result, tunable=tunable, refused=refused
    )


def _sort_knobs(hello: HelloReport, node: Node) -> tuple[dict[str, Value], dict[str, str]]:
    baseline = {name: hello.baseline.get(name, knob.default) for name, knob in CATALOGUE.items()}
    context = KnobContext(hello.facts, Cluster(nodes=(node,)), baseline, hello.refusals)
    tunable: dict[str, Value] = {}
    refused: dict[str, str] = {}
    for name, knob in CATALOGUE.items():
        if knob.carried:
            continue
        sentence = hello.refusals.get(name) or knob.unavailable_because(context)
        if sentence:
            refused[name] = sentence
        else:
            tunable[name] = baseline[name]
    return tunable, refused


def describe_rehearsal(rehearsed: Rehearsed) -> str:
    """Return what was found as people read it."""
    result, facts = rehearsed.result, rehearsed.facts
    if result is None or facts is None:
        return f"Nothing was measured: {rehearsed.ended.reason}"
    return "\n".join(
        [
            f"{rehearsed.steps_per_s:.2f} steps/s, {rehearsed.samples_per_s:.1f} samples/s over {result.steps} steps "
            f"({facts.world_size} ranks, {facts.backend}, {facts.device.value}, torch {facts.torch_version})",
            "Can be tuned for this script, with its value now:",
            *(f"  {name} = {value}" for name, value in rehearsed.tunable.items()),
            "Cannot:",
            *(f"  {name}: {sentence}" for name, sentence in rehearsed.refused.items()),
        ]
    )
