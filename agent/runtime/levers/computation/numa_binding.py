"""The lever of numa_binding: the CPUs that a rank's threads may use, as `torchrun --numa-binding` chooses them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Set

import torch

from ..lever import Evidence, Lever, Training

KNOB = "numa_binding"
NODE, EXCLUSIVE = "node", "exclusive"
SYSTEM = Path("/sys")
Cpus = FrozenSet[int]


class CannotBind(ValueError):
    """There is nothing to choose from; the sentence says why."""


def read_ranges(text: str) -> Cpus:
    """Return the numbers of a list of the kernel's, such as `0-3,8`."""
    found: Set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def list_nodes(allowed: Cpus, system: Path = SYSTEM) -> Dict[int, Cpus]:
    """Of each NUMA node with CPUs that this process may use, those CPUs; one node where the kernel tells of none."""
    found = {
        int(folder.name[4:]): frozenset(int(cpu.name[3:]) for cpu in folder.glob("cpu[0-9]*")) & allowed
        for folder in (system / "devices/system/node").glob("node[0-9]*")
    }
    return {node: cpus for node, cpus in found.items() if cpus} or {0: allowed}


def find_node_of_gpu(address: str, system: Path = SYSTEM) -> int:
    """The NUMA node of a PCI device such as `0000:dc:00.0`; 0 where there is one only, which the kernel calls -1."""
    return max(0, int((system / "bus/pci/devices" / address / "numa_node").read_text()))


def find_address(index: int) -> str:
    """The PCI address of a GPU whose context this process has."""
    gpu = torch.cuda.get_device_properties(index)
    return f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"


def choose_cpus(
    mode: str, place: int, homes: List[int], nodes: Mapping[int, Cpus], system: Path = SYSTEM
) -> Cpus:
    """The CPUs of the rank at that place among this machine's, `homes` being the NUMA node of each of them.

    `node`: all of its node; `exclusive`: its share of its node's cores, whose hyperthreads stay together. Raises
    CannotBind where that would bind nothing.
    """
    home = homes[place]
    if home not in nodes:
        raise CannotBind(f"this process may use no CPU of NUMA node {home}, where its GPU is")
    cpus = nodes[home]
    if mode == NODE:
        if len(nodes) < 2:
            raise CannotBind("the machine has one NUMA node, whose CPUs all ranks use already")
        return cpus
    cores: Dict[Cpus, Set[int]] = {}
    for cpu in sorted(cpus):
        siblings = system / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        core = read_ranges(siblings.read_text()) if siblings.exists() else frozenset({cpu})
        cores.setdefault(core, set()).add(cpu)
    sharing = [rank for rank, node in enumerate(homes) if node == home]
    if len(sharing) < 2 and len(nodes) < 2:
        raise CannotBind("one rank has the machine's only NUMA node to itself")
    if len(cores) < len(sharing):
        raise CannotBind(
            f"{len(sharing)} ranks share {len(cores)} cores of NUMA node {home}: one each at least"
        )
    turn, (share, left) = sharing.index(place), divmod(len(cores), len(sharing))
    first = turn * share + min(turn, left)
    mine = list(cores.values())[first : first + share + (turn < left)]
    return frozenset().union(*mine)


class NumaBinding(Lever):
    """Binds every thread of the rank that may use the CPUs that the rank was started with.

    The kernel keeps an affinity for each thread. A thread that the script has bound elsewhere stays where it is.
    """

    knobs = (KNOB,)
    serves_plain = True
    serves_sharded = True
    serves_engines = True

    def __init__(
        self,
        device: torch.device,
        local_rank: int,
        local_world_size: int,
        system: Path = SYSTEM,
        address_of: Callable[[int], str] = find_address,
    ) -> None:
        """Without GPUs the ranks of a machine are spread over its NUMA nodes in their order."""
        self._device, self._system, self._address_of = device, system, address_of
        self._place, self._ranks = local_rank, max(1, local_world_size)
        self._own = _read_affinity(0)
        self._launcher = _read_affinity(os.getppid())
        self._wanted: Optional[Cpus] = None
        self._evidence = Evidence()

    def list_refusals(self, training: Training) -> Dict[str, str]:
        if not self._own:
            return {KNOB: "This system has no CPU affinity to set."}
        if self._launcher and self._own != self._launcher:
            return {KNOB: "The launch binds this rank to CPUs of its own already."}
        sentence = ""
        for mode in (NODE, EXCLUSIVE):
            try:
                self._choose(mode)
                return {}
            except CannotBind as error:
                sentence = str(error)
        return {KNOB: f"There is nothing to bind to: {sentence}."}

    def observe(self, training: Training) -> Dict[str, Any]:
        return {KNOB: ""}

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._evidence, wanted = Evidence(), None
        if values.get(KNOB):
            try:
                wanted = self._choose(str(values[KNOB]))
            except CannotBind as error:
                self._evidence.not_consumed[KNOB] = f"No rank was bound: {error}."
        if wanted != self._wanted:
            _bind(self._wanted or self._own, wanted or self._own)
        self._wanted = wanted

    def describe_in_force(self, chosen: Mapping[str, Any]) -> Any:
        return sorted(_read_affinity(0))

    def prove(self) -> Evidence:
        if self._wanted is None:
            return self._evidence
        found = _read_affinity(0)
        sentence = f"This rank's threads may use the CPUs {', '.join(map(str, sorted(found)))}."
        if found == self._wanted:
            return Evidence(consumed={KNOB: sentence})
        return Evidence(not_consumed={KNOB: f"{sentence} The script has bound them otherwise."})

    def _choose(self, mode: str) -> Cpus:
        nodes = list_nodes(self._own, self._system)
        if self._device.type != "cuda":
            order = sorted(nodes)
            homes = [order[rank * len(order) // self._ranks] for rank in range(self._ranks)]
            return choose_cpus(mode, self._place, homes, nodes, self._system)
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        seen = torch.cuda.device_count()
        if mode == EXCLUSIVE and seen < self._ranks:
            raise CannotBind("each rank sees its own GPU only, and not whom it shares its NUMA node with")
        gpus = range(seen) if mode == EXCLUSIVE else [index]
        homes = [find_node_of_gpu(self._address_of(gpu), self._system) for gpu in gpus]
        return choose_cpus(mode, index if mode == EXCLUSIVE else 0, homes, nodes, self._system)


def _read_affinity(process: int) -> Cpus:
    try:
        return frozenset(os.sched_getaffinity(process))
    except (AttributeError, OSError):  # no such call on this system, or no such process any more
        return frozenset()


def _bind(before: Cpus, cpus: Cpus) -> None:
    """Move this process's threads from one set of CPUs to another; those that were bound otherwise stay."""
    for thread in os.listdir("/proc/self/task"):
        if _read_affinity(int(thread)) == before:
            try:
                os.sched_setaffinity(int(thread), cpus)
            except OSError:  # it has ended
                continue
