"""What each realised knob does to the step time on a shaped two-node testbed: the rows of docs/knobs.md.

    python benchmarks/knob_effects.py [--rounds 5] [--only KNOB …] [--output docs/results/knob_effects.json]

Every knob is measured against the script as it stands, in interleaved rounds (baseline, knob, knob, baseline) of one
warm session per workload; the ratio of throughputs comes with a 95 % interval over the rounds. A knob that nothing
consumed is reported with the runtime's sentence. Needs root, because the nodes are network namespaces.
"""

import argparse
import json
import math
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sessions import ROOT, Ranks, SessionFailed, run_session

sys.path.insert(0, str(ROOT))

from advisor.local.testbed import build_testbed, unavailable_because
from advisor.protocol.base import Value
from advisor.protocol.testbed import Testbed
from advisor.tuning.statistics import paired_interval, summarise_block
from agent.control import parse_result

WORKLOADS = ROOT / "agent" / "workloads"


@dataclass(frozen=True)
class Setting:
    """A script, and the cluster that it trains on."""

    title: str
    words: tuple[str, ...]
    nproc_per_node: int = 1
    rate: str = "200mbit"
    warmup_steps: int = 5
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One knob at the value that is measured, with what it needs."""

    knob: str
    overrides: Mapping[str, Value]
    setting: str


SETTINGS = {
    "decoder": Setting(
        "decoder (1.3 million parameters), 2 nodes of 1 rank, 200 Mbit/s",
        (str(WORKLOADS / "decoder.py"), "--width", "128", "--layers", "4", "--vocabulary", "2048"),
    ),
    "decoder-4": Setting(
        "decoder, 2 nodes of 2 ranks, 200 Mbit/s",
        (str(WORKLOADS / "decoder.py"), "--width", "128", "--layers", "4", "--vocabulary", "2048"),
        nproc_per_node=2,
    ),
}
CASES: tuple[Case, ...] = (
    Case("fuse_grad_size_in_MB", {"fuse_grad_size_in_MB": 1.0, "last_comm_group_size_MB": 1.0}, "decoder"),
)


def measure(setting: Setting, cases: Sequence[Case], rounds: int) -> dict[str, dict[str, Any]]:
    """One warm session; return each knob's row."""
    with build_testbed(Testbed(nodes=2, rate=setting.rate)) as nodes:
        ranks = Ranks(
            nproc_per_node=setting.nproc_per_node,
            node_prefixes=tuple(node.prefix for node in nodes),
            master_address=nodes[0].address,
            interface="eth0",
        )
        turns = [
            case.overrides if inner else {} for case in cases for _ in range(rounds) for inner in (0, 1, 1, 0)
        ]
        blocks = [
            {
                "overrides": overrides, "warmup_steps": setting.warmup_steps, "min_steps": 12, "max_steps": 60,
                "target_s": 1.0, "profile_steps": 0,
            }
            for overrides in turns
        ]  # fmt: skip
        results = run_session(setting.words, blocks, ranks, setting.environment)
    rows = {}
    for place, case in enumerate(cases):
        mine = results[place * 4 * rounds : (place + 1) * 4 * rounds]
        rows[case.knob] = {"overrides": dict(case.overrides), "on": setting.title, **compare(case.knob, mine)}
    return rows


def compare(knob: str, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the ratio of throughputs with its interval, or why the knob was not in force."""
    parsed = [parse_result(result) for result in results]
    for result in parsed[1::4]:
        if knob in result.not_consumed or result.relaunch_needed:
            return {"refused": result.not_consumed.get(knob) or result.relaunch_needed}
    log_times = [summarise_block(result).log_step_time for result in parsed]
    ratios = [
        (log_times[i] + log_times[i + 3] - log_times[i + 1] - log_times[i + 2]) / 2.0
        for i in range(0, len(parsed), 4)
    ]
    interval = paired_interval(ratios, 0.05)
    if interval is None:
        raise SystemExit("--rounds must be 2 at least: an interval needs two rounds")
    return {
        "gain": math.expm1(interval.mean),
        "low": math.expm1(interval.low),
        "high": math.expm1(interval.high),
        "rounds": interval.rounds,
        "evidence": parsed[1].consumed.get(knob, ""),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
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
            rows = measure(setting, cases, arguments.rounds)
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
