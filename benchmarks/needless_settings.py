"""Does an advice hold what helps, and nothing else? Whole jobs whose settings' gains are known, carried by the planner.

    python benchmarks/needless_settings.py [--rounds 20] [--minutes 5] [--only TEXT] [--processes 2] [--json FILE]
        [--against FILE] [--out docs/results/needless_settings.md]

A job has 1, 2 or 3 settings that bring a gain, among some that do nothing; the search sees all of them at one other
value, with the steps' noise of `weathers.py`. `--json` keeps what each job told, `--against` compares seconds with what
another build told of the same jobs (run this file there: it asks for nothing that older builds lack).
"""

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from honesty import describe_share
from replay import Replay
from surface_model import Cell, Launch, Surface
from weathers import WEATHERS, SimulatedLaunch, Sky

from advisor.course.played import START
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Measurement
from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.measured.results import BlockResult, Phases
from advisor.protocol.measured.trials import Outcome
from advisor.protocol.nodes.cluster import Cluster, DeviceKind, Node
from advisor.protocol.training.workload import WorkloadFacts

_SAMPLES, _STEP_S, _STARTUP_S = 64.0, 0.05, 6.0
_TELLS = 0.03
"""Gain of a setting from which it is missed."""
SETTINGS: Mapping[str, tuple[Value, Value]] = {
    "num_threads": (2, 1),
    "fuse_grad_size_in_MB": (25.0, 4.0),
    "last_comm_group_size_MB": (1.0, 4.0),
    "num_iteration_per_drop_scope": (1, 100),
    "batched_grad_copy": (False, True),
    "loader_num_workers": (1, 2),
    "loader_prefetch_factor": (2, 8),
    "nccl_comm_num": (1, 2),
    "broadcast_buffers": (True, False),
    "fuse_grad_size_in_TFLOPS": (50.0, 2.0),
    "find_unused_parameters": (True, False),
}
"""Knob -> the script's value and the other one."""
CASES: Mapping[str, tuple[tuple[float, ...], int]] = {
    "nothing among 4": ((), 4),
    "1 among 4": ((0.05,), 4),
    "1 among 8": ((0.05,), 8),
    "1 large among 8": ((1.0,), 8),
    "2 among 1": ((0.1, 0.04), 1),
    "2 among 4": ((0.1, 0.04), 4),
    "2 among 8": ((0.1, 0.04), 8),
    "3 among 4": ((0.15, 0.08, 0.04), 4),
    "3 among 8": ((0.15, 0.08, 0.04), 8),
}
"""Gains of the settings that matter, and how many others there are."""
_WEATHER = "usual"


class Settings(Surface):
    """Settings that multiply the rate by what each of them brings."""

    allow = Effect.EXACT
    facts = WorkloadFacts(
        backend="gloo", device=DeviceKind.CPU, world_size=4, local_world_size=2, nodes=2, gradient_bytes=0,
        parameter_tensors=60, layers=30, batch_size_per_rank=16, torch_version="2.13.0", python_version="3.11",
        dataloader={"num_workers": 1, "prefetch_factor": 2, "pin_memory": False, "persistent_workers": False},
    )  # fmt: skip
    cluster = Cluster(nodes=tuple(Node(hostname=f"n{i}", cpu_count=4, memory_bytes=2**33) for i in range(2)))
    calibration = None
    how = "simulated"

    def __init__(self, name: str, gains: Sequence[float], others: int, dice: random.Random) -> None:
        names = dice.sample([*SETTINGS], len(gains) + others)
        self.name = name
        self.gains = dict(zip(names, [*map(math.log1p, gains), *[0.0] * others], strict=True))
        self.grid = {name: SETTINGS[name] for name in SETTINGS if name in self.gains}
        self.baseline = {name: SETTINGS[name][0] for name in self.grid}
        self._sky = Sky(WEATHERS[_WEATHER], dice)

    def find(self, changes: Mapping[str, Value]) -> Cell:
        """Return the cell of these changes, whose truth is known."""
        truth = math.fsum(self.gains.get(name, 0.0) for name in changes)
        return Cell(self.key_of(changes), changes, Outcome.FINISHED, "", truth)

    @property
    def best(self) -> Cell:
        """The cell of all that matter."""
        return self.find({name: SETTINGS[name][1] for name, gain in self.gains.items() if gain})

    def launch(self, _dice: random.Random) -> Launch:
        """Return a launch under the job's one sky, which moved on while it started."""
        self._sky.advance(_STARTUP_S)
        return SimulatedLaunch(self._sky, lambda cell: _STEP_S * math.exp(-(cell.truth or 0.0)), _describe)


def _describe(_cell: Cell, times: Sequence[float], _dice: random.Random) -> BlockResult:
    part = 0.2 * _STEP_S
    phases = Phases(forward_s=part, backward_s=part, exposed_comm_s=part, data_wait_s=part, buffers_s=part)
    return BlockResult(
        steps=len(times), step_time_s=tuple(times), samples_per_step=_SAMPLES, samples=_SAMPLES * len(times),
        wall_s=sum(times), phases=phases, bucket_bytes=(2**20,) * 5,
    )  # fmt: skip


@dataclass(frozen=True)
class Told:
    """What one job said, beside the truth."""

    verdict: str
    needless: int
    """Settings advised that do nothing."""
    missing: int
    """Settings of a change that were not advised and bring 3 % or more."""
    covered: bool | None
    """The interval of the gain holds the truth; None where nothing was confirmed."""
    savings: tuple[bool, ...]
    """Whether each saving that is told for one setting holds the truth, against the true baseline's step."""
    seconds: float
    """Of simulated time."""


def carry(asked: tuple[str, int, float]) -> Told:
    """Carry one job to its end and hold what it says against the truth."""
    case, seed, minutes = asked
    gains, others = CASES[case]
    surface = Settings(case, gains, others, random.Random(f"{case} {seed}"))
    replay = Replay(
        surface, seed, max_trials=24, max_seconds=60.0 * minutes, measurement=Measurement(), startup_s=_STARTUP_S
    )  # fmt: skip
    advice = replay.run().settled
    seconds = (replay.now - START).total_seconds()
    if not isinstance(advice, Advice):
        return Told("failed", 0, 0, None, (), seconds)
    needless = sum(surface.gains.get(name) == 0.0 for name in advice.changes)
    missed = [
        n for n, gain in surface.gains.items() if n not in advice.changes and gain >= math.log1p(_TELLS)
    ]
    covered = None
    if advice.gain is not None:
        truth = surface.find(advice.changes or advice.candidate).truth or 0.0
        covered = math.log(advice.gain.low) <= truth <= math.log(advice.gain.high)
    whole = surface.find(advice.changes).truth or 0.0
    each_s = -_STEP_S * math.expm1(-whole) / whole if whole else 0.0
    told = [r for r in advice.reasons if r.effect is not None]
    shared = [r.effect for r in told]
    alone = [r for r in told if shared.count(r.effect) == 1 and r.effect is not None]
    savings = tuple(
        r.effect.low_s <= each_s * surface.gains[r.knob] * _STALLED <= r.effect.high_s
        for r in alone
        if r.effect
    )
    missing = len(missed) if advice.verdict.value == "change" else 0
    return Told(advice.verdict.value, needless, missing, covered, savings, seconds)


_STALLED = 1.02
"""Mean step over the quiet one: stalls in 2 % of the steps, one step long."""


def describe(case: str, told: Sequence[Told], before: Sequence[Told]) -> str:
    """One line of the table."""
    changes = [t for t in told if t.verdict == "change"]
    covered = [t.covered for t in told if t.covered is not None]
    savings = [held for t in told for held in t.savings]
    seconds = statistics.fmean(t.seconds for t in told)
    ratio = f"{seconds / statistics.fmean(t.seconds for t in before):.2f}" if before else "–"
    old = [t for t in before if t.verdict == "change"]
    return (
        f"| {case} | {len(told)} | {len(changes)} | {sum(t.needless == 0 for t in changes)} | "
        f"{sum(t.missing == 0 for t in changes)} | {sum(covered)}/{len(covered)} | {sum(savings)}/{len(savings)} | "
        f"{seconds:.0f} | {ratio} | {len(old)} | {sum(t.needless == 0 for t in old)} | "
        f"{sum(t.missing == 0 for t in old)} |"
    )


_HEADER = """| settings that matter among others | jobs | change | none needless | none missing | \
gain's interval holds | savings hold | seconds | over before | before: change | none needless | none missing |
|---|---|---|---|---|---|---|---|---|---|---|---|"""


def _add_up(told: Sequence[Told], before: Sequence[Told]) -> str:
    changes = [t for t in told if t.verdict == "change"]
    text = (
        f"None needless in {describe_share(sum(t.needless == 0 for t in changes), len(changes))} of changes, none "
        f"missing in {describe_share(sum(t.missing == 0 for t in changes), len(changes))}."
    )
    if before:
        ratio = sum(t.seconds for t in told) / sum(t.seconds for t in before)
        text += f" Seconds over those of the build before: {ratio:.2f}."
    return text


def main() -> None:
    """Carry the jobs and print what they told."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20, help="jobs of each case")
    parser.add_argument("--minutes", type=float, default=5.0, help="budget of a job")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="keep what each job told")
    parser.add_argument("--against", type=Path, help="what another build told")
    parser.add_argument("--out", type=Path, help="write a page")
    asked = parser.parse_args()
    cases = [case for case in CASES if asked.only in case]
    before: dict[str, list[Told]] = {}
    if asked.against:
        for case, rows in json.loads(asked.against.read_text()).items():
            before[case] = [Told(**{**row, "savings": tuple(row["savings"])}) for row in rows][: asked.rounds]
    told: dict[str, list[Told]] = {}
    lines = [_HEADER]
    print(_HEADER, flush=True)
    with ProcessPoolExecutor(asked.processes) as pool:
        for case in cases:
            told[case] = [*pool.map(carry, [(case, seed, asked.minutes) for seed in range(asked.rounds)])]
            lines.append(describe(case, told[case], before.get(case, [])))
            print(lines[-1], flush=True)
    both = [t for case in cases for t in told[case]], [t for case in cases for t in before.get(case, [])]
    lines += ["", _add_up(*both)]
    print("\n" + lines[-1])
    if asked.json:
        asked.json.write_text(json.dumps({case: [asdict(t) for t in found] for case, found in told.items()}))
    if asked.out:
        words = " ".join(sys.argv[1:])
        asked.out.write_text(
            f"{_PAGE}\n    python benchmarks/needless_settings.py {words}\n\n" + "\n".join(lines) + "\n"
        )


_PAGE = """# Does an advice hold what helps, and nothing else?
"""


if __name__ == "__main__":
    main()
