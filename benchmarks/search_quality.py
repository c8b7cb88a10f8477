"""How good is what a search would recommend after 3, 6, 9, 12, 20 measured arms? Our planner against its peers.

    python benchmarks/search_quality.py [--seeds 4] [--only advisor optuna-tpe …] [--surfaces FILE …] [--held]
    python benchmarks/search_quality.py --merge FILE.json …   puts runs of other calls, or machines, into the page

**The headline, fixed on 2026-11-27 before it was run**: the regret after 9 arms, a peer's less the advisor's, mean over
the held-out surfaces (`generated_surfaces.HELD`), and over drawn ones (`list_drawn`), with the 95 % t interval over
those surfaces. Where the interval includes 0, the answer is "not decidable". Beside it stands the smallest difference
that so many surfaces detect four times of five.

Every surface has a known truth: recordings (benchmarks/surfaces/*.json) are fitted (`recorded_surface.py`), the others
are simulated; every race draws fresh noise. After every race a method would recommend something; the regret is the
share of the best strategy's throughput that this gives away. Compared are equal numbers of measured arms (the
baseline's turns cost time but are no arms) and equal measuring time. A peer races one strategy at a time against the
baseline, by our rules, is charged a third of the baseline's turns, as if three strategies had shared them, and
recommends the strategy of the best mean that it measured. Our search ends when it expects no more; what it recommends
then stands. What earlier calls measured by other methods, on other surfaces or with other seeds is kept (peers may come
from several environments: requirements-peers.txt). `--merge` runs nothing: from each file it takes a method's runs on
a surface in place of all that were kept of them, so that the advisor's rows change without touching its peers'.
"""

import argparse
import importlib.util
import itertools
import json
import multiprocessing
import platform
import random
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from generated_surfaces import list_drawn, list_held, list_narrow, list_tuned, sign_held
from peer_model import PENALTY, Axis, Peer, Places
from peers import PEERS
from played_race import play_race
from prior_gp import PriorGpReplay
from quality_report import ADVISOR, COUNTS, PLANNERS, UNITS, write_report
from replay import MEASUREMENT, Replay, Standing
from surface_model import ROOT, Surface, place_of
from surfaces import FOLDER, SurfaceError, load_surface

from advisor.protocol.asked.jobs import Stage
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import period_of
from advisor.protocol.measured.results import BlockResult, RaceRules
from advisor.tuning.history.record import Record
from advisor.tuning.measure.contrast import contrast_arms
from advisor.tuning.search.planned import list_first
from advisor.tuning.search.state import look

_NEEDS = {"optuna-gp": "torch", "optuna-gp+rules": "torch", "advisor-gp": "torch"}
_USUAL = (
    ADVISOR,
    "advisor-gp",
    "random",
    "optuna-tpe",
    "optuna-tpe+rules",
    "optuna-gp",
    "optuna-gp+rules",
    "grid",
)
_OUTPUT = ROOT / "docs" / "results" / "search_quality"
_RULES = RaceRules(
    warmup_steps=MEASUREMENT.warmup_steps,
    min_steps=MEASUREMENT.min_steps,
    max_steps=MEASUREMENT.max_steps,
    target_s=MEASUREMENT.block_s,
    target_error=0.005,
    give_up_ratio=1.3,
)
"""Of a peer's races: those of the planner's search."""
_RULES_GIVEN = 6
"""Rules of thumb that a peer of `+rules` is given, in our order."""
_UNKNOWN_ERROR = 0.02
"""Standard error that is told with a failed strategy's penalty."""
_SHARED = 3
"""Strategies between which the baseline's turns are divided when a peer's time is counted."""


@dataclass(frozen=True)
class Run:
    """One method on one surface with one seed."""

    method: str
    surface: str
    seed: int
    regrets: dict[str, float]
    """By the number of measured arms."""
    by_time: dict[str, float]
    """By the measuring time, in units of what one arm like the baseline takes."""
    arms: int
    """Arms measured."""
    seconds: float
    """What the method itself took to decide, with the replay around it."""


def count_unit_s(surface: Surface) -> float:
    """Return the seconds that one arm like the baseline takes in a race: its timed and its untimed steps."""
    heat = surface.launch(random.Random(surface.name)).race([surface.find({})])
    step_s = sum(heat.step(0, since) for since in range(1, 25)) / 24
    timed = min(_RULES.max_steps, max(_RULES.min_steps, round(_RULES.target_s / step_s)))
    return step_s * (timed * 1.2 + _RULES.warmup_steps + _RULES.profile_steps)


def run_planner(surface: Surface, seed: int, most: int, kind: type[Replay] = Replay) -> list[Standing]:
    """Return how our planner's recommendation went, by its own search or by another one in its place."""
    return kind(surface, seed, watched=True, max_trials=most).search(most).standings


def list_rules(surface: Surface, seed: int) -> list[Places]:
    """Return what our search would race first, as a peer is given it."""
    replay = Replay(surface, seed)
    while (decision := replay.decide()).stage is not Stage.SEARCH:
        replay.carry_out(decision)
    state = look(Record(replay.job, replay.history, replay.now))
    assert state is not None
    keys = [surface.key_of(prior.changes) for prior in list_first(state)]
    return [dict(zip(surface.grid, key, strict=True)) for key in dict.fromkeys(keys)][:_RULES_GIVEN]


def run_peer(surface: Surface, seed: int, most: int, peer: Peer) -> list[Standing]:
    """Return how a peer's recommendation went: the best mean that it saw; the baseline, until something beats it."""
    dice = random.Random(f"{surface.name} {seed}")
    launch = surface.launch(dice)
    base = surface.find({})
    known: dict[tuple[int, ...], list[float]] = {}
    standings = [Standing(0, 0.0, surface.regret({}))]
    seconds = 0.0
    for number in range(1, most + 1):
        cell = surface.find(surface.changes_at(peer.ask()))
        value, error = min(itertools.chain([0.0], *known.values())) - PENALTY, _UNKNOWN_ERROR
        if cell.truth is None:
            seconds += 5.0
            launch = surface.launch(dice)
        else:
            periods = [1, period_of(cell.changes)]
            restores = surface.composer.catalogue.effect_of(cell.changes) is not Effect.EXACT
            played = play_race(
                f"{seed}/{number}", periods, launch.race([base, cell]), _RULES, restores=restores
            )
            own, theirs = (
                _report(launch.describe(shown, arm.times), arm.segments)
                for shown, arm in ((cell, played.arms[1]), (base, played.arms[0]))
            )
            if contrast := contrast_arms(own, theirs):
                value, error = contrast.mean, contrast.error
                known.setdefault(cell.key, []).append(value)
            share = sum(played.arms[0].times) / (sum(played.arms[0].times) + sum(played.arms[1].times))
            seconds += played.seconds * (1.0 - share * (1.0 - 1.0 / _SHARED))
        peer.tell(value, error)
        means = {key: fmean(values) for key, values in known.items()}
        best = max(means, key=means.__getitem__, default=base.key)
        chosen = best if means.get(best, 0.0) > 0.0 else base.key
        changes = surface.changes_at(dict(zip(surface.grid, chosen, strict=True)))
        standings.append(Standing(number, seconds, surface.regret(changes)))
    return standings


def _report(result: BlockResult, segments: Sequence[int]) -> BlockResult:
    return replace(result, segments=tuple(segments))


def lay_axes(surface: Surface) -> dict[str, Axis]:
    """Return the surface's grid as peers see it."""
    return {
        knob: Axis(
            count=len(values),
            ordered=isinstance(values[0], int | float) and not isinstance(values[0], bool),
            baseline=place_of(values, surface.standing[knob]),
        )
        for knob, values in surface.grid.items()
    }


def run_one(method: str, surface: Surface, seed: int, counts: Sequence[int]) -> Run:
    """Carry one method through one surface."""
    began = time.monotonic()
    most = max(counts)
    if method == ADVISOR:
        standings = run_planner(surface, seed, most)
    elif method in PLANNERS:
        standings = run_planner(surface, seed, most, PriorGpReplay)
    else:
        first = list_rules(surface, seed) if method.endswith("+rules") else []
        standings = run_peer(surface, seed, most, PEERS[method][1](lay_axes(surface), seed, first))
    unit_s = count_unit_s(surface)
    regrets = {str(n): round([s for s in standings if s.arms <= n][-1].regret, 6) for n in counts}
    ends_early = method in PLANNERS
    by_time = {
        str(n): round([s for s in standings if s.seconds <= n * unit_s][-1].regret, 6)
        for n in UNITS
        if ends_early or standings[-1].seconds >= n * unit_s or n <= most
    }
    took = round(time.monotonic() - began, 1)
    return Run(method, surface.name, seed, regrets, by_time, standings[-1].arms, took)


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


def installed(method: str) -> bool:
    """Whether what the method needs can be imported."""
    return method not in _NEEDS or importlib.util.find_spec(_NEEDS[method]) is not None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument(
        "--evaluations", type=int, choices=COUNTS, default=max(COUNTS), help="arms of each run"
    )
    parser.add_argument("--only", nargs="*", default=[], choices=[*PLANNERS, *PEERS], metavar="METHOD")
    parser.add_argument("--surfaces", nargs="*", default=[], metavar="FILE or NAME")
    parser.add_argument("--held", action="store_true", help="the held-out surfaces alone")
    parser.add_argument("--drawn", action="store_true", help="those drawn after the search was frozen, alone")
    parser.add_argument(
        "--narrow",
        action="store_true",
        help="small models over slow links, alone; with --held a third of them",
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--output", type=Path, default=_OUTPUT, help="without its ending: .md and .json are written"
    )
    parser.add_argument("--merge", nargs="+", default=[], type=Path, metavar="FILE", help="run nothing")
    arguments = parser.parse_args()
    if arguments.merge:
        write_results(arguments.output, merge(read_results(arguments.output), arguments.merge))
        return
    methods = arguments.only or [method for method in _USUAL if installed(method)]
    try:
        if arguments.narrow:
            surfaces = list(list_narrow(arguments.held))
        elif arguments.held or arguments.drawn:
            surfaces = list(list_held() if arguments.held else list_drawn())
        else:
            surfaces = choose_surfaces(arguments.surfaces)
    except SurfaceError as error:
        raise SystemExit(str(error)) from error
    counts = tuple(count for count in COUNTS if count <= arguments.evaluations)
    runs, failures = collect(methods, surfaces, arguments.seeds, counts, arguments.jobs)
    data = read_results(arguments.output)
    fresh = {(r.method, r.surface, r.seed) for r in runs}
    data["runs"] = [r for r in data["runs"] if (r["method"], r["surface"], r["seed"]) not in fresh]
    data["runs"] += map(vars, runs)
    data["failures"] = [f for f in data["failures"] if f.split(" ")[0] not in methods] + failures
    for surface in surfaces:
        *_, best = surface.describe().splitlines()
        data["surfaces"][surface.name] = {"how": surface.how, "best": best.strip()}
    data["machine"] = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    words = " ".join(sys.argv[1:])
    words = re.sub(r" ?--(output|jobs)[ =]\S+", "", words).strip()  # neither changes a figure
    command = f"python benchmarks/search_quality.py {words}".strip()
    data["commands"] = [*(c for c in data["commands"] if c != command), command]
    write_results(arguments.output, data)


def read_results(path: Path) -> dict[str, Any]:
    """Return what earlier calls wrote there; nothing, where there is none."""
    path = path.with_suffix(".json")
    found = json.loads(path.read_text()) if path.exists() else {}
    data = {"runs": [], "surfaces": {}, "failures": [], "commands": [], **found}
    names = {"held": [s.name for s in list_held()], "drawn": [s.name for s in list_drawn()]}
    return {**data, **names, "checksum": sign_held()}


def merge(data: dict[str, Any], files: Sequence[Path]) -> dict[str, Any]:
    """Return the results with those of the files: a method's runs on a surface come from the last file that has some.

    Raise SystemExit where a file's held-out surfaces are others than today's.
    """
    for file in files:
        other = json.loads(file.read_text())
        if other["checksum"] != data["checksum"]:
            raise SystemExit(
                f"checksum: {file} was run on held-out surfaces {other['checksum']}, these are {data['checksum']}: "
                "run it again from this checkout"
            )
        pairs = {(r["method"], r["surface"]) for r in other["runs"]}
        methods = {method for method, _ in pairs}
        data["runs"] = [r for r in data["runs"] if (r["method"], r["surface"]) not in pairs] + other["runs"]
        data["failures"] = [f for f in data["failures"] if f.split(" ")[0] not in methods] + other["failures"]
        data["surfaces"].update(other["surfaces"])
        data["commands"] = [*(c for c in data["commands"] if c not in other["commands"]), *other["commands"]]
        data.setdefault("machine", other["machine"])
    return data


def write_results(path: Path, data: dict[str, Any]) -> None:
    """Write the runs as .json and their page as .md, and print it."""
    data["runs"].sort(key=lambda r: (r["method"], r["surface"], r["seed"]))
    lines = ",\n".join(json.dumps(run, ensure_ascii=False) for run in data["runs"])
    rest = json.dumps({k: v for k, v in data.items() if k != "runs"}, indent=1, ensure_ascii=False)
    path.with_suffix(".json").write_text(f'{rest[:-2]},\n "runs": [\n{lines}\n]\n}}\n')
    report = write_report(data)
    path.with_suffix(".md").write_text(report)
    print(report)


def choose_surfaces(names: Sequence[str]) -> list[Surface]:
    """Return the surfaces of these files or names; all recorded and simulated ones but the held-out without any."""
    simulated = {surface.name: surface for surface in list_tuned()}
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
