"""Telling seeds of `benchmarks/random_runs.py`: each stands for a kind of script that once met a fault."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.distributed
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
ORDINARY = (3, 6, 16, 19, 27, 36, 39, 46, 58, 59, 67, 72, 84, 118, 141, 192)
OF_KINDS = (
    201,
    203,
    206,
    207,
    208,
    209,
    213,
    214,
    215,
    216,
    218,
    220,
    221,
    264,
    271,
    316,
    347,
    385,
    434,
    482,
)
"""Of each kind one: what is trained, reduced, shared, returned, read or said otherwise."""


@pytest.fixture(scope="module")
def runner() -> Iterator[Any]:
    """One process that all ranks are forked from."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location("random_runs", BENCHMARKS / "random_runs.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules["random_runs"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCHMARKS))
    runner = module.Runner()
    yield runner
    runner.close()


@pytest.mark.parametrize("seed", ORDINARY + OF_KINDS)
def test_random_training_is_what_it_is_without_the_strategy(seed: int, runner: Any) -> None:
    outcome = runner.run(seed)
    assert outcome.under is not None, outcome.bare.log
    assert "waited 60 s" not in outcome.under.log, outcome.under.log
    assert not outcome.fault, (outcome.fault, outcome.case.features, outcome.case.settings, outcome.under.log)
