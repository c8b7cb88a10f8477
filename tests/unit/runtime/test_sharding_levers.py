"""The levers of fully_shard: the order that they go by, what they leave behind, and what an older torch lacks."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from tests.unit.runtime.lone_rank import open_lone_rank


def load(name: str) -> Any:
    return importlib.import_module(f"fleet_advisor_runtime.{name}")


private_torch, watch = load("private_torch"), load("levers.sharding.gather_watch")
registry, Training = load("levers.registry"), load("levers.lever").Training
GradientScatter = load("levers.sharding.gradient_scatter").GradientScatter
prefetching = load("levers.sharding.prefetching")
Prefetching = prefetching.Prefetching
Resharding = load("levers.sharding.resharding").Resharding
CPU = torch.device("cpu")


@pytest.fixture
def alone() -> Iterator[None]:
    with open_lone_rank():
        yield


def shard(layers: int = 3, **arguments: Any) -> Any:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
    for layer in model:
        fully_shard(layer, **arguments)
    fully_shard(model, **arguments)(torch.ones(2, 4)).sum().backward()  # nobody steers before the first step
    return model


def train(model: Any, lever: Any) -> None:
    """One step, with the hooks of the lever where it is on."""
    if lever.is_on:
        lever.before_forward(model)
    loss = model(torch.ones(2, 4)).sum()
    if lever.is_on:
        lever.after_forward(model)
    loss.backward()
    if lever.is_on:
        lever.after_backward()


def test_a_communicator_of_its_own_waits_as_long_as_the_scripts(alone: None) -> None:
    patience = timedelta(hours=2)
    dist.group.WORLD.set_timeout(patience)
    model, lever = shard(), GradientScatter(CPU)
    training = Training([], [], sharded=[model])
    lever.list_refusals(training)
    lever.observe(training)
    lever.switch({"sharding_separate_reduction": True}, training)
    made = lever._path._made.values()
    assert made
    assert {load("backends").find_timeout(group, CPU) for group in made} == {patience}


def test_a_communicator_that_a_card_has_no_room_for_is_left_out(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, lever = shard(), GradientScatter(CPU)
    training = Training([], [], sharded=[model])
    lever.list_refusals(training)
    lever.observe(training)
    monkeypatch.setattr(load("levers.sharding.scatter_path"), "find_backend", lambda _group, _device: "nccl")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (2**30, 80 * 2**30))
    lever.switch({"sharding_separate_reduction": True}, training)
    train(model, lever)
    assert not lever._path._made
    evidence = lever.prove()
    assert "sharding_separate_reduction" not in evidence.consumed
    assert "may take 3.2 GiB of the card" in evidence.not_consumed["sharding_separate_reduction"]


def test_a_module_begins_before_what_is_inside_it() -> None:
    layers = [nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(2)]
    (first, second), alone = layers, nn.Linear(2, 2)
    ended = [first[0], first[1], first, alone, second[0], second[1], second]
    begun = [first, first[0], first[1], alone, second, second[0], second[1]]
    assert watch.order_by_beginning(ended) == begun
    assert watch.order_for_backward(ended) == ended[::-1]


def test_a_module_that_is_used_twice_comes_first_where_it_is_needed_first() -> None:
    shared, middle = nn.Linear(2, 2), nn.Linear(2, 2)
    assert watch.order_by_beginning([shared, middle, shared]) == [shared, middle]
    assert watch.order_for_backward([middle, shared, middle]) == [middle, shared]


def list_prefetched(model: Any) -> list[tuple[int, int]]:
    states = [private_torch.GET_SHARDED_STATE.of(module)() for module in model]
    lists = (private_torch.FORWARD_STATES, private_torch.BACKWARD_STATES)
    return [(len(lists[0].of(state)), len(lists[1].of(state))) for state in states]


def test_a_scripts_own_lists_come_back(alone: None) -> None:
    model, lever = shard(), Prefetching()
    model[0].set_modules_to_forward_prefetch([model[1], model[2]])
    training = Training([], [], sharded=[model])
    assert lever.list_refusals(training) == {}
    assert lever.observe(training) == {"sharding_forward_prefetch": 2, "sharding_backward_prefetch": 1}
    own = [(2, 0), (0, 0), (0, 0)]
    lever.switch({"sharding_forward_prefetch": 1, "sharding_backward_prefetch": 2}, training)
    assert lever.least_warm_up == 2
    train(model, lever)
    assert list_prefetched(model) == [(1, 0), (1, 1), (0, 2)]
    lever.switch({}, training)
    assert (list_prefetched(model), lever.is_on) == (own, False)


def test_a_list_ends_where_the_memory_does(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # A layer takes 4 × 4 + 4 numbers of 4 bytes, twice while it is gathered: there is room for two of them.
    monkeypatch.setattr(prefetching, "count_room_at_peak", lambda _: 2 * 2 * 80)
    model, lever = shard(layers=5), Prefetching()
    training = Training([], [], sharded=[model])
    lever.observe(training)
    lever.switch({"sharding_forward_prefetch": 4, "sharding_backward_prefetch": 2}, training)
    for _ in range(2):
        train(model, lever)
    assert list_prefetched(model) == [(2, 0), (2, 1), (2, 2), (1, 2), (0, 2)]
    told = lever.prove().consumed["sharding_forward_prefetch"]
    assert "up to 2 modules ahead of their use. Before 3 modules fewer than 4" in told
    monkeypatch.setattr(prefetching, "count_room_at_peak", lambda _: 1)
    lever.switch({"sharding_backward_prefetch": 3}, training)
    assert [back for _, back in list_prefetched(model)] == [0, 1, 1, 1, 1]


def test_what_watches_a_step_is_gone_after_it(alone: None) -> None:
    model = shard()
    training = Training([], [], sharded=[model])
    scatters = {name: getattr(dist, name) for name in watch_names() if hasattr(dist, name)}
    ahead, scatter = Prefetching(), GradientScatter(CPU)
    for lever, values in (
        (ahead, {"sharding_forward_prefetch": 1}),
        (scatter, {"sharding_reduce_buffers": 2}),
    ):
        lever.observe(training)
        lever.switch(values, training)
        train(model, lever)
        lever.before_forward(model)
        lever.end_segment(training)
    assert {name: getattr(dist, name) for name in scatters} == scatters
    groups = load("observe.sharded").list_all_groups([model])
    assert len(groups) == 3
    assert not [group for group in groups if "unshard" in vars(group)]


def watch_names() -> tuple[str, ...]:
    return tuple(load("levers.sharding.scatter_watch").NAMES)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (MixedPrecisionPolicy(reduce_dtype=torch.bfloat16), "reduces gradients in bfloat16 already"),
        (MixedPrecisionPolicy(param_dtype=torch.float16), "reduces gradients in float16 already"),
        (MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32), None),
    ],
)
def test_reductions_in_sixteen_bits_are_offered_where_the_script_has_none(
    policy: Any, words: str | None, alone: None
) -> None:
    training = Training([], [], sharded=[shard(mp_policy=policy)])
    sentence = GradientScatter(CPU).list_refusals(training).get("fp16_allreduce")
    assert sentence is None if words is None else words in str(sentence)


@pytest.mark.parametrize(
    ("name", "kind", "refused"),
    [
        ("FORWARD_STATES", Prefetching, {"sharding_forward_prefetch", "sharding_backward_prefetch"}),
        ("FORWARD_ORDER", Prefetching, {"sharding_forward_prefetch", "sharding_backward_prefetch"}),
        ("REDUCTION_FORMAT", GradientScatter, {"fp16_allreduce", "fp16_allreduce_dtype"}),
        ("POLICY", GradientScatter, {"fp16_allreduce", "fp16_allreduce_dtype"}),
        ("SEPARATE_SCATTER", GradientScatter, {"sharding_separate_reduction"}),
        ("SCATTER_BUFFERS", GradientScatter, {"sharding_reduce_buffers"}),
        ("REDUCTION_BUFFERS", GradientScatter, {"sharding_group_memory"}),
        ("CHOOSE_SHARES", Resharding, {"sharding_gather_ranks"}),
    ],
)
def test_a_knob_is_refused_with_a_sentence_where_torch_lacks_a_name(
    name: str, kind: Any, refused: set[str], alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training([], [], sharded=[shard()])
    own = getattr(private_torch, name)
    monkeypatch.setattr(private_torch, name, dataclasses.replace(own, name="_gone", since=(9, 9)))
    lever = kind(CPU) if kind is GradientScatter else kind()
    refusals = lever.list_refusals(training)
    told = {knob for knob, sentence in refusals.items() if "_gone, which the advisor needs to" in sentence}
    assert told == refused
    lever.observe(training)


def test_a_model_without_shards_is_refused_what_acts_on_them(alone: None) -> None:
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    levers = registry.Levers(0, 1, 1, CPU, None, {}, load("loading.reading").Reading())
    refusals = levers.list_refusals(Training([ddp], []))
    sharded = {knob for lever in (Resharding, Prefetching) for knob in lever.knobs}
    assert {refusals[knob] for knob in sharded | {"sharding_reduce_buffers"}} == {
        "The model is not sharded: every rank holds all parameters all the time."
    }
    assert "not sharded" not in refusals.get("fp16_allreduce", "")


def accumulate(model: Any) -> torch.Tensor:
    """The first layer's gradient of 18 micro-batches, the last of which reduces; a large one comes first."""
    for part in range(18):
        model.set_requires_gradient_sync(part == 17)
        model(torch.full((1, 4), 512.0 if part == 0 else 1.0)).sum().backward()
    gradient: torch.Tensor = model[0].weight.grad.to_local().clone()
    model.zero_grad()
    return gradient


@pytest.mark.parametrize(
    "policy", [MixedPrecisionPolicy(), MixedPrecisionPolicy(torch.bfloat16, torch.float32)]
)
def test_micro_batches_are_added_up_in_the_scripts_format_and_rounded_once(policy: Any, alone: None) -> None:
    torch.manual_seed(0)
    model, lever = shard(layers=1, mp_policy=policy), GradientScatter(CPU)
    training = Training([], [], sharded=[model])
    assert "fp16_allreduce" not in lever.list_refusals(training)
    lever.observe(training)
    model.zero_grad()
    own = accumulate(model)
    lever.switch({"fp16_allreduce": True, "fp16_allreduce_dtype": "bf16"}, training)
    assert torch.equal(accumulate(model), own.bfloat16().float())
    assert not torch.equal(own, own.bfloat16().float())
    lever.switch({}, training)
    assert torch.equal(accumulate(model), own)


def test_sixteen_bits_are_not_in_force_where_copies_add_reduced_micro_batches_up(alone: None) -> None:
    model = shard(mesh=dist.device_mesh.init_device_mesh("cpu", (1, 1), mesh_dim_names=("copies", "shards")))
    lever, training = GradientScatter(CPU), Training([], [], sharded=[model])
    lever.list_refusals(training)
    lever.observe(training)
    lever.switch({"fp16_allreduce": True}, training)
    scatter = next(name for name in watch_names() if hasattr(dist, name))
    for adds_copies in (False, True):
        model.set_requires_all_reduce(adds_copies)
        lever.begin_timing()
        lever.before_forward(model)
        getattr(dist, scatter)(
            torch.zeros(1).half(), torch.zeros(1).half()
        )  # one rank alone scatters nothing
        lever.after_backward()
        evidence = lever.prove()
        told = evidence.consumed if adds_copies else evidence.not_consumed
        assert ("1 of 1 reductions" if adds_copies else "each of these additions would round") in told[
            "fp16_allreduce"
        ]
