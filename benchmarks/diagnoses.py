"""Does `advisor diagnose` name the cause, and nothing that is not there? Trainings whose time is known by construction.

    python benchmarks/diagnoses.py [--groups named more clean beside alone] [--only NAME …] [--part 1/3]

The trainings are those of `account_cases.py` on one node, two ranks or (`alone`) one process of python's, each started
by the command itself, as a user types it. The first finding has to be a right name for the case; no finding may tell
more than the script's own clock has in that part, by 10 % and 2 ms. Seconds are those from Enter to the answer, beside
the seconds until the script's first step.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from account_cases import ALONE, BESIDE, CLEAN, MORE, NAMED, NOTHING, Told

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "workloads" / "accounted.py"
_WARM = 10
"""First steps of the script's clock that are left out."""
_PARTS: Mapping[str, tuple[str, ...]] = {
    "input": ("data",), "own_code": ("own",), "evaluation": ("own",), "garbage": ("own",),
    "collectives": ("collective", "wait"), "communication": ("wait", "backward"),
    "accumulation": ("wait", "backward"), "waiting": ("wait", "collective"),
    "stalls": ("forward", "backward", "optimizer"), "threads": ("forward", "backward", "optimizer", "wait"),
    "buffers": ("forward",), "compiling": ("forward",), "unused_search": ("forward", "wait"),
    "recomputation": ("backward",),
}  # fmt: skip
"""What the script's clock calls the part that a finding lies in."""
_NAMES = {
    "own_code": "own", "evaluation": "own", "garbage": "garbage", "collectives": "collective",
    "accumulation": "communication",
}  # fmt: skip
_LATE = {
    "data": "waiting for its data", "forward": "in forward", "backward": "in backward", "optimizer": "in its optimizer",
    "own": ("in the script's own code", "evaluating"),
}  # fmt: skip


def main() -> None:
    """Run the cases, and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument(
        "--groups", nargs="*", default=["named", "more", "clean", "beside", "alone"], metavar="GROUP"
    )
    parser.add_argument("--part", default="1/1", help="the first of three parts is 1/3 (default: all)")
    arguments = parser.parse_args()
    every = {"named": NAMED, "more": MORE, "clean": CLEAN, "beside": BESIDE, "alone": ALONE}
    chosen = [(g, n, told) for g in arguments.groups for n, told in every[g].items() if not told.rate]
    chosen = [one for one in chosen if not arguments.only or one[1] in arguments.only]
    number, parts = (int(word) for word in arguments.part.split("/"))
    right: dict[str, list[bool]] = {}
    false: dict[str, list[bool]] = {}
    beyond = []
    for group, name, told in chosen[number - 1 :: parts]:
        found, truth, seconds, first_s = diagnose(told)
        cause = name_cause(found)
        wrong = [one for one in found.get("found", ()) if tells_too_much(one, truth)]
        right.setdefault(group, []).append(
            is_right(cause, told, {one["name"] for one in found.get("found", ())})
        )
        false.setdefault(group, []).append(bool(wrong))
        beyond.append(seconds - first_s)
        costs = ", ".join(f"{one['name']} {one['cost_s'] * 1e3:.1f}" for one in found.get("found", ()))
        print(
            f"{name:26} {'right' if right[group][-1] else 'WRONG'} {cause:20} {costs or '–'} ms"
            f"{'  MORE THAN IS THERE: ' + wrong[0]['name'] if wrong else ''}  "
            f"{seconds:.1f} s, first step after {first_s:.1f} s",
            flush=True,
        )
    for group, marks in right.items():
        print(
            f"{group}: {sum(marks)} of {len(marks)} named rightly, {sum(false[group])} with a finding of more than is "
            "there"
        )
    print(
        f"beyond the script's own first step: {median(beyond):.1f} s in the median, {max(beyond):.1f} s at most"
    )


def diagnose(told: Told) -> tuple[dict[str, Any], list[dict[str, float]], float, float]:
    """Return the answer, the mean seconds of each rank's parts, and the seconds until answer and first step."""
    with tempfile.TemporaryDirectory(prefix="fa-diagnoses-") as folder:
        launcher = ["python"] if told.made_of.get("plain") else ["torchrun", "--nproc-per-node", "2"]
        launch = [*launcher, str(SCRIPT), json.dumps(told.made_of)]
        words = [sys.executable, "-m", "advisor", "diagnose", "--json", "--", *launch]
        began = time.monotonic()
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            cwd=ROOT,
            env={**os.environ, "ACCOUNTS_FOLDER": folder, "OMP_NUM_THREADS": "1"},
        )
        seconds = time.monotonic() - began
        rows = [
            [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
            for path in sorted(Path(folder).glob("rank-*.jsonl"))
        ]
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
    truth = [
        {part: fmean(row[part] for row in each[_WARM:]) for part in each[0] if part != "began"}
        for each in rows
    ]
    first = min((each[0]["began"] for each in rows), default=began)
    return json.loads(done.stdout or "{}"), truth, seconds, first - began


def name_cause(found: Mapping[str, Any]) -> str:
    """Return the first finding in the words of the cases; `nothing` without one that takes a sixth of the step."""
    first = next(iter(found.get("found", ())), None)
    if first is None or first["share"] < 1 / 6:
        return "nothing"
    if first["name"] != "late_rank":
        return _NAMES.get(first["name"], first["name"])
    rank = first["what"].split("rank ")[1].split(",")[0]
    doing = next(
        (part for part, words in _LATE.items() if any(w in first["what"] for w in _as_tuple(words))), "?"
    )
    return f"late {rank} {doing}"


def is_right(cause: str, told: Told, names: set[str]) -> bool:
    """Whether a cause is a right name, and the findings are those that have to be told; a step that computes most has
    no finding."""
    if told.tells - names or told.tells_not & names:
        return False
    return cause in told.right or (cause == "nothing" and bool(told.right & NOTHING))


def tells_too_much(one: Mapping[str, Any], truth: Sequence[Mapping[str, float]]) -> bool:
    """Whether a finding's seconds are more than any rank's clock has in its part."""
    parts = _PARTS.get(one["name"])
    if parts is None or not truth:
        return False
    most = max(sum(rank[part] for part in parts) for rank in truth)
    return bool(one["cost_s"] > 1.1 * most + 0.002)


def _as_tuple(words: str | tuple[str, ...]) -> tuple[str, ...]:
    return (words,) if isinstance(words, str) else words


if __name__ == "__main__":
    main()
