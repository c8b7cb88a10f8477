"""What torch.profiler saw of some steps: the reference for the runtime's own times. Pure functions."""

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

Interval = tuple[float, float]

_MICROSECOND = 1e-6
_FORWARD, _OPTIMIZER = "check.forward", "check.optimizer"
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


class UnreadableTrace(Exception):
    """The trace lacks what a check looks for; the text says what."""


@dataclass(frozen=True)
class Traced:
    """Seconds of the median step, by the profiler."""

    step_s: float
    forward_s: float
    backward_s: float
    """Exposed communication included."""
    optimizer_s: float
    exposed_s: float | None
    """Communication beside which nothing was computed, per step; None where the trace shows none."""


def read_trace(text: str, on_card: bool, first: int) -> Traced:
    """Return what a Chrome trace says of its steps from number `first` on.

    On a CPU spans are the host's own; on a card, those of the work that the host launched within its spans. (Kernels
    belong to the innermost annotation, and models and optimizers make some of their own.) Raises UnreadableTrace.
    """
    try:
        events = [event for event in json.loads(text)["traceEvents"] if event.get("ph") == "X"]
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableTrace(f"The script left no trace that can be read ({error}).") from error
    forwards, optimizers = (_list_spans(events, name)[first:] for name in (_FORWARD, _OPTIMIZER))
    count = min(len(forwards), len(optimizers))
    if count < 3:
        raise UnreadableTrace(f"The trace holds {count} annotated steps after the first {first}.")
    forwards, optimizers = forwards[:count], optimizers[:count]
    if on_card:
        launched = _list_launched(events)
        forwards, optimizers = _move_to_card(forwards, launched), _move_to_card(optimizers, launched)
    laps = [after[0] - before[0] for before, after in pairwise(forwards)]
    return Traced(
        step_s=median(laps),
        forward_s=median(end - start for start, end in forwards),
        backward_s=median(o[0] - f[1] for f, o in zip(forwards, optimizers, strict=True)),
        optimizer_s=median(end - start for start, end in optimizers),
        exposed_s=_measure_exposed(events, on_card, forwards),
    )


def _list_spans(events: Iterable[Mapping[str, Any]], name: str) -> list[Interval]:
    """Of the host, in order of time."""
    return sorted(
        _span(event)
        for event in events
        if event.get("cat") == "user_annotation" and event.get("name") == name
    )


def _list_launched(events: Iterable[Mapping[str, Any]]) -> list[tuple[float, Interval]]:
    """The card's work with the time at which the host launched it, in order of launches."""
    hosts: dict[Any, float] = {}
    work: list[tuple[Any, Interval]] = []
    for event in events:
        correlation = (event.get("args") or {}).get("correlation")
        if event.get("cat") in _LAUNCHES:
            hosts[correlation] = _span(event)[0]
        elif event.get("cat") in _WORK:
            work.append((correlation, _span(event)))
    return sorted((hosts[correlation], span) for correlation, span in work if correlation in hosts)


def _move_to_card(spans: Iterable[Interval], launched: Sequence[tuple[float, Interval]]) -> list[Interval]:
    """From the first start to the last end of what was launched in each span."""
    moved = []
    for start, end in spans:
        inside = launched[bisect_left(launched, (start,)) : bisect_left(launched, (end,))]
        if not inside:
            raise UnreadableTrace(f"The trace holds {len(launched)} kernels, and none of one of its steps.")
        moved.append((min(span[0] for _, span in inside), max(span[1] for _, span in inside)))
    return moved


def _measure_exposed(
    events: Sequence[Mapping[str, Any]], on_card: bool, forwards: Sequence[Interval]
) -> float | None:
    kernels = [event for event in events if event.get("cat") == "kernel"]
    talking = [event for event in kernels if "nccl" in str(event.get("name")).lower()]
    if not talking:
        talking = [event for event in events if str(event.get("name")).startswith("gloo:")]
    if not talking:
        return None
    if on_card:
        computing = [event for event in kernels if "nccl" not in str(event.get("name")).lower()]
    else:
        computing = [event for event in events if str(event.get("name")).startswith("aten::")]
    start, end = forwards[0][0], forwards[-1][0]
    alone = subtract(map(_span, talking), map(_span, computing))
    inside = sum(max(0.0, min(stop, end) - max(begin, start)) for begin, stop in alone)
    return inside / (len(forwards) - 1)


def _span(event: Mapping[str, Any]) -> Interval:
    start = float(event["ts"]) * _MICROSECOND
    return start, start + float(event.get("dur", 0.0)) * _MICROSECOND


def subtract(intervals: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """Return the parts of some intervals that none of the others covers."""
    left: list[Interval] = []
    covers = merge(others)
    place = 0
    for start, end in merge(intervals):
        while place < len(covers) and covers[place][1] <= start:
            place += 1
        for begin, stop in covers[place:]:
            if begin >= end:
                break
            if begin > start:
                left.append((start, begin))
            start = max(start, stop)
        if start < end:
            left.append((start, end))
    return left


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the same time as intervals that do not touch, in order."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged
