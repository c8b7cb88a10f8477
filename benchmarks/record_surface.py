"""Records surfaces for search_quality.py: every strategy of a small grid, measured again and again on a testbed.

    python benchmarks/record_surface.py [--only decoder-1gbit …] [--repeats 3] [--folder benchmarks/surfaces]

One warm session per surface. All strategies are measured once in a random order, then all again in another order, as
often as `--repeats` says; every fourth block is the baseline, so that each strategy is compared with its neighbours.
Needs root, because the nodes are network namespaces. Takes three to five minutes a surface: leave the machine alone.
"""

import argparse
import itertools
import json
import math
import platform
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from sessions import ROOT, Ranks, SessionFailed, run_planned

sys.path.insert(0, str(ROOT))

from advisor.local.testbed import build_testbed, unavailable_because
from advisor.protocol.asked.jobs import Job, JobSpec, JobState
from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.knobs.strategy import Layout
from advisor.protocol.nodes.cluster import Cluster, Node
from advisor.protocol.nodes.testbed import Testbed
from advisor.protocol.training.workload import Workload, WorkloadFacts
from advisor.tuning.measure.statistics import summarise_block
from advisor.tuning.space.composition import Composer, list_own_values
from agent.sessions.control import parse_result

WORKLOADS = ROOT / "agent" / "workloads"
_ANCHOR_EVERY = 4


@dataclass(frozen=True)
class Plan:
    """One surface: a training, a grid of knobs, and the rung that it needs."""

    words: tuple[str, ...]
    knobs: Mapping[str, tuple[Value, ...]]
    allow: str = "exact"
    nproc_per_node: int = 1


_REDUCTION: dict[str, tuple[Value, ...]] = {
    "fuse_grad_size_in_MB": (0.25, 1.0, 25.0),
    "nccl_comm_num": (1, 2, 4),
    "fp16_allreduce": (False, True),
    "num_threads": (1, 2),
}
PLANS: dict[str, Plan] = {
    "decoder": Plan(
        ("decoder.py", "--width", "96", "--layers", "3", "--vocabulary", "1024"), _REDUCTION, "numeric"
    ),
    "vgg16": Plan(
        ("vgg16.py",),
        {
            "fuse_grad_size_in_MB": (0.125, 0.25, 0.5, 1.0, 25.0),
            "nccl_comm_num": (1, 2, 3),
            "fp16_allreduce": (False, True),
        },
        "numeric",
    ),
    "encoder": Plan(
        ("encoder.py", "--vocabulary", "1024"),
        {
            "fuse_grad_size_in_MB": (0.125, 0.25, 0.5, 1.0, 25.0),
            "nccl_comm_num": (1, 2),
            "fp16_allreduce": (False, True),
            "localsgd": (False, True),
            "localsgd_k_steps": (2, 4, 8),
        },
        "convergence",
    ),
    "resnet50": Plan(("resnet50.py", "--width", "8", "--batch", "4"), _REDUCTION, "numeric"),
    "wide_and_deep": Plan(
        ("wide_and_deep.py",),
        {
            "fuse_grad_size_in_MB": (0.25, 1.0, 25.0),
            "nccl_comm_num": (1, 2),
            "fp16_allreduce": (False, True),
            "num_threads": (1, 2),
            "fuse_all_optimizer_ops": (False, True),
        },
        "numeric",
    ),
}
RATES = ("300mbit", "1gbit")


def record(name: str, plan: Plan, rate: str, repeats: int) -> dict[str, Any]:
    """Measure one surface and return it in the format of benchmarks/README.md."""
    testbed = Testbed(nodes=2, rate=rate)
    script, *arguments = plan.words
    words = (str(WORKLOADS / script), *arguments)
    greeting: dict[str, Any] = {}
    turns: list[dict[str, Value]] = []

    def lay_out(hello: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        greeting.update(hello)
        cells = list_cells(plan, hello, testbed)
        turns.extend(order_turns(cells, repeats, seed=len(cells)))
        print(f"  {len(cells)} strategies, {len(turns)} blocks", flush=True)
        return [_instruct(changes) for changes in turns]

    began = time.monotonic()
    with build_testbed(testbed) as nodes:
        ranks = Ranks(
            nproc_per_node=plan.nproc_per_node,
            node_prefixes=tuple(node.prefix for node in nodes),
            master_address=nodes[0].address,
            interface="eth0",
        )
        results = run_planned(words, lay_out, ranks)
    print(f"  {time.monotonic() - began:.0f} s", flush=True)
    return {
        "name": name,
        "how": f"python benchmarks/record_surface.py --only {name} --repeats {repeats}; {platform.system()} "
        f"{platform.machine()}, 2 CPUs shared by two namespaces of one rank, {datetime.now(UTC):%Y-%m-%d}",
        "allow": plan.allow,
        "facts": greeting["facts"],
        "cluster": _describe(testbed).model_dump(mode="json"),
        "baseline": greeting["baseline"],
        "knobs": {knob: list(values) for knob, values in plan.knobs.items()},
        "cells": _gather(turns, results),
    }


def list_cells(plan: Plan, hello: Mapping[str, Any], testbed: Testbed) -> list[dict[str, Value]]:
    """Return every strategy of the grid as its changes against the script, each once, the script itself left out."""
    facts = WorkloadFacts.model_validate(hello["facts"])
    job = Job(
        id="surface",
        spec=JobSpec(workload=Workload(command=("torchrun", plan.words[0])), nodes=testbed.nodes),
        state=JobState.RUNNING,
        created_at=datetime.now(UTC),
        facts=facts,
        cluster=_describe(testbed),
        baseline=dict(hello["baseline"]),
    )
    composer = Composer(
        catalogue=job.spec.catalogue,
        own=list_own_values(job),
        taken=frozenset(job.spec.catalogue),
        layout=Layout(world_size=facts.world_size, nodes=facts.nodes),
        local_world_size=facts.local_world_size,
        frozen=frozenset(),
    )
    cells: dict[object, dict[str, Value]] = {}
    for values in itertools.product(*plan.knobs.values()):
        wishes = dict(zip(plan.knobs, values, strict=True))
        # A larger last bucket than the others makes no sense, and the composer would cut it: it goes with them.
        changes = composer.compose(wishes)
        if changes:
            cells.setdefault(Changes(changes), changes)
    return list(cells.values())


def order_turns(cells: Sequence[dict[str, Value]], repeats: int, seed: int) -> list[dict[str, Value]]:
    """Return the blocks' changes in order: anchors between strategies that come in another order each time."""
    dice = random.Random(seed)
    turns: list[dict[str, Value]] = [{}, {}]
    for _ in range(repeats):
        order = list(cells)
        dice.shuffle(order)
        for place, changes in enumerate(order, start=1):
            turns.append(changes)
            if place % _ANCHOR_EVERY == 0:
                turns.append({})
        turns.append({})
    return turns


def _instruct(changes: Mapping[str, Value]) -> dict[str, Any]:
    return {
        "overrides": dict(changes), "warmup_steps": 3, "min_steps": 12, "max_steps": 40, "target_s": 0.8,
        "profile_steps": 0 if changes else 3,
    }  # fmt: skip


def _describe(testbed: Testbed) -> Cluster:
    """The testbed as the agents describe it: nodes that share this machine's CPUs."""
    node = Node(hostname="node", cpu_count=2, memory_bytes=2**33, testbed=testbed)
    return Cluster(nodes=(node,) * testbed.nodes)


def _gather(turns: Sequence[dict[str, Value]], results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Group the blocks by strategy; each carries ln(its throughput / that of the anchors before and after it)."""
    parsed = [parse_result(result) for result in results]
    rates = [
        math.log(max(p.samples_per_step, 1e-12)) - summarise_block(p).log_step_time if p.steps else None
        for p in parsed
    ]
    cells: dict[object, dict[str, Any]] = {}
    for place, (changes, result, rate) in enumerate(zip(turns, parsed, rates, strict=True)):
        cell = cells.setdefault(Changes(changes), {"changes": changes, "outcome": "finished", "blocks": []})
        ignored = [name for name in changes if name in result.not_consumed]
        if ignored or result.relaunch_needed or rate is None:
            cell["outcome"] = "ineffective"
            continue
        before = next(
            (r for t, r in zip(turns[:place][::-1], rates[:place][::-1], strict=True) if not t and r), None
        )
        after = next(
            (r for t, r in zip(turns[place + 1 :], rates[place + 1 :], strict=True) if not t and r), None
        )
        anchors = [rate for rate in (before, after) if rate is not None]
        cell["blocks"].append(
            {
                "step_time_s": [round(seconds, 6) for seconds in result.step_time_s],
                "samples_per_step": result.samples_per_step,
                "period": result.period,
                "phases": {k: v and round(v, 6) for k, v in asdict(result.phases).items()},
                "bucket_bytes": list(result.bucket_bytes),
                "peak_memory_bytes": result.peak_memory_bytes,
                "session": 0,
                "order": place,
                "anchor_log_ratio": round(rate - fmean(anchors), 6),
            }
        )
    return list(cells.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME-RATE")
    parser.add_argument("--rates", nargs="*", default=RATES, metavar="RATE")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=ROOT / "benchmarks" / "surfaces")
    arguments = parser.parse_args()
    if reason := unavailable_because():
        raise SystemExit(f"no testbed: {reason}")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, plan in PLANS.items():
        for rate in arguments.rates:
            title = f"{name}-{rate}"
            if arguments.only and title not in arguments.only:
                continue
            print(title, flush=True)
            try:
                surface = record(title, plan, rate, arguments.repeats)
            except SessionFailed as failed:
                print(f"  not recorded: {failed}", flush=True)
                continue
            (arguments.folder / f"{title}.json").write_text(json.dumps(surface, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
