"""Simulated multi-node surfaces: clusters that nobody here has, with the noise that such clusters show.

Every strategy of a large grid is one call of `step_simulator.simulate_step`, which shares nothing with the advisor's
cost model. The noise of its steps is a weather of `weathers.py`.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any

from step_simulator import MB, Link, Machine, Step, Training, simulate_step, time_allreduce
from surface_model import Cell, Key, Surface
from weathers import SimulatedLaunch, Sky, Weather

from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import period_of
from advisor.protocol.measured.results import (
    BlockResult,
    Calibration,
    GradientTiming,
    LinkLevel,
    LinkTiming,
    Phases,
)
from advisor.protocol.measured.trials import Outcome
from advisor.protocol.nodes.cluster import Cluster, Device, DeviceKind, Node
from advisor.protocol.nodes.cluster import Link as Interface
from advisor.protocol.training.own_knobs import OwnKnob
from advisor.protocol.training.workload import WorkloadFacts

_STARTS = 10
GBIT = 1e9 / 8


WEATHER = Weather(step=0.04, launch=0.01, luck=0.003, arm=0.003, walk=0.004, bursts=0.1)
"""Of clusters: now and then something else slows all of it down by a tenth for some seconds."""


@dataclass(frozen=True, eq=False)
class SimulatedSurface(Surface):
    """A grid of strategies over a simulated cluster."""

    name: str
    how: str
    allow: Effect
    machine: Machine
    training: Training
    grid: Mapping[str, tuple[Value, ...]]
    baseline: Mapping[str, Value]
    facts: WorkloadFacts
    own: tuple[OwnKnob, ...] = ()
    alter: Callable[[Training, Mapping[str, Value]], Training] = lambda training, _: training
    """What the script's own knobs make of the training."""
    crash: Callable[[Mapping[str, Value]], str] = lambda _: ""
    """Why a launch under these values dies; nothing where it runs."""
    weather: Weather = WEATHER
    tells: bool = True
    """Whether the ranks say where a step's time goes, and a probe measures gradients and links."""
    seen: dict[Key, tuple[Cell, Step]] = field(default_factory=dict)

    @cached_property
    def cluster(self) -> Cluster:
        """The nodes as agents would describe them."""
        device = Device(
            index=0, uuid="simulated", name=self.facts.device_name, memory_bytes=int(self.machine.memory)
        )
        speed = int(self.machine.between.rate * 8)
        node = Node(
            hostname="node", cpu_count=self.machine.cpus, memory_bytes=2**38,
            devices=(device,) * self.machine.ranks_per_node,
            links=(Interface(name="eth0", address="10.0.0.1", bits_per_second=speed),),
        )  # fmt: skip
        return Cluster(nodes=(node,) * self.machine.nodes)

    @cached_property
    def calibration(self) -> Calibration | None:
        """What a probe would measure of gradients and links, 5 % off."""
        if not self.tells:
            return None
        dice = random.Random(self.name)
        backward = self.training.backward_s
        gradients = tuple(
            GradientTiming(bytes=int(size), ready_s=share * backward * math.exp(dice.gauss(0, 0.02)))
            for size, share in self.training.gradients
        )
        levels = {"world": self.machine.world}
        if self.machine.nodes > 1 and self.machine.ranks_per_node > 1:
            levels |= {"node": self.machine.ranks_per_node, "across": self.machine.nodes}
        links = tuple(
            LinkTiming(
                level=LinkLevel(level), ranks=ranks, bytes=size, concurrent=side_by_side,
                seconds=time_allreduce(self.machine, size, side_by_side, level) * math.exp(dice.gauss(0, 0.05)),
            )
            for level, ranks in levels.items()
            for size, side_by_side in ((4096, 1), (MB // 4, 1), (4 * MB, 1), (32 * MB, 1), (4 * MB, 2))
        )  # fmt: skip
        return Calibration(gradients=gradients, links=links)

    def find(self, changes: Mapping[str, Value]) -> Cell:
        """Return the cell of these changes, values outside the grid taken to the nearest place."""
        return self.look(self.key_of(changes))[0]

    def look(self, key: Key) -> tuple[Cell, Step]:
        """Return the cell at these places, and where the time of its step goes."""
        if (known := self.seen.get(key)) is not None:
            return known
        wishes = {knob: values[place] for (knob, values), place in zip(self.grid.items(), key, strict=True)}
        changes = self.composer.compose(wishes) or {}
        values = {**self.values_of(wishes), **changes}
        step = simulate_step(self.machine, self.alter(self.training, values), values)
        outcome, reason, truth = Outcome.FINISHED, self.crash(values), None
        if reason:
            outcome = Outcome.CRASHED
        elif step.memory > 0.95 * self.machine.memory:
            outcome = Outcome.OUT_OF_MEMORY
            reason = f"It needed {step.memory / 2**30:.1f} GiB of {self.machine.memory / 2**30:.0f}."
        else:
            truth = math.log(self.baseline_step_s / step.total_s)
        self.seen[key] = Cell(key, changes, outcome, reason, truth), step
        return self.seen[key]

    @cached_property
    def baseline_step_s(self) -> float:
        """Step time of the script as it stands."""
        training = self.alter(self.training, self.standing)
        return simulate_step(self.machine, training, self.standing).total_s

    @cached_property
    def best(self) -> Cell:
        """The best strategy that coordinate ascent from many starts finds."""
        dice = random.Random(f"best of {self.name}")
        found = self.find({})
        for _ in range(_STARTS):
            places = [dice.randrange(len(values)) for values in self.grid.values()]
            here, improved = -math.inf, True
            while improved:
                improved = False
                for axis, values in enumerate(self.grid.values()):
                    for place in range(len(values)):
                        trial = [*places[:axis], place, *places[axis + 1 :]]
                        cell = self.find(self.changes_at(dict(zip(self.grid, trial, strict=True))))
                        if cell.truth is not None and cell.truth > here + 1e-9:
                            here, places, improved = cell.truth, trial, True
                            if here > (found.truth or 0.0):
                                found = cell
        return found

    def launch(self, dice: random.Random) -> SimulatedLaunch:
        """Return a launch under a sky of its own."""
        return SimulatedLaunch(
            Sky(self.weather, dice), lambda cell: self.look(cell.key)[1].total_s, self._describe
        )

    def _describe(self, cell: Cell, times: Sequence[float], dice: random.Random) -> BlockResult:
        """What the ranks report besides the steps: phases, which are 2 % off and carry the race's level."""
        step = self.look(cell.key)[1]
        factor = median(times) / step.total_s if times else 1.0
        parts: dict[str, Any] = {
            name: getattr(step, name) * factor * math.exp(dice.gauss(0.0, 0.02))
            for name in (
                "data_wait_s",
                "forward_s",
                "backward_s",
                "exposed_comm_s",
                "optimizer_s",
                "own_code_s",
            )
        }
        if not self.tells:
            parts = {}
        samples = self.facts.batch_size_per_rank * self.machine.world
        return BlockResult(
            steps=len(times), period=period_of(cell.changes), step_time_s=tuple(times), samples_per_step=samples,
            samples=samples * len(times), wall_s=sum(times), phases=Phases(**parts), bucket_bytes=step.buckets,
            peak_memory_bytes=int(step.memory), consumed=dict.fromkeys(cell.changes, "simulated"),
        )  # fmt: skip


def spread_gradients(sizes: list[float], late: float = 0.0) -> tuple[tuple[float, float], ...]:
    """Gradients from the last layer to the first, ready evenly over backward; `late` shifts them towards its end."""
    count = len(sizes)
    return tuple((size, ((i + 1) / count) ** (1.0 / (1.0 + late))) for i, size in enumerate(sizes))


MODELS: Mapping[str, list[float]] = {
    "resnet": [4.0 * MB / 8] * 2 + [9.0 * MB / 4] * 20 + [1.0 * MB] * 40 + [0.1 * MB] * 60 + [0.01 * MB] * 39,
    "bert": [94.0 * MB] + [9.0 * MB, 9.0 * MB, 2.25 * MB, 2.25 * MB, 0.01 * MB] * 15,
    "vgg": [16.0 * MB, 64.0 * MB, 392.0 * MB] + [9.0 * MB] * 6 + [2.0 * MB] * 4 + [0.3 * MB] * 3,
    "gpt": [1.0 * MB] + [9.0 * MB, 9.0 * MB, 6.75 * MB, 2.25 * MB, 0.01 * MB] * 12 + [10.0 * MB],
    "small": [0.2 * MB] * 120 + [0.01 * MB] * 80,
}
"""Bytes of each gradient, from the last layer to the first."""
SIZES: tuple[Value, ...] = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 25.0, 32.0, 64.0, 128.0)
FIRST: tuple[Value, ...] = (0.25, 1.0, 4.0, 16.0)
_OBSERVED: Mapping[str, Value] = {
    "fuse_all_reduce_ops": True, "fuse_grad_size_in_MB": 25.0, "last_comm_group_size_MB": 1.0, "nccl_comm_num": 1,
    "sync_nccl_allreduce": False, "use_hierarchical_allreduce": False, "hierarchical_allreduce_inter_nranks": 1,
    "fp16_allreduce": False, "amp": False, "fuse_all_optimizer_ops": False, "num_iteration_per_run": 100,
    "num_iteration_per_drop_scope": 1, "num_threads": 1, "loader_num_workers": 2, "loader_prefetch_factor": 2,
    "localsgd": False, "localsgd_k_steps": 1, "gradient_merge": False, "gradient_merge_k_steps": 1,
    "NCCL_SOCKET_NTHREADS": 1, "NCCL_NSOCKS_PERTHREAD": 1,
}  # fmt: skip


def make_surface(
    name: str, how: str, allow: Effect, machine: Machine, training: Training, device: str, batch: float,
    grid: Mapping[str, tuple[Value, ...]], **more: Any,
) -> SimulatedSurface:  # fmt: skip
    """Return a surface whose facts follow from the machine and the training; `more` are further fields of it."""
    facts = WorkloadFacts(
        backend="nccl", device=DeviceKind.CUDA, device_name=device, world_size=machine.world,
        local_world_size=machine.ranks_per_node, nodes=machine.nodes, gradient_bytes=int(training.size),
        parameter_tensors=len(training.gradients), layers=max(1, len(training.gradients) // 2),
        largest_parameter_bytes=int(max(size for size, _ in training.gradients)), batch_size_per_rank=batch,
        dataloader={"num_workers": 2, "prefetch_factor": 2, "pin_memory": False}, optimizers=("SGD",),
        torch_version="2.13.0", cpu_threads=1,
    )  # fmt: skip
    own = {knob.name: knob.own_value for knob in more.get("own", ())}
    return SimulatedSurface(name, how, allow, machine, training, grid, {**_OBSERVED, **own}, facts, **more)


def list_simulated() -> tuple[SimulatedSurface, ...]:
    """Return the simulated surfaces."""
    half = {"fp16_allreduce": (False, True), "amp": (False, True)}
    return (
        make_surface(
            "resnet-4x8-100g", "simulated: 4 nodes of 8 GPUs, 100 Gbit/s, 102 MB in 161 tensors", Effect.NUMERIC,
            Machine(4, 8, Link(6e-6, 40e9, 0.6), Link(18e-6, 100 * GBIT, 0.55), cpus=64),
            Training(
                spread_gradients(MODELS["resnet"], 0.3),
                0.055, 0.11, 900, amp_gain=2.1, read_s=0.31, activations=9 * 2**30,
            ),
            "Tesla V100", 64,
            {
                "fuse_grad_size_in_MB": SIZES, "last_comm_group_size_MB": FIRST, "nccl_comm_num": (1, 2, 3, 4),
                "sync_nccl_allreduce": (False, True), "use_hierarchical_allreduce": (False, True),
                "hierarchical_allreduce_inter_nranks": (2, 4, 8, 16), **half, "fuse_all_optimizer_ops": (False, True),
                "num_iteration_per_drop_scope": (1, 10, 30, 100), "loader_num_workers": (0, 1, 2, 4, 6, 8, 16),
                "num_threads": (1, 2, 4, 8), "num_iteration_per_run": (1, 3, 10, 100),
            },
        ),
        make_surface(
            "bert-2x8-25g-tcp", "simulated: 2 nodes of 8 GPUs of 16 GB, 25 Gbit/s TCP, 430 MB", Effect.NUMERIC,
            Machine(
                2, 8, Link(8e-6, 12e9, 0.7), Link(45e-6, 25 * GBIT, 0.4), memory=16 * 2**30, cpus=32, tcp=True,
                contention=0.09,
            ),
            Training(
                spread_gradients(MODELS["bert"], -0.2),
                0.12, 0.25, 1300, amp_gain=1.9, read_s=0.02, activations=9.9 * 2**30,
            ),
            "Tesla V100", 12,
            {
                "fuse_grad_size_in_MB": SIZES, "nccl_comm_num": (1, 2, 3, 4), "sync_nccl_allreduce": (False, True),
                "use_hierarchical_allreduce": (False, True), "hierarchical_allreduce_inter_nranks": (2, 4, 8),
                **half, "fuse_all_optimizer_ops": (False, True), "num_iteration_per_run": (1, 3, 10, 100),
                "NCCL_SOCKET_NTHREADS": (1, 2, 4, 8),
                "NCCL_NSOCKS_PERTHREAD": (1, 2, 4), "num_iteration_per_drop_scope": (1, 10, 30, 100),
            },
        ),
        make_surface(
            "vgg-8x1-10g", "simulated: 8 nodes of 1 GPU, 10 Gbit/s, 528 MB with one tensor of 392 MB", Effect.EXACT,
            Machine(8, 1, Link(6e-6, 12e9), Link(35e-6, 10 * GBIT, 0.7), cpus=16, jitter=0.03),
            Training(spread_gradients(MODELS["vgg"], -0.4), 0.09, 0.19, 200, read_s=0.5, activations=8 * 2**30),
            "Tesla P100", 64,
            {
                "fuse_all_reduce_ops": (True, False), "fuse_grad_size_in_MB": SIZES,
                "last_comm_group_size_MB": FIRST, "nccl_comm_num": (1, 2, 3, 4), "sync_nccl_allreduce": (False, True),
                "num_iteration_per_drop_scope": (1, 10, 30, 100), "loader_num_workers": (0, 1, 2, 4, 8, 16),
                "num_threads": (1, 2, 4, 8), "num_iteration_per_run": (1, 3, 10, 100),
            },
        ),
        make_surface(
            "gpt-4x4-10g", "simulated: 4 nodes of 4 GPUs, 10 Gbit/s, 340 MB", Effect.CONVERGENCE,
            Machine(4, 4, Link(8e-6, 20e9, 0.7), Link(30e-6, 10 * GBIT, 0.6), cpus=32, jitter=0.04),
            Training(
                spread_gradients(MODELS["gpt"]), 0.15, 0.31, 1500, amp_gain=1.8, read_s=0.03, activations=12 * 2**30,
            ),
            "A10", 8,
            {
                "fuse_grad_size_in_MB": SIZES, "nccl_comm_num": (1, 2, 3, 4),
                "use_hierarchical_allreduce": (False, True),
                "hierarchical_allreduce_inter_nranks": (2, 4, 8), **half, "localsgd": (False, True),
                "localsgd_k_steps": (1, 2, 4, 8), "gradient_merge": (False, True), "gradient_merge_k_steps": (1, 2, 4),
                "fuse_all_optimizer_ops": (False, True), "num_iteration_per_drop_scope": (1, 10, 30, 100),
            },
        ),
        make_surface(
            "small-1x8-launch-bound", "simulated: 1 node of 8 GPUs, a small model that its host can hardly feed",
            Effect.NUMERIC,
            Machine(1, 8, Link(7e-6, 60e9, 0.5), Link(7e-6, 60e9), launch_s=7e-6, cpus=24, contention=0.1),
            Training(
                spread_gradients(MODELS["small"]), 0.0045, 0.009, 1100, amp_gain=1.5, read_s=0.036, collect_s=0.002,
            ),
            "A100", 256,
            {
                "fuse_all_reduce_ops": (True, False), "fuse_grad_size_in_MB": SIZES,
                "last_comm_group_size_MB": FIRST, "nccl_comm_num": (1, 2, 3, 4), **half,
                "fuse_all_optimizer_ops": (False, True), "num_iteration_per_drop_scope": (1, 10, 30, 100),
                "num_iteration_per_run": (1, 3, 10, 100), "loader_num_workers": (0, 1, 2, 4, 6, 8, 16),
                "loader_prefetch_factor": (2, 4, 8), "num_threads": (1, 2, 4, 8),
            },
        ),
    )  # fmt: skip
