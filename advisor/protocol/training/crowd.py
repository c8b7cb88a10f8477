"""Ranks whose threads outnumber a machine's processors: how many they are, and what leaves a processor to each."""

from dataclasses import dataclass

from advisor.protocol.nodes.cluster import Cluster, DeviceKind
from advisor.protocol.training.workload import WorkloadFacts


@dataclass(frozen=True)
class Crowd:
    """The ranks of one machine; printed as `2 ranks × 2 threads on 2 cores`."""

    ranks: int
    threads: int
    """Of each rank."""
    cores: int
    remedy: str
    """What sets fewer threads, as it is typed: `OMP_NUM_THREADS=1`."""

    @property
    def fewer(self) -> int:
        """Threads of a rank that leave a core to each."""
        return max(1, self.cores // self.ranks)

    def __str__(self) -> str:
        return f"{self.ranks} ranks × {self.threads} threads on {self.cores} cores"


def find_crowd(facts: WorkloadFacts | None, cluster: Cluster) -> Crowd | None:
    """Return the crowd of a training on processors; None where its threads fit, or where nothing is known of it."""
    if facts is None or not cluster.nodes or facts.device is not DeviceKind.CPU:
        return None
    ranks = facts.world_size if cluster.shares_one_machine else facts.local_world_size
    cores, threads = min(node.cpu_count for node in cluster.nodes), facts.cpu_threads
    if threads < 2 or ranks * threads <= cores:
        return None
    return Crowd(ranks, threads, cores, spell_threads(facts, max(1, cores // ranks)))


def spell_threads(facts: WorkloadFacts | None, threads: int) -> str:
    """Return what sets a rank's threads: the script's own call where it makes one, else the variable."""
    return (
        f"torch.set_num_threads({threads})" if facts and facts.sets_threads else f"OMP_NUM_THREADS={threads}"
    )
