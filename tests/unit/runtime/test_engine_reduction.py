"""The lever of DeepSpeed's engine on a stand-in of its ZeRO optimizer: what it sets, undoes, proves and refuses.

`make conformance` runs it in the real engine.
"""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fleet_advisor_runtime import current  # noqa: E402
from fleet_advisor_runtime.levers.lever import Training  # noqa: E402
from fleet_advisor_runtime.levers.sharding import engine_reduction  # noqa: E402
from fleet_advisor_runtime.levers.sharding.engine_reduction import EngineReduction  # noqa: E402
from fleet_advisor_runtime.observe.deepspeed import extend_phases  # noqa: E402
from fleet_advisor_runtime.observe.recorder import BACKWARD, OPTIMIZER, OWN, Recorder, split_step  # noqa: E402
from fleet_advisor_runtime.observe.sharded import find_kind, find_sharded_roots  # noqa: E402

SIZE, WIRE, TYPE = "fuse_grad_size_in_MB", "fp16_allreduce", "fp16_allreduce_dtype"
OVERLAP = "sharding_overlap"
MIB = 2**20


@dataclass
class Bucket:
    elements: int = 0
    params: list[int] = field(default_factory=list)
    buffer: list[str] = field(default_factory=list)


class DeepSpeedZeroOptimizer:
    def __init__(self) -> None:
        self.reduce_bucket_size = 100
        self.communication_data_type = torch.float32
        self.ipg_buckets = {torch.float32: Bucket()}
        self.overlap_comm, self.contiguous_gradients = False, True
        self.reduced = 0

    def reduce_ipg_grads(self) -> None:
        self.reduced += 1

    def reduce(self, pieces: list[tuple[int, int]]) -> None:
        """Pieces of so many numbers from so many parameters."""
        for numbers, parameters in pieces:
            (kind,) = self.ipg_buckets
            buffers = ["one", "another"][: 1 + self.overlap_comm]
            self.ipg_buckets[kind] = Bucket(numbers, list(range(parameters)), buffers)
            self.reduce_ipg_grads()
            self.ipg_buckets[kind] = Bucket()


class DeepSpeedEngine(torch.nn.Module):
    def __init__(self, stage: int = 2, fp16: bool = False) -> None:
        super().__init__()
        self.module = torch.nn.Linear(1024, 1024)
        self.basic_optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1)
        self.optimizer: Any = DeepSpeedZeroOptimizer()
        self._stage, self._fp16 = stage, fp16

    def zero_optimization_stage(self) -> int:
        return self._stage

    def fp16_enabled(self) -> bool:
        return self._fp16


@pytest.fixture(autouse=True)
def deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("deepspeed.runtime.engine")
    module.DeepSpeedEngine = DeepSpeedEngine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deepspeed.runtime.engine", module)
    monkeypatch.setattr(
        engine_reduction, "find_unsupported_formats", lambda group, device: {"bf16": "no such sum"}
    )
    monkeypatch.setattr("fleet_advisor_runtime.observe.deepspeed.find_group", lambda engine: None)


def make(engine: DeepSpeedEngine) -> tuple[EngineReduction, Training]:
    return EngineReduction(torch.device("cpu")), Training([], [engine.basic_optimizer], sharded=[engine])


def watch_step(lever: EngineReduction, training: Training, pieces: list[tuple[int, int]]) -> Any:
    lever.begin_timing()
    lever.before_forward(training.sharded[0])
    training.sharded[0].optimizer.reduce(pieces)
    lever.end_step(training)
    return lever.prove()


def test_the_engine_is_found_by_the_optimizer_that_it_steps() -> None:
    engine, other = DeepSpeedEngine(), DeepSpeedEngine(stage=3)
    assert find_sharded_roots(engine.basic_optimizer) == [engine]
    assert find_kind(engine) == "DeepSpeed"
    assert find_sharded_roots(other.basic_optimizer) == []


def test_a_size_is_set_proved_and_undone() -> None:
    engine = DeepSpeedEngine()
    lever, training = make(engine)
    zero = engine.optimizer
    assert SIZE not in lever.list_refusals(training)
    assert lever.observe(training) == {
        SIZE: 100 * 4 / MIB,
        OVERLAP: False,
        WIRE: False,
        TYPE: "fp16",
    }

    lever.switch({SIZE: 1.0}, training)
    assert zero.reduce_bucket_size == MIB // 4
    proof = watch_step(lever, training, [(MIB // 4, 3), (MIB, 1)])
    assert proof.consumed == {SIZE: "A step's gradients were reduced in 2 pieces of up to 4 MB."}
    assert proof.no_effect == {}
    assert "reduce_ipg_grads" not in vars(zero)
    assert zero.reduced == 2

    assert SIZE in watch_step(lever, training, [(MIB // 4 + 1, 2)]).not_consumed
    assert "was watched" in watch_step(lever, training, []).not_consumed[SIZE]
    lever.end_segment(training)
    lever.switch({}, training)
    assert zero.reduce_bucket_size == 100
    assert not lever.is_on


def test_reductions_beside_the_backward_are_switched_proved_and_undone() -> None:
    engine = DeepSpeedEngine()
    lever, training = make(engine)
    zero, pieces = engine.optimizer, [(50, 2), (60, 1)]
    assert OVERLAP not in lever.list_refusals(training)
    lever.observe(training)
    own = lever.describe_in_force({})

    lever.switch({OVERLAP: True}, training)
    assert zero.overlap_comm is True
    assert lever.describe_in_force({}) != own
    proof = watch_step(lever, training, pieces)
    assert proof.consumed == {OVERLAP: "2 of 2 pieces were collected in two buffers by turns."}
    assert proof.no_effect == {}
    # A release that reads the setting when it is made only.
    zero.overlap_comm = False
    assert "0 of 2 pieces" in watch_step(lever, training, pieces).not_consumed[OVERLAP]

    lever.switch({OVERLAP: False}, training)
    assert OVERLAP in watch_step(lever, training, pieces).no_effect
    lever.switch({OVERLAP: True}, training)
    lever.switch({}, training)
    assert zero.overlap_comm is False
    assert not lever.is_on


def test_an_engine_that_overlaps_by_itself_may_be_asked_not_to() -> None:
    engine = DeepSpeedEngine()
    engine.optimizer.overlap_comm = True
    lever, training = make(engine)
    assert lever.observe(training)[OVERLAP] is True
    lever.switch({OVERLAP: False}, training)
    assert watch_step(lever, training, [(50, 2)]).consumed == {
        OVERLAP: "0 of 1 pieces were collected in two buffers by turns."
    }
    lever.switch({SIZE: 1.0}, training)
    assert engine.optimizer.overlap_comm is True


def test_overlap_needs_a_buffer_of_the_engine_and_its_setting() -> None:
    engine = DeepSpeedEngine()
    lever, training = make(engine)
    engine.optimizer.contiguous_gradients = False
    assert "contiguous_gradients is off" in lever.list_refusals(training)[OVERLAP]
    del engine.optimizer.overlap_comm
    refusals = lever.list_refusals(training)
    assert "has no overlap_comm" in refusals[OVERLAP]
    assert SIZE not in refusals


def test_sizes_that_hold_everything_are_the_same() -> None:
    engine = DeepSpeedEngine()
    engine.optimizer.reduce_bucket_size = 500_000_000
    lever, training = make(engine)
    lever.observe(training)
    own = lever.describe_in_force({})
    lever.switch({SIZE: 64.0}, training)
    assert lever.describe_in_force({}) == own
    assert SIZE in watch_step(lever, training, [(1024 * 1025, 2)]).no_effect


def test_a_number_format_gets_a_bucket_of_its_own_and_goes_again() -> None:
    engine = DeepSpeedEngine()
    lever, training = make(engine)
    lever.list_refusals(training)
    lever.observe(training)
    lever.switch({WIRE: True}, training)
    assert list(engine.optimizer.ipg_buckets) == [torch.float16]
    assert watch_step(lever, training, [(50, 1)]).consumed == {WIRE: "1 of 1 pieces travelled as fp16."}
    lever.switch({WIRE: True, TYPE: "bf16"}, training)
    assert "no such sum" in lever.prove().not_consumed[TYPE]
    assert list(engine.optimizer.ipg_buckets) == [torch.float32]
    assert engine.optimizer.communication_data_type == torch.float32


@pytest.mark.parametrize(
    ("engine", "knob", "words"),
    [
        (DeepSpeedEngine(stage=0), SIZE, "runs stage 0"),
        (DeepSpeedEngine(fp16=True), WIRE, "trains in fp16"),
    ],
)
def test_what_cannot_be_switched_is_refused(engine: DeepSpeedEngine, knob: str, words: str) -> None:
    lever, training = make(engine)
    assert words in lever.list_refusals(training)[knob]


def test_another_optimizer_and_a_release_without_these_names_are_refused() -> None:
    engine = DeepSpeedEngine()
    lever, training = make(engine)
    del engine.optimizer.ipg_buckets
    assert "has no ipg_buckets" in lever.list_refusals(training)[SIZE]
    engine.optimizer = engine.basic_optimizer
    assert "in a SGD" in lever.list_refusals(training)[SIZE]


@pytest.mark.parametrize("size", [0, -1, "8", True])
def test_a_size_that_is_none_is_told(size: object) -> None:
    engine = DeepSpeedEngine()
    lever, training = make(engine)
    lever.observe(training)
    lever.switch({SIZE: size}, training)
    assert "is not a size in MB" in lever.prove().not_consumed[SIZE]
    assert engine.optimizer.reduce_bucket_size == 100


def test_an_overlap_that_is_none_is_told() -> None:
    engine = DeepSpeedEngine()
    lever, training = make(engine)
    lever.observe(training)
    lever.switch({OVERLAP: "off"}, training)
    assert "neither true nor false" in lever.prove().not_consumed[OVERLAP]
    assert engine.optimizer.overlap_comm is False


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def mark(self) -> int:
        self.now += 1
        return self.now

    def measure(self, start: int, end: int) -> int:
        return end - start

    def note_turn(self) -> None:
        pass


def test_what_the_engine_does_around_backward_and_step_counts_as_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = Recorder()
    told = types.SimpleNamespace(begin_phase=recorder.begin, end_phase=recorder.end)
    monkeypatch.setattr(current, "current_runtime", told)
    recorder.clock = Clock()
    recorder.start()
    recorder.begin_step(0)
    root = types.SimpleNamespace()

    def backward(loss: str) -> str:
        recorder.begin_backward(None)
        recorder.end_backward()
        recorder.clock.mark()  # the reduction
        return loss

    def step(last: bool) -> None:
        if last:
            recorder.begin_optimizer(root)
            recorder.end_optimizer(root)
        recorder.clock.mark()  # the gathering

    root.backward, root.step = backward, step
    extend_phases(root)
    assert root.backward("loss") == "loss"
    root.step(last=False)
    root.step(last=True)
    marks = recorder.close_step(100, 1)
    assert marks is not None
    parts, _ = split_step(marks, recorder.clock)
    assert [sum(parts), *(parts[phase] for phase in (OWN, BACKWARD, OPTIMIZER))] == [100, 90, 4, 6]
    recorder.recording = False
    root.backward("loss")
    root.step(last=True)
