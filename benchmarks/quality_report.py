"""The page of search_quality.py: regrets with errors that know surfaces, and what can be decided from them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
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
_POWER = 0.8
"""How often the smallest detectable difference is to be detected."""

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
    def detectable(self) -> float:
        """The smallest true difference that so many surfaces tell from 0 four times of five."""
        return self.half + NormalDist().inv_cdf(_POWER) * self.error

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
    """Return a Markdown table of the methods on these runs."""
    heads = [f"@{count}" for count in COUNTS] + [f"time {count}" for count in UNITS]
    lines = [f"| method | runs | {' | '.join(heads)} | arms |", "|---|---|" + "---|" * (len(heads) + 1)]
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
    """Return a table of how much more each peer gives away than the advisor, with 95 % intervals; decided ones bold."""
    heads = [f"@{count}" for count in COUNTS] + [f"time {count}" for count in UNITS]
    lines = [f"| peer | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for method in methods:
        if method == ADVISOR:
            continue
        figures = [compare(runs, method, count) for count in COUNTS]
        figures += [compare(runs, method, count, "by_time") for count in UNITS]
        lines.append(f"| {name_of(method)} | {' | '.join(map(_spell, figures))} |")
    return lines


def _spell(figure: Figure | None) -> str:
    if figure is None:
        return "–"
    text = f"{100 * figure.mean:+.1f} ±{100 * figure.half:.1f}"
    return text if figure.verdict == "not decidable" else f"**{text}**"


def write_headline(runs: Runs, methods: Sequence[str]) -> list[str]:
    """Return the headline: each peer's regret less ours, its interval, what it decides, what it could have."""
    lines = [
        f"| peer | regret @{HEADLINE} | less ours, 95 % interval | smallest detectable | verdict |",
        "|---|---|---|---|---|",
    ]
    for method in methods:
        own, against = (
            summarise([r for r in runs if r["method"] == method], HEADLINE), compare(runs, method, HEADLINE)
        )  # fmt: skip
        if method == ADVISOR or own is None or against is None:
            continue
        low, high = (100 * (against.mean + sign * against.half) for sign in (-1, 1))
        lines.append(
            f"| {name_of(method)} | {100 * own.mean:.1f} | {100 * against.mean:+.1f} ({low:+.1f} … {high:+.1f}) | "
            f"{100 * against.detectable:.1f} | {against.verdict} |"
        )
    return lines


def write_surfaces(
    runs: Runs, surfaces: Mapping[str, Mapping[str, Any]], methods: Sequence[str]
) -> list[str]:
    """Return surface by surface what is best there, our regret, and whose is least after the headline's arms."""
    lines = [
        f"| surface | best strategy | advisor @{HEADLINE} | least @{HEADLINE} | whose |",
        "|---|---|---|---|---|",
    ]
    for name, surface in surfaces.items():
        found = {
            m: figure.mean
            for m in methods
            if (figure := summarise([r for r in runs if (r["method"], r["surface"]) == (m, name)], HEADLINE))
        }
        if ADVISOR not in found:
            continue
        least = min(found, key=lambda m: (found[m], m != ADVISOR))
        regrets = " | ".join(f"{100 * found[method]:.1f}" for method in (ADVISOR, least))
        lines.append(f"| {name} | {surface['best'].removeprefix('best ')} | {regrets} | {name_of(least)} |")
    return lines


def write_report(data: Mapping[str, Any]) -> str:
    """Return the results as a Markdown page; `remarks` are what a person wrote about them, which later calls keep."""
    runs, surfaces = data["runs"], data["surfaces"]
    held, drawn = set(data["held"]), set(data["drawn"])
    methods = [method for method in (*PLANNERS, *PEERS) if any(run["method"] == method for run in runs)]
    groups = {
        "Held-out surfaces": [run for run in runs if run["surface"] in held],
        "Drawn surfaces": [run for run in runs if run["surface"] in drawn],
        "Recorded surfaces": [run for run in runs if "simulated" not in surfaces[run["surface"]]["how"]],
        "All surfaces but the drawn ones": [run for run in runs if run["surface"] not in drawn],
    }
    lines = [
        "# Search quality", "",
        *(f"`{command}`\n" for command in data["commands"]),
        f"{data['machine']}. Regret in per cent: the share of the best strategy's throughput that the",
        "recommendation gives away. `@n`: after n measured arms (the baseline's are not counted, failed ones are).",
        "`time n`: after the measuring time of n arms like the baseline, the baseline's turns included, launches not.",
        "Every surface's truth is known, every race draws fresh noise; `benchmarks/search_quality.py` says what peers",
        "are given, `benchmarks/README.md` how surfaces are made and how anyone has us examined on another one.", "",
        "## The headline", "",
        f"Fixed before it was run: after {HEADLINE} arms, on the {len(held)} held-out surfaces (checksum of the frozen",
        f"list `{data['checksum']}`), a peer's regret less the advisor's. *Not decidable*: the 95 % t interval over",
        "surfaces includes 0. *Smallest detectable*: the true difference that so many surfaces tell from 0 four",
        "times of five.", "",
        *write_headline(groups["Held-out surfaces"], list_complete(groups["Held-out surfaces"], methods)), "",
        "And the same on surfaces whose numbers were drawn, once the search was as it is:", "",
        *write_headline(groups["Drawn surfaces"], list_complete(groups["Drawn surfaces"], methods)), "",
        *(f"{sentence}\n" for sentence in data.get("remarks", ())),
    ]  # fmt: skip
    for title, mine in groups.items():
        if not mine:
            continue
        complete = list_complete(mine, methods)
        count = len({run["surface"] for run in mine})
        lines += [
            f"## {title}", "", f"{count} surfaces, mean ± standard error over them:", "",
            *write_table(mine, complete), "",
            "What peers give away more than the advisor, ± half the 95 % interval; bold where it excludes 0 (below 0:",
            "the peer is better):", "", *write_differences(mine, complete), "",
        ]  # fmt: skip
    lines += ["## Surface by surface", "", *write_surfaces(runs, surfaces, methods), ""]
    if data["failures"]:
        lines += ["## Runs that failed", "", *(f"* {sentence}" for sentence in data["failures"]), ""]
    return "\n".join(lines)
