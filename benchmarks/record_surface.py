"""Records surfaces for search_quality.py: every strategy of a small grid, raced again and again on a testbed.

    python benchmarks/record_surface.py [--only decoder-1gbit …] [--error 0.01] [--minutes 60] [--folder FOLDER]

A pass is a launch in which every strategy races the baseline, three at a time, taking turns with it; the order is
another one in each pass. Passes go on until the standard error of every strategy's ln ratio is below `--error` (two
passes at least; strategies below it rest), or the minutes of a surface are over. A surface that is there already is
continued: a recording may be spread over days, which is worth more than as many passes in one hour.
Needs root, because the nodes are network namespaces. Leave the machine alone.
"""

import argparse
import itertools
import json
import math
import os
import platform
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import stdev
from typing import Any

from sessions import ROOT, Ranks, SessionFailed, run_planned

sys.path.insert(0, str(ROOT))

from advisor.local.testbed import build_testbed, unavailable_because
from advisor.protocol.asked.jobs import Job, JobSpec, JobState
from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.knobs.strategy import Layout
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.nodes.cluster import Cluster, Node
from advisor.protocol.nodes.testbed import Testbed
from advisor.protocol.training.workload import Workload, WorkloadFacts
from advisor.tuning.measure.contrast import contrast_arms
from advisor.tuning.space.composition import Composer, list_own_values
from agent.sessions.control import parse_result

WORKLOADS = ROOT / "agent" / "workloads"
_BESIDE = 3
"""Strategies of one race, beside the baseline."""
_ARM_S = 0.8
"""Seconds of an arm in a race: at least 12 steps, and at most 50 for each second."""
_LEAST_PASSES = 2


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
    "resnet50": Plan(
        ("resnet50.py", "--width", "16", "--batch", "32"),
        {
            "fuse_grad_size_in_MB": (1.0, 25.0),
            "nccl_comm_num": (1, 2),
            "fp16_allreduce": (False, True),
            "num_threads": (1, 2, 4),
        },
        "numeric",
    ),
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


def record(path: Path, plan: Plan, rate: str, error: float, seconds: float) -> None:
    """Record passes of one surface into the file, in the format of benchmarks/README.md, and write it after each."""
    testbed = Testbed(nodes=2, rate=rate)
    script, *arguments = plan.words
    surface: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    number = 1 + max((b["session"] for cell in surface.get("cells", ()) for b in cell["blocks"]), default=-1)
    until, longest = time.monotonic() + seconds, 0.0
    with build_testbed(testbed) as nodes:
        ranks = Ranks(
            nproc_per_node=plan.nproc_per_node, node_prefixes=tuple(node.prefix for node in nodes),
            master_address=nodes[0].address, interface="eth0",
        )  # fmt: skip
        while time.monotonic() + longest < until:
            began, wanted = time.monotonic(), list_uncertain(surface, error)
            if surface and not wanted:
                break
            races: list[list[dict[str, Value]]] = []
            hello = record_pass(
                str(WORKLOADS / script), arguments, plan, testbed, ranks, wanted, races, number
            )
            surface = add_pass(
                surface or describe_surface(path.stem, plan, testbed, hello), races, hello, number
            )
            surface["how"] = (
                f"python benchmarks/record_surface.py --only {path.stem} --error {error:g}; {platform.system()} "
                f"{platform.machine()}, {number + 1} passes, {os.cpu_count()} CPUs shared by two namespaces of one "
                f"rank, {datetime.now(UTC):%Y-%m-%d}"
            )
            path.write_text(json.dumps(surface, separators=(",", ":")) + "\n")
            longest = max(longest, time.monotonic() - began)
            left = len(list_uncertain(surface, error))
            print(f"  pass {number}: {len(races)} races, {left} strategies above {error:.1%}", flush=True)
            number += 1


def record_pass(
    script: str, arguments: Sequence[str], plan: Plan, testbed: Testbed, ranks: Ranks,
    wanted: Sequence[Mapping[str, Value]], races: list[list[dict[str, Value]]], number: int,
    beside: int = _BESIDE, arm_s: float = _ARM_S,
) -> dict[str, Any]:  # fmt: skip
    """Race the wanted strategies (all, where there are none), so many beside the baseline and each for so many seconds,
    in one launch; return its hello with the results.
    """
    greeting: dict[str, Any] = {}

    def lay_out(hello: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        greeting.update(hello)
        cells = [dict(changes) for changes in wanted] or list_cells(plan, hello, testbed)
        random.Random(f"{script} {number}").shuffle(cells)
        races.extend([{}, *cells[at : at + beside]] for at in range(0, len(cells), beside))
        return [_instruct(race, arm_s) for race in races]

    greeting["results"] = run_planned((script, *arguments), lay_out, ranks)
    return greeting


def describe_surface(name: str, plan: Plan, testbed: Testbed, hello: Mapping[str, Any]) -> dict[str, Any]:
    """Return a surface without cells."""
    return {
        "name": name, "how": "", "allow": plan.allow, "facts": hello["facts"],
        "cluster": _describe(testbed).model_dump(mode="json"), "baseline": hello["baseline"],
        "knobs": {knob: list(values) for knob, values in plan.knobs.items()}, "cells": [],
    }  # fmt: skip


def list_uncertain(surface: Mapping[str, Any], error: float) -> list[dict[str, Value]]:
    """Return the changes of every strategy that ran and whose mean ln ratio is not known within `error` yet."""
    found = []
    for cell in surface.get("cells", ()):
        ratios = [block["anchor_log_ratio"] for block in cell["blocks"]]
        known = len(ratios) >= _LEAST_PASSES and stdev(ratios) / math.sqrt(len(ratios)) < error
        if cell["changes"] and cell["outcome"] == "finished" and not known:
            found.append(cell["changes"])
    return found


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


def _instruct(race: Sequence[Mapping[str, Value]], arm_s: float) -> dict[str, Any]:
    return {
        "arms": {str(place): dict(changes) for place, changes in enumerate(race)}, "warmup_steps": 3,
        "min_steps": 12, "max_steps": round(50 * arm_s), "target_s": arm_s, "profile_steps": 3,
    }  # fmt: skip


def _describe(testbed: Testbed) -> Cluster:
    """The testbed as the agents describe it: nodes that share this machine's CPUs."""
    node = Node(hostname="node", cpu_count=os.cpu_count() or 1, memory_bytes=2**33, testbed=testbed)
    return Cluster(nodes=(node,) * testbed.nodes)


def add_pass(
    surface: dict[str, Any],
    races: Sequence[Sequence[Mapping[str, Value]]],
    hello: Mapping[str, Any],
    number: int,
) -> dict[str, Any]:
    """Return the surface with a launch's races: a block carries ln(its throughput / the baseline's in its race)."""
    cells: dict[object, dict[str, Any]] = {Changes(cell["changes"]): cell for cell in surface["cells"]}
    for order, (race, arms) in enumerate(zip(races, hello["results"], strict=True)):
        results = [parse_result(arms[str(place)]) for place in range(len(race))]
        for changes, result in zip(race, results, strict=True):
            cell = cells.setdefault(
                Changes(changes), {"changes": dict(changes), "outcome": "finished", "blocks": []}
            )
            # An arm takes no turns where what it sets comes to what another arm of its race runs with.
            shown = results[int(result.same_as)] if result.same_as else result
            contrast = contrast_arms(shown, results[0])
            if shown.relaunch_needed or contrast is None or any(k in result.not_consumed for k in changes):
                cell["outcome"] = "ineffective"
            elif not shown.given_up:
                ratio = contrast.mean if shown is not results[0] else 0.0
                cell["blocks"].append(_write_block(shown, ratio, number, order))
    # A strategy that every race gave up on has no ratio; it was too slow to be worth its turns.
    kept = [cell for cell in cells.values() if cell["blocks"] or cell["outcome"] != "finished"]
    return {**surface, "cells": kept}


def _write_block(result: BlockResult, ratio: float, session: int, order: int) -> dict[str, Any]:
    return {
        "step_time_s": [round(seconds, 6) for seconds in result.step_time_s],
        "samples_per_step": result.samples_per_step,
        "period": result.period,
        "phases": {k: v and round(v, 6) for k, v in asdict(result.phases).items()},
        "bucket_bytes": list(result.bucket_bytes),
        "peak_memory_bytes": result.peak_memory_bytes,
        "session": session,
        "order": order,
        "anchors": 1,
        "anchor_log_ratio": round(ratio, 6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME-RATE")
    parser.add_argument("--rates", nargs="*", default=RATES, metavar="RATE")
    parser.add_argument(
        "--error", type=float, default=0.01, help="standard error of a ln ratio to be reached"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="of one surface, at most")
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
                path = arguments.folder / f"{title}.json"
                record(path, plan, rate, arguments.error, 60.0 * arguments.minutes)
            except SessionFailed as failed:
                print(f"  not recorded: {failed}", flush=True)


if __name__ == "__main__":
    main()
