"""What a diagnosis sees beyond a race's times: the lines that a rank stands in, and its steps on one timeline.

Ranks of one machine read one clock. Those of another one are moved by what lay between the two when all of them came
out of one agreement, right before the timed steps: to a millisecond or so.
"""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass, field, replace
from typing import Any, List, Optional, Sequence, Tuple

from ..link.measured import BlockResult, CollectiveCall, Place, RankTimeline, Span
from ..observe.clock import Clock
from ..observe.collective_calls import CollectiveCalls
from ..observe.memory import count_room_at_peak
from ..observe.recorder import INTERRUPTED, PHASES, StepMarks
from ..observe.stack_samples import StackSamples
from .parts import RankParts

MOST_SPANS = 8000
"""Of all ranks together: half of what a report may hold. Hundreds of collectives a step leave the first steps only."""


@dataclass(frozen=True)
class RankLook:
    """Of one rank, as it is told to rank 0."""

    machine: str
    began_s: float
    """When its look began, by its own clock."""
    places: List[Tuple[str, str, float]] = field(default_factory=list)
    """Part, line, share of the time."""
    spans: List[Tuple[str, float, float]] = field(default_factory=list)
    """Name, seconds since it began, and how long it lasted; a span called `step` holds those after it.
    Of the first steps, at most MOST_SPANS among all ranks."""
    calls: List[Tuple[str, str, str, float, float, int, float]] = field(default_factory=list)
    """The fields of `CollectiveCall`."""
    room: int = 0
    """Bytes that stayed free at its device's peak, or its part of free host memory; 0 where unknown."""


class CloseLook:
    """Nothing is seen in a race whose rules do not ask for it."""

    def __init__(self, parts: RankParts, is_asked: bool) -> None:
        self._is_asked, self._clock, self._recorder = is_asked, parts.clock, parts.recorder
        self._calls = CollectiveCalls()
        self._stacks = StackSamples(parts.recorder, parts.process.models.are_evaluated)
        self._began_s, self._room, self._device, self._ranks = 0.0, 0, parts.device, parts.world_size
        self._ranks_here = parts.local_world_size
        self._mark: Any = None

    def begin(self) -> None:
        """On every rank right after they have agreed on something; the device is idle."""
        if self._is_asked:
            self._began_s, self._mark = time.perf_counter(), self._clock.mark()
            self._recorder.calls = self._calls
            self._stacks.start()

    def pause(self) -> None:
        """The last timed step is over: what is measured besides takes memory and steps of its own."""
        if self._recorder.calls is self._calls:
            self._stacks.stop()
            self._recorder.calls = None
            self._room = count_room_at_peak(self._device, self._ranks_here)

    def end(self, steps: Sequence[StepMarks]) -> Optional[RankLook]:
        """The clock has settled."""
        if self._mark is None:
            return None
        self.pause()
        spans = list_spans(steps, self._mark, self._clock, MOST_SPANS // self._ranks)
        usual = [step for step in steps if step.flag < INTERRUPTED] or steps  # an evaluation's are no step's
        calls = self._calls.describe(usual, self._clock) if usual else []
        return RankLook(platform.node(), self._began_s, self._stacks.describe(), spans, calls, self._room)


def list_spans(
    steps: Sequence[StepMarks], zero: Any, clock: Clock, most: int
) -> List[Tuple[str, float, float]]:
    """Those of the first whole steps that have no more than `most`."""
    spans: List[Tuple[str, float, float]] = []
    for step in steps:
        further = _list_spans(step, zero, clock)
        if len(spans) + len(further) > most:
            break
        spans += further
    return spans


def _list_spans(step: StepMarks, zero: Any, clock: Clock) -> List[Tuple[str, float, float]]:
    spans = [("step", clock.measure(zero, step.start), clock.measure(step.start, step.end))]
    for phase, start, end in zip(step.phases, step.marks, [*step.marks[1:], step.end]):
        spans.append((PHASES[phase], clock.measure(zero, start), clock.measure(start, end)))
    return [(name, round(start_s, 7), round(took_s, 7)) for name, start_s, took_s in spans if took_s > 0.0]


def add_looks(result: BlockResult, looks: Sequence[Optional[RankLook]]) -> BlockResult:
    """`looks` in rank order; lines are those of the rank whose account is told."""
    known = [look for look in looks if look is not None]
    if len(known) < len(looks) or not known:
        return result
    first = known[0]
    zero = min(look.began_s for look in known if look.machine == first.machine)
    timelines = []
    for rank, look in enumerate(known):
        shift_s = look.began_s - zero if look.machine == first.machine else first.began_s - zero
        spans = tuple(Span(name, round(start_s + shift_s, 7), took_s) for name, start_s, took_s in look.spans)
        timelines.append(RankTimeline(rank, look.machine, spans, look.began_s - shift_s))
    shown = known[result.phases_rank]
    places = tuple(Place(*place) for place in shown.places)
    calls = tuple(CollectiveCall(*call) for call in shown.calls)
    return replace(
        result,
        places=places,
        collective_calls=calls,
        timelines=tuple(timelines),
        room_bytes=min(look.room for look in known),
    )
