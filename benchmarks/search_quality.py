"""How good is what a search would recommend after 5, 10, 20, 40 measured blocks? Our planner against its peers.

    python benchmarks/search_quality.py [--seeds 20] [--only advisor optuna-tpe …] [--surfaces FILE …] [--jobs 2]

Each method measures the same noisy blocks of the same surfaces: recorded ones (benchmarks/surfaces/*.json) and
simulated ones. After every block it would recommend something; the regret is the share of the best strategy's
throughput that this gives away, by the surface's truth. Every block counts, the planner's baselines and anchors too.
Results of earlier calls are kept for the methods and surfaces that a call does not run, so that peers may come from
several environments (requirements-peers.txt).
"""

import argparse
import importlib.util
import json
import math
import multiprocessing
import platform
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from peers import PEERS, PENALTY, Axis, Peer, Places
from replay import MEASUREMENT, Replay
from simulated_surfaces import list_simulated
from surface_model import ROOT, Surface, place_of
from surfaces import FOLDER, SurfaceError, load_surface

from advisor.tuning.statistics import find_percentile, summarise_block

COUNTS = (5, 10, 20, 40)
ADVISOR = "advisor"
_NEEDS = {
    "optuna-tpe": "optuna", "optuna-gp": "torch", "ray-default": "ray", "ray-hyperopt": "hyperopt",
    "ray-bohb": "hpbandster", "hebo": "hebo",
    "blendsearch": "flaml", "smac": "smac",
}  # fmt: skip
_DEFAULT = "optuna-tpe"
_OUTPUT = ROOT / "docs" / "results" / "search_quality"


@dataclass(frozen=True)
class Run:
    """One method on one surface with one seed."""

    method: str
    surface: str
    seed: int
    regrets: dict[str, float]
    """By the number of measured blocks."""
    seconds: float
    """What the method itself took to decide, with the replay around it."""


def run_advisor(surface: Surface, seed: int, counts: Sequence[int]) -> list[float]:
    """Return the regrets of our planner."""
    replay = Replay(surface, seed=seed, watched=counts).run(max(counts))
    return [replay.regret_after(count) for count in counts]


def run_peer(surface: Surface, seed: int, counts: Sequence[int], peer: Peer) -> list[float]:
    """Return the regrets of a peer, which recommends what it saw best; nothing, until something succeeded."""
    dice = random.Random(f"{surface.name} {seed}")
    weather = surface.weather(dice)
    known: list[float] = []
    best: tuple[float, Places] | None = None
    regrets = []
    for _ in range(max(counts)):
        places = peer.ask()
        changes = surface.changes_at(places)
        answer = surface.measure(changes, next(weather), MEASUREMENT.max_steps, dice)
        if answer.result is None:
            value = min(known, default=0.0) - PENALTY
        else:
            value = math.log(answer.result.samples_per_step) - summarise_block(answer.result).log_step_time
            known.append(value)
            if best is None or value > best[0]:
                best = value, places
        peer.tell(value)
        regrets.append(surface.regret(surface.changes_at(best[1]) if best else {}))
    return [regrets[count - 1] for count in counts]


def lay_axes(surface: Surface) -> dict[str, Axis]:
    """Return the surface's grid as peers see it."""
    return {
        knob: Axis(
            count=len(values),
            ordered=isinstance(values[0], int | float) and not isinstance(values[0], bool),
            baseline=place_of(values, surface.base.values()[knob]),
        )
        for knob, values in surface.grid.items()
    }


def run_one(method: str, surface: Surface, seed: int, counts: Sequence[int]) -> Run:
    """Carry one method through one surface."""
    began = time.monotonic()
    if method == ADVISOR:
        regrets = run_advisor(surface, seed, counts)
    else:
        regrets = run_peer(surface, seed, counts, PEERS[method][1](lay_axes(surface), seed))
    by_count = {str(count): round(regret, 6) for count, regret in zip(counts, regrets, strict=True)}
    return Run(method, surface.name, seed, by_count, round(time.monotonic() - began, 1))


_surfaces: dict[str, Surface] = {}
"""What worker processes inherit: a surface's best strategy is found once."""


def _work(task: tuple[str, str, int, tuple[int, ...]]) -> Run | str:
    method, name, seed, counts = task
    try:
        return run_one(method, _surfaces[name], seed, counts)
    except Exception as error:  # one method's failure is a line of the report, not the end of the others
        return f"{method} on {name}, seed {seed}: {type(error).__name__}: {error}"


def collect(
    methods: Sequence[str], surfaces: Sequence[Surface], seeds: int, counts: tuple[int, ...], jobs: int
) -> tuple[list[Run], list[str]]:
    """Run every method on every surface with every seed; return the runs, and a sentence for each that failed."""
    _surfaces.clear()
    for surface in surfaces:
        _surfaces[surface.name] = surface
        assert surface.best.truth is not None
    tasks = [
        (m, surface.name, seed, counts) for seed in range(seeds) for surface in surfaces for m in methods
    ]
    runs: list[Run] = []
    failures: list[str] = []
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for done, answer in enumerate(pool.imap_unordered(_work, tasks), start=1):
            runs.append(answer) if isinstance(answer, Run) else failures.append(answer)
            if done % 50 == 0 or done == len(tasks):
                print(
                    f"\r{done} of {len(tasks)} runs, {len(failures)} failed",
                    end="",
                    file=sys.stderr,
                    flush=True,
                )
    print(file=sys.stderr)
    return runs, failures


@dataclass(frozen=True)
class Regret:
    """The regret of several runs after one number of blocks."""

    mean: float
    error: float
    """Standard error of the mean."""
    p90: float


def summarise(runs: Sequence[Mapping[str, Any]]) -> dict[int, Regret]:
    """Return the regret after each number of blocks that all of these runs reached."""
    figures = {}
    for count in COUNTS:
        regrets = [run["regrets"].get(str(count)) for run in runs]
        if regrets and None not in regrets:
            error = stdev(regrets) / math.sqrt(len(regrets)) if len(regrets) > 1 else 0.0
            figures[count] = Regret(fmean(regrets), error, find_percentile(regrets, 0.9))
    return figures


def name_of(method: str) -> str:
    """The method in words."""
    return "**Fleet Advisor**" if method == ADVISOR else PEERS[method][0]


def write_table(runs: Sequence[Mapping[str, Any]], methods: Sequence[str]) -> list[str]:
    """Return a Markdown table of the methods on these runs."""
    lines = [
        "| method | runs | " + " | ".join(f"@{count}" for count in COUNTS) + " | p90 @10 | p90 @20 |",
        "|---|---|" + "---|" * (len(COUNTS) + 2),
    ]
    for method in methods:
        mine = [run for run in runs if run["method"] == method]
        if not mine:
            continue
        figures = summarise(mine)
        cells = [f"{100 * f.mean:.1f} ±{100 * f.error:.1f}" if (f := figures.get(c)) else "–" for c in COUNTS]
        tail = [f"{100 * f.p90:.1f}" if (f := figures.get(c)) else "–" for c in COUNTS[1:3]]
        lines.append(f"| {name_of(method)} | {len(mine)} | " + " | ".join([*cells, *tail]) + " |")
    return lines


def judge(runs: Sequence[Mapping[str, Any]], surfaces: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return per surface our regret after 10 blocks against the target and the best peer."""
    lines = [
        "| surface | noise floor | Optuna default @10 | target @10 | advisor @10 | best peer @10 | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, surface in surfaces.items():
        after_10 = {
            method: figures[10]
            for method in (ADVISOR, *PEERS)
            if 10
            in (figures := summarise([r for r in runs if r["surface"] == name and r["method"] == method]))
        }
        if not {ADVISOR, _DEFAULT} <= after_10.keys():
            continue
        ours, optuna = after_10.pop(ADVISOR), after_10[_DEFAULT]
        peer = min(after_10, key=lambda method: after_10[method].mean)
        target = max(0.01, optuna.mean / 5)
        verdict = (
            "met"
            if ours.mean <= target
            else "met but for its error"
            if ours.mean - ours.error <= target
            else "within the noise floor"
            if ours.mean <= surface["floor"]
            else "missed"
        )
        if ours.mean > after_10[peer].mean + math.hypot(ours.error, after_10[peer].error):
            verdict += ", a peer is better"
        lines.append(
            f"| {name} | {surface['floor']:.1%} | {optuna.mean:.1%} | {target:.1%} | {ours.mean:.1%} ±{ours.error:.1%} "
            f"| {after_10[peer].mean:.1%} ({peer}) | {verdict} |"
        )
    return lines


def write_report(data: Mapping[str, Any]) -> str:
    """Return the results as a Markdown page."""
    runs, surfaces = data["runs"], data["surfaces"]
    methods = [method for method in (ADVISOR, *PEERS) if any(run["method"] == method for run in runs)]
    lines = [
        "# Search quality", "",
        f"Made by `python benchmarks/search_quality.py` ({data['machine']}), once for each set of methods that can be",
        "installed together (benchmarks/requirements-peers.txt).",
        "Regret in per cent: the share of the best strategy's throughput that the recommendation after so many",
        "measured blocks gives away; mean ± standard error over surfaces and seeds. The planner's baseline blocks and",
        "anchors count, too. `benchmarks/README.md` says how surfaces are replayed.", "",
        "## All surfaces", "", *write_table(runs, methods), "",
        "## Against the target", "",
        "Target after 10 blocks: at most a fifth of the regret of Optuna's default, or 1 % where that is more. A",
        "recorded surface cannot tell strategies apart below its noise floor.", "",
        *judge(runs, surfaces), "",
    ]  # fmt: skip
    for name, surface in surfaces.items():
        mine = [run for run in runs if run["surface"] == name]
        lines += [
            f"## {name}",
            "",
            f"{surface['how']}. {surface['best']}",
            "",
            *write_table(mine, methods),
            "",
        ]
    if data["failures"]:
        lines += ["## Runs that failed", "", *(f"* {sentence}" for sentence in data["failures"]), ""]
    return "\n".join(lines)


def installed(method: str) -> bool:
    """Whether what the method needs can be imported."""
    return method not in _NEEDS or importlib.util.find_spec(_NEEDS[method]) is not None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument(
        "--evaluations", type=int, choices=COUNTS, default=max(COUNTS), help="blocks of each run"
    )
    parser.add_argument("--only", nargs="*", default=[], choices=[ADVISOR, *PEERS], metavar="METHOD")
    parser.add_argument("--surfaces", nargs="*", default=[], metavar="FILE or NAME")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--output", type=Path, default=_OUTPUT, help="without its ending: .md and .json are written"
    )
    arguments = parser.parse_args()
    methods = arguments.only or [method for method in (ADVISOR, *PEERS) if installed(method)]
    try:
        surfaces = choose_surfaces(arguments.surfaces)
    except SurfaceError as error:
        raise SystemExit(str(error)) from error
    counts = tuple(count for count in COUNTS if count <= arguments.evaluations)
    runs, failures = collect(methods, surfaces, arguments.seeds, counts, arguments.jobs)
    path = arguments.output.with_suffix(".json")
    data = json.loads(path.read_text()) if path.exists() else {"runs": [], "surfaces": {}, "failures": []}
    ran = {surface.name for surface in surfaces}
    data["runs"] = [r for r in data["runs"] if not (r["method"] in methods and r["surface"] in ran)]
    data["runs"] += sorted((vars(run) for run in runs), key=lambda r: (r["method"], r["surface"], r["seed"]))
    data["failures"] = [f for f in data["failures"] if f.split(" ")[0] not in methods] + failures
    for surface in surfaces:
        *_, best = surface.describe().splitlines()
        data["surfaces"][surface.name] = {"how": surface.how, "floor": surface.floor, "best": best.strip()}
    data["machine"] = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    lines = ",\n".join(json.dumps(run, ensure_ascii=False) for run in data["runs"])
    rest = json.dumps({k: v for k, v in data.items() if k != "runs"}, indent=1, ensure_ascii=False)
    path.write_text(f'{rest[:-2]},\n "runs": [\n{lines}\n]\n}}\n')
    report = write_report(data)
    arguments.output.with_suffix(".md").write_text(report)
    print(report)


def choose_surfaces(names: Sequence[str]) -> list[Surface]:
    """Return the surfaces of these files or names; all recorded and simulated ones without any."""
    simulated = {surface.name: surface for surface in list_simulated()}
    if not names:
        return [*map(load_surface, sorted(FOLDER.glob("*.json"))), *simulated.values()]
    chosen: list[Surface] = []
    for name in names:
        recorded = FOLDER / f"{name}.json"
        if name in simulated:
            chosen.append(simulated[name])
        else:
            chosen.append(load_surface(recorded if recorded.exists() else Path(name)))
    return chosen


if __name__ == "__main__":
    main()
