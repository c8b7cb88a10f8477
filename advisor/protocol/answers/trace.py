"""All ranks' timed steps as a Chrome trace, for Perfetto (ui.perfetto.dev) and chrome://tracing.

The format is that of "Trace Event Format" (Google, 2016): an object with `traceEvents`; complete events have `ph` X
with `ts` and `dur` in microseconds, and metadata events (`ph` M) name what is drawn. One process for each rank, with
its steps in one row and what they are made of in the row below.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from advisor.protocol.measured.results import PHASE_NAMES, RankTimeline

_STEPS, _PARTS = 1, 2
"""Rows. None has the number 0, nor has a process: readers take that for the idle one, and leave it out."""
_ROWS = {_STEPS: "steps", _PARTS: "parts of a step"}
_NAMES = {
    **PHASE_NAMES,
    "reduction_s": "reduction",
    "buffers_s": "broadcast of buffers",
    "collectives_s": "collective",
}
_WAITS = frozenset({"data_wait_s", "collectives_s", "buffers_s", "reduction_s"})
"""In which a rank may wait: for its batch, or for the others."""


def build_trace(timelines: Sequence[RankTimeline]) -> dict[str, Any]:
    """Return the trace; times begin at 0 with the first span of any rank."""
    zero = min((span.start_s for one in timelines for span in one.spans), default=0.0)
    return {
        "displayTimeUnit": "ms",
        "traceEvents": [event for one in timelines for event in _list_events(one, zero)],
    }


def _list_events(one: RankTimeline, zero: float) -> Iterator[dict[str, Any]]:
    yield _tell("process_name", one.rank, _STEPS, name=f"rank {one.rank} on {one.machine}")
    yield _tell("process_sort_index", one.rank, _STEPS, sort_index=one.rank)
    for row, name in _ROWS.items():
        yield _tell("thread_name", one.rank, row, name=name)
    steps = 0
    for span in one.spans:
        is_step = span.name == "step"
        steps += is_step
        yield {
            "ph": "X",
            "name": f"step {steps}" if is_step else _NAMES.get(span.name, span.name),
            "cat": "step" if is_step else "wait" if span.name in _WAITS else "work",
            "ts": round((span.start_s - zero) * 1e6, 3),
            "dur": round(span.took_s * 1e6, 3),
            "pid": one.rank + 1,
            "tid": _STEPS if is_step else _PARTS,
        }


def _tell(what: str, rank: int, row: int, **args: object) -> dict[str, Any]:
    """Return a metadata event, with the category and the time that Chrome itself gives it: some readers need both."""
    return {"ph": "M", "cat": "__metadata", "ts": 0, "name": what, "pid": rank + 1, "tid": row, "args": args}
