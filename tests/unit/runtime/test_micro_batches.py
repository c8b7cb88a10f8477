"""The pieces of the lever of micro_batches: cutting, joining, what a check refuses, and what a rank does when short."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fleet_advisor_runtime.levers.micro_batches import batch_parts, split_check, split_forward  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from tests.unit.runtime.lone_rank import open_lone_rank  # noqa: E402

Pair = namedtuple("Pair", "left right")


@pytest.fixture(autouse=True)
def lone_rank() -> Iterator[None]:
    with open_lone_rank():
        yield


class Linear(torch.nn.Module):
    """One layer, and what the test makes of its output."""

    def __init__(self, end: Any = None, short_of: int = 10**6) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 4).double()
        self.end, self.short_of = end, short_of
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and len(x) > self.short_of:
            raise torch.OutOfMemoryError("no room")
        found = self.layer(x)
        return self.end(self, found, **kwargs) if self.end is not None else found


def run(model: Any, x: Any, parts: int = 3, **kwargs: Any) -> tuple[Any, Any, Any]:
    """The splitting, its output, and a gradient."""
    splitting = split_forward.SplitForward(parts)
    ddp = DistributedDataParallel(model)
    output = splitting.run(ddp, (x,), kwargs, DistributedDataParallel.forward)
    torch.stack([t.sum() for t in batch_parts.list_tensors(output)]).sum().backward()
    return splitting, output, ddp.module.layer.weight.grad


def test_parts_are_equal_but_for_one_sample() -> None:
    assert batch_parts.share_out(10, 4) == [3, 3, 2, 2]
    x, y = torch.arange(10), {"y": torch.arange(20).reshape(10, 2), "scale": torch.ones(3), "n": 5}
    parts = list(batch_parts.cut((Pair(x, y),), 10, [4, 3, 3]))
    assert [len(part[0].left) for part in parts] == [4, 3, 3]
    assert isinstance(parts[1][0], Pair)
    assert parts[1][0].right["y"][0].tolist() == [8, 9]
    assert len(parts[2][0].right["scale"]) == 3
    assert parts[2][0].right["n"] == 5


def test_numbers_are_weighed_by_samples_or_added_up() -> None:
    outputs = [
        {"loss": torch.tensor(1.0), "rows": torch.zeros(3, 2)},
        {"loss": torch.tensor(2.0), "rows": torch.ones(1, 2)},
    ]
    joined = batch_parts.join(outputs, [3, 1], batch_parts.MEAN)
    assert joined["loss"].item() == 1.25
    assert joined["rows"].shape == (4, 2)
    assert batch_parts.join(outputs, [3, 1], batch_parts.SUM)["loss"].item() == 3.0
    with pytest.raises(batch_parts.Inseparable, match="not one row each"):
        batch_parts.join([torch.ones(7), torch.ones(7)], [3, 1], batch_parts.MEAN)


@pytest.mark.parametrize("parts", [2, 3, 5, 100])
def test_gradients_and_output_are_those_of_the_whole_batch(parts: int) -> None:
    x = torch.randn(11, 4, dtype=torch.float64)
    _, whole, exact = run(Linear(), x, parts=1)
    splitting, output, gradient = run(Linear(), x, parts=parts)
    assert torch.allclose(output, whole, rtol=1e-12)
    assert torch.allclose(gradient, exact, rtol=1e-12)
    assert not splitting.refusal
    assert splitting.sizes[0] == 11
    assert "forward" not in vars(DistributedDataParallel(Linear()).module)


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        (lambda _, y: y - y.mean(0), "something of the whole batch"),
        (lambda _, y: y.std(), "something of the whole batch"),
        (lambda _, y: y.T, "not one row each"),
        (lambda _, y: object(), "cannot be put together"),
        (lambda model, y: setattr(model, "kept", y.sum()) or y, "keeps kept from its forward"),
        (lambda model, y: model.seen.add_(1) * 0 + y, "changes seen in its forward"),
    ],
)
def test_a_model_that_mixes_samples_is_computed_whole(end: Any, sentence: str) -> None:
    model = Linear(end)
    splitting = split_forward.SplitForward(2)
    x, ddp = torch.randn(8, 4, dtype=torch.float64), DistributedDataParallel(model)
    splitting.run(ddp, (x,), {}, DistributedDataParallel.forward)
    assert sentence in splitting.refusal
    assert splitting.forwards == 0
    assert model.seen.item() == (1 if "changes" in sentence else 0)


def test_a_loss_in_the_model_may_be_a_mean_or_a_sum() -> None:
    x = torch.randn(8, 4, dtype=torch.float64)
    for end in (lambda _, y: y.square().mean(), lambda _, y, n=8: y.square().sum() / n):
        _, _, exact = run(Linear(end), x, parts=1)
        splitting, _, gradient = run(Linear(end), x, parts=3)
        assert not splitting.refusal
        assert torch.allclose(gradient, exact, rtol=1e-12)


def test_the_scripts_random_numbers_stay_where_they_were() -> None:
    model, x = (
        Linear(lambda _, y: torch.nn.functional.dropout(y, 0.5)),
        torch.randn(8, 4, dtype=torch.float64),
    )
    torch.manual_seed(5)
    finding = split_check.check(model, model.forward, ((x,), {}), 2)
    after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))
    # It draws them in evaluation mode, too: nothing could be compared.
    assert "something of the whole batch" in finding.refusal


def test_batch_norm_hooks_and_lightning_are_told_before_anything_runs() -> None:
    class LightningModule(torch.nn.Module): ...

    for module, sentence in (
        (torch.nn.BatchNorm1d(4), "batch norm (0)"),
        (LightningModule(), "Lightning runs training_step"),
    ):
        ddp = DistributedDataParallel(torch.nn.Sequential(module, torch.nn.Linear(4, 4)))
        assert sentence in split_check.explain_no_split(ddp)
    watched = torch.nn.Sequential(torch.nn.Linear(4, 4))
    watched[0].register_forward_hook(lambda *_: None)
    assert "watches 0" in split_check.explain_no_split(DistributedDataParallel(watched))


def test_a_rank_that_is_short_makes_more_parts_until_one_sample_is_left(
    capfd: pytest.CaptureFixture[str],
) -> None:
    x = torch.randn(8, 4, dtype=torch.float64)
    _, _, exact = run(Linear(), x, parts=1)
    splitting, _, gradient = run(Linear(short_of=2), x, parts=2)
    assert splitting.sizes == (8, 2)
    assert splitting.shortages == 1
    assert torch.allclose(gradient, exact, rtol=1e-12)
    assert "it makes 4 parts from here on" in capfd.readouterr().err
    splitting = split_forward.SplitForward(2)
    with pytest.raises(torch.OutOfMemoryError):
        splitting.run(DistributedDataParallel(Linear(short_of=0)), (x,), {}, DistributedDataParallel.forward)


def test_parts_are_as_large_as_measured_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    x, model = torch.randn(64, 4, dtype=torch.float64), Linear()
    kept = split_check.check(model, model.forward, ((x,), {}), 2).bytes_per_sample
    assert kept > 0
    room = split_forward.BACKWARD * kept * 10 / split_forward.ROOM
    monkeypatch.setattr(split_forward, "count_free_bytes", lambda _: room * 1.001)
    splitting, _, _ = run(Linear(), x, parts=2)
    assert splitting.sizes == (64, 10)
    assert splitting.shortages == 0
