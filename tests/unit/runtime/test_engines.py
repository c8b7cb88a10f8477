"""Engines that reduce gradients by themselves are known by where their projects define them."""

from __future__ import annotations

import sys
import types

import pytest
from fleet_advisor_runtime.observe.models import ENGINES, find_engine

KNOWN = {
    ("deepspeed", "runtime", "engine", "DeepSpeedEngine"): "DeepSpeed's engine",
    ("megatron", "core", "distributed", "distributed_data_parallel", "DistributedDataParallel"): (
        "Megatron's own DistributedDataParallel"
    ),
    ("colossalai", "booster", "booster", "Booster"): "ColossalAI's booster",
    ("apex", "parallel", "distributed", "DistributedDataParallel"): "Apex's own DistributedDataParallel",
}
"""Read from each project's sources: the folders from its package down to the class, and how it is called."""


def define(monkeypatch: pytest.MonkeyPatch, path: tuple[str, ...]) -> type:
    """Define an empty class where a project defines its own, and hand it on to the packages above as they do."""
    *modules, name = path
    kind = type(name, (), {})
    for depth in range(1, len(modules) + 1):
        module = types.ModuleType(".".join(modules[:depth]))
        setattr(module, name, kind)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return kind


@pytest.mark.parametrize("path", KNOWN, ids=lambda path: path[0])
def test_engine_is_named_once_one_was_made(path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    kind = define(monkeypatch, path)
    assert find_engine() == "", "it was only imported"
    engine = type("OfTheScript", (kind,), {})()
    assert find_engine() == KNOWN[path]
    del engine


def test_no_engine_is_known_that_was_not_read_up() -> None:
    assert {(*module.split("."), name) for module, name in ENGINES} == set(KNOWN)
