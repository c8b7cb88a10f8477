"""What each realised knob does to the step time on a shaped two-node testbed: the rows of docs/knobs.md.

    python benchmarks/knob_effects.py [--races 3] [--only KNOB …] [--output docs/results/knob_effects.json]

Every knob races the script as it stands, several times in one warm session per workload; the ratio of throughputs comes
with a 95 % interval: of the races among each other, or of the cycles within them where that is wider. A knob that
nothing consumed is reported with the runtime's sentence. Needs root, because the nodes are network namespaces.
"""

import argparse
import json
import math
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from sessions import ROOT, Ranks, SessionFailed, run_session

sys.path.insert(0, str(ROOT))

from advisor.local.testbed import build_testbed, unavailable_because
from advisor.protocol.base import Value
from advisor.protocol.nodes.testbed import Testbed
from advisor.tuning.measure.contrast import contrast_arms
from advisor.tuning.measure.student_t import t_quantile
from agent.sessions.control import parse_result

WORKLOADS = ROOT / "agent" / "workloads"


@dataclass(frozen=True)
class Setting:
    """A script, and the cluster that it trains on."""

    title: str
    words: tuple[str, ...]
    nproc_per_node: int = 1
    rate: str = "1gbit"
    warmup_steps: int = 5


@dataclass(frozen=True)
class Case:
    """One knob at the value that is measured, with what it needs."""

    knob: str
    overrides: Mapping[str, Value]
    setting: str


DECODER = (str(WORKLOADS / "decoder.py"), "--width", "128", "--vocabulary", "2048")
SCRIPTS = ROOT / "tests" / "distributed" / "runtime" / "scripts"
SETTINGS = {
    "decoder": Setting("decoder.py (5 MB of gradients), 2 nodes of 1 rank, 1 Gbit/s", DECODER),
    "levels": Setting("decoder.py, 2 nodes of 2 ranks, 1 Gbit/s", DECODER, nproc_per_node=2),
    "reading": Setting(
        "a script that waits 2 ms for each sample, 2 nodes of 1 rank",
        (str(SCRIPTS / "slow_reading.py"), "--epochs", "1000", "--samples", "40000"),
    ),
    "sharded": Setting(
        "a small model sharded by fully_shard, 2 nodes of 1 rank, 1 Gbit/s",
        (str(SCRIPTS / "sharded.py"), "--steps", "100000"),
    ),
    "compiled": Setting("decoder.py, compiled, 2 nodes of 1 rank, 10 Gbit/s", DECODER, rate="10gbit"),
    "convolutions": Setting(
        "resnet50.py --width 8, compiled, 2 nodes of 1 rank, 10 Gbit/s",
        (str(WORKLOADS / "resnet50.py"), "--width", "8"),
        rate="10gbit",
    ),
}
_LOCAL_SGD = {"localsgd": True, "localsgd_k_steps": 4}
_ADAPTIVE = {"adaptive_localsgd": True, "adaptive_localsgd_init_k_steps": 4}
_MERGE = {"gradient_merge": True, "gradient_merge_k_steps": 4}
_LEVELS = {"use_hierarchical_allreduce": True, "hierarchical_allreduce_inter_nranks": 2}
CASES: tuple[Case, ...] = (
    Case("fuse_all_reduce_ops", {"fuse_all_reduce_ops": False}, "decoder"),
    Case("fuse_grad_size_in_MB", {"fuse_grad_size_in_MB": 1.0, "last_comm_group_size_MB": 1.0}, "decoder"),
    Case("last_comm_group_size_MB", {"last_comm_group_size_MB": 0.25}, "decoder"),
    Case("fuse_grad_size_in_TFLOPS", {"fuse_grad_size_in_TFLOPS": 4.0}, "decoder"),
    Case(
        "nccl_comm_num",
        {"nccl_comm_num": 2, "fuse_grad_size_in_MB": 1.0, "last_comm_group_size_MB": 1.0},
        "decoder",
    ),
    Case("sync_nccl_allreduce", {"sync_nccl_allreduce": True}, "decoder"),
    Case("fp16_allreduce", {"fp16_allreduce": True}, "decoder"),
    Case("fp16_allreduce_dtype", {"fp16_allreduce": True, "fp16_allreduce_dtype": "bf16"}, "decoder"),
    Case("localsgd", _LOCAL_SGD, "decoder"),
    Case("localsgd_k_steps", {**_LOCAL_SGD, "localsgd_k_steps": 8}, "decoder"),
    Case("adaptive_localsgd", _ADAPTIVE, "decoder"),
    Case("adaptive_localsgd_init_k_steps", {**_ADAPTIVE, "adaptive_localsgd_init_k_steps": 2}, "decoder"),
    Case("gradient_merge", _MERGE, "decoder"),
    Case("gradient_merge_k_steps", {**_MERGE, "gradient_merge_k_steps": 2}, "decoder"),
    Case("amp", {"amp": True, "amp_dtype": "bf16"}, "decoder"),
    Case("dgc", {"dgc": True}, "decoder"),
    Case("dgc_rank", {"dgc": True, "dgc_rank": 1}, "decoder"),
    Case("num_threads", {"num_threads": 2}, "decoder"),
    Case("fuse_all_optimizer_ops", {"fuse_all_optimizer_ops": True}, "decoder"),
    Case("num_iteration_per_drop_scope", {"num_iteration_per_drop_scope": 30}, "decoder"),
    Case("use_hierarchical_allreduce", _LEVELS, "levels"),
    Case("hierarchical_allreduce_inter_nranks", _LEVELS, "levels"),
    Case("loader_num_workers", {"loader_num_workers": 1}, "reading"),
    Case("loader_prefetch_factor", {"loader_num_workers": 1, "loader_prefetch_factor": 4}, "reading"),
    Case("sharding_stage", {"sharding_stage": 2}, "sharded"),
    Case("fuse_elewise_add_act_ops", {"fuse_elewise_add_act_ops": True}, "compiled"),
    Case("fuse_bn_act_ops", {"fuse_bn_act_ops": True}, "convolutions"),
)
COMPILED = ("compiled", "convolutions")
"""Settings whose switch is a compilation: two races of them take minutes."""


def measure(setting: Setting, cases: Sequence[Case], races: int) -> dict[str, dict[str, Any]]:
    """One warm session; return each knob's row."""
    with build_testbed(Testbed(nodes=2, rate=setting.rate)) as nodes:
        ranks = Ranks(
            nproc_per_node=setting.nproc_per_node,
            node_prefixes=tuple(node.prefix for node in nodes),
            master_address=nodes[0].address,
            interface="eth0",
        )
        planned = [
            {
                "arms": {"base": {}, "knob": dict(case.overrides)}, "warmup_steps": setting.warmup_steps,
                "min_steps": 12, "max_steps": 120, "target_s": 2.0, "profile_steps": 0,
            }
            for case in cases
            for _ in range(races)
        ]  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="fa-effects-") as folder:
            results = run_session(setting.words, planned, ranks, {"OUT": folder})
    rows = {}
    for place, case in enumerate(cases):
        mine = results[place * races : (place + 1) * races]
        rows[case.knob] = {"overrides": dict(case.overrides), "on": setting.title, **compare(case.knob, mine)}
    return rows


def compare(knob: str, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the ratio of throughputs with its interval, or why the knob was not in force."""
    pairs = [(parse_result(race["knob"]), parse_result(race["base"])) for race in results]
    for result, _ in pairs:
        if knob in result.not_consumed or result.relaunch_needed:
            return {"refused": result.not_consumed.get(knob) or result.relaunch_needed}
        if knob in result.no_effect:
            return {"refused": result.no_effect[knob]}
        if result.same_as:
            return {"refused": "It came to the same plan in force as the script as it stands."}
    contrasts = [found for arm, base in pairs if (found := contrast_arms(arm, base)) is not None]
    if len(contrasts) < 2:
        raise SystemExit("--races must be 2 at least: an interval needs two races")
    means = [c.mean for c in contrasts]
    mean = fmean(means)
    between = t_quantile(0.975, len(means) - 1) * stdev(means) / math.sqrt(len(means))
    within = math.hypot(*(c.error for c in contrasts)) / len(contrasts)
    half = max(between, t_quantile(0.975, sum(c.freedom for c in contrasts)) * within)
    return {
        "gain": math.expm1(mean),
        "low": math.expm1(mean - half),
        "high": math.expm1(mean + half),
        "rounds": sum(c.cycles for c in contrasts),
        "evidence": pairs[0][0].consumed.get(knob, ""),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--races", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], metavar="KNOB")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results" / "knob_effects.json")
    arguments = parser.parse_args()
    if reason := unavailable_because():
        raise SystemExit(f"no testbed: {reason}")
    known = json.loads(arguments.output.read_text())["knobs"] if arguments.output.exists() else {}
    for name, setting in SETTINGS.items():
        cases = [c for c in CASES if c.setting == name and (not arguments.only or c.knob in arguments.only)]
        if not cases:
            continue
        print(f"{setting.title}:", flush=True)
        try:
            rows = measure(setting, cases, 2 if name in COMPILED else arguments.races)
        except SessionFailed as failed:
            raise SystemExit(str(failed)) from failed
        for knob, row in rows.items():
            text = row.get("refused") or f"{row['gain']:+.1%} ({row['low']:+.1%} … {row['high']:+.1%})"
            print(f"  {knob} {row['overrides']}: {text}", flush=True)
        known.update(rows)
        page = {
            "command": "python benchmarks/knob_effects.py",
            "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
            "knobs": dict(sorted(known.items())),
        }
        arguments.output.write_text(json.dumps(page, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
