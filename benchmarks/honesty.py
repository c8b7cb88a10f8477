"""Does the advisor tell the truth? Whole jobs with a known gain, in weathers that its statistics do not assume.

    python benchmarks/honesty.py [--rounds 30] [--most-minutes 12] [--only TEXT] [--gains 0 0.03 …] [--minutes 3]
        [--processes 2] [--live N] [--out docs/results/honesty.md]

Every job is carried by the real planner from its first launch to its advice; races go by the runtime's own rules. Steps
are simulated (`weathers.py`), or drawn from the recorded baseline blocks of benchmarks/surfaces. A round is one job of
each weather and gain, and three A/A jobs; `--most-minutes` of real time begin no further round. `--live N` adds N real
jobs on this machine whose knobs do nothing. Live jobs with a gain: decide.py.
"""

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from recorded_surface import RecordedLaunch
from replay import Replay
from sessions import ROOT
from surface_model import Cell, Launch, Surface
from surfaces import FOLDER, load_surface
from weathers import WEATHERS, SimulatedLaunch, Sky, Weather

from advisor.course.played import START
from advisor.protocol.answers.advice import Advice, Verdict
from advisor.protocol.asked.jobs import Measurement
from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.measured.results import BlockResult, Phases
from advisor.protocol.measured.trials import Outcome
from advisor.protocol.nodes.cluster import Cluster, DeviceKind, Node
from advisor.protocol.training.workload import WorkloadFacts

GAINS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.2, 2.0)
_GAIN_KNOB = "fuse_grad_size_in_MB"
_SAMPLES, _STEP_S, _STARTUP_S = 64.0, 0.05, 6.0
_WORTHWHILE = 0.01
_LONG = 20_000
_LIVE_KNOBS = ("num_iteration_per_drop_scope",)
"""How often Python collects garbage between steps: nothing that the built-in decoder feels."""


class SimulatedSurface(Surface):
    """Two knobs of which one may bring a gain, at whatever value; everything else is noise."""

    allow = Effect.EXACT
    grid: Mapping[str, tuple[Value, ...]] = {
        "fuse_grad_size_in_MB": (1.0, 4.0, 10.0, 25.0),
        "num_threads": (1, 2, 4),
    }
    baseline: Mapping[str, Value] = {"fuse_grad_size_in_MB": 25.0, "num_threads": 2}
    facts = WorkloadFacts(
        backend="gloo", device=DeviceKind.CPU, world_size=4, local_world_size=2, nodes=2, gradient_bytes=0,
        parameter_tensors=60, layers=30, batch_size_per_rank=16, torch_version="2.13.0", python_version="3.11",
    )  # fmt: skip
    cluster = Cluster(nodes=tuple(Node(hostname=f"n{i}", cpu_count=4, memory_bytes=2**33) for i in range(2)))
    calibration = None
    how = "simulated"
    floor = 0.0

    def __init__(self, name: str, weather: Weather, gain: float, dice: random.Random) -> None:
        self.name, self.gain = f"{name} {gain:.0%}", gain
        self.truth = estimate_truth(weather, gain)
        self._changed = estimate_truth(weather, 0.0)
        self._sky = Sky(weather, dice)

    def find(self, changes: Mapping[str, Value]) -> Cell:
        """Return the cell of these changes, whose truth is known."""
        truth = self.truth if _GAIN_KNOB in changes else self._changed if changes else 0.0
        return Cell(self.key_of(changes), changes, Outcome.FINISHED, "", truth)

    @property
    def best(self) -> Cell:
        """The cell of the gain."""
        return self.find({_GAIN_KNOB: 4.0})

    def launch(self, _dice: random.Random) -> Launch:
        """Return a launch under the job's one sky, which moved on while it started."""
        self._sky.advance(_STARTUP_S)
        return SimulatedLaunch(self._sky, self._step_s, _describe)

    def _step_s(self, cell: Cell) -> float:
        return _step_s(cell, self.gain)


def _describe(cell: Cell, times: Sequence[float], _dice: random.Random) -> BlockResult:
    phases = Phases(forward_s=0.3 * _STEP_S, backward_s=0.3 * _STEP_S, exposed_comm_s=0.3 * _STEP_S)
    return BlockResult(
        steps=len(times), step_time_s=tuple(times), samples_per_step=_SAMPLES, samples=_SAMPLES * len(times),
        wall_s=sum(times), phases=phases,
        bucket_bytes=(2**20,) * (3 if _GAIN_KNOB in cell.changes else 5),
    )  # fmt: skip


@lru_cache
def estimate_truth(weather: Weather, gain: float) -> float:
    """Return the ln ratio of what the user's clock shows of a changed strategy: mean steps, launches of both moods.

    That is the gain itself, but where slow steps or moods belong to one arm or faster ones are noisier: then it is
    simulated.
    """
    if not weather.is_of_one_arm:
        return math.log1p(gain)
    still = replace(
        weather, launch=0.0, luck=0.0, arm=0.0, walk=0.0, hours=0.0, bursts=0.0, pulse=0.0, mood=0.0
    )
    launch = SimulatedLaunch(Sky(still, random.Random("truth")), lambda cell: _step_s(cell, gain), _describe)
    cells = [
        Cell((place,), changes, Outcome.FINISHED, "", None)
        for place, changes in enumerate(({}, {_GAIN_KNOB: 1.0}))
    ]
    heat = launch.race(cells)
    base_s, strategy_s = (statistics.fmean(heat.step(arm, 1) for _ in range(_LONG)) for arm in (0, 1))
    return math.log(base_s * (1.0 + math.exp(weather.mood)) / 2.0 / strategy_s)


def _step_s(cell: Cell, gain: float) -> float:
    return _STEP_S / (1.0 + gain) if _GAIN_KNOB in cell.changes else _STEP_S


class EqualStrategies(Surface):
    """A recorded surface on which every strategy is answered with blocks of the baseline: an A/A job on real noise."""

    floor = 0.0

    def __init__(self, path: Path) -> None:
        recorded = load_surface(path)
        self._recorded = recorded
        self.name, self.how = f"{recorded.name} (baseline's blocks)", recorded.how
        self.allow, self.grid, self.baseline = recorded.allow, recorded.grid, recorded.baseline
        self.facts, self.cluster = recorded.facts, recorded.cluster
        self.calibration = recorded.calibration

    def find(self, changes: Mapping[str, Value]) -> Cell:
        """Return the baseline's cell under these changes' name."""
        return replace(self._recorded.find({}), key=self.key_of(changes), changes=changes, truth=0.0)

    @property
    def best(self) -> Cell:
        """The baseline, as good as any."""
        return self.find({})

    def launch(self, dice: random.Random) -> Launch:
        """Return a launch that reads the recording."""
        return RecordedLaunch(self._recorded, dice)


@dataclass(frozen=True)
class Told:
    """What one job said, beside the truth."""

    verdict: str
    is_right: bool
    covered: bool | None
    """The interval holds the truth; None where nothing was confirmed."""
    width: float | None
    """Upper end over lower end, minus 1."""
    error: float | None
    """ln of the reported ratio less the truth."""
    seconds: float
    """Of simulated time."""

    @property
    def is_decided(self) -> bool:
        """Whether it ended with an answer."""
        return self.verdict in {"change", "keep"}


def carry(name: str, gain: float, seed: int, minutes: float) -> Told:
    """Carry one job to its end and compare what it says with the truth."""
    if name in WEATHERS:
        dice = random.Random(f"{name} {gain} {seed} sky")
        surface: Surface = SimulatedSurface(name, WEATHERS[name], gain, dice)
    else:
        surface = EqualStrategies(Path(name))
    replay = Replay(
        surface,
        seed,
        max_trials=8,
        max_seconds=60.0 * minutes,
        measurement=Measurement(),
        startup_s=_STARTUP_S,
    )
    advice = replay.run().settled
    seconds = (replay.now - START).total_seconds()
    best = math.expm1(surface.best.truth or 0.0)
    if not isinstance(advice, Advice):
        return Told("failed", False, None, None, None, seconds)
    verdict = advice.verdict.value
    right = advice.verdict is (Verdict.CHANGE if best > _WORTHWHILE else Verdict.KEEP)
    if math.isclose(gain, _WORTHWHILE):
        right = advice.verdict is not Verdict.UNDECIDED
    if advice.gain is None:
        return Told(verdict, right, None, None, None, seconds)
    truth = surface.find(advice.changes or advice.candidate).truth or 0.0
    covered = math.log(advice.gain.low) <= truth <= math.log(advice.gain.high)
    width = advice.gain.high / advice.gain.low - 1.0
    return Told(verdict, right, covered, width, math.log(advice.gain.ratio) - truth, seconds)


def describe_share(hits: int, of: int) -> str:
    """A share with its 95 % Wilson interval."""
    if not of:
        return "–"
    z, p = 1.96, hits / of
    centre = (p + z * z / (2 * of)) / (1 + z * z / of)
    half = z * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return f"{p:.1%} ({max(0.0, centre - half):.1%} … {min(1.0, centre + half):.1%})"


def describe_case(name: str, gain: float, told: Sequence[Told]) -> str:
    """One line of the table."""
    count = len(told)
    covered = [t.covered for t in told if t.covered is not None]
    widths = [t.width for t in told if t.width is not None]
    optimism = [t.error for t in told if t.error is not None and t.verdict == "change"]
    return (
        f"| {name} | {gain:+.0%} | {count} | {sum(t.is_decided for t in told) / count:.0%} | "
        f"{sum(t.is_right for t in told) / count:.0%} | {sum(t.verdict == 'change' for t in told)} | "
        f"{sum(covered)}/{len(covered)} | {f'{statistics.median(widths):.1%}' if widths else '–'} | "
        f"{statistics.median(t.seconds for t in told):.0f} | "
        f"{f'{statistics.fmean(optimism):+.2%}' if optimism else '–'} |"
    )


def describe_weather(name: str, cases: Mapping[float, Sequence[Told]]) -> str:
    """One line of the table of targets; where an arm stalls by itself, no gain injected may be one all the same."""
    equal, three = cases.get(0.0, ()), cases.get(0.03, ())
    covered = [t.covered for told in cases.values() for t in told if t.covered is not None]
    return (
        f"| {name} | {describe_share(sum(t.verdict == 'change' for t in equal), len(equal))} | "
        f"{describe_share(sum(covered), len(covered))} | "
        f"{describe_share(sum(t.verdict == 'change' for t in three), len(three))} |"
    )


def run_live(jobs: int) -> Iterator[str]:
    """Run real jobs on this machine whose knobs change nothing; yield a line for each."""
    for seed in range(jobs):
        command = [
            sys.executable, "-m", "advisor", "tune", "--json", "--new", "--seed", str(seed), "--minutes", "4",
            "--trials", "4", *(word for knob in _LIVE_KNOBS for word in ("--knob", knob)), "--workload", "decoder",
        ]  # fmt: skip
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        try:
            advice = json.loads(done.stdout)
            yield f"| {seed} | {advice['verdict']} | {advice['headline']} |"
        except (ValueError, KeyError):
            yield f"| {seed} | exit code {done.returncode} | {done.stderr.strip()[-300:]} |"


def name_of(case: str) -> str:
    """The weather, or the recorded surface without its folder."""
    return case if case in WEATHERS else f"recorded, {Path(case).stem}"


def describe_noise(weather: Weather) -> str:
    """What sets a weather apart."""
    usual = vars(Weather())
    told = ", ".join(f"{k} {v:g}" for k, v in vars(weather).items() if v != usual[k]) or "as it comes"
    if weather.is_of_one_arm:
        gains = (math.expm1(estimate_truth(weather, gain)) for gain in (0.0, 0.03))
        told += "; of 0 and of 3 % the clock shows {:+.1%} and {:+.1%}".format(*gains)
    return told


HEADER = """| weather | true gain | jobs | decided | right | change | holds the truth | width | seconds | gain − truth |
|---|---|---|---|---|---|---|---|---|---|"""
_TARGETS = """| weather | A/A jobs that change (≤ 5 %) | intervals that hold the truth (93–98 %) | +3 % found (≥ 95 %) |
|---|---|---|---|"""


def write_page(told: Mapping[tuple[str, float], Sequence[Told]], minutes: float, took_s: float) -> str:
    """Return the results as a Markdown page."""
    names = list(dict.fromkeys(name for name, _ in told))
    by_name = {name: {gain: t for (n, gain), t in told.items() if n == name} for name in names}
    rows = [describe_case(name_of(name), gain, case) for (name, gain), case in told.items()]
    lines = [
        "# Does the advisor tell the truth?", "",
        f"`python benchmarks/honesty.py {' '.join(sys.argv[1:])}` ({took_s / 60:.0f} minutes)", "",
        f"The real planner carries every job, of {minutes:g} simulated minutes and 50 ms a step, to its advice.",
        "*Right* is keep below a gain of 1 % and change above it; exactly 1 % may be either. The truth is of the",
        "user's clock. Width: upper end over lower end, minus 1, the median. Ranges behind a share are 95 % intervals.",
        "",
        _TARGETS, *(describe_weather(name_of(name), by_name[name]) for name in names), "",
        HEADER, *rows, "",
        "The weathers (`benchmarks/weathers.py` says what the words mean; not named is as in *usual*):", "",
        *(f"* {name}: {describe_noise(WEATHERS[name])}" for name in names if name in WEATHERS), "",
    ]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """Run the cases and write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--most-minutes", type=float, default=math.inf, help="no round begins after them")
    parser.add_argument("--only", default="", help="only weathers and surfaces whose name holds this text")
    parser.add_argument("--gains", type=float, nargs="+", default=GAINS)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--live", type=int, default=0, help="real A/A jobs on this machine, a few minutes each"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "honesty.md")
    given = parser.parse_args()
    names = [name for name in WEATHERS if given.only in name]
    cases = [(name, gain) for name in names for gain in given.gains]
    cases += [(str(path), 0.0) for path in sorted(FOLDER.glob("*.json")) if given.only in path.stem]
    told: dict[tuple[str, float], list[Told]] = {case: [] for case in cases}
    began, text = time.monotonic(), ""
    with ProcessPoolExecutor(given.processes) as pool:
        for number in range(given.rounds):
            if time.monotonic() - began > 60.0 * given.most_minutes:
                break
            jobs = [
                (name, gain, seed, given.minutes)
                for name, gain in cases
                for seed in ([3 * number, 3 * number + 1, 3 * number + 2] if gain == 0.0 else [number])
            ]
            for job, answer in zip(jobs, pool.map(carry, *zip(*jobs, strict=True)), strict=True):
                told[job[:2]].append(answer)
            print(f"round {number + 1} after {time.monotonic() - began:.0f} s", flush=True)
            text = write_page(told, given.minutes, time.monotonic() - began)
            given.out.write_text(text)
    if given.live:
        rows = ["## Real jobs whose knobs do nothing", "", "| seed | verdict | headline |", "|---|---|---|"]
        text += "\n".join([*rows, *run_live(given.live), ""])
    given.out.write_text(text)


if __name__ == "__main__":
    main()
