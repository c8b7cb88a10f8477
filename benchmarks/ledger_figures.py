"""What the ledger of blind races says: every verdict computed anew from its steps, tables, and other ways to decide."""

import json
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from advisor.protocol.asked.jobs import Job
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import JobHistory
from advisor.tuning.asked import Tuning
from advisor.tuning.explain.raced import build_race, find_command_knob
from advisor.tuning.measure.levels import find_level
from advisor.tuning.measure.student_t import upper_tail

TICK_S = 1e-5
"""Step times are kept in these: 10 us of steps of 20 to 60 ms."""
LEAST_CLOCKED = 0.005
"""Standard error of the clocked truth up to which an interval is held against it."""

Row = dict[str, Any]


def read_kept(row: Row) -> tuple[Job, JobHistory]:
    """Return the job and its history, with every statistic computed anew from the steps."""
    told = json.loads(json.dumps(row["history"]))
    for block in told.get("blocks", ()):
        if (result := block.get("result")) is not None:
            result["step_time_s"] = [TICK_S * ticks for ticks in result.pop("ticks")]
    history = JobHistory.model_validate(told)
    tuning = Tuning()
    first: dict[tuple[str, int], BlockResult | None] = {
        (block.session_id, block.race): block.result for block in history.blocks if block.arm == 0
    }
    blocks = [
        block.model_copy(
            update={
                "summary": tuning.summarise(
                    block.result, first.get((block.session_id, block.race)) if block.arm else None
                )
            }
        )
        if block.result
        else block
        for block in history.blocks
    ]
    return Job.model_validate(row["job"]), history.model_copy(update={"blocks": tuple(blocks)})


def compute_again(row: Row) -> tuple[str, list[float | None]]:
    """Return verdict and gain as the kept steps say them."""
    job, history = read_kept(row)
    advice = Tuning().advise(job, history, job.finished_at or job.created_at)
    if (knob := find_command_knob(job)) is not None:
        answer = build_race(job, history, advice, knob)
        gain = answer.gain
        return answer.verdict.value, [gain.low, gain.likely, gain.high] if gain else [None] * 3
    found = advice.gain
    return advice.verdict.value, [found.low, found.ratio, found.high] if found else [None] * 3


def check(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for every race whose kept steps do not say what was told of it."""
    wrong = []
    for row in rows:
        verdict, gain = compute_again(row)
        close = all(
            (one is None) == (other is None) and (one is None or abs(one - other) < 1e-3 * other)
            for one, other in zip(gain, row["gain"], strict=True)
        )
        if verdict != row["verdict"] or not close:
            wrong.append(
                f"{row['way']} {row['number']}: told {row['verdict']} {row['gain']}, steps say {verdict} {gain}"
            )
    return wrong


@dataclass(frozen=True)
class Launch:
    """One fresh launch of A or B in the verdict's races."""

    is_b: bool
    step_s: float
    """Mean of its timed steps."""
    seconds: float
    """From its start to its end."""


def list_launches(row: Row) -> list[Launch]:
    """Return the launches of a fresh race's verdict in their order."""
    verdict = {t["number"] for t in row["history"]["trials"] if t["purpose"] == "confirm"}
    sessions = {session["id"]: session for session in row["history"]["sessions"]}
    found = []
    for block in row["history"]["blocks"]:
        if block["trial_number"] in verdict and block.get("result", {}).get("ticks"):
            session, ticks = sessions[block["session_id"]], block["result"]["ticks"]
            begun, end = (datetime.fromisoformat(session[name]) for name in ("created_at", "ended_at"))
            step_s = TICK_S * statistics.fmean(ticks)
            found.append(Launch("overrides" in block["plan"], step_s, (end - begun).total_seconds()))
    return found


def time_welch(row: Row, dice: random.Random, most: int = 64) -> float:
    """Return the seconds after which Welch's t test on the launches' mean steps shows B to be faster; inf: never.

    It looks after every pair from the second on, at the levels that the verdict has for its looks (`find_level`, eight
    planned). Where the race's own launches do not suffice, further ones are drawn from them, up to `most` pairs (0:
    none), which takes launches for no more different than these few were.
    """
    launches = list_launches(row)
    sides = [[one for one in launches if one.is_b == is_b] for is_b in (False, True)]
    own = min(map(len, sides))
    seconds, logs = 0.0, ([], [])  # type: tuple[float, tuple[list[float], list[float]]]
    for pair in range(max(own, most) if own > 1 else 0):
        for place, side in enumerate(sides):
            one = side[pair] if pair < len(side) else dice.choice(side)
            logs[place].append(math.log(one.step_s))
            seconds += one.seconds
        if pair and is_shown(logs, find_level(pair + 1, 8, forced=False)):
            return seconds
    return math.inf


def is_shown(logs: tuple[list[float], list[float]], level: float) -> bool:
    """Whether Welch's test shows at this two-sided level that the first mean is larger, by 1 % or more."""
    means = [statistics.fmean(side) for side in logs]
    squares = [statistics.variance(side) / len(side) for side in logs]
    total = sum(squares)
    if means[0] - means[1] < math.log(1.01):
        return False
    if total <= 0.0:
        return True
    freedom = total**2 / sum(s * s / (len(side) - 1) for s, side in zip(squares, logs, strict=True))
    return upper_tail((means[0] - means[1]) / math.sqrt(total), max(1, int(freedom))) < level / 2.0


def bound(hits: int, of: int) -> float:
    """The upper end of the 95 % one-sided interval of a share (Clopper and Pearson 1934)."""
    low, high = 0.0, 1.0
    for _ in range(50):
        p = (low + high) / 2.0
        chance = math.fsum(math.comb(of, k) * p**k * (1.0 - p) ** (of - k) for k in range(hits + 1))
        low, high = (p, high) if chance > 0.05 else (low, p)
    return high if hits < of else 1.0


def planted(row: Row) -> float:
    """By how much B was made faster; 0 in an equal pair."""
    return (1.0 + row["a"]["extra"]) / (1.0 + row["b"]["extra"]) - 1.0


def find_truth(row: Row) -> float | None:
    """ln(B's speed over A's): 0 in an equal pair, else by the seconds that were planted in a step as it was clocked.

    Of those that compute, and of those that allocate for a while, others who want the processor make more of it than
    was planted: what was clocked; None where that is too rough.
    """
    if planted(row) == 0.0:
        return 0.0
    clock = row["clock"]
    if clock is None or row["a"]["kind"] in ("compute", "allocation"):
        return clock["mean"] if clock and clock["error"] <= LEAST_CLOCKED else None
    planted_s = row["a"]["steady_s"] * (row["a"]["extra"] - row["b"]["extra"])
    return -math.log(1.0 - planted_s / clock["step_s"])


def summarise(rows: Sequence[Row]) -> str:
    """The figures of one line of the table."""
    equal = [row for row in rows if planted(row) == 0.0]
    there = [row for row in rows if planted(row) >= 0.03]
    false = sum(row["verdict"] == "change" for row in equal)
    found = sum(row["verdict"] == "change" for row in there)
    known = [row for row in rows if row["gain"][0] is not None]
    truths = [find_truth(row) for row in known]
    told = [
        math.log(row["gain"][0]) <= truth <= math.log(row["gain"][2])
        for row, truth in zip(known, truths, strict=True)
        if truth is not None
    ]
    width = statistics.median(row["gain"][2] / row["gain"][0] - 1.0 for row in known) if known else math.nan
    return (
        f"{len(rows)} | {false} of {len(equal)} (≤ {bound(false, len(equal)):.1%}) | {found} of {len(there)} | "
        f"{sum(row['verdict'] == 'undecided' for row in rows)} | {sum(told)} of {len(told)} | ±{width / 2:.1%} | "
        f"{statistics.median(row['seconds'] for row in rows):.0f}"
    )


WEATHERS: Mapping[str, tuple[float, float]] = {
    "load below 2": (0.0, 2.0),
    "load 2 to 4": (2.0, 4.0),
    "load above 4": (4.0, math.inf),
}
"""By the mean of the machine's load averages (of a minute) before and after the race."""


def tabulate(rows: Sequence[Row]) -> list[str]:
    """Return the tables of the page."""
    lines = [
        "| races | | false gains of equal pairs (95 % bound) | gains ≥ 3 % found | undecided | intervals that hold "
        "the truth | interval | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for way in dict.fromkeys(row["way"] for row in rows):
        mine = [row for row in rows if row["way"] == way]
        lines.append(f"| **{way}** | {summarise(mine)} |")
        for name, (low, high) in WEATHERS.items():
            if part := [row for row in mine if low <= statistics.fmean(row["load"]) < high]:
                lines.append(f"| {way}, {name} | {summarise(part)} |")
        for kind in sorted({row["a"]["kind"] for row in mine}):
            lines.append(f"| {way}, {kind} | {summarise([r for r in mine if r['a']['kind'] == kind])} |")
    return lines


def compare(rows: Sequence[Row]) -> list[str]:
    """Return what other ways to decide say of the same launches: one run each, and Welch's test."""
    fresh = [(row, list_launches(row)) for row in rows if row["way"] == "fresh"]
    lines = [
        "| an agent that keeps what looked faster in one run | equal pairs kept | gains ≥ 3 % kept |",
        "|---|---|---|",
    ]
    for least in (0.0, 0.02):
        counts = []
        for some in ([r for r in fresh if not planted(r[0])], [r for r in fresh if planted(r[0]) >= 0.03]):
            firsts = [
                [next((o.step_s for o in of if o.is_b == b), None) for b in (False, True)] for _, of in some
            ]
            ratios = [a / b for a, b in firsts if a and b]
            counts.append(f"{sum(ratio > 1.0 + least for ratio in ratios)} of {len(ratios)}")
        lines.append(f"| by {least:.0%} or more | {counts[0]} | {counts[1]} |")
    equal = [row for row, _ in fresh if planted(row) == 0.0]
    false = sum(time_welch(row, random.Random(0), most=0) < math.inf for row in equal)
    welch = {
        row["number"]: statistics.median(time_welch(row, random.Random(seed)) for seed in range(31))
        for row, _ in fresh
        if 0.02 <= planted(row) <= 0.05
    }
    shown = sum(seconds < math.inf for seconds in welch.values())
    lines += [
        "",
        f"Welch's test tells {false} of {len(equal)} equal pairs as gains, and {shown} of {len(welch)} of 2 to 5 %.",
        "",
        "| gains of 2 to 5 % | shown | also by Welch's test | seconds | its seconds | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for way in dict.fromkeys(row["way"] for row in rows):
        mine = [row for row in rows if row["way"] == way and row["number"] in welch]
        ours = [(row["seconds"], welch[row["number"]]) for row in mine if row["verdict"] == "change"]
        both = [pair for pair in ours if pair[1] < math.inf]
        if both:
            medians = [statistics.median(side) for side in zip(*both, strict=True)]
            ratio = math.exp(statistics.fmean(math.log(a / b) for a, b in both))
            seconds = f"{medians[0]:.0f} | {medians[1]:.0f}"
            lines.append(f"| {way} | {len(ours)} of {len(mine)} | {len(both)} | {seconds} | {ratio:.2f} |")
    return lines
