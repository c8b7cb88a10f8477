"""What is there and what is wanted: agents and jobs, as far as it matters who gets which."""

import math
from dataclasses import dataclass

from advisor.protocol.asked.jobs import JobSpec
from advisor.protocol.nodes.cluster import Node
from advisor.protocol.nodes.testbed import Testbed

Kind = tuple[int, tuple[str, ...]]
"""What makes nodes alike: their CPUs, and their GPUs' models."""


def find_kind(node: Node) -> Kind:
    """Return what a node is like."""
    return node.cpu_count, tuple(device.name for device in node.devices)


@dataclass(frozen=True)
class Supply:
    """A connected agent."""

    id: str
    name: str
    node: Node
    is_idle: bool = True
    """Whether it holds no session."""
    stays_s: float = math.inf
    """Seconds until its allocation ends."""
    objection: str = ""
    """Why it is set aside, in a sentence; empty while nothing speaks against it."""
    away: str = ""
    """Why it takes no session at all, in a sentence; empty while it does."""


@dataclass(frozen=True)
class Asked:
    """What the agents of a gang have to be."""

    nodes: int = 1
    testbed: Testbed | None = None
    pool: str = ""
    needs: tuple[tuple[str, str], ...] = ()
    within: str | None = None
    mixed_gpus: bool = False
    signed: bool = False
    """Whether the job carries its owner's signature."""

    @classmethod
    def of(cls, spec: JobSpec) -> "Asked":
        """Return what a job asks for."""
        needs = tuple(sorted(spec.needs.items()))
        signed = spec.signed is not None
        return cls(spec.nodes, spec.testbed, spec.pool, needs, spec.within, spec.mixed_gpus, signed)

    def admits(self, node: Node) -> bool:
        """Whether the node could be one of the gang's."""
        if self.testbed is None or node.testbed is None:
            if self.testbed is not node.testbed:
                return False
        elif not node.testbed.serves(self.testbed):
            return False
        return (
            node.pool == self.pool
            and all(node.labels.get(key) == value for key, value in self.needs)
            and (self.within is None or self.within in node.labels)
            and (self.signed or not node.signed_only)
        )

    def group(self, node: Node) -> tuple[object, ...]:
        """What all nodes of a gang share. Nodes of one testbed do not reach those of another one."""
        models = () if self.mixed_gpus else tuple(device.name for device in node.devices)
        return node.testbed, models, node.labels.get(self.within) if self.within else None


@dataclass(frozen=True)
class Demand:
    """A job that lacks a session."""

    job_id: str
    asked: Asked
    lasts_s: float = math.inf
    """Seconds that its session lasts at most, from now on."""
    before: tuple[str, ...] = ()
    """The names of the gang that it had last, in its order: blocks on other nodes compare badly."""
    kinds: frozenset[Kind] = frozenset()
    """The nodes that it was measured on so far."""
    is_ready: bool = True
    """Whether it can start; a job that is thought about keeps its place."""


@dataclass(frozen=True)
class Place:
    """What a job gets, or why it waits."""

    gang: tuple[str, ...] = ()
    """Ids of agents in node-rank order; empty: it waits."""
    waits: str = ""
    """What it waits for, in a sentence."""
