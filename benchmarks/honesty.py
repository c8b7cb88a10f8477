"""Does the advisor tell the truth? Gains claimed where there is none, coverage of its intervals, optimism of its gains.

    python benchmarks/honesty.py [--jobs 400] [--only TEXT] [--processes 2] [--live N] [--out docs/results/honesty.md]

Every job is carried by the real planner from its first launch to its advice, on noise that is simulated or drawn from
the recorded baseline blocks of benchmarks/surfaces. `--live N` adds N real jobs on this machine whose knobs do nothing.
"""

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from replay import Replay
from sessions import ROOT
from surface_model import Cell, Surface
from surfaces import FOLDER, load_surface

from advisor.protocol.advice import Advice, Verdict
from advisor.protocol.base import Value
from advisor.protocol.cluster import Cluster, DeviceKind, Node
from advisor.protocol.jobs import Measurement
from advisor.protocol.knobs import Effect
from advisor.protocol.trials import BlockResult, Outcome, Phases
from advisor.protocol.workload import WorkloadFacts
from advisor.tuning.record import Record

_GAIN_KNOB = "fuse_grad_size_in_MB"
_SAMPLES, _STEP_S = 64.0, 0.1
_LIVE_KNOBS = ("num_iteration_per_drop_scope",)
"""How often Python collects garbage between steps: nothing that the built-in decoder feels."""


@dataclass(frozen=True)
class Weather:
    """What makes two blocks of one strategy differ: standard deviations of ln(step time), and kinds of noise."""

    step: float = 0.03
    correlation: float = 0.4
    block: float = 0.01
    launch: float = 0.02
    drift: float = 0.003
    """Of the cluster's random walk, per block."""
    stalls: float = 0.02
    """Share of steps that take longer by an exponential time of their own length."""
    heavy: bool = False
    """The luck of blocks has Student's t distribution with 3 degrees of freedom."""
    interaction: float = 0.0
    """Luck of a strategy in one launch, which its rounds there share and no pairing cancels."""


WEATHERS: Mapping[str, Weather] = {
    "calm": Weather(step=0.01, correlation=0.2, block=0.003, launch=0.02, drift=0.001, stalls=0.0),
    "usual": Weather(),
    "restless": Weather(step=0.06, correlation=0.6, block=0.02, launch=0.03, drift=0.01, stalls=0.05),
    "heavy tails": Weather(block=0.015, heavy=True),
    "luck of launches": Weather(interaction=0.005),
}


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

    def __init__(self, name: str, noise: Weather, gain: float) -> None:
        self.name, self.noise, self.gain = f"{name} {gain:.0%}", noise, gain
        self._drift = 0.0
        self._lucks: dict[object, float] = {}

    def find(self, changes: Mapping[str, Value]) -> Cell:
        """Return the cell of these changes, whose truth is known."""
        truth = math.log1p(self.gain) if _GAIN_KNOB in changes else 0.0
        return Cell(self.key_of(changes), changes, Outcome.FINISHED, "", truth)

    @property
    def best(self) -> Cell:
        """The cell of the gain."""
        return self.find({_GAIN_KNOB: 4.0})

    def weather(self, dice: random.Random) -> Iterator[float]:
        """Yield the launch's luck, with the drift that goes on from launch to launch."""
        launch = dice.gauss(0.0, self.noise.launch)
        self._lucks = {}
        while True:
            self._drift += dice.gauss(0.0, self.noise.drift)
            yield launch + self._drift

    def draw(self, cell: Cell, level: float, steps: int, dice: random.Random) -> BlockResult:
        """Return a block of correlated steps with stalls."""
        noise = self.noise
        luck = dice.gauss(0.0, noise.block)
        if noise.heavy:
            luck /= math.sqrt(dice.gammavariate(1.5, 2.0) / 3.0) * math.sqrt(3.0)
        own = self._lucks.setdefault(cell.key, dice.gauss(0.0, noise.interaction))
        centre = math.log(_STEP_S) - (cell.truth or 0.0) - level - luck - own
        state, fresh, times = dice.gauss(0.0, noise.step), math.sqrt(1.0 - noise.correlation**2), []
        for _ in range(steps):
            state = noise.correlation * state + fresh * dice.gauss(0.0, noise.step)
            stall = dice.expovariate(1.0) if dice.random() < noise.stalls else 0.0
            times.append(math.exp(centre + state) * (1.0 + stall))
        phases = Phases(forward_s=0.03, backward_s=0.03, optimizer_s=0.01, exposed_comm_s=0.03)
        return BlockResult(
            steps=steps, step_time_s=tuple(times), samples_per_step=_SAMPLES, samples=_SAMPLES * steps,
            wall_s=sum(times), phases=phases, worst_rank_phases=phases,
            bucket_bytes=(2**20,) * (3 if cell.truth else 5), consumed=dict.fromkeys(cell.changes, "in force"),
        )  # fmt: skip


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

    def weather(self, dice: random.Random) -> Iterator[float]:
        """The recorded drift of the machine."""
        return self._recorded.weather(dice)

    def draw(self, cell: Cell, level: float, steps: int, dice: random.Random) -> BlockResult:
        """One recorded block of the baseline, said to be of the strategy."""
        block = self._recorded.draw(cell, level, steps, dice)
        return block.model_copy(update={"consumed": dict.fromkeys(cell.changes, "in force"), "no_effect": {}})


@dataclass(frozen=True)
class Told:
    """What one job said, beside the truth; all in ln(throughput / baseline's)."""

    change: bool
    claims: bool
    """The reported interval excludes no difference on the side of a gain."""
    covered: bool | None
    """The interval holds the truth; None where nothing was confirmed."""
    optimism: float | None
    """Reported gain less the truth of what is advised; None without a change."""
    best_observed: float | None
    """The search's best single block against the mean of the baseline's, less its truth."""
    rounds: int


def carry(name: str, gain: float, seed: int) -> Told:
    """Carry one job to its end and compare what it says with the truth."""
    if name in WEATHERS:
        surface: Surface = SimulatedSurface(name, WEATHERS[name], gain)
        measurement = Measurement(warmup_steps=2, min_steps=16, max_steps=24, block_s=2.0)
        replay = Replay(surface, seed=seed, max_trials=6, measurement=measurement)
    else:
        surface = EqualStrategies(Path(name)) if gain == 0.0 else load_surface(Path(name))
        replay = Replay(surface, seed=seed, max_trials=12)
    advice = replay.run().settled
    if not isinstance(advice, Advice):
        return Told(False, False, None, None, None, 0)
    change = advice.verdict is Verdict.CHANGE
    best_observed = _observe_best(replay, surface)
    if advice.gain is None:
        return Told(change, False, None, None, best_observed, 0)
    judged = advice.changes if change else _confirmed(replay)
    truth = surface.find(judged).truth or 0.0
    covered = math.log(advice.gain.low) <= truth <= math.log(advice.gain.high)
    optimism = math.log(advice.gain.ratio) - truth if change else None
    return Told(change, advice.gain.low > 1.0, covered, optimism, best_observed, advice.gain.rounds)


def _confirmed(replay: Replay) -> Mapping[str, Value]:
    """What the rounds of the verdict measured: the strategy that `recommend` names while the job is not settled."""
    settled, replay.settled = replay.settled, None
    try:
        return replay.recommend()
    finally:
        replay.settled = settled


def _observe_best(replay: Replay, surface: Surface) -> float | None:
    record = Record(replay.job, replay.history, replay.now)
    rates = {b.id: b.summary.samples_per_s for b in record.usable if b.summary and b.round is None}
    baseline = [rates[b.id] for b in record.baseline_blocks if b.id in rates]
    best: tuple[float, Mapping[str, Value]] | None = None
    for block in record.usable:
        changes = record.history.trial(block.trial_number).changes
        if block.id in rates and changes:
            seen = math.log(rates[block.id] / statistics.fmean(baseline))
            best = max(best, (seen, changes), key=lambda x: x[0]) if best else (seen, changes)
    return best[0] - (surface.find(best[1]).truth or 0.0) if best else None


def run_case(
    name: str, gain: float, jobs: int, processes: int, pool: ProcessPoolExecutor | None
) -> list[Told]:
    """Carry so many jobs of one case."""
    chosen = (pool.map if pool and processes > 1 else map)(carry, [name] * jobs, [gain] * jobs, range(jobs))
    return list(chosen)


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
    covered = [t.covered for t in told if t.covered is not None]
    optimism = [t.optimism for t in told if t.optimism is not None]
    best = [t.best_observed for t in told if t.best_observed is not None]
    changes = sum(t.change for t in told)
    claims = sum(t.claims for t in told)
    rounds = [t.rounds for t in told if t.rounds]
    return (
        f"| {name} | {f'{gain:+.0%}' if gain >= 0 else 'as recorded'} | {len(told)} | "
        f"{describe_share(changes, len(told))} | {claims} | {describe_share(sum(covered), len(covered))} | "
        f"{_mean(optimism)} | {_mean(best)} | {statistics.fmean(rounds) if rounds else 0:.1f} |"
    )


def _mean(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):+.1%}" if values else "–"


def run_live(jobs: int) -> list[str]:
    """Run real jobs on this machine whose knobs change nothing; return a line for each."""
    lines = []
    for seed in range(jobs):
        command = [
            sys.executable, "-m", "advisor", "tune", "--json", "--new", "--seed", str(seed), "--minutes", "4",
            "--trials", "4", "--block-seconds", "1", *(word for knob in _LIVE_KNOBS for word in ("--knob", knob)),
            "--workload", "decoder",
        ]  # fmt: skip
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        try:
            advice = json.loads(done.stdout)
            lines.append(f"| {seed} | {advice['verdict']} | {advice['headline']} |")
        except (ValueError, KeyError):
            lines.append(f"| {seed} | exit code {done.returncode} | {done.stderr.strip()[-300:]} |")
    return lines


HEADER = """| noise | true gain | jobs | advised a change | interval above 1 | interval holds the truth | \
reported gain of advised changes − truth | best observed block − truth | rounds |
|---|---|---|---|---|---|---|---|---|"""


def main() -> None:
    """Run the cases and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=400, help="A/A jobs over all cases (default 400)")
    parser.add_argument("--only", default="", help="only cases whose name holds this text")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--live", type=int, default=0, help="real A/A jobs on this machine, a few minutes each"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "honesty.md")
    given = parser.parse_args()
    recorded = sorted(str(path) for path in FOLDER.glob("*.json"))
    equal = [name for name in (*WEATHERS, *recorded) if given.only in name]
    share = math.ceil(given.jobs / max(1, len(equal)))
    cases = [(name, 0.0, share) for name in equal]
    cases += [
        (name, gain, math.ceil(share / 3)) for name in equal if name in WEATHERS for gain in (0.03, 0.08)
    ]
    cases += [(name, -1.0, math.ceil(share / 3)) for name in equal if name not in WEATHERS]
    rows, none_gained, covered = [], [], []
    with ProcessPoolExecutor(given.processes) as pool:
        for name, gain, jobs in cases:
            told = run_case(name, gain, jobs, given.processes, pool)
            rows.append(describe_case(Path(name).stem, gain, told))
            none_gained += told if gain == 0.0 else []
            covered += [t.covered for t in told if t.covered is not None]
            print(rows[-1], flush=True)
    claims, changes = sum(t.claims for t in none_gained), sum(t.change for t in none_gained)
    text = [
        "# Does the advisor tell the truth?",
        "",
        f"`python benchmarks/honesty.py --jobs {given.jobs}`: the real planner carries every job to its advice.",
        "Ranges behind a share are 95 % intervals of it.",
        "",
        f"* A/A jobs that advise a change: {describe_share(changes, len(none_gained))} of {len(none_gained)} "
        "(target: at most 5 %); whose interval lies above 1, whatever `min_gain` says: "
        f"{describe_share(claims, len(none_gained))}.",
        f"* Intervals that hold the truth: {describe_share(sum(covered), len(covered))} of {len(covered)} "
        "(target: 93 %).",
        "",
        HEADER,
        *rows,
        "",
    ]
    if given.live:
        text += [
            "## Real jobs whose knobs do nothing",
            "",
            "| seed | verdict | headline |",
            "|---|---|---|",
        ]
        text += [*run_live(given.live), ""]
    given.out.write_text("\n".join(text))


if __name__ == "__main__":
    main()
