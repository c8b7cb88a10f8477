"""Families of simulated surfaces: one kind of bottleneck each, made from a few numbers; a third of all is held out.

    python benchmarks/generated_surfaces.py [--held | --drawn]

`TUNED` may be looked at while the search is changed. `HELD` is frozen: its numbers were written down before any method
ran on it, no change of the search was chosen by it, and search_quality.py runs it when it is asked to (`--held`). The
checksum of the list is printed with the results, so that a later edit of it shows. `list_drawn` are surfaces of random
numbers, which nobody chose; they were drawn once the search was as it is.
"""

import argparse
import hashlib
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from simulated_surfaces import (
    FIRST,
    GBIT,
    MODELS,
    SIZES,
    SimulatedSurface,
    list_simulated,
    make_surface,
    spread_gradients,
)  # fmt: skip
from step_simulator import MB, Link, Machine, Training
from weathers import Weather

from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.nodes.cluster import DeviceKind
from advisor.protocol.training.own_knobs import OwnKnob

Grid = Mapping[str, tuple[Value, ...]]


@dataclass(frozen=True)
class Case:
    """The numbers of one surface."""

    kind: str
    model: str
    nodes: int
    ranks: int
    """Of each node."""
    gbit: float
    """Between nodes."""
    backward_ms: float
    late: float = 0.0
    """How much the gradients come towards the end of the backward pass."""
    luck: float = 0.003
    """Standard deviation of a strategy's luck in one race."""
    tells: bool = field(default=True, repr=False)
    """Whether the ranks say where a step's time goes: programs that take their knobs at their start do not."""

    @property
    def name(self) -> str:
        """Kind, model, nodes and link."""
        return f"{self.kind}-{self.model}-{self.nodes}x{self.ranks}-{self.gbit:g}g{'' if self.tells else '-silent'}"


TUNED = (
    Case("communication", "bert", 4, 2, 5, 180, -0.1),
    Case("compute", "resnet", 2, 4, 200, 70, 0.2),
    Case("input", "resnet", 1, 8, 100, 60, luck=0.006),
    Case("nothing", "gpt", 2, 4, 400, 320),
    Case("failing", "bert", 2, 8, 40, 210, luck=0.005),
    Case("own", "gpt", 2, 4, 50, 260),
    Case("whole", "gpt", 4, 8, 25, 240, 0.1),
)
HELD = (
    Case("communication", "vgg", 2, 4, 8, 140, 0.3, luck=0.005),
    Case("communication", "gpt", 8, 1, 3, 400, 0.2),
    Case("compute", "small", 2, 8, 100, 8),
    Case("compute", "bert", 1, 8, 100, 190, luck=0.008),
    Case("input", "vgg", 2, 2, 50, 110, 0.1),
    Case("nothing", "resnet", 1, 4, 100, 130, luck=0.006),
    Case("failing", "gpt", 4, 4, 20, 300),
    Case("own", "bert", 2, 8, 30, 200, luck=0.004),
    Case("whole", "resnet", 8, 4, 12, 80, -0.1, luck=0.005),
)
"""Frozen on 2026-11-27."""

_BUCKETS: Grid = {
    "fuse_grad_size_in_MB": SIZES, "last_comm_group_size_MB": FIRST, "nccl_comm_num": (1, 2, 3, 4),
    "sync_nccl_allreduce": (False, True),
}  # fmt: skip
_LEVELS: Grid = {
    "use_hierarchical_allreduce": (False, True),
    "hierarchical_allreduce_inter_nranks": (2, 4, 8),
}
_HALF: Grid = {"fp16_allreduce": (False, True), "amp": (False, True)}
_HOST: Grid = {
    "fuse_all_optimizer_ops": (False, True), "num_iteration_per_drop_scope": (1, 10, 30, 100),
    "num_iteration_per_run": (1, 3, 10, 100), "num_threads": (1, 2, 4, 8),
}  # fmt: skip
_LOADER: Grid = {"loader_num_workers": (0, 1, 2, 4, 6, 8, 16), "loader_prefetch_factor": (2, 4, 8)}
_RARE: Grid = {
    "localsgd": (False, True), "localsgd_k_steps": (1, 2, 4, 8), "gradient_merge": (False, True),
    "gradient_merge_k_steps": (1, 2, 4),
}  # fmt: skip
_SOCKETS: Grid = {"NCCL_SOCKET_NTHREADS": (1, 2, 4, 8), "NCCL_NSOCKS_PERTHREAD": (1, 2, 4)}
_OWN = (
    OwnKnob(name="attention", values=("eager", "fused", "flash"), at="--attention", effect=Effect.NUMERIC),
    OwnKnob(name="recompute", values=(12, 8, 4, 0), at="--recompute", effect=Effect.EXACT),
    OwnKnob(name="tile", values=(64, 16, 32, 128, 256), at="--tile", effect=Effect.EXACT),
)
_KINDS: Mapping[str, tuple[Effect, Grid]] = {
    "communication": (Effect.NUMERIC, {**_BUCKETS, **_LEVELS, "fp16_allreduce": (False, True)}),
    "compute": (Effect.NUMERIC, {**_BUCKETS, **_HALF, **_HOST}),
    "input": (Effect.EXACT, {**_BUCKETS, **_HOST, **_LOADER}),
    "nothing": (Effect.EXACT, {**_BUCKETS, "num_threads": (1, 2, 4), **_LOADER}),
    "failing": (Effect.NUMERIC, {**_BUCKETS, **_HALF, **_SOCKETS, **_LEVELS}),
    "own": (
        Effect.NUMERIC,
        {
            **{knob.name: knob.values for knob in _OWN}, "fuse_grad_size_in_MB": SIZES, "nccl_comm_num": (1, 2, 4),
            **_HALF,
        },
    ),
    "whole": (Effect.CONVERGENCE, {**_BUCKETS, **_LEVELS, **_HALF, **_HOST, **_LOADER, **_RARE, **_SOCKETS}),
}  # fmt: skip
_NARROW: Grid = {
    "fuse_grad_size_in_MB": (0.125, 0.25, 0.5, 1.0, 4.0, 25.0), "nccl_comm_num": (1, 2, 3, 4),
    "fp16_allreduce": (False, True), "fuse_all_optimizer_ops": (False, True),
}  # fmt: skip
"""Of small models on CPUs over slow links, as `record_surface.py` records them."""
_SMALL_MODELS: Mapping[str, list[float]] = {
    "decoder": [0.05 * MB] * 36 + [0.375 * MB],
    "vgg16": [0.01 * MB, 0.1 * MB, 3.0 * MB] + [0.1 * MB] * 12,
    "wide": [0.3 * MB] * 20 + [6.0 * MB],
}
"""Bytes of each gradient, from the last layer to the first: 2, 4 and 12 MB."""
_DRAWN = 28
_DRAWN_NARROW = 12
_TIGHT = {"failing": 1.12, "own": 1.3}
"""Device memory of kinds where it is short, in units of what the script as it stands needs."""


def make_case(case: Case) -> SimulatedSurface:
    """Return the surface of these numbers."""
    allow, grid = _KINDS[case.kind]
    backward = case.backward_ms / 1000.0
    is_input, is_idle = case.kind == "input", case.kind == "nothing"
    training = Training(
        spread_gradients(MODELS[case.model], case.late), 0.5 * backward, backward,
        kernels=round(backward * (60_000 if case.kind == "compute" else 4_000)),
        amp_gain=1.9, read_s=5.0 * backward if is_input else 0.02 * backward, activations=10 * 2**30,
        collect_s=0.0002 if is_idle else 0.02 * backward,
    )  # fmt: skip
    machine = Machine(
        case.nodes, case.ranks, Link(7e-6, 25e9, 0.7), Link(30e-6, case.gbit * GBIT, 0.55),
        memory=80 * 2**30, cpus=4 * case.ranks + 8, tcp=case.gbit < 100, contention=0.0 if is_idle else 0.06,
    )  # fmt: skip
    surface = make_surface(
        case.name,
        f"simulated, {case.kind}: {case.nodes} nodes of {case.ranks} GPUs, {case.gbit:g} Gbit/s, {case.model}",
        allow, machine, training, "A100", 32, grid, **_list_more(case),
    )  # fmt: skip
    if case.kind not in _TIGHT:
        return surface
    needed = surface.look(surface.key_of({}))[1].memory
    return replace(surface, machine=replace(machine, memory=needed * _TIGHT[case.kind] / 0.95), seen={})


def make_narrow(case: Case) -> SimulatedSurface:
    """Return a small model on CPU ranks over gloo, whose link is slow against what it computes."""
    backward = case.backward_ms / 1000.0
    training = Training(
        spread_gradients(_SMALL_MODELS[case.model], case.late), 0.5 * backward, backward, kernels=400,
        read_s=0.02 * backward, activations=2**28, optimizer_kernels=8,
    )  # fmt: skip
    machine = Machine(
        case.nodes, case.ranks, Link(20e-6, 4e9, 0.7), Link(150e-6, case.gbit * GBIT, 0.8), memory_rate=8e9,
        launch_s=4e-6, cpus=2, contention=0.1,
    )  # fmt: skip
    weather = Weather(step=0.06, launch=0.02, luck=0.005, arm=case.luck, walk=0.01, bursts=0.1)
    surface = make_surface(
        case.name, f"simulated, narrow: {case.nodes} CPU nodes, {case.gbit:g} Gbit/s, {case.model}",
        Effect.NUMERIC, machine, training, "cpu", 8, _NARROW, weather=weather, tells=case.tells,
    )  # fmt: skip
    facts = surface.facts.model_copy(update={"backend": "gloo", "device": DeviceKind.CPU})
    return replace(surface, facts=facts)


def _list_more(case: Case) -> dict[str, object]:
    weather = Weather(step=0.04, launch=0.01, luck=0.003, arm=case.luck, walk=0.004, bursts=0.1)
    if case.kind == "own":
        return {"weather": weather, "own": _OWN, "alter": _alter, "crash": _crash_flash}
    return {"weather": weather, "crash": _crash_sockets} if case.kind == "failing" else {"weather": weather}


def _alter(training: Training, values: Mapping[str, Value]) -> Training:
    """What the script's own options do: attention is a third of the computation, tiles have a best size."""
    speed = {"eager": 1.0, "fused": 0.86, "flash": 0.78}[str(values["attention"])]
    again, off = float(values["recompute"]) / 12.0, abs(math.log2(float(values["tile"]) / 128.0))
    share = speed * (1.0 + 0.03 * off)
    kept = (1.0 - 0.6 * again) * (0.7 if values["attention"] == "flash" else 1.0)
    return replace(
        training, forward_s=training.forward_s * share, backward_s=training.backward_s * share * (1.0 + 0.33 * again),
        activations=training.activations * kept,
    )  # fmt: skip


def _crash_flash(values: Mapping[str, Value]) -> str:
    return (
        ""
        if values["attention"] != "flash" or values["amp"]
        else "flash attention: only 16-bit inputs are supported"
    )


def _crash_sockets(values: Mapping[str, Value]) -> str:
    sockets = (
        int(values["NCCL_SOCKET_NTHREADS"])
        * int(values["NCCL_NSOCKS_PERTHREAD"])
        * int(values["nccl_comm_num"])
    )
    return (
        f"NCCL: unhandled system error, {sockets} sockets a peer: too many open files" if sockets > 32 else ""
    )


def list_tuned() -> tuple[SimulatedSurface, ...]:
    """Return the simulated surfaces that changes of the search may be chosen by."""
    return (*list_simulated(), *map(make_case, TUNED))


def list_held() -> tuple[SimulatedSurface, ...]:
    """Return those that are held out."""
    return tuple(map(make_case, HELD))


def draw_case(word: str, kind: str) -> Case:
    """Return a case of random numbers, the same for the same word."""
    dice = random.Random(word)
    return Case(
        kind, dice.choice(sorted(MODELS)), dice.choice((2, 4, 8)), dice.choice((2, 4, 8)),
        round(10 ** dice.uniform(0.5, 2.3), 1), round(10 ** dice.uniform(1.5, 2.6)), round(dice.uniform(-0.1, 0.3), 2),
    )  # fmt: skip


def list_drawn() -> tuple[SimulatedSurface, ...]:
    """Return those that were drawn after the search was frozen; kinds take turns."""
    kinds = tuple(_KINDS)
    return tuple(make_case(draw_case(f"drawn {n}", kinds[n % len(kinds)])) for n in range(_DRAWN))


def list_narrow(held: bool = False) -> tuple[SimulatedSurface, ...]:
    """Return small models over slow links, each with a step that is told and with a silent one; a third is held out."""
    dice, cases = random.Random("narrow"), []
    for number in range(_DRAWN_NARROW):
        case = Case(
            "narrow", sorted(_SMALL_MODELS)[number % 3], dice.choice((2, 2, 4)), 1,
            round(dice.uniform(0.3, 1.0), 2), round(10 ** dice.uniform(1.0, 2.0)), round(dice.uniform(-0.1, 0.3), 2),
            luck=round(dice.uniform(0.01, 0.04), 3),
        )  # fmt: skip
        if (number % 4 == 3 or number % 12 == 0) == held:
            cases += [case, replace(case, tells=False)]
    return tuple(map(make_narrow, cases))


def sign_held() -> str:
    """Return the first digits of the frozen list's checksum."""
    return hashlib.sha256(repr(HELD).encode()).hexdigest()[:12]


def describe(surface: SimulatedSurface) -> str:
    """The surface, its baseline's step, and what random strategies are like."""
    step = surface.look(surface.key_of({}))[1]
    dice = random.Random(0)
    cells = [
        surface.find(surface.changes_at({k: dice.randrange(len(v)) for k, v in surface.grid.items()}))
        for _ in range(200)
    ]
    truths = sorted(c.truth for c in cells if c.truth is not None)
    middle, best = (math.expm1(truths[place]) for place in (len(truths) // 2, -1))
    return (
        f"{surface.describe()}\n  baseline {step.total_s * 1e3:.1f} ms: {step}\n  200 random strategies: "
        f"{200 - len(truths)} fail, median {middle:+.1%}, best {best:+.1%}"
    )


def main() -> None:
    """Describe the surfaces."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--held", action="store_true", help="the held-out ones")
    parser.add_argument("--drawn", action="store_true", help="those of random numbers")
    asked = parser.parse_args()
    for surface in list_held() if asked.held else list_drawn() if asked.drawn else list_tuned():
        print(describe(surface))


if __name__ == "__main__":
    main()
