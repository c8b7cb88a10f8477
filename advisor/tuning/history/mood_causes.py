"""The baseline's moods as they are told: their rates and times, what makes the slow one, and what ends it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from advisor.protocol.answers.moods import Mood, MoodCause, Moods, MoodSpan
from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import BlockResult, Phases
from advisor.protocol.measured.trials import Block
from advisor.protocol.training.crowd import find_crowd, spell_threads
from advisor.tuning.history.moods import (
    Cycle,
    Spell,
    cut_cycles,
    find_mood_border,
    keep_cycles,
    mean_rate_over,
)
from advisor.tuning.history.record import Record
from advisor.tuning.measure.phases import pool_phases

_MOST_OF = 0.6
"""Share of what the slow mood takes longer from which on one part of the step is named for it."""
_TAKEN = 0.15
"""Share of a node's processors that others take more of in the slow mood, from which on the mood is theirs."""
_LEAST_STEPS = 10
"""Steps of a race in a mood from which its rate in it is told, and shows whether another arm was slow with it."""
_NEARLY_ALL = 0.8
"""Share of a race in one mood from which its account of a step is that mood's."""
_MOST_SLOW = 0.1
"""Share of the races with a setting that may be slow all the same: neighbours hit anybody for a moment."""
_SLOW_WITHOUT = 0.5
"""Share of the strategies without a setting that are slow with the baseline where the setting is what ends the mood."""
_LUCK = 0.1
"""Chance of a remedy's luck from which on it is not told."""


@dataclass(frozen=True)
class _Part:
    """A race of the baseline, as far as it was in one mood."""

    block: Block
    kept: tuple[bool, ...]
    """Of each cycle."""
    result: BlockResult
    """Of those cycles."""

    @property
    def is_nearly_all(self) -> bool:
        return sum(self.kept) >= _NEARLY_ALL * len(self.kept)


@dataclass(frozen=True)
class _Remedy:
    """A setting with which races are not slow."""

    name: str
    value: Value
    races: int
    """Races with it."""
    slow: int
    """Those in which it was slow."""
    luck: float
    """Chance that all those beside the slow baseline are fast where it changes nothing."""


def ends_slow_mood(record: Record, changes: Mapping[str, Value]) -> bool:
    """Whether a strategy holds the setting that races show to end the baseline's slow mood."""
    parted = _part_moods(record)
    remedy = _find_remedy(record, parted.parts, parted.border) if parted else None
    return remedy is not None and changes.get(remedy.name) == remedy.value


def find_calming(record: Record) -> tuple[str, Value] | None:
    """Return the setting that ends the slow mood, as races show or as is likely; None where none is known."""
    parted = _part_moods(record)
    if parted is None:
        return None
    if (remedy := _find_remedy(record, parted.parts, parted.border)) is not None:
        return remedy.name, remedy.value
    crowd = find_crowd(record.job.facts, record.job.cluster)
    return ("num_threads", crowd.fewer) if crowd else None


def find_moods(record: Record) -> Moods | None:
    """Return the baseline's moods with their cause and remedy, without gains; None where it has one."""
    parted = _part_moods(record)
    if parted is None:
        return None
    border, spells, (slow_parts, fast_parts) = parted.border, parted.spells, parted.parts
    slow, fast = _tell(record, spells[0], slow_parts), _tell(record, spells[1], fast_parts)
    remedy = _find_remedy(record, (slow_parts, fast_parts), border)
    remedy = remedy if remedy and remedy.luck <= _LUCK else None
    cause, told = _find_cause(record, (slow_parts, fast_parts), (slow, fast), remedy)
    crowd = find_crowd(record.job.facts, record.job.cluster)
    likely = crowd.remedy if crowd and cause is MoodCause.THREADS else ""
    return Moods(
        slow=slow,
        fast=fast,
        rate_unit=record.job.rate_unit,
        is_within_launch=bool({s.launch for s in spells[0]} & {s.launch for s in spells[1]}),
        cause=cause,
        cause_told=told,
        remedy=_spell(record, remedy.name, remedy.value) if remedy else likely,
        remedy_races=remedy.races if remedy else 0,
        remedy_slow=remedy.slow if remedy else 0,
    )


@dataclass(frozen=True)
class _Parted:
    """The baseline's spells and races, slow ones first."""

    border: float
    spells: tuple[Sequence[Spell], Sequence[Spell]]
    parts: tuple[Sequence[_Part], Sequence[_Part]]


def _part_moods(record: Record) -> _Parted | None:
    border = find_mood_border(record.spells)
    if border is None:
        return None
    slow, fast = ([s for s in record.spells if s.is_slow(border) == is_slow] for is_slow in (True, False))
    parts = _list_parts(record, slow), _list_parts(record, fast)
    return _Parted(border, (slow, fast), parts) if all(parts) else None


def _list_parts(record: Record, spells: Sequence[Spell]) -> list[_Part]:
    cycles = {cycle for spell in spells for cycle in spell.cycles}
    parts = []
    for block in record.baseline_blocks:
        if block.result is None:
            continue
        kept = tuple((block.id, place) in cycles for place in range(len(cut_cycles(block.result))))
        part = _Part(block, kept, keep_cycles(block.result, kept))
        if len(part.result.step_time_s) >= _LEAST_STEPS:
            parts.append(part)
    return parts


def _tell(record: Record, spells: Sequence[Spell], parts: Sequence[_Part]) -> Mood:
    seconds = math.fsum(spell.stretch.seconds for spell in spells)
    whole = math.fsum(spell.stretch.seconds for spell in record.spells)
    rates = [math.exp(spell.stretch.log_rate) for spell in spells]
    return Mood(
        samples_per_s=mean_rate_over(spells),
        low=min(rates),
        high=max(rates),
        share=seconds / whole,
        spans=tuple(_place(record, spell) for spell in spells),
        phases=pool_phases([part.block for part in parts if part.is_nearly_all]),
        longest_step_s=max(max(part.result.step_time_s) for part in parts),
    )


def _rate(result: BlockResult) -> float:
    return result.samples_per_step * len(result.step_time_s) / math.fsum(result.step_time_s)


def _place(record: Record, spell: Spell) -> MoodSpan:
    """When it was: a race's cycles share its time evenly."""
    blocks = {block.id: block for block in record.baseline_blocks}

    def moment(cycle: Cycle, end: int) -> tuple[Block, float]:
        block = blocks[cycle[0]]
        count = len(cut_cycles(block.result)) if block.result else 1
        return block, (cycle[1] + end) / max(1, count)

    ends = []
    for block, part in (moment(spell.cycles[0], 0), moment(spell.cycles[-1], 1)):
        finished = block.finished_at or block.issued_at
        ends.append(block.issued_at + part * (finished - block.issued_at))
    return MoodSpan(
        session_id=spell.launch,
        began_at=ends[0],
        ended_at=ends[1],
        samples_per_s=math.exp(spell.stretch.log_rate),
    )


# --- what ends it -------------------------------------------------------------------------------------


def _find_remedy(
    record: Record, parts: tuple[Sequence[_Part], Sequence[_Part]], border: float
) -> _Remedy | None:
    """The setting that keeps strategies out of the slow mood, as arms that take turns with the baseline show.

    With it nine of ten races were not slow, and beside a slow baseline they lost less than half of what it lost; most
    of those without it were slow with the baseline. Of several settings the one that most arms had.
    """
    beside = [_list_arms(record, side) for side in parts]
    lost = fmean(math.log(_rate(p.result)) for p in parts[1]) - fmean(
        math.log(_rate(p.result)) for p in parts[0]
    )
    every = [
        (block.plan.overrides, math.log(_rate(block.result)) < border)
        for block in record.usable
        if block.result and block.result.step_time_s and block.plan.overrides
    ]
    found = []
    for name, value in dict.fromkeys(item for changes, _ in beside[0] for item in changes.items()):
        slow, fast = ([rate for changes, rate in arms if changes.get(name) == value] for arms in beside)
        without = [rate < border for changes, rate in beside[0] if changes.get(name) != value]
        if record.catalogue[name].effect is not Effect.EXACT or not fast:
            continue
        with_it = [is_slow for changes, is_slow in every if changes.get(name) == value]
        if fmean(with_it) > _MOST_SLOW or fmean(fast) - fmean(slow) > lost / 2.0:
            continue
        if not without or fmean(without) >= _SLOW_WITHOUT:
            # Half a race of either kind is added, so that few without the setting leave their share open.
            luck = ((len(without) - sum(without) + 0.5) / (len(without) + 1.0)) ** len(slow)
            found.append(_Remedy(name, value, len(with_it), sum(with_it), luck))
    return max(found, key=lambda remedy: (remedy.races, remedy.name == "num_threads"), default=None)


def _list_arms(record: Record, parts: Sequence[_Part]) -> list[tuple[Mapping[str, Value], float]]:
    """The strategies that took turns with the baseline in a mood, each with its ln(rate) in those cycles."""
    found: list[tuple[Mapping[str, Value], float]] = []
    for part in parts:
        for arm in record.races.get(part.block.race, ()):
            if arm.session_id != part.block.session_id or arm.result is None or not arm.plan.overrides:
                continue
            result = keep_cycles(arm.result, part.kept)
            if result.step_time_s:
                found.append((arm.plan.overrides, math.log(_rate(result))))
    return found


def _spell(record: Record, name: str, value: Value) -> str:
    if name != "num_threads":
        return Changes({name: value}).describe()
    return spell_threads(record.job.facts, int(value))


# --- what makes it ------------------------------------------------------------------------------------


def _find_cause(
    record: Record,
    parts: tuple[Sequence[_Part], Sequence[_Part]],
    moods: tuple[Mood, Mood],
    remedy: _Remedy | None,
) -> tuple[MoodCause, str]:
    """The cause with its clause: others' work, threads beyond the cores, or only the part of the step that it is in."""
    taken = [_measure_taken(side) for side in parts]
    if taken[0] is not None and taken[1] is not None and taken[0] - taken[1] >= _TAKEN:
        return MoodCause.OTHERS, (
            f"other processes take {taken[0]:.0%} of the processors in the slow mood, {taken[1]:.0%} in the fast one"
        )
    if crowd := find_crowd(record.job.facts, record.job.cluster):
        is_shown = remedy is not None and remedy.name == "num_threads"
        told = "the ranks' threads fight for the cores" if is_shown else "threads beyond the cores may be why"
        return MoodCause.THREADS, f"{told} ({crowd})"
    longer = _say_longer(moods[0].phases, moods[1].phases)
    return (MoodCause.PART, longer) if longer else (MoodCause.UNKNOWN, "")


def _measure_taken(parts: Sequence[_Part]) -> float | None:
    """Share of the processors that other processes took, of the node where that is most; None where none told."""
    taken: dict[str, list[float]] = {}
    for part in parts:
        for node in part.block.telemetry if part.is_nearly_all else ():
            taken.setdefault(node.agent, []).append(node.cpu.mean - node.session_cpu.mean)
    return max(map(fmean, taken.values()), default=None)


def _say_longer(slow: Phases, fast: Phases) -> str:
    """The part of a step that takes longer, where one part is most of the difference."""
    before = dict(fast.list_named())
    if not slow.total_s() or not fast.total_s():
        return ""
    longer = {name: (seconds or 0.0) - (before.get(name) or 0.0) for name, seconds in slow.list_named()}
    whole = math.fsum(max(0.0, seconds) for seconds in longer.values())
    name = max(longer, key=lambda part: longer[part])
    if whole <= 0.0 or longer[name] < _MOST_OF * whole:
        return ""
    return f"in the slow mood {name} takes {longer[name] * 1e3:.3g} ms longer"
