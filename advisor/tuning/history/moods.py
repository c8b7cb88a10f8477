"""The moods of a job's baseline: when it was slow and when fast, launch by launch and cycle by cycle."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from advisor.protocol.measured.estimates import rate_of
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import Block
from advisor.tuning.measure.moods import Pace, Stretch, cut_stretches, find_border

_PACE_S = 0.5
"""Seconds of a race at least whose rate is one pace: shorter ones are mostly noise."""
_MOST_PACES = 100
"""Paces of a block."""
_CHUNK_STEPS = 5
"""Steps that stand for a cycle in a block that was measured alone."""

Cycle = tuple[str, int]
"""A block's id, and a cycle's place in it: of five steps, in a block that was measured alone."""


@dataclass(frozen=True)
class Spell:
    """A stretch of a launch in which a strategy kept one level."""

    launch: str
    """Session's id."""
    stretch: Stretch
    cycles: tuple[Cycle, ...]
    """What it is made of, in order."""

    def is_slow(self, border: float | None) -> bool:
        """Whether it lies below the border, which is None where all are of one mood."""
        return border is not None and self.stretch.level < border


def list_spells(blocks: Sequence[Block], races: Mapping[int, Sequence[Block]]) -> tuple[Spell, ...]:
    """Return the spells of one strategy's blocks, launch by launch; `races` are the usable arms of every race."""
    launches: dict[str, list[Block]] = {}
    for block in blocks:
        if block.result is not None and block.result.step_time_s and rate_of(block) > 0.0:
            launches.setdefault(block.session_id, []).append(block)
    found = []
    for launch, mine in launches.items():
        paces: list[Pace] = []
        cycles: list[tuple[tuple[str, int], ...]] = []
        for block in mine:
            for pace, places in _list_paces(block, races.get(block.race, ())):
                paces.append(pace)
                cycles.append(tuple((block.id, place) for place in places))
        for stretch in cut_stretches(paces):
            held = cycles[stretch.first : stretch.first + stretch.count]
            found.append(Spell(launch, stretch, tuple(cycle for places in held for cycle in places)))
    return tuple(found)


def find_mood_border(spells: Sequence[Spell]) -> float | None:
    """Return the ln(rate) that parts the slow spells from the fast ones; None where all are of one mood."""
    return find_border([spell.stretch for spell in spells])


def cut_cycles(result: BlockResult) -> tuple[int, ...]:
    """Return the steps of each cycle; of a block that was measured alone those of pieces of five steps."""
    steps = len(result.step_time_s)
    if result.segments and sum(result.segments) == steps:
        return tuple(result.segments)
    return (*[_CHUNK_STEPS] * (steps // _CHUNK_STEPS), *filter(None, [steps % _CHUNK_STEPS]))


def keep_cycles(result: BlockResult, kept: Sequence[bool]) -> BlockResult:
    """Return the result as if only these cycles had been timed; cycles beyond the list are left out."""
    sizes = cut_cycles(result)
    wanted = [place < len(kept) and kept[place] for place in range(len(sizes))]
    steps = np.repeat(wanted, sizes)
    return replace(
        result,
        step_time_s=tuple(np.array(result.step_time_s)[steps].tolist()),
        step_samples=tuple(np.array(result.step_samples)[steps].tolist()) if result.step_samples else (),
        segments=tuple(size if keep else 0 for size, keep in zip(sizes, wanted, strict=True)),
    )


def _list_paces(block: Block, arms: Sequence[Block]) -> list[tuple[Pace, tuple[int, ...]]]:
    """A block's paces in order, each with the cycles that it is made of."""
    seconds, samples = _sum_cycles(block)
    wall = seconds.copy()
    for arm in arms:
        if arm.id != block.id and arm.session_id == block.session_id and arm.result and arm.result.segments:
            theirs = _sum_cycles(arm)[0][: len(wall)]
            wall[: len(theirs)] += theirs
    least_s = max(_PACE_S, float(wall.sum()) / _MOST_PACES)
    ends, held = [0], 0.0
    for place, cycle_s in enumerate(wall):
        held += float(cycle_s)
        if held >= least_s:
            ends.append(place + 1)
            held = 0.0
    if ends[-1] < len(wall):
        ends = [*ends[:-1], len(wall)] if len(ends) > 1 else [0, len(wall)]
    found = []
    for first, end in pairwise(ends):
        own_s = float(seconds[first:end].sum())
        if own_s > 0.0:
            rate = float(samples[first:end].sum()) / own_s
            pace = Pace(float(wall[first:end].sum()), math.log(max(rate, 1e-12)))
            found.append((pace, tuple(range(first, end))))
    return found


def _sum_cycles(block: Block) -> tuple[np.ndarray, np.ndarray]:
    """Seconds and samples of every cycle."""
    result = block.result
    if result is None:
        return np.zeros(0), np.zeros(0)
    sizes = np.array(cut_cycles(result), dtype=np.int64)
    ends = np.cumsum(sizes)
    per_step = np.array(result.step_samples or [result.samples_per_step] * len(result.step_time_s))
    sums = [np.append(0.0, np.cumsum(values)) for values in (np.array(result.step_time_s), per_step)]
    seconds, samples = (total[ends] - total[ends - sizes] for total in sums)
    return seconds, samples


def mean_rate_over(spells: Sequence[Spell]) -> float:
    """Return the samples per second over all of these spells' time; one at least."""
    seconds = math.fsum(spell.stretch.seconds for spell in spells)
    return math.fsum(s.stretch.seconds * math.exp(s.stretch.log_rate) for s in spells) / seconds
