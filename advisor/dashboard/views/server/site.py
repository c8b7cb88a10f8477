"""The pages beside the jobs: agents, the knob catalogue, export, log."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from advisor.dashboard import formats
from advisor.dashboard.views.chips import Chip, chip_for_agent
from advisor.dashboard.views.server.node_findings import NodeFinding, list_findings
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.knob import Knob, Place
from advisor.protocol.views import AgentState, AgentView, LogChunk

_AWAY = {AgentState.SILENT, AgentState.REVOKED}
_PLACES = {
    Place.STRATEGY: "Strategy",
    Place.BUILD_STRATEGY: "Build strategy",
    Place.EXECUTION_STRATEGY: "Execution strategy",
    Place.ENVIRONMENT: "Environment",
    Place.DATA_READING: "Data reading",
    Place.PSERVER: "Parameter server",
}


@dataclass(frozen=True)
class AgentRow:
    """One agent."""

    id: str
    name: str
    chip: Chip
    hardware: str
    links: str
    telemetry: str
    flag: str
    """What speaks against the node, in a sentence; "" when nothing does."""
    is_out: bool
    """Whether it takes no session until somebody resumes it: drained, or set aside for what it measured."""
    choice: str
    """What jobs choose the node by, and when it leaves."""
    software: str
    findings: tuple[NodeFinding, ...]
    """What its agent told of the node."""
    seen: str
    job_id: str | None


def _describe_links(agent: AgentView) -> str:
    words = []
    for link in agent.node.links:
        speed = f" {link.bits_per_second / 1e9:g} Gbit/s" if link.bits_per_second else ""
        words.append(f"{link.name}{speed}")
    where = f" ({agent.node.testbed.describe()})" if agent.node.testbed else ""
    return (", ".join(words) or "loopback only") + where


def _describe_choice(agent: AgentView) -> str:
    """What jobs choose the node by, and when it leaves; "" when nothing is known."""
    words = [f"pool {agent.node.pool}"] if agent.node.pool else []
    words += [f"{key}={value}" for key, value in agent.node.labels.items()]
    words += ["signed jobs only"] if agent.node.signed_only else []
    words += [] if agent.ends_in_s is None else [f"leaves in {formats.duration(agent.ends_in_s)}"]
    return ", ".join(words)


def _find_objection(agent: AgentView) -> str:
    """The weightiest thing that speaks against the node; "" when nothing does."""
    if agent.drained_because is not None:
        return f"Drained: {agent.drained_because}"
    return f"Set aside: {agent.flag.sentence}" if agent.flag else agent.node.warning


def view_agents(agents: Sequence[AgentView], now: datetime) -> list[AgentRow]:
    """Build the rows, connected agents first."""
    rows = []
    for agent in sorted(agents, key=lambda agent: (agent.state in _AWAY, agent.name)):
        node = agent.node
        hardware = (
            f"{len(node.devices)} × {node.devices[0].name}"
            if node.devices
            else formats.plural(node.cpu_count, "CPU")
        )
        versions = [f"Python {node.python_version}" if node.python_version else "",
                    f"torch {node.torch_version}" if node.torch_version else ""]  # fmt: skip
        rows.append(
            AgentRow(
                id=agent.id,
                name=agent.name,
                chip=chip_for_agent(agent.state),
                hardware=f"{hardware}, {formats.size(node.memory_bytes)} memory",
                links=_describe_links(agent),
                telemetry=node.telemetry,
                flag=_find_objection(agent),
                is_out=agent.drained_because is not None or agent.flag is not None,
                choice=_describe_choice(agent),
                software=", ".join(version for version in versions if version) or formats.NO_VALUE,
                findings=list_findings(node),
                seen=formats.age(agent.last_seen_at, now),
                job_id=agent.job_id,
            )
        )
    return rows


def describe_range(knob: Knob) -> str:
    """Return the values that a knob may take."""
    if knob.kind is bool:
        return "on, off"
    if knob.choices:
        return ", ".join(map(formats.knob_value, knob.choices))
    if knob.low is not None and knob.high is not None:
        scale = " (log)" if knob.scale == "log" else ""
        return f"{knob.low:g} … {knob.high:g}{scale}"
    return "any"


def group_knobs() -> list[tuple[str, list[Knob]]]:
    """Return the catalogue by place, varied knobs first."""
    groups = [
        (title, [k for k in CATALOGUE.values() if k.place is place]) for place, title in _PLACES.items()
    ]
    return [(title, sorted(knobs, key=lambda knob: knob.carried)) for title, knobs in groups if knobs]


def view_log(parts: Sequence[LogChunk]) -> list[LogChunk]:
    """Join log parts that follow each other from the same agent and session."""
    blocks: list[LogChunk] = []
    for part in parts:
        if blocks and (blocks[-1].session_id, blocks[-1].agent) == (part.session_id, part.agent):
            blocks[-1] = blocks[-1].model_copy(update={"text": blocks[-1].text + part.text})
        else:
            blocks.append(part)
    return blocks
