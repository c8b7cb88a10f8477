"""DDP's broadcast of buffers is left out where no buffer changes in training, and comes back where one does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from fleet_advisor_runtime.levers.lever import Training  # noqa: E402
from fleet_advisor_runtime.levers.reduction.buffer_broadcast import KNOB, BufferBroadcast  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from tests.unit.runtime.lone_rank import open_lone_rank  # noqa: E402


@pytest.fixture(autouse=True)
def group() -> Iterator[Any]:
    with open_lone_rank():
        yield dist.group.WORLD


class Net(torch.nn.Module):
    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 2), *layers)
        self.register_buffer("table", torch.ones(4))


def open_job(module: Any, **words: Any) -> tuple[Any, Training]:
    ddp = DistributedDataParallel(module, **words)
    return ddp, Training([ddp], [], known=[ddp])


def refuse(ddp: Any, training: Training, write: bool = False) -> str | None:
    lever = BufferBroadcast()
    lever.watch(training)
    if write:
        ddp.module.table[1] = 2.0
    lever.watch(training)  # the later one tells nothing
    found: str | None = lever.list_refusals(training).get(KNOB)
    return found


def test_it_is_offered_where_buffers_are_sent_and_none_changed() -> None:
    assert refuse(*open_job(Net())) is None


@pytest.mark.parametrize(
    ("layers", "words", "write", "sentence"),
    [
        ((), {"broadcast_buffers": False}, False, "broadcasts no buffers"),
        ((), {}, True, "Some buffers change"),
        ((torch.nn.BatchNorm1d(2),), {}, False, "running statistics"),
    ],
    ids=["off", "written", "batch norm"],
)
def test_it_stays_where_it_is_needed(layers: Any, words: Any, write: bool, sentence: str) -> None:
    assert sentence in str(refuse(*open_job(Net(*layers), **words), write=write))


def test_batch_norm_without_statistics_of_its_own_needs_no_broadcast() -> None:
    assert refuse(*open_job(Net(torch.nn.BatchNorm1d(2, track_running_stats=False)))) is None


def test_a_model_without_buffers_sends_none() -> None:
    assert "broadcasts no buffers" in str(refuse(*open_job(torch.nn.Linear(2, 2))))


def test_what_is_left_out_is_proved_by_bits_and_put_back() -> None:
    ddp, training = open_job(Net())
    lever = BufferBroadcast()
    assert lever.observe(training) == {KNOB: True}
    lever.begin_race()
    for _ in range(2):
        lever.switch({KNOB: False}, training)
        assert not ddp.broadcast_buffers
        assert "1 buffers (1.53e-05 MiB) were not sent" in lever.prove().consumed[KNOB]
        lever.switch({}, training)
        assert ddp.broadcast_buffers
    assert not lever.prove().consumed
    lever.switch({KNOB: False}, training)
    ddp.module.table[1] = 2.0
    assert "Some buffers change" in lever.prove().not_consumed[KNOB]
    ddp.broadcast_buffers = True
    assert "on again" in lever.prove().not_consumed[KNOB]
    lever.switch({KNOB: "no"}, training)
    assert "was not set" in lever.prove().not_consumed[KNOB]
    assert ddp.broadcast_buffers
