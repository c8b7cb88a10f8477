"""The cluster: the hardware that agents found, what is wrong with a node, and the labels that nodes are chosen by."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field, field_validator

from advisor.protocol.base import Message
from advisor.protocol.nodes.testbed import Testbed

LabelKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$")]
"""Letters, digits and `._/-`, at most 63 of them."""
LabelValue = Annotated[str, Field(max_length=100)]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=32)]
Pool = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._/-]{0,62})?$")]
"""The name of a pool; empty for nodes and jobs of none."""
RACK = "rack"
"""The label whose nodes are close to each other: gangs are formed of one rack where one has enough nodes."""


def read_label(text: str) -> tuple[str, str]:
    """Return the key and the value that `rack=7` means; raises ValueError with a sentence."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text} has no value: write it as {RACK}=7")
    return key, value


def spell_memory(count: float) -> str:
    """Return bytes of memory as people read them: `64 GiB`, `1.46 GiB`, `1024 GiB`; `512 MiB` below one."""
    value, unit = (count / 2**30, "GiB") if count >= 2**30 else (count / 2**20, "MiB")
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"


class DeviceKind(StrEnum):
    """What the training computes on."""

    CPU = "cpu"
    CUDA = "cuda"


class Device(Message):
    """One accelerator of a node, as NVML describes it."""

    index: int
    """Index on its node, in NVML's order."""
    uuid: str
    """NVML's UUID: stays the same when CUDA_VISIBLE_DEVICES changes the order."""
    name: str
    """Product name."""
    memory_bytes: int
    """Memory of the device."""
    driver: str = ""
    """Driver version."""


class Link(Message):
    """One network interface of a node."""

    name: str
    """Interface name, e.g. eth0."""
    address: str
    """IPv4 or IPv6 address."""
    bits_per_second: int | None = None
    """Speed that the kernel reports; None where it reports none (virtual links)."""


class Node(Message):
    """One machine with an agent on it."""

    hostname: str
    """Host name."""
    cpu_count: int
    """CPUs that this node's processes may use (affinity respected)."""
    memory_bytes: int
    """Memory of the node."""
    numa_nodes: int = 1
    """NUMA nodes whose CPUs this node's processes may use."""
    devices: tuple[Device, ...] = ()
    """Accelerators found by NVML."""
    links: tuple[Link, ...] = ()
    """Network interfaces other than loopback."""
    rdma: tuple[str, ...] = ()
    """RDMA adapters (InfiniBand, RoCE) with a port that is up."""
    network: tuple[str, ...] = ()
    """What keeps NCCL from the right network as its agent was started, in sentences; empty without GPUs."""
    telemetry: str = "psutil"
    """Where utilisation comes from: "nvml" or "psutil"."""
    python_version: str = ""
    """Python of the agent (the training's own Python is in the workload's facts)."""
    torch_version: str = ""
    """Torch found in the agent's environment; empty where there is none."""
    warning: str = ""
    """What is wrong with its devices, in a sentence; empty when nothing is."""
    testbed: Testbed | None = None
    """The testbed that this node is a part of; None for a real node."""
    pool: Pool = ""
    """The pool that its operator has put it into: only jobs that name the pool are measured on it."""
    labels: Labels = Field(default_factory=dict)
    """What its operator says of it, such as `rack`: jobs choose nodes by them."""
    signed_only: bool = False
    """Whether its agent starts signed jobs only."""

    def describe(self) -> str:
        """`node7: 16 CPUs, 64 GiB, 8 × NVIDIA H100; eth0 10.0.0.7.`, and what is wrong with it."""
        links = (
            ", ".join(f"{link.name} {link.address}" for link in self.links) or "no network link but loopback"
        )
        devices = (
            f"{len(self.devices)} × {self.devices[0].name}" if self.devices else "no GPU visible to NVML"
        )
        sizes = f"{self.cpu_count} CPU{'s' if self.cpu_count != 1 else ''}, {spell_memory(self.memory_bytes)}"
        return f"{self.hostname}: {sizes}, {devices}; {links}. {self.warning}".strip()

    @field_validator("testbed", mode="before")
    @classmethod
    def _read_like_a_message(cls, testbed: object) -> object:
        """An agent says it here, not a person: what another release adds to it is ignored."""
        return Testbed.model_validate(testbed, extra="ignore") if isinstance(testbed, dict) else testbed


class Cluster(Message):
    """The nodes that a job runs on, in node-rank order."""

    nodes: tuple[Node, ...] = Field(default=())
    """One entry per node."""

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return len(self.nodes)

    @property
    def shares_one_machine(self) -> bool:
        """Whether several nodes are agents of one machine, as in local mode and in a testbed."""
        return self.node_count > 1 and len({node.hostname for node in self.nodes}) == 1

    def describe(self) -> str:
        """A short sentence for headers: `2 nodes: 4 CPUs each` or `2 × 8 NVIDIA H200`."""
        if not self.nodes:
            return "no node yet"
        first = self.nodes[0]
        count = f"{self.node_count} node{'s' if self.node_count != 1 else ''}"
        where = f" ({first.testbed.describe()})" if first.testbed else ""
        if first.devices:
            return f"{count} × {len(first.devices)} {first.devices[0].name}{where}"
        return f"{count} × {first.cpu_count} CPU{'s' if first.cpu_count != 1 else ''}{where}"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    is_fine: bool
    sentence: str
    """What was found, and what to do where it stands in an agent's way."""
