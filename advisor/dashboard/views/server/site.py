"""The pages beside the jobs: agents, tokens, the knob catalogue, export, log."""

from collections.abc import Sequence
from datetime import datetime

from advisor.dashboard import formats
from advisor.dashboard.views.chips import Chip
from advisor.protocol.kinds import Place
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.knob import Knob
from advisor.protocol.nodes.cluster import Node, spell_memory
from advisor.protocol.views import AgentState, AgentView, LogChunk, Role, TokenView
from advisor.services.tokens import tell_spent

_AWAY = {AgentState.SILENT, AgentState.REVOKED}
_PLACES = {
    Place.STRATEGY: "Strategy",
    Place.BUILD_STRATEGY: "Build strategy",
    Place.EXECUTION_STRATEGY: "Execution strategy",
    Place.ENVIRONMENT: "Environment",
    Place.DATA_READING: "Data reading",
    Place.PSERVER: "Parameter server",
}


def order_agents(agents: Sequence[AgentView]) -> list[AgentView]:
    """Return the agents by name, connected ones first."""
    return sorted(agents, key=lambda agent: (agent.state in _AWAY, agent.name))


def describe_hardware(node: Node) -> str:
    """Return what computes on a node: `8 × NVIDIA H200, 1024 GiB memory`."""
    devices = f"{len(node.devices)} × {node.devices[0].name}" if node.devices else ""
    return f"{devices or formats.plural(node.cpu_count, 'CPU')}, {spell_memory(node.memory_bytes)} memory"


def describe_links(node: Node) -> str:
    """Return what a node reaches the others by: `eth0 25 Gbit/s`."""
    words = [
        f"{link.name} {link.bits_per_second / 1e9:g} Gbit/s" if link.bits_per_second else link.name
        for link in node.links
    ]
    where = f" ({node.testbed.describe()})" if node.testbed else ""
    return (", ".join(words) or "loopback only") + where


def describe_software(node: Node) -> str:
    """Return the versions in the agent's environment; a dash where it told none."""
    versions = {"Python": node.python_version, "torch": node.torch_version}
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version) or formats.NO_VALUE


def describe_choice(agent: AgentView) -> str:
    """Return what jobs choose the node by, and when it leaves; "" when nothing is known."""
    words = [f"pool {agent.node.pool}"] if agent.node.pool else []
    words += [f"{key}={value}" for key, value in agent.node.labels.items()]
    words += ["signed jobs only"] if agent.node.signed_only else []
    words += [] if agent.ends_in_s is None else [f"leaves in {formats.duration(agent.ends_in_s)}"]
    return ", ".join(words)


def find_objection(agent: AgentView) -> str:
    """Return the weightiest thing that speaks against the node, in a sentence; "" when nothing does."""
    if agent.drained_because is not None:
        return f"Drained: {agent.drained_because}"
    return f"Set aside: {agent.flag.sentence}" if agent.flag else agent.node.warning


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


ROLES = {
    Role.VIEWER: "look at jobs, advice and agents",
    Role.SUBMITTER: "also submit jobs, and change those of its label or team",
    Role.ADMIN: "also change every job, agents and tokens",
    Role.AGENT: "register agents, nothing else",
}
"""What each role may do, in the words of the form."""


def judge_token(token: TokenView, now: datetime) -> Chip:
    """Return the chip of a token: valid, or why it opens nothing any more."""
    if spent := tell_spent(token, now):
        return Chip("muted", "minus", token.tell_state(now), spent)
    return Chip("good", "check", "valid")
