"""The page of search_quality.py: regrets with errors that know surfaces, and what can be decided from them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from peers import PEERS

COUNTS = (5, 10, 20, 40)
UNITS = (10, 20, 40)
"""Measuring time, in what one arm like the baseline takes."""
ADVISOR = "advisor"
_DEFAULT = "optuna-tpe"
_SHARE = 0.2
_LEAST_TARGET = 0.01
_SURE = 2.0
"""Standard errors from which a difference is one."""

Runs = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Figure:
    """A mean over surfaces, or over the seeds of one."""

    mean: float
    error: float
    """Its standard error."""


def summarise(runs: Runs, count: int, by: str = "regrets") -> Figure | None:
    """Return the mean regret over surfaces; the error is that of the surfaces' means, or of one surface's seeds."""
    groups: dict[str, list[float]] = {}
    for run in runs:
        if str(count) not in run[by]:
            return None
        groups.setdefault(run["surface"], []).append(run[by][str(count)])
    if not groups:
        return None
    values = [fmean(group) for group in groups.values()] if len(groups) > 1 else next(iter(groups.values()))
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return Figure(fmean(values), error)


def compare(runs: Runs, peer: str, count: int, by: str = "regrets") -> Figure | None:
    """Return the peer's regret less the advisor's on the same surfaces and seeds, clustered as in `summarise`."""
    mine = {(r["surface"], r["seed"]): r for r in runs if r["method"] == ADVISOR}
    pairs = [
        {**r, by: {str(count): r[by][str(count)] - ours[by][str(count)]}}
        for r in runs
        if r["method"] == peer
        and (ours := mine.get((r["surface"], r["seed"])))
        and str(count) in r[by]
        and str(count) in ours[by]
    ]
    return summarise(pairs, count, by)


def name_of(method: str) -> str:
    """The method in words."""
    return "**Fleet Advisor**" if method == ADVISOR else PEERS[method][0]


def list_complete(runs: Runs, methods: Sequence[str]) -> list[str]:
    """Return the methods that ran on every surface with every seed: only they share an average."""
    wanted = {(run["surface"], run["seed"]) for run in runs}
    return [m for m in methods if {(r["surface"], r["seed"]) for r in runs if r["method"] == m} == wanted]


def write_table(runs: Runs, methods: Sequence[str]) -> list[str]:
    """Return a Markdown table of the methods on these runs."""
    heads = [f"@{count}" for count in COUNTS] + [f"time {count}" for count in UNITS]
    lines = [
        f"| method | runs | {' | '.join(heads)} | arms |",
        "|---|---|" + "---|" * (len(heads) + 1),
    ]
    for method in methods:
        mine = [run for run in runs if run["method"] == method]
        if not mine:
            continue
        figures = [summarise(mine, count) for count in COUNTS]
        figures += [summarise(mine, count, "by_time") for count in UNITS]
        cells = [f"{100 * f.mean:.1f} ±{100 * f.error:.1f}" if f else "–" for f in figures]
        lines.append(
            f"| {name_of(method)} | {len(mine)} | {' | '.join(cells)} | {fmean(r['arms'] for r in mine):.0f} |"
        )
    return lines


def write_differences(runs: Runs, methods: Sequence[str]) -> list[str]:
    """Return a table of how much more each peer gives away than the advisor, on the same surfaces and seeds."""
    heads = [f"@{count}" for count in COUNTS] + [f"time {count}" for count in UNITS]
    lines = [f"| peer | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for method in methods:
        if method == ADVISOR:
            continue
        figures = [compare(runs, method, count) for count in COUNTS]
        figures += [compare(runs, method, count, "by_time") for count in UNITS]
        cells = [f"{100 * f.mean:+.1f} ±{100 * f.error:.1f}" if f else "–" for f in figures]
        lines.append(f"| {name_of(method)} | {' | '.join(cells)} |")
    return lines


def judge(runs: Runs, surfaces: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return per surface our regret after 10 arms against the target, and against the best peer."""
    lines = [
        "| surface | a perfect search | not decidable below | Optuna's default @10 | target | advisor @10 | verdict "
        "| best peer @10, less ours |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, surface in surfaces.items():
        here = [run for run in runs if run["surface"] == name]
        figures = {
            m: f
            for m in (ADVISOR, *PEERS)
            if (f := summarise([r for r in here if r["method"] == m], 10)) is not None
        }
        if not {ADVISOR, _DEFAULT} <= figures.keys():
            continue
        ours, optuna = figures[ADVISOR], figures[_DEFAULT]
        target = max(_LEAST_TARGET, _SHARE * optuna.mean)
        peer = min((m for m in figures if m != ADVISOR), key=lambda m: figures[m].mean)
        against = compare(here, peer, 10)
        told = "–"
        if against is not None:
            sure = abs(against.mean) > _SURE * against.error
            beyond = max(ours.mean, figures[peer].mean) > surface["floor"]
            word = ("better" if against.mean > 0 else "worse") if sure and beyond else "not decidable"
            told = f"{peer} {100 * against.mean:+.1f} ±{100 * against.error:.1f}: {word}"
        lines.append(
            f"| {name} | {surface['perfect']:.1%} | {surface['floor']:.1%} | {optuna.mean:.1%} | {target:.1%} | "
            f"{ours.mean:.1%} ±{ours.error:.1%} | {_judge_target(ours, target, surface['floor'])} | {told} |"
        )
    return lines


def _judge_target(ours: Figure, target: float, floor: float) -> str:
    """The same test on both sides of the target."""
    if ours.mean + _SURE * ours.error <= target:
        return "met"
    if ours.mean - _SURE * ours.error > target and ours.mean > floor:
        return "missed"
    return "not decidable"


def write_report(data: Mapping[str, Any]) -> str:
    """Return the results as a Markdown page."""
    runs, surfaces = data["runs"], data["surfaces"]
    methods = [method for method in (ADVISOR, *PEERS) if any(run["method"] == method for run in runs)]
    complete = list_complete(runs, methods)
    lines = [
        "# Search quality", "",
        *(f"`{command}`\n" for command in data["commands"]),
        f"{data['machine']}. Regret in per cent: the share of the best strategy's throughput that the",
        "recommendation gives away, mean ± standard error. `@n`: after n measured arms (the baseline's are not",
        "counted, failed ones are). `time n`: after the measuring time of n arms like the baseline, the baseline's",
        "turns included. `arms`: how many were measured; our search ends when it expects nothing of another race, and",
        "its last recommendation stands. `benchmarks/search_quality.py` says what peers are given,",
        "`benchmarks/README.md` how surfaces are replayed.", "",
        "## All surfaces", "",
        "The same surfaces and seeds in every row; errors are of the surfaces' means (seeds of one surface are not",
        "independent).", "",
        *write_table(runs, complete), "",
        "What peers give away more than the advisor, on the same surfaces and seeds (below 0: the peer is better):", "",
        *write_differences(runs, complete), "",
        "Recorded surfaces alone:", "",
        *write_differences([r for r in runs if surfaces[r["surface"]]["floor"] > 0], complete), "",
        "## Surface by surface", "",
        "Target after 10 arms: at most a fifth of the regret of Optuna's default, or 1 % where that is more; met or",
        "missed by two standard errors, else not decidable. *A perfect search*: what a search that always finds the",
        "truly best strategy would show, because the best of many noisy truths is partly luck. *Not decidable below*:",
        "that, and the standard error of the difference of two strategies (√2 times that of one).", "",
        *judge(runs, surfaces), "",
    ]  # fmt: skip
    for name, surface in surfaces.items():
        mine = [run for run in runs if run["surface"] == name]
        lines += [
            f"## {name}", "", f"{surface['how']}. {surface['best']}", "", *write_table(mine, methods), "",
        ]  # fmt: skip
    if data["failures"]:
        lines += ["## Runs that failed", "", *(f"* {sentence}" for sentence in data["failures"]), ""]
    return "\n".join(lines)
