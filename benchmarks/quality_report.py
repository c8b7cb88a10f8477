"""The page of search_quality.py: regrets with errors that know surfaces, and what can be decided from them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from peers import PEERS

from advisor.tuning.measure.student_t import t_quantile

COUNTS = (3, 6, 9, 12, 20)
"""Measured arms after which searches are compared."""
UNITS = (6, 12, 20)
"""Measuring time, in what one arm like the baseline takes."""
HEADLINE = 9
"""Arms of the headline."""
ADVISOR = "advisor"
PLANNERS = {
    ADVISOR: "**Fleet Advisor**",
    "advisor-gp": "our rules, candidates and cost model; Optuna's Gaussian process over its residuals",
}
"""Searches that race as our planner does, and may end early."""
_UNIT = 12
"""Of these the one that the page shows."""
_SHOWN = (HEADLINE, 20)
"""Of the counts those that the page shows."""

Runs = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Figure:
    """A mean over surfaces."""

    mean: float
    error: float
    """Its standard error, from the surfaces' means: seeds of one surface are not independent."""
    surfaces: int = 1

    @property
    def half(self) -> float:
        """Half the width of the 95 % t interval; without end for a single surface."""
        return t_quantile(0.975, self.surfaces - 1) * self.error if self.surfaces > 1 else math.inf

    @property
    def verdict(self) -> str:
        """What the interval says of a difference, peer less advisor."""
        if abs(self.mean) <= self.half:
            return "not decidable"
        return "advisor better" if self.mean > 0 else "peer better"


def summarise(runs: Runs, count: int, by: str = "regrets") -> Figure | None:
    """Return the mean over surfaces of their seeds' means; None where a run lacks that count."""
    groups: dict[str, list[float]] = {}
    for run in runs:
        if str(count) not in run[by]:
            return None
        groups.setdefault(run["surface"], []).append(run[by][str(count)])
    if not groups:
        return None
    values = [fmean(group) for group in groups.values()]
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return Figure(fmean(values), error, len(values))


def compare(runs: Runs, peer: str, count: int, by: str = "regrets") -> Figure | None:
    """Return the peer's regret less the advisor's on the same surfaces and seeds."""
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
    return PLANNERS.get(method) or PEERS[method][0]


def list_complete(runs: Runs, methods: Sequence[str]) -> list[str]:
    """Return the methods that ran on every one of these surfaces: only they share an average."""
    wanted = {run["surface"] for run in runs}
    return [m for m in methods if {r["surface"] for r in runs if r["method"] == m} == wanted]


def write_table(runs: Runs, methods: Sequence[str]) -> list[str]:
    """Return a Markdown table of the methods on these runs: mean regrets, and a peer's less ours at the headline.

    Bold is a difference whose interval excludes 0.
    """
    heads = [", ".join([*(f"@{count}" for count in _SHOWN), f"time {_UNIT}"]), f"less ours @{HEADLINE}"]
    lines = [f"| method | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for method in methods:
        mine = [run for run in runs if run["method"] == method]
        if not mine:
            continue
        figures = [*(summarise(mine, count) for count in _SHOWN), summarise(mine, _UNIT, "by_time")]
        regrets = ", ".join(f"{100 * figure.mean:.1f}" if figure else "–" for figure in figures)
        against = None if method == ADVISOR else compare(runs, method, HEADLINE)
        lines.append(f"| {name_of(method)} | {regrets} | {_spell(against)} |")
    return lines


def _spell(figure: Figure | None) -> str:
    if figure is None:
        return "–"
    low, high = (100 * (figure.mean + sign * figure.half) for sign in (-1, 1))
    text = f"{100 * figure.mean:+.1f} ({low:+.1f} … {high:+.1f})"
    return text if figure.verdict == "not decidable" else f"**{text}**"


def write_report(data: Mapping[str, Any]) -> str:
    """Return the results as a Markdown page; `remarks` are what a person wrote about them, which later calls keep."""
    runs, surfaces = data["runs"], data["surfaces"]
    held, drawn = set(data["held"]), set(data["drawn"])
    methods = [method for method in (*PLANNERS, *PEERS) if any(run["method"] == method for run in runs)]
    groups = {
        "Held-out surfaces": [run for run in runs if run["surface"] in held],
        "Drawn surfaces": [run for run in runs if run["surface"] in drawn],
        "Recorded surfaces": [run for run in runs if "simulated" not in surfaces[run["surface"]]["how"]],
    }
    lines = [
        "# Search quality", "",
        "`python benchmarks/search_quality.py [--held | --drawn] --seeds 2 --only METHOD …`",
        f"({data['machine']}; `search_quality.json` beside this page has every run and call).", "",
        "Regret in per cent: the share of the best strategy's throughput that the recommendation gives away.",
        f"`@n`: after n measured arms. `time {_UNIT}`: after the measuring time of {_UNIT} arms like the baseline,",
        "the baseline's turns included, launches not. *Less ours*: a peer's regret less the advisor's after",
        f"{HEADLINE} arms, which was fixed before it was run, with the 95 % t interval over surfaces; bold where it",
        "excludes 0. How surfaces are made and what peers are given: `benchmarks/README.md`. Checksum of the frozen",
        f"list of held-out surfaces: `{data['checksum']}`.", "",
        *(f"{sentence}\n" for sentence in data.get("remarks", ())),
    ]  # fmt: skip
    for title, mine in groups.items():
        if mine:
            count = len({run["surface"] for run in mine})
            lines += [f"## {title}: {count}", "", *write_table(mine, list_complete(mine, methods)), ""]
    if data["failures"]:
        lines += ["## Runs that failed", "", *(f"* {sentence}" for sentence in data["failures"]), ""]
    return "\n".join(lines)
