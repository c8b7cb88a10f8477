"""Collectives are told by the script's line that calls them, and by whose they are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from fleet_advisor_runtime.observe.clock import CpuClock  # noqa: E402
from fleet_advisor_runtime.observe.collective_calls import CollectiveCalls, describe_call  # noqa: E402
from fleet_advisor_runtime.observe.recorder import COLLECTIVE, Recorder  # noqa: E402


def call_through(folder: Path, *libraries: tuple[str, str], given: Any = (), in_model: bool = False) -> Any:
    """What is told of a script's call that goes through functions of these files, outermost first."""
    found: list[Any] = []

    def take() -> None:
        found.append(describe_call("allreduce", given, sys._getframe(1), in_model))

    inner: Any = take
    for path, name in reversed(libraries):
        names = {"inner": inner}
        exec(compile(f"def {name}():\n    inner()\n", str(folder / "site-packages" / path), "exec"), names)
        inner = names[name]
    exec(compile("x = 1\n\ncall()\n", str(folder / "train.py"), "exec"), {"call": inner})
    return found[0]


C10D = "torch/distributed/distributed_c10d.py"


@pytest.mark.parametrize(
    ("libraries", "kind", "name"),
    [
        ([], "own", "allreduce"),
        ([("torch/distributed/c10d_logger.py", "wrapper"), (C10D, "all_reduce")], "own", "all_reduce"),
        ([("accelerate/operations.py", "gather"), (C10D, "all_gather")], "own", "all_gather"),
        ([(C10D, "all_gather_object"), (C10D, "all_gather")], "own", "all_gather_object"),
        ([("torch/nn/modules/_functions.py", "forward"), (C10D, "all_reduce")], "sync_batch_norm", "all_reduce"),
        ([("torch/distributed/fsdp/_fully_shard.py", "unshard")], "sharded", "unshard"),
        ([("megatron/core/param_buffer.py", "sync"), (C10D, "all_reduce")], "sharded", "all_reduce"),
        ([("torch/distributed/tensor/_api.py", "full_tensor")], "own", "full_tensor"),
    ],
)  # fmt: skip
def test_a_call_is_told_by_the_scripts_line_and_by_whose_it_is(
    tmp_path: Path, libraries: list[tuple[str, str]], kind: str, name: str
) -> None:
    call = call_through(tmp_path, *libraries, given=([torch.zeros(3)], torch.zeros(2, dtype=torch.float64)))
    assert (call.kind, call.name, call.size) == (kind, name, 3 * 4 + 2 * 8)
    assert call.line == f"{tmp_path}/train.py:3"


@pytest.mark.parametrize("path", ["tensor/_dispatch.py", "_functional_collectives.py"])
def test_what_a_model_calls_through_dtensor_is_its_split_layers(tmp_path: Path, path: str) -> None:
    assert call_through(tmp_path, (f"torch/distributed/{path}", "dispatch"), in_model=True).kind == "split"
    assert call_through(tmp_path, (C10D, "all_reduce"), in_model=True).kind == "own"


def test_calls_of_the_timed_steps_are_told_with_their_seconds_and_how_often_they_come() -> None:
    recorder, calls = Recorder(), CollectiveCalls()
    recorder.clock = CpuClock()
    recorder.start()
    recorder.calls = calls
    steps = []
    for count in (1, 3, 9):
        recorder.begin_step(recorder.clock.mark())
        for _ in range(count):
            assert recorder.begin_collective(COLLECTIVE, True, "allreduce", (torch.zeros(1),))
            recorder.end(COLLECTIVE)
        steps.append(recorder.close_step(recorder.clock.mark(), 1))
    [(kind, name, line, per_step, seconds, size, sent)] = calls.describe(steps[:2], recorder.clock)
    assert (kind, name, per_step, size, sent) == ("own", "allreduce", 2.0, 4, 8.0)
    assert line.startswith("tests/unit/runtime/test_collective_calls.py:")
    spent = [
        recorder.clock.measure(step.marks[place], step.marks[place + 1])
        for step in steps[:2]
        for place, phase in enumerate(step.phases)
        if phase == COLLECTIVE
    ]
    assert seconds == pytest.approx(sum(spent) / 2)
