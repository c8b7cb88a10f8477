"""DDP's search for unused parameters, left out: what got no gradient is handed over as the search would have done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from fleet_advisor_runtime import current  # noqa: E402
from fleet_advisor_runtime.levers.lever import Training  # noqa: E402
from fleet_advisor_runtime.levers.reduction.gradient_reduction import GradientReduction  # noqa: E402
from fleet_advisor_runtime.levers.reduction.unused_parameters import KNOB, UnusedParameters  # noqa: E402
from fleet_advisor_runtime.observe.shared_steps import SharedSteps  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from tests.unit.runtime.lone_rank import open_lone_rank  # noqa: E402

X = torch.ones(1, 2)


@pytest.fixture(autouse=True)
def group() -> Iterator[Any]:
    with open_lone_rank():
        yield dist.group.WORLD


class Branches(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3))

    def forward(self, x: Any, depth: int = 3, both: bool = False) -> Any:
        for layer in list(self.layers)[:depth]:
            x = layer(x)
        return (x, self.layers[2](X)) if both else x


def wrap(**words: Any) -> Any:
    torch.manual_seed(0)
    return DistributedDataParallel(Branches(), **{"find_unused_parameters": True, **words})


def learn(ddp: Any, depth: int = 3, loss: Any = None) -> None:
    """A step as the patches see it, up to the optimizer's."""
    (ddp(X, depth).sum() if loss is None else loss).backward()
    for watch in current.after_backward:
        watch()


class Job:
    def __init__(self, ddp: Any) -> None:
        self.training = Training([ddp], [], known=[ddp])
        self.reduction = GradientReduction(0, 1, 1, torch.device("cpu"))
        self.lever = UnusedParameters(self.reduction)

    def refuse(self) -> Any:
        self.reduction.list_refusals(self.training)
        return self.lever.list_refusals(self.training).get(KNOB)

    def switch(self, values: Any) -> None:
        self.lever.switch(values, self.training)
        self.reduction.switch({}, self.training)
        self.lever.begin_timing()


@pytest.fixture
def job() -> Iterator[Job]:
    ddp = wrap()
    for _ in range(3):
        learn(ddp)
        ddp.zero_grad()
    found = Job(ddp)
    assert found.refuse() is None
    found.switch({KNOB: False})
    assert not ddp.find_unused_parameters
    yield found
    found.switch({})
    assert ddp.find_unused_parameters
    assert not current.after_backward


def test_off_is_proved_by_the_passes_in_which_every_gradient_came(job: Job) -> None:
    [ddp] = job.training.replicas
    for _ in range(4):
        learn(ddp)
        ddp.zero_grad()
    assert "no graph in 4 backward passes" in job.lever.prove().consumed[KNOB]


@pytest.mark.parametrize("keeps", [False, True], ids=["cleared", "kept"])
def test_what_no_rank_has_used_keeps_its_gradient_and_is_told(job: Job, keeps: bool, capsys: Any) -> None:
    [ddp] = job.training.replicas
    learn(ddp)
    ddp.zero_grad()
    if keeps:
        ddp.module.layers[2].weight.grad = torch.full((2, 2), 3.0)
    learn(ddp, 2)
    last = ddp.module.layers[2]
    assert last.bias.grad is None
    assert (last.weight.grad.tolist() == [[3.0, 3.0], [3.0, 3.0]]) if keeps else last.weight.grad is None
    assert ddp.module.layers[1].weight.grad is not None
    ddp.zero_grad()
    learn(ddp)  # DDP itself would end the training here
    assert "layers.2.weight, layers.2.bias got no gradient" in capsys.readouterr().err
    assert "in 1 of 3 backward passes" in job.lever.prove().not_consumed[KNOB]


def test_a_gradient_of_earlier_passes_that_were_not_reduced_is_reduced_in_the_last(job: Job) -> None:
    [ddp] = job.training.replicas
    with ddp.no_sync():
        learn(ddp)
    learn(ddp, 2)
    assert ddp.module.layers[2].weight.grad is not None


def test_a_second_backward_pass_ends_the_training_before_its_step(job: Job) -> None:
    [ddp] = job.training.replicas
    first, second = ddp(X, 2, both=True)
    learn(ddp, loss=first.sum() * 1)
    with pytest.raises(RuntimeError, match="several backward passes"):
        learn(ddp, loss=second.sum())


def test_a_backward_pass_of_something_else_is_none_of_the_models(job: Job) -> None:
    [ddp] = job.training.replicas
    loss = ddp(X).sum()
    learn(ddp, loss=(torch.ones(1, requires_grad=True) * 2).sum())
    learn(ddp, loss=loss)
    assert "no graph in 1 backward passes" in job.lever.prove().consumed[KNOB]


@pytest.mark.parametrize(
    ("words", "depths", "repeats", "sentence"),
    [
        ({"find_unused_parameters": False}, (3, 3), False, "searches for no unused parameters"),
        ({"static_graph": True}, (3, 3), False, "static_graph=True"),
        ({}, (3, 2), False, "Some parameters got no gradient"),
        ({}, (2, 3, 3), False, "Some parameters got no gradient"),
        ({}, (3, 3), True, "backward passes beside the one"),
    ],
    ids=["off", "static", "unused", "unused at first", "several passes"],
)
def test_it_stays_on_where_it_is_needed_or_nothing_says_that_it_is_not(
    words: Any, depths: Any, repeats: bool, sentence: str
) -> None:
    ddp = wrap(**words)
    for depth in depths:
        learn(ddp, depth)
        ddp.zero_grad()
    ddp(X)  # DDP logs the last pass here
    ddp.reducer._reset_state()
    job = Job(ddp)
    job.training = Training([ddp], [], known=[ddp], repeats_backward=repeats)
    assert sentence in job.refuse()


def test_backward_passes_beside_a_forwards_own_are_seen() -> None:
    steps, model = SharedSteps(), torch.nn.Linear(1, 1)
    for _ in range(2):
        steps.note_forward(model)
        steps.note_backward()
    assert not steps.repeats_backward
    steps.note_backward()
    assert steps.repeats_backward
