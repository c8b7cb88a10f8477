"""How far the cost model is off on strategies, links and cluster sizes that it was not calibrated with.

    python benchmarks/cost_model_error.py [--seeds 20] [--strategies 8] [--surfaces PATH …] [--output docs/results/…]

For every surface: calibrate with the probe (three blocks of the baseline) and a few strategies drawn at random, predict
all others. Beside it the same for a regression without physics and for the baseline's step time; then the other link
speed of the same workload, and larger clusters against linear scaling and a Pollux-style model. No root, no GPU.
"""

import argparse
import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from cost_model_rivals import Pollux, Regression
from forecast_errors import Forecasts, join, mean_error
from recorded_surface import RecordedSurface
from sessions import ROOT
from simulated_surfaces import SimulatedSurface, list_simulated
from step_simulator import simulate_step
from surface_model import Cell, Repeat, Surface
from surfaces import load_surface

sys.path.insert(0, str(ROOT))

from advisor.protocol.base import Value
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.knob import KnobContext
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import Block, BlockPlan, BlockState
from advisor.tuning.measure.statistics import summarise_block
from advisor.tuning.model.cost_model import CostModel, TimedStrategy, calibrate
from advisor.tuning.model.map_fit import band_of
from advisor.tuning.model.step_model import read_probe

Values = Mapping[str, Value]
_TESTED = 150
"""Strategies of a simulated surface that are predicted."""
_STEPS = 40
_LINKS = (
    "A truth there is a strategy's throughput against its neighbouring baseline blocks, times the step of the calm "
    "ones (the quicker half of forward passes). Other work slowed the second half of decoder-300mbit, from 5.5 to 13 "
    "ms of forward, which no link explains: its strategies of two threads are slow there for that reason, too."
)
_OUTPUT = ROOT / "docs" / "results" / "cost_model_error.md"


@dataclass(frozen=True)
class Case:
    """A calibrated model, what it was calibrated with, and the strategies that it has not seen."""

    model: CostModel
    seen: tuple[TimedStrategy, ...]
    unseen: tuple[tuple[Values, float], ...]
    """Strategy and true step time in seconds."""

    def forecast(self, there: CostModel, strategies: Sequence[Values], actual: Sequence[float]) -> Forecasts:
        """Predict what `there`, the model or one moved from it, says as `advisor predict` does: by its ratios."""
        scale = self.model.model.probe.step_s / self.model.predict_baseline_s()
        predicted = [scale * step_s for step_s in there.predict_many(strategies)]
        bands = [band_of(doubt) for doubt in there.find_doubts(strategies, self.model)]
        return Forecasts(predicted, bands, list(actual))


def context_of(surface: Surface) -> KnobContext:
    """What the search would know of the surface."""
    own = surface.standing
    return KnobContext(facts=surface.facts, cluster=surface.cluster, baseline=own, catalogue=CATALOGUE)


def values_of(surface: Surface, changes: Values) -> Values:
    """A whole strategy."""
    return {**surface.standing, **changes}


def make_block(result: BlockResult, changes: Values) -> Block:
    """A measured block, as the history would hold it."""
    plan = BlockPlan(block_id="b", trial_number=0, overrides=dict(changes))
    return Block(
        id="b", session_id="s", trial_number=0, ordinal=0, race=1, state=BlockState.DONE, plan=plan, result=result,
        summary=summarise_block(result), issued_at=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip


def step_s_of(block: Block) -> float:
    """The block's step time in seconds."""
    if block.summary is None:
        raise ValueError("the block has no summary")
    return math.exp(block.summary.log_step_time)


def build_case(surface: Surface, count: int, seed: int) -> Case | None:
    """Calibrate with `count` random strategies; None where the surface tells too little for a model."""
    dice = random.Random(f"{surface.name} {seed}")
    if isinstance(surface, RecordedSurface):
        return _recorded_case(surface, count, dice)
    assert isinstance(surface, SimulatedSurface)
    return _simulated_case(surface, count, dice)


def base_step_s(surface: RecordedSurface) -> float:
    """Step time of the baseline, as a search reads it of blocks that other work did not slow."""
    base = next(cell for cell in surface.cells.values() if not cell.changes)
    found = read_probe([make_block(repeat.result, {}) for repeat in base.repeats], has_loader=False)
    assert found is not None
    return found.step_s


def _neighbour(base: Cell, repeat: Repeat) -> Repeat:
    """The baseline's block nearest to a strategy's: a race measures both."""
    session, order = repeat.place
    return min(base.repeats, key=lambda r: (r.place[0] != session, abs(r.place[1] - order)))


def list_cells(surface: RecordedSurface) -> list[Cell]:
    """Measured strategies other than the baseline."""
    return [cell for cell in surface.cells.values() if cell.changes and cell.truth is not None]


def truth_error(surface: RecordedSurface, cell: Cell) -> float:
    """Standard error of a cell's truth: the median of its repeats, against neighbours that vary, too."""
    return 1.25 * surface.run_noise * math.sqrt(1.5 / max(1, len(cell.repeats)))


def _recorded_case(surface: RecordedSurface, count: int, dice: random.Random) -> Case | None:
    cells = list_cells(surface)
    seen = dice.sample(cells, min(count, len(cells) // 2))
    base = next(cell for cell in surface.cells.values() if not cell.changes)
    blocks = [make_block(repeat.result, {}) for repeat in base.repeats[:1]]
    blocks += [make_block(_neighbour(base, cell.repeats[0]).result, {}) for cell in seen]
    if surface.calibration is not None and blocks[0].result:
        calibrated = replace(blocks[0].result, calibration=surface.calibration)
        blocks.append(make_block(calibrated, {}))
    blocks += [make_block(cell.repeats[0].result, cell.changes) for cell in seen]
    probe = read_probe(blocks, has_loader=False)
    assert probe is not None
    base_s = probe.step_s
    observations = tuple(
        TimedStrategy(
            values_of(surface, cell.changes),
            base_s * math.exp(-(cell.truth or 0.0)),
            truth_error(surface, cell),
        )
        for cell in seen
    )
    model = calibrate(context_of(surface), blocks, observations)
    unseen = tuple(
        (values_of(surface, cell.changes), base_s * math.exp(-(cell.truth or 0.0)))
        for cell in cells
        if cell not in seen
    )
    return None if model is None else Case(model, observations, unseen)


def _simulated_case(surface: SimulatedSurface, count: int, dice: random.Random) -> Case | None:
    def measure(cell: Cell) -> BlockResult:
        return surface.draw(cell, _STEPS, dice)

    baseline = surface.find({})
    first, second = measure(baseline), measure(baseline)
    blocks = [
        make_block(first, {}),
        make_block(replace(second, calibration=surface.calibration), {}),
    ]
    cells: list[Cell] = []
    while len(cells) < count + _TESTED:
        places = {knob: dice.randrange(len(values)) for knob, values in surface.grid.items()}
        cell = surface.find(surface.changes_at(places))
        if cell.truth is not None:
            cells.append(cell)
    measured = [make_block(measure(cell), cell.changes) for cell in cells[:count]]
    observations = tuple(
        TimedStrategy(values_of(surface, cell.changes), step_s_of(block), 0.03)
        for cell, block in zip(cells, measured, strict=False)
    )
    model = calibrate(context_of(surface), [*blocks, *measured], observations)
    unseen = tuple(
        (values_of(surface, cell.changes), surface.baseline_step_s * math.exp(-(cell.truth or 0.0)))
        for cell in cells[count:]
    )
    return None if model is None else Case(model, observations, unseen)


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(f"{cell:.1%}" if isinstance(cell, float) else str(cell) for cell in cells) + " |"


def table_of_strategies(surfaces: Sequence[Surface], counts: Sequence[int], seeds: int) -> list[str]:
    """Unseen strategies of each surface: our error, the regression's, the baseline's step time for all."""
    lines = [
        "| surface | calibrated with | mean error | worst draw | band | truths within | rank correlation "
        "| regression without physics | every strategy as the baseline | error of the recording itself |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for surface in surfaces:
        for count in counts:
            found = [case for seed in range(seeds) if (case := build_case(surface, count, seed))]
            if not found:
                lines.append(f"| {surface.name} | no model: the surface has no phases or no gradient bytes |")
                continue
            told, plain, constant = [], [], []
            for case in found:
                actual = [second for _, second in case.unseen]
                told.append(case.forecast(case.model, [values for values, _ in case.unseen], actual))
                baseline = surface.standing
                base_s = case.model.model.probe.step_s
                regression = Regression(baseline, base_s, case.seen)
                plain.append(mean_error([regression.predict(values) for values, _ in case.unseen], actual))
                constant.append(mean_error([base_s] * len(actual), actual))
            noise: object = "–"
            if isinstance(surface, RecordedSurface):
                cells = list_cells(surface)
                noise = 0.8 * fmean(truth_error(surface, cell) for cell in cells)
            what = f"probe + {len(found[0].seen)}"
            row = [surface.name, what, fmean(f.error for f in told), max(f.error for f in told)]
            row += [*join(told).list_band(), f"{fmean(f.rank for f in told):.2f}"]
            lines.append(_row([*row, fmean(plain), fmean(constant), noise]))
            print(lines[-1], flush=True)
    return lines


def table_of_links(surfaces: Sequence[RecordedSurface], count: int, seeds: int) -> list[str]:
    """The same workload over links of another rate: calibrated here, predicted there."""
    lines = [
        "| calibrated on | predicted for | mean error of step time | its mean with the sign | band | truths within "
        "| rank correlation | with the step times of here |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for here in surfaces:
        for there in surfaces:
            rates = [s.cluster.nodes[0].testbed for s in (here, there)]
            same = here.name.rpartition("-")[0] == there.name.rpartition("-")[0]
            if here is there or not same or rates[0] is None or rates[1] is None:
                continue
            base_s, own_s = base_step_s(there), base_step_s(here)
            cells = list_cells(there)
            actual = [base_s * math.exp(-(cell.truth or 0.0)) for cell in cells]
            stays = [own_s * math.exp(-(here.find(cell.changes).truth or 0.0)) for cell in cells]
            told: list[Forecasts] = []
            for seed in range(seeds):
                case = build_case(here, count, seed)
                if case is None:
                    continue
                moved = case.model.on(bits_per_s=rates[1].bits_per_s)
                strategies = [values_of(there, cell.changes) for cell in cells]
                told.append(case.forecast(moved, strategies, actual))
            if told:
                row = [here.name, there.name, join(told).error, f"{join(told).bias:+.1%}"]
                row += [
                    *join(told).list_band(),
                    f"{fmean(f.rank for f in told):.2f}",
                    mean_error(stays, actual),
                ]
                lines.append(_row(row))
                print(lines[-1], flush=True)
    return lines


def table_of_sizes(surfaces: Sequence[SimulatedSurface], count: int, seeds: int) -> list[str]:
    """Larger clusters: calibrated on one size, predicted for others; rivals know the step times of several sizes."""
    lines = [
        "| surface | nodes measured | nodes predicted | cost model | band | truths within "
        "| cost model, told the measured size's step times | linear scaling, told the same "
        "| Pollux-style, told several sizes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for surface in surfaces:
        nodes = surface.machine.nodes
        if nodes < 2:
            continue
        for factor in (2, 4, 8):
            told: list[Forecasts] = []
            scaled, linear, pollux = [], [], []
            for seed in range(seeds):
                case = build_case(surface, count, seed)
                if case is None:
                    continue
                moved = case.model.on(nodes=nodes * factor)
                strategies = [surface.standing, *(values for values, _ in case.unseen[:20])]
                actual = [_step_s(surface, nodes * factor, values) for values in strategies]
                known = [_step_s(surface, nodes, v) for v in strategies]
                here, there = case.model.predict_many(strategies), moved.predict_many(strategies)
                told.append(case.forecast(moved, strategies, actual))
                scaled.append(
                    mean_error([k * t / h for k, t, h in zip(known, there, here, strict=True)], actual)
                )
                linear.append(mean_error(known, actual))
                if seed == 0:
                    rivals = [_pollux(surface, values, nodes * factor) for values in strategies]
                    pollux.append(mean_error(rivals, actual))
            if told:
                row = [surface.name, nodes, nodes * factor, join(told).error, *join(told).list_band()]
                row += [fmean(errors) for errors in (scaled, linear, pollux)]
                lines.append(_row(row))
                print(lines[-1], flush=True)
    return lines


def _step_s(surface: SimulatedSurface, nodes: int, values: Values) -> float:
    return simulate_step(replace(surface.machine, nodes=nodes), surface.training, values).total_s


def _pollux(surface: SimulatedSurface, values: Values, nodes: int) -> float:
    local, own = surface.machine.ranks_per_node, surface.machine.nodes
    alone = simulate_step(
        replace(surface.machine, nodes=1, ranks_per_node=1), surface.training, values
    ).total_s
    sizes = sorted({1, max(2, own // 2), own})
    points = [(1, local, alone)] if local == 1 else [(1, 1, alone)]
    points += [(n, n * local, _step_s(surface, n, values)) for n in sizes if n * local > 1]
    return Pollux(points).predict(nodes, nodes * local)


def main() -> None:
    """Print the tables and write them where `--output` says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seeds", type=int, default=20, help="draws of calibrating strategies (default: %(default)s)"
    )
    parser.add_argument(
        "--strategies", type=int, default=8, help="strategies beside the probe (default: %(default)s)"
    )
    parser.add_argument(
        "--surfaces", nargs="*", type=Path, help="recorded surfaces (default: benchmarks/surfaces)"
    )
    parser.add_argument("--output", type=Path, default=_OUTPUT, help="markdown file (default: %(default)s)")
    arguments = parser.parse_args()
    paths = arguments.surfaces or sorted((ROOT / "benchmarks" / "surfaces").glob("*.json"))
    recorded = [load_surface(path) for path in paths]
    simulated = list_simulated()
    counts = (arguments.strategies, 3 * arguments.strategies)
    parts = [
        "# How far the cost model is off",
        "",
        f"`{' '.join(['python benchmarks/cost_model_error.py', *sys.argv[1:]])}`",
        "",
        "Errors are of predicted step times. The recording's own error is the mean error of a truth that is the "
        "median of a few noisy blocks: no model can be seen to be better than that. Bands are those of a forecast, "
        "meant to hold nine of ten truths: their mean width, and how many hold them.",
        "",
        "## Recorded surfaces: strategies not used for the calibration",
        "",
        *table_of_strategies(recorded, counts[:1], arguments.seeds),
        "",
        "## Recorded surfaces: another link speed",
        "",
        _LINKS,
        "",
        *table_of_links(recorded, arguments.strategies, max(3, arguments.seeds // 4)),
        "",
        "## Simulated multi-node surfaces: strategies not used for the calibration",
        "",
        *table_of_strategies(simulated, counts, max(3, arguments.seeds // 4)),
        "",
        "## Simulated multi-node surfaces: larger clusters",
        "",
        "Linear scaling is told each strategy's true step time on the measured size, and Pollux's formula is fitted to "
        "each strategy's true step times on one rank, one node, half and all of the measured nodes. The cost model saw "
        "the measured size only, and of most of these strategies nothing. Pollux's T_sync grows with every rank for "
        "ever, where a ring's bytes do not: hence its errors far out.",
        "",
        *table_of_sizes(simulated, arguments.strategies, max(3, arguments.seeds // 4)),
        "",
    ]
    arguments.output.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
