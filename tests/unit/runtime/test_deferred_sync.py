"""Of accumulated micro-batches only the last exchanges gradients, and none is read before it was exchanged."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from fleet_advisor_runtime.levers.events import StepListener  # noqa: E402
from fleet_advisor_runtime.levers.lever import Training  # noqa: E402
from fleet_advisor_runtime.levers.reduction.deferred_sync import KNOB, DeferredSync  # noqa: E402
from fleet_advisor_runtime.observe.gradient_reads import find_gradient_reads  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from tests.unit.runtime.lone_rank import open_lone_rank  # noqa: E402


@pytest.fixture(autouse=True)
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)  # tests read gradients, and scripts are where they are started
    with open_lone_rank():
        yield dist.group.WORLD


def reduce(sent, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    sent.append(float(bucket.buffer().sum()))
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class Job:
    """A model whose exchanges are counted by DDP's own communication hook."""

    def __init__(self, **words: Any) -> None:
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        self.net.register_buffer("table", torch.ones(1))
        self.ddp = DistributedDataParallel(self.net, **words)
        self.training = Training([self.ddp], [], known=[self.ddp], exchanges=4)
        self.sent: list[float] = []
        """Of each exchange, the sum of all gradients in it."""
        self.ddp.register_comm_hook(self.sent, reduce)
        self.lever = DeferredSync()

    def refuse(self, **found: Any) -> str:
        training = Training(**{**vars(self.training), **found})
        return str(self.lever.list_refusals(training).get(KNOB, ""))

    def train(self, *micro_batches: float, reads: bool = False) -> float:
        """A step as the runtime tells of it; returns the sum of the gradients that the optimizer finds."""
        told = self.lever if self.lever.is_on else StepListener()
        for size in micro_batches:
            told.before_forward(self.ddp)
            output = self.ddp(torch.full((1, 2), float(size)))
            told.after_forward(self.ddp)
            assert self.ddp.require_forward_param_sync  # buffers are broadcast as the script has it
            output.sum().backward()
            told.after_backward()
        if reads:
            told.before_reading()
        told.before_step()
        found = sum(float(p.grad.sum()) for p in self.ddp.parameters() if p.grad is not None)
        self.ddp.zero_grad()
        return found


@pytest.mark.parametrize(
    "words", [{}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}], ids=str
)
def test_what_the_optimizer_finds_was_exchanged_however_many_micro_batches_a_step_has(words) -> None:
    job = Job(**words)
    job.lever.switch({KNOB: True}, job.training)
    steps = [(1, 2, 3, 4), (1, 2), (3,), (1, 2, 3, 4)]
    found = [job.train(*sizes, reads=sizes == (3,)) for sizes in steps]
    # Sums of gradients that nearly cancel out: float32 rounds them by the largest.
    assert job.sent == pytest.approx(found, abs=1e-4)
    assert job.lever.prove().consumed[KNOB] == (
        "4 exchanges in 4 optimizer steps, in place of the script's 11. 2 of them came right before "
        "gradients were read, in shorter steps."
    )
    job.sent.clear()
    found = [job.train(1, 2, 3, 4, 5)]  # a longer one goes on as the script does
    assert len(job.sent) == 2
    assert job.sent[-1:] == pytest.approx(found, abs=1e-4)
    job.lever.end_segment(job.training)
    job.train(1, 2)
    assert len(job.sent) == 4


def test_a_parameter_that_is_used_by_no_rank_keeps_no_gradient() -> None:
    job = Job(find_unused_parameters=True)
    job.net[1].spare = torch.nn.Linear(2, 2)
    job.ddp = DistributedDataParallel(job.net, find_unused_parameters=True)
    job.training = Training([job.ddp], [], known=[job.ddp], exchanges=4)
    job.lever.switch({KNOB: True}, job.training)
    job.train(1, 2)
    job.train(1)
    assert job.lever.prove().consumed[KNOB].startswith("2 exchanges")
    assert job.net[1].spare.weight.grad is None


def test_what_is_still_owed_is_exchanged_where_the_lever_is_switched_off_between_passes() -> None:
    job = Job()
    job.lever.switch({KNOB: True}, job.training)
    job.lever.before_forward(job.ddp)
    output = job.ddp(torch.ones(1, 2))
    job.lever.after_forward(job.ddp)
    output.sum().backward()
    job.lever.after_backward()
    assert not job.sent
    job.lever.end_segment(Training(**{**vars(job.training), "entered": job.ddp}))
    assert not job.sent  # the backward of the forward that begins exchanges it
    job.lever.switch({KNOB: True}, job.training)
    job.train(1, 2)
    assert len(job.sent) == 1


def test_the_length_of_a_step_is_learnt_anew_where_it_changes_for_good() -> None:
    job = Job()
    job.lever.switch({KNOB: True}, job.training)
    for _ in range(5):
        job.train(1, 2)
    job.lever.begin_timing()
    job.train(1, 2)
    assert job.lever.prove().consumed[KNOB] == (
        "1 exchanges in 1 optimizer steps, in place of the script's 2."
    )


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ({"exchanges": 1}, "once in a step already"),
        ({"reads_between": True}, "clips or unscales gradients after a micro-batch that is not the last"),
        ({"repeats_backward": True}, "backward passes beside"),
        ({"known": [1, 2]}, "several models"),
    ],
)
def test_it_is_refused_where_gradients_are_read_between(found, sentence: str) -> None:
    assert sentence in Job().refuse(**found)


def test_it_is_refused_where_a_hook_looks_at_gradients_or_a_closure_computes() -> None:
    job = Job()
    assert not job.refuse()
    optimizer = torch.optim.SGD(job.net.parameters(), lr=0.1)
    told = []
    optimizer.step(lambda: told.append(job.refuse()) or 0.0)
    assert "optimizer.step(closure)" in told[0]
    job.net[0].weight.register_post_accumulate_grad_hook(lambda _: None)
    assert "hook" in job.refuse()


def test_lines_that_read_gradients_are_told_and_those_that_set_or_clear_them_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "for p in model.parameters():\n"
        "    if p.grad is not None:\n"
        "        p.grad.zero_()\n"
        "    p.grad = None\n"
        "torch.autograd.grad(loss, weights)\n"
        "total = sum(p.grad.norm() for p in model.parameters())\n"
        "clip(grads=[p.grad for p in model.parameters()])\n"
    )
    monkeypatch.chdir(tmp_path)
    found = find_gradient_reads({"__main__": SimpleNamespace(__file__=str(path)), "torch": torch})
    assert found == ["train.py:6", "train.py:7"]
