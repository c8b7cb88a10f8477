"""Is the account of a step true? Trainings whose time is known by construction, against what is said of them.

    python benchmarks/accounts.py [--groups named more clean] [--only NAME …] [--part 1/3] [--verbose]

Each training of `account_cases.py` keeps a clock of its own. The real runtime measures it under torchrun, by the rules
of a job's probe; server and agent only carry the result, and are left out. What the diagnosis names has to be right;
the shares of each rank's step are compared with the script's own. Two nodes need root: they are network namespaces.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from account_cases import CLEAN, MORE, NAMED, Told
from sessions import ROOT, Ranks, SessionFailed, run_planned

sys.path.insert(0, str(ROOT))

from advisor.local.testbed import build_testbed
from advisor.protocol.answers.advice import Diagnosis
from advisor.protocol.measured.results import BlockResult, Phases, RaceRules
from advisor.protocol.measured.trials import Block, BlockPlan, BlockState
from advisor.protocol.nodes.testbed import Testbed
from advisor.tuning.explain.diagnosis import diagnose
from advisor.tuning.measure.statistics import summarise_block
from agent.sessions.control import parse_result

SCRIPT = ROOT / "benchmarks" / "workloads" / "accounted.py"
RULES = RaceRules(min_steps=24, target_s=2.5)
"""A race of the baseline alone, as a job's probe is: what happens in every eighth step has to happen in it."""
CLOSE = 0.05
"""Shares that differ by less are the same."""


@dataclass(frozen=True)
class Found:
    """One training: what it was, what was said."""

    cause: str
    is_right: bool
    sentence: str
    worst: float
    """Largest difference of a share."""
    where: str
    """Which one that is."""
    told: Mapping[str, Mapping[str, float]]
    """Of each rank: shares by the script's own clock, and by the account."""


def main() -> None:
    """Run the cases, and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--groups", nargs="*", default=["named", "more", "clean"], metavar="GROUP")
    parser.add_argument("--part", default="1/1", help="the first of three parts is 1/3 (default: all)")
    parser.add_argument("--verbose", action="store_true", help="the shares of every rank, and the sentence")
    arguments = parser.parse_args()
    every = {"named": NAMED, "more": MORE, "clean": CLEAN}
    groups = {name: every[name] for name in arguments.groups}
    chosen = [(group, name) for group, cases in groups.items() for name in cases]
    chosen = [(group, name) for group, name in chosen if not arguments.only or name in arguments.only]
    number, parts = (int(word) for word in arguments.part.split("/"))
    chosen = chosen[number - 1 :: parts]
    scores = {group: [0, 0, 0] for group in groups}
    for group, name in chosen:
        score = scores[group]
        score[0] += 1
        try:
            found = measure(groups[group][name])
        except SessionFailed as failed:
            print(f"{name}: {failed}", flush=True)
            continue
        score[1] += found.is_right
        score[2] += found.worst <= CLOSE
        mark = "right" if found.is_right else "WRONG"
        print(
            f"{name:25} {mark} {found.cause:18} shares within {found.worst * 100:4.1f} points ({found.where})",
            flush=True,
        )
        if arguments.verbose or not found.is_right or found.worst > CLOSE:
            print(f"    {found.sentence}")
            for rank, shares in found.told.items():
                told = "  ".join(
                    f"{part} {share * 100:.0f}" for part, share in shares.items() if share >= 0.005
                )
                print(f"    {rank}: {told}", flush=True)
    for group, (tried, right, close) in scores.items():
        if tried:
            print(f"{group}: {right} of {tried} named rightly, shares of {close} of {tried} within 5 points")


def measure(told: Told) -> Found:
    """Run one training, and hold what is said of it against what it is."""
    testbed = build_testbed(Testbed(nodes=2, rate=told.rate)) if told.rate else nullcontext(())
    with testbed as nodes, tempfile.TemporaryDirectory(prefix="fa-accounts-") as folder:
        ranks = Ranks()
        if nodes:
            prefixes = tuple(node.prefix for node in nodes)
            ranks = Ranks(1, prefixes, nodes[0].address, "eth0")
        asked_at: list[float] = []

        def plan(_: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
            asked_at.append(time.monotonic())
            return [asdict(RULES)]

        words = [str(SCRIPT), json.dumps(told.made_of), folder]
        result = parse_result(run_planned(words, plan, ranks)[0])
        truth = [read_truth(path, asked_at[0], result) for path in sorted(Path(folder).glob("rank-*.jsonl"))]
    diagnosis = diagnose([as_block(result)])
    cause = name_cause(diagnosis, result)
    shares, gaps = {}, {}
    for rank, (mine, phases) in enumerate(zip(truth, result.per_rank_phases, strict=True)):
        theirs = read_account(phases, mine)
        shares |= {f"rank {rank}, its own clock": mine, f"rank {rank}, the account  ": theirs}
        for part in _COMPARED if not told.made_of.get("nested") else _COMPARED_NESTED:
            gaps[f"rank {rank}, {' and '.join(part)}"] = abs(sum(mine[p] - theirs[p] for p in part))
    where = max(gaps, key=lambda name: gaps[name])
    right = told.right | list_largest(truth) if told.right & _COUNTED.keys() else told.right
    return Found(cause, cause in right, diagnosis.sentence, gaps[where], where, shares)


_COUNTED = {
    "compute": ("forward", "backward", "optimizer"), "own": ("own",), "collective": ("collective",), "input": ("data",),
    "communication": ("wait",),
}  # fmt: skip
"""Causes that are a share of the step, with the parts of the script's clock that they are made of."""
_TIED = 0.03
"""Share of a step by which two causes may differ and either be the right name."""


def list_largest(truth: Sequence[Mapping[str, float]]) -> frozenset[str]:
    """Return the causes that take most of some rank's step by the script's own clock.

    How long a sleep of the case is beside what the machine computes decides that, and not the case alone.
    """
    found: set[str] = set()
    for rank in truth:
        shares = {cause: sum(rank[part] for part in parts) for cause, parts in _COUNTED.items()}
        found |= {cause for cause, share in shares.items() if share >= max(shares.values()) - _TIED}
    return frozenset(found)


_NAMES = {
    "own_code": "own", "evaluation": "own", "collectives": "collective", "balanced": "nothing",
}  # fmt: skip
_PARTS = {
    "data_wait_s": "data", "forward_s": "forward", "backward_s": "backward", "optimizer_s": "optimizer",
    "own_code_s": "own", "evaluation_s": "own", "garbage_s": "own", "exposed_comm_s": "wait", "wait_s": "wait",
    "collectives_s": "collective",
}  # fmt: skip
"""What the script's clock calls the account's parts."""
_COMPARED = (("data",), ("forward",), ("backward",), ("optimizer",), ("own",), ("wait", "collective"))
"""What a rank waits for others in collectives is in their time by the script's clock, so that both go together."""
_COMPARED_NESTED = (("data",), ("forward", "backward"), ("optimizer",), ("own",), ("wait", "collective"))
"""A backward pass inside the forward is the one or the other."""


def name_cause(diagnosis: Diagnosis, result: BlockResult) -> str:
    """Return what is said of the step, in the words of the cases: `late 1 own`, `collective`, `nothing`."""
    if diagnosis.bound == "straggler" and result.late is not None:
        return f"late {result.late.rank} {_PARTS.get(result.late.part, result.late.part)}"
    return _NAMES.get(diagnosis.bound, diagnosis.bound)


def read_account(phases: Phases, truth: Mapping[str, float]) -> dict[str, float]:
    """Return the account's shares of a rank's step, by the names of the script's clock.

    Stalls are time of forward, backward or optimizer: they go to the one in which the clock has most beyond it.
    """
    shares = dict.fromkeys(truth, 0.0)
    for field, part in _PARTS.items():
        shares[part] += (getattr(phases, field) or 0.0) / phases.total_s()
    stalled = max(("forward", "backward", "optimizer"), key=lambda part: truth[part] - shares[part])
    shares[stalled] += phases.stalls_s / phases.total_s()
    return shares


def read_truth(path: Path, asked_at: float, result: BlockResult) -> dict[str, float]:
    """Return the shares of the script's mean step in the steps that were timed."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    first = next(index for index, row in enumerate(rows) if row["began"] >= asked_at)
    first += result.warmup_steps + 1
    rows = rows[first : first + result.steps + result.excluded_steps]
    seconds = {part: fmean(row[part] for row in rows) for part in rows[0] if part != "began"}
    whole = sum(seconds.values())
    return {part: value / whole for part, value in seconds.items()}


def as_block(result: BlockResult) -> Block:
    """Return the baseline's block of a job that measured this."""
    return Block(
        id="b0", session_id="s", trial_number=0, ordinal=0, race=1, state=BlockState.DONE, result=result,
        plan=BlockPlan(block_id="b0", trial_number=0, rules=RULES), summary=summarise_block(result),
        issued_at=datetime.now(UTC),
    )  # fmt: skip


if __name__ == "__main__":
    main()
