"""The trainings of `accounts.py`: what each one's step is made of, and which cause is the right name for its time."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

NOTHING = frozenset({"compute", "nothing"})
"""What may be said of a training that is well: it computes, or nothing dominates."""


@dataclass(frozen=True)
class Told:
    """One training with the causes that are right for it."""

    made_of: Mapping[str, Any]
    """The fields of `workloads/accounted.py`'s Case."""
    right: frozenset[str]
    """Names of `accounts.name_cause`; any of them is right."""
    tells: frozenset[str] = frozenset()
    """Findings of `advisor diagnose` that have to be among its own, at whatever place."""
    tells_not: frozenset[str] = frozenset()
    """Those that must not be."""
    rate: str = ""
    """Two nodes of the testbed with such links, and a rank on each; one node of two ranks where empty."""


def _work(where: str, seconds: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"where": where, "seconds": seconds, **more}


def _collect(kind: str, seconds: float = 0.08, where: str = "own", **more: Any) -> dict[str, Any]:
    return {"kind": kind, "where": where, "seconds": seconds, **more}


def _told(
    *right: str, tells: Iterable[str] = (), tells_not: Iterable[str] = (), rate: str = "", **made_of: Any
) -> Told:
    return Told(made_of, frozenset(right), frozenset(tells), frozenset(tells_not), rate)


_BASE = (_work("forward", 0.01), _work("backward", 0.02))
"""Thirty milliseconds of every rank's own step."""
_SPUN = (_work("forward", 0.015, how="spin"), _work("backward", 0.03, how="spin"))

NAMED: Mapping[str, Told] = {
    # One rank is late.
    "late-own": _told("late 1 own", works=[*_BASE, _work("own", 0.05, ranks=[1])]),
    "late-own-spinning": _told("late 0 own", works=[*_BASE, _work("own", 0.05, ranks=[0], how="spin")]),
    "late-own-hundredfold": _told("late 1 own", works=[_work("own", 0.2, ranks=[1])]),
    "late-loader": _told("late 1 data", works=[*_BASE, _work("data", 0.05, ranks=[1])]),
    "late-forward": _told("late 1 forward", works=[*_BASE, _work("forward", 0.04, ranks=[1])]),
    "late-backward": _told("late 0 backward", works=[*_BASE, _work("backward", 0.04, ranks=[0])]),
    "late-optimizer": _told("late 1 optimizer", works=[*_BASE, _work("optimizer", 0.04, ranks=[1])]),
    "rank-0-logs": _told("late 0 own", works=[_work("own", 0.1, ranks=[0])], width=256),
    "rank-0-evaluates": _told(
        "late 0 own", works=[*_BASE, _work("own", 0.4, ranks=[0], every=5, how="evaluate")]
    ),
    "late-before-a-collective": _told(
        "late 1 own", works=[*_BASE, _work("own", 0.06, ranks=[1])], collectives=[_collect("all_reduce", 0.01)]
    ),
    "late-before-a-barrier": _told(
        "late 1 forward", works=[*_BASE, _work("forward", 0.05, ranks=[1])], collectives=[_collect("barrier", 0.005)]
    ),
    # Communication of the script's own.
    "all-reduce-30": _told("compute", works=[*_BASE], collectives=[_collect("all_reduce", 0.015)]),
    "all-reduce-80": _told(
        "collective", works=[_work("forward", 0.01)], collectives=[_collect("all_reduce", 0.06)]
    ),
    "all-to-all": _told("collective", works=[*_BASE], collectives=[_collect("all_to_all")]),
    "all-gather": _told("collective", works=[*_BASE], collectives=[_collect("all_gather")]),
    "all-gather-into": _told("collective", works=[*_BASE], collectives=[_collect("all_gather_into")]),
    "broadcast": _told("collective", works=[*_BASE], collectives=[_collect("broadcast")]),
    "asynchronous": _told("collective", works=[*_BASE], collectives=[_collect("async")]),
    "functional": _told("collective", works=[*_BASE], collectives=[_collect("functional")]),
    "objects": _told("collective", works=[*_BASE], collectives=[_collect("objects")]),
    "in-forward": _told(
        "collective", works=[*_BASE], collectives=[_collect("all_reduce", 0.06, "forward", numel=4096)]
    ),
    # The script's own code, reading, computing, waiting for gradients.
    "own-code": _told("own", works=[*_BASE, _work("own", 0.06)]),
    "clip-and-ema": _told(
        "own", works=[_work("own", how="clip", times=4), _work("own", how="ema", times=8)],
        width=512, depth=6, batch=96,
    ),
    "saves": _told("own", works=[*_BASE, _work("own", how="save", times=3)], width=512, depth=8),
    "own-iterator": _told("own", "input", works=[*_BASE, _work("data", 0.05)], loader="iterator"),
    "reading": _told("input", works=[*_BASE, _work("data", 0.05)]),
    "reading-in-a-worker": _told("input", works=[*_BASE, _work("data", 0.08)], loader="workers"),
    "stalls": _told("stalls", works=[*_BASE, _work("forward", 0.5, every=8)]),
    "gradients": _told("communication", width=1500, depth=6, batch=1),
    "two-nodes-gradients": _told("communication", width=400, depth=4, works=[*_BASE], rate="200mbit"),
}  # fmt: skip

MORE: Mapping[str, Told] = {
    "garbage": _told("garbage", "own", works=[*_BASE, _work("own", how="collect", every=6)]),
    "own-code-now-and-then": _told("own", works=[*_BASE, _work("own", 0.4, every=8)]),
    "all-evaluate": _told("own", works=[*_BASE, _work("own", 0.4, every=5, how="evaluate")]),
    "nested-backward": _told("compute", nested=True, width=512, depth=4, batch=64),
    "all-reduce-10": _told(*NOTHING, "communication", works=[*_BASE], collectives=[_collect("all_reduce", 0.004)]),
    "reading-and-collective": _told(
        "collective", "input", works=[*_BASE, _work("data", 0.04)], collectives=[_collect("all_reduce", 0.04)]
    ),
    "late-and-reading": _told("late 1 own", works=[_work("data", 0.02), _work("own", 0.06, ranks=[1])]),
    "two-nodes-late": _told("late 1 own", works=[*_BASE, _work("own", 0.05, ranks=[1])], rate="1gbit"),
    "two-nodes-collective": _told(
        "collective", works=[*_BASE], collectives=[_collect("all_reduce", 0.05)], rate="1gbit"
    ),
}  # fmt: skip
"""Beside the thirty: combinations, and two nodes again."""

CLEAN: Mapping[str, Told] = {
    name: _told(*NOTHING, **made_of)
    for name, made_of in {
        "plain": {"works": _SPUN},
        "adam": {"works": _SPUN, "optimizer": "AdamW"},
        "accumulating": {"works": _SPUN, "accumulate": 4},
        "forward-heavy": {"works": [_work("forward", 0.05, how="spin"), _work("backward", 0.01, how="spin")]},
        "backward-heavy": {
            "works": [_work("forward", 0.005, how="spin"), _work("backward", 0.06, how="spin")]
        },
        "fast-loader": {"works": [*_SPUN, _work("data", 0.001)]},
        "worker-keeps-up": {"works": [*_SPUN, _work("data", 0.005)], "loader": "workers"},
        "no-loader": {"works": _SPUN, "loader": "none"},
        "own-iterator-is-fast": {"works": [*_SPUN, _work("data", 0.001)], "loader": "iterator"},
        "batch-norm": {"works": _SPUN, "buffers": True},
        "unused-parameters": {"works": _SPUN, "unused": True},
        "small-buckets": {"works": _SPUN, "bucket_cap_mb": 0.05, "width": 128, "depth": 6},
        "two-models": {"works": _SPUN, "second_model": True},
        # A linear layer by itself: torch stops computing it again once it has what the layer keeps, its input.
        "checkpointed": {"checkpointed": "layers", "width": 512, "depth": 6, "batch": 64},
        "real-arithmetic": {"width": 512, "depth": 4, "batch": 256},
        "bfloat16": {"width": 256, "depth": 4, "batch": 128, "dtype": "bfloat16"},
        "short-epochs": {"works": _SPUN, "epoch": 25},
        "logs-a-little": {"works": [*_SPUN, _work("own", 0.002, ranks=[0])]},
        "clips": {"works": [*_SPUN, _work("own", how="clip")]},
        "slow-but-even": {"works": [_work("forward", 0.05), _work("backward", 0.1)]},
    }.items()
}

_BESIDE = frozenset({"unused_search", "buffers", "collectives", "compiling", "recomputation"})

BESIDE: Mapping[str, Told] = {
    "buffers": _told("buffers", tells={"buffers"}, works=[*_BASE], constant_mib=24),
    "buffers-nearly": _told(*NOTHING, tells_not=_BESIDE, works=_SPUN, buffers=True),
    "metrics-reduced": _told(
        "collective", tells={"collectives"}, works=[*_BASE], collectives=[_collect("all_reduce", 0.012, numel=1)]
    ),
    "metrics-reduced-nearly": _told(
        *NOTHING, tells_not=_BESIDE, works=_SPUN, collectives=[_collect("all_reduce", 0.0, numel=1)]
    ),
    "recompiles": _told("compiling", tells={"compiling"}, works=[*_BASE], compile_s=0.03, versions=1_000_000),
    "recompiles-nearly": _told(*NOTHING, tells_not=_BESIDE, works=_SPUN, compile_s=0.03, versions=2),
    "searches": _told(*NOTHING, "communication", "waiting", tells={"unused_search"}, searches=True, additions=2000),
    "searches-nearly": _told(
        *NOTHING, "communication", "waiting", tells_not={"unused_search"}, unused=True, additions=2000
    ),
    "recomputed": _told(
        "recomputation", tells={"recomputation"}, checkpointed="works",
        works=[_work("forward", 0.03, how="spin"), _work("backward", 0.01, how="spin")],
    ),
    "recomputed-nearly": _told(
        *NOTHING, tells_not=_BESIDE, checkpointed="frozen",
        works=[_work("forward", 0.03, how="spin"), _work("backward", 0.01, how="spin")],
    ),
}  # fmt: skip
"""What stands beside a step's own parts, each with a training that nearly has it."""

ALONE: Mapping[str, Told] = {
    "alone-reading": _told("input", works=[*_BASE, _work("data", 0.05)], plain=True),
    "alone-reading-in-a-worker": _told(
        "input", works=[*_BASE, _work("data", 0.08)], loader="workers", plain=True
    ),
    "alone-own-code": _told("own", works=[*_BASE, _work("own", 0.06)], plain=True),
    "alone-evaluates": _told("own", works=[*_BASE, _work("own", 0.4, every=5, how="evaluate")], plain=True),
    "alone-accumulates": _told(*NOTHING, works=_BASE, accumulate=4, plain=True),
    "alone-clean": _told(*NOTHING, works=_BASE, width=256, plain=True),
}
"""One process that `python` starts, whose model nothing wraps."""
