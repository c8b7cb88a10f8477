"""What `advisor-agent doctor` would say of a node, as far as its agent told the server when it registered."""

from collections.abc import Iterator
from dataclasses import dataclass

from advisor.dashboard import formats
from advisor.dashboard.views.chips import Chip
from advisor.protocol.nodes.cluster import Node

FINE = Chip("good", "check", "fine")
LOOK = Chip("caution", "alert", "look", "Something may stand in an agent's way.")
NOTE = Chip("muted", "minus", "note", "Nothing is wrong with it; it is good to know.")


@dataclass(frozen=True)
class NodeFinding:
    """One thing that is known of a node."""

    name: str
    chip: Chip
    sentence: str


def list_findings(node: Node) -> tuple[NodeFinding, ...]:
    """Build the findings, in doctor's order."""
    return tuple(NodeFinding(name, chip, sentence) for name, chip, sentence in _find(node))


def _find(node: Node) -> Iterator[tuple[str, Chip, str]]:
    yield "node", LOOK if node.warning else FINE, node.describe()
    if drivers := sorted({device.driver for device in node.devices if device.driver}):
        yield "driver", FINE, f"{formats.join_words(drivers)}."
    if node.torch_version:
        yield "torch", FINE, f"torch {node.torch_version} in the agent's own environment."
    else:
        yield (
            "torch", NOTE,
            "No torch in the agent's own environment: torchrun has to be on its PATH, or in each job's command with "
            "its full path.",
        )  # fmt: skip
    if node.rdma:
        yield "rdma", FINE, f"{', '.join(node.rdma)} with a port that is up."
    else:
        yield "rdma", NOTE, "No RDMA adapter with a port that is up: other nodes are reached over TCP."
    if node.network:
        yield "network", LOOK, " ".join(node.network)
    if node.devices and node.telemetry != "nvml":
        yield "telemetry", LOOK, f"Utilisation comes from {node.telemetry}, which knows nothing of the GPUs."
    else:
        yield "telemetry", FINE, f"Utilisation comes from {node.telemetry}."
    if node.signed_only:
        yield "signed", NOTE, "Its agent starts signed jobs only."
