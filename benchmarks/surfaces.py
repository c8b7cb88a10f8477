"""Reads, checks and describes surface files.

    python benchmarks/surfaces.py [FILE …]

Without arguments: those of benchmarks/surfaces. benchmarks/README.md documents the format and what is made of it.
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from pydantic import ValidationError
from recorded_surface import RecordedSurface, fit_truths
from surface_model import ROOT, Cell, Key, Repeat

from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.changes import Changes, period_of
from advisor.protocol.measured.results import BlockResult, Calibration, Phases
from advisor.protocol.measured.trials import Outcome
from advisor.protocol.nodes.cluster import Cluster, DeviceKind, Node
from advisor.protocol.reading import read_document
from advisor.protocol.training.workload import WorkloadFacts
from agent.runtime.races.verdicts import cap_steps

FOLDER = ROOT / "benchmarks" / "surfaces"
_FACTS: Mapping[str, Any] = {
    "backend": "gloo", "device": DeviceKind.CPU, "world_size": 2, "nodes": 2, "gradient_bytes": 0,
    "parameter_tensors": 60, "layers": 30, "batch_size_per_rank": 16, "torch_version": "2.13.0",
}  # fmt: skip


class SurfaceError(ValueError):
    """A surface file is wrong; the sentence names the file, the field and the remedy."""


def load_surface(path: Path) -> RecordedSurface:
    """Read and check a surface file; raises SurfaceError with the file, the field and what to do."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SurfaceError(f"{path}: cannot be read as JSON ({error})") from error
    try:
        return read_surface(data, path.stem)
    except SurfaceError as error:
        raise SurfaceError(f"{path}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise SurfaceError(
            f"{path}: {error.title} {where}: {first['msg']} (benchmarks/README.md lists the fields)"
        ) from error


def read_surface(data: Mapping[str, Any], name: str = "surface") -> RecordedSurface:
    """Return the surface that a file's contents describe; raises SurfaceError."""
    if not isinstance(data, Mapping):
        raise SurfaceError("it holds no object: benchmarks/README.md has an example")
    for required in ("knobs", "baseline", "cells"):
        if not data.get(required):
            raise SurfaceError(f"{required} is missing or empty: benchmarks/README.md has an example")
    grid, baseline = _read_grid(data["knobs"], data["baseline"])
    facts = _read_facts(data.get("facts") or {})
    bare = RecordedSurface(
        name=str(data.get("name") or name),
        how=str(data.get("how") or ""),
        allow=Effect(data["allow"]) if data.get("allow") else CATALOGUE.effect_of(dict.fromkeys(grid, True)),
        grid=grid,
        baseline=baseline,
        facts=facts,
        cluster=_read_cluster(data.get("cluster"), facts),
        calibration=read_document(Calibration, json.dumps(data["calibration"]))
        if data.get("calibration")
        else None,
    )
    blocks = [
        (place, number, _read_block(block, cell, f"cells[{place}].blocks[{number}]"), block)
        for place, cell in enumerate(data["cells"])
        for number, block in enumerate(cell.get("blocks") or ())
    ]
    anchors = sorted(
        (int(raw.get("session", 0)), int(raw["order"]), rate_of(result))
        for place, _, result, raw in blocks
        if not data["cells"][place].get("changes") and "order" in raw
    )
    cells = _read_cells(bare, data["cells"], blocks, anchors)
    if not any(not cell.changes and cell.repeats for cell in cells.values()):
        raise SurfaceError('cells has no measured baseline: add the cell with "changes": {}')
    centre = median(rate for _, _, rate in anchors) if anchors else 0.0
    levels = tuple((session, order, rate - centre) for session, order, rate in anchors)
    return fit_truths(replace(bare, cells=cells, levels=levels))


def _read_grid(
    knobs: Mapping[str, Sequence[Any]], observed: Mapping[str, Any]
) -> tuple[dict[str, tuple[Value, ...]], dict[str, Value]]:
    baseline: dict[str, Value] = {}
    for name, value in observed.items():
        if name in CATALOGUE:
            baseline[name] = _parse(name, value, "baseline", clip=True)
    grid: dict[str, tuple[Value, ...]] = {}
    for name, values in knobs.items():
        if name not in CATALOGUE:
            raise SurfaceError(f"knobs.{name}: no such knob; docs/knobs.md lists them")
        if name not in baseline:
            raise SurfaceError(f"baseline.{name} is missing: say which value the script as it stands has")
        parsed = {_parse(name, value, "knobs") for value in values} | {baseline[name]}
        ordered = CATALOGUE[name].kind in (int, float)
        grid[name] = tuple(sorted(parsed)) if ordered else tuple(sorted(parsed, key=str))
    return grid, baseline


def _parse(name: str, value: Any, where: str, clip: bool = False) -> Value:
    knob = CATALOGUE[name]
    if clip and isinstance(value, int | float) and not isinstance(value, bool):
        value = max(value, knob.low) if knob.low is not None else value
        value = min(value, knob.high) if knob.high is not None else value
    try:
        return knob.parse(value)
    except ValueError as error:
        raise SurfaceError(f"{where}.{name}: {error}") from error


def _read_facts(given: Mapping[str, Any]) -> WorkloadFacts:
    values = {**_FACTS, **given}
    values.setdefault("local_world_size", max(1, int(values["world_size"]) // max(1, int(values["nodes"]))))
    return WorkloadFacts.model_validate(values)


def _read_cluster(given: Any, facts: WorkloadFacts) -> Cluster:
    if given:
        return Cluster.model_validate(given)
    node = Node(hostname="node", cpu_count=max(2, facts.local_world_size), memory_bytes=2**34)
    return Cluster(nodes=(node,) * facts.nodes)


def _read_block(block: Mapping[str, Any], cell: Mapping[str, Any], where: str) -> BlockResult:
    given = block.get("step_time_s")
    times = [given] if isinstance(given, int | float) else given
    if not times or not all(isinstance(t, int | float) and 0 < t < math.inf for t in times):
        raise SurfaceError(f"{where}.step_time_s is {given!r}: give seconds per step, all above 0")
    samples = float(block.get("samples_per_step") or 1.0)
    losses = tuple(block.get("losses") or ())
    changes = cell.get("changes") or {}
    return BlockResult(
        steps=len(times),
        period=int(block.get("period") or period_of(changes)),
        step_time_s=tuple(float(t) for t in times),
        samples_per_step=samples,
        samples=samples * len(times),
        wall_s=float(sum(times)),
        phases=Phases(**block.get("phases") or {}),
        bucket_bytes=tuple(block.get("bucket_bytes") or ()),
        peak_memory_bytes=int(block.get("peak_memory_bytes") or 0),
        losses=losses,
        consumed=dict.fromkeys(changes, "recorded"),
    )


def rate_of(result: BlockResult) -> float:
    """Return ln(samples per second), from the mean over its periods, capped as the score of a race caps them.

    Truth and score are then of one estimator.
    """
    period, times = max(1, result.period), result.step_time_s
    whole = len(times) - len(times) % period
    periods = [fmean(times[i : i + period]) for i in range(0, whole, period)] or [fmean(times)]
    return math.log(result.samples_per_step) - math.log(fmean(cap_steps(periods)))


def _read_cells(
    surface: RecordedSurface,
    given: Sequence[Mapping[str, Any]],
    blocks: Sequence[tuple[int, int, BlockResult, Mapping[str, Any]]],
    anchors: Sequence[tuple[int, int, float]],
) -> dict[Key, Cell]:
    baseline_rates = [rate_of(result) for place, _, result, _ in blocks if not given[place].get("changes")]
    middle = median(baseline_rates) if baseline_rates else 0.0
    cells: dict[Key, Cell] = {}
    for place, raw in enumerate(given):
        if "changes" not in raw:
            raise SurfaceError(f"cells[{place}].changes is missing: the baseline's cell has an empty one")
        for name in raw["changes"]:
            if name not in CATALOGUE:
                raise SurfaceError(f"cells[{place}].changes.{name}: no such knob; docs/knobs.md lists them")
        changes = {
            name: _parse(name, value, f"cells[{place}].changes") for name, value in raw["changes"].items()
        }
        for name, value in changes.items():
            if name in surface.grid and value not in surface.grid[name]:
                raise SurfaceError(
                    f"cells[{place}].changes.{name} is {value!r}, which is not among knobs.{name}"
                )
        outcome = Outcome(raw.get("outcome") or "finished")
        repeats = tuple(
            _compare(result, block, anchors, middle) for at, _, result, block in blocks if at == place
        )
        failed = outcome is not Outcome.FINISHED
        if not repeats and not failed:
            raise SurfaceError(
                f"cells[{place}].blocks is empty: measure it, leave the cell out, or give its outcome"
            )
        key = surface.key_of(changes)
        if (known := cells.get(key)) is not None:
            if known.outcome is not outcome:
                raise SurfaceError(
                    f"cells[{place}] is the same strategy as an earlier cell, with another outcome"
                )
            repeats = (*known.repeats, *repeats)
        truth = None if failed else median(r.deviation for r in repeats) if changes else 0.0
        reason = str(raw.get("reason") or f"It ended as {outcome.value} when it was recorded.")
        cells[key] = Cell(key, changes if known is None else known.changes, outcome, reason, truth, repeats)
    return cells


def _compare(
    result: BlockResult, block: Mapping[str, Any], anchors: Sequence[tuple[int, int, float]], middle: float
) -> Repeat:
    rate = rate_of(result)
    place = int(block.get("session", 0)), int(block.get("order", 0))
    if "anchor_log_ratio" in block:
        return Repeat(
            result, rate, float(block["anchor_log_ratio"]), anchors=int(block.get("anchors", 2)), place=place
        )
    if "order" in block:
        session, order = place
        before = [level for s, o, level in anchors if s == session and o < order][-1:]
        after = [level for s, o, level in anchors if s == session and o > order][:1]
        if before or after:
            near = [*before, *after]
            return Repeat(result, rate, rate - fmean(near), anchors=len(near), place=place)
    return Repeat(result, rate, rate - middle, anchors=0, place=place)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path)
    arguments = parser.parse_args()
    for path in arguments.files or sorted(FOLDER.glob("*.json")):
        try:
            surface = load_surface(path)
        except SurfaceError as error:
            raise SystemExit(str(error)) from error
        total = math.prod(len(values) for values in surface.grid.values())
        ranked = sorted(
            (c for c in surface.cells.values() if c.truth is not None), key=lambda c: -(c.truth or 0.0)
        )
        print(surface.describe())
        print(
            f"  {len(surface.cells)} cells of a grid of {total} (idle knobs make some of them one), "
            f"{len(surface.cells) - len(ranked)} failed; block noise {surface.run_noise:.2%}, "
            f"a race's luck {surface.race_noise:.2%}, {len(surface.levels)} anchors"
        )
        for cell in ranked[:5]:
            print(f"    {math.expm1(cell.truth or 0.0):+7.2%}  {Changes(cell.changes).describe()}")


if __name__ == "__main__":
    main()
