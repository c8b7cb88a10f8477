"""Whether ranks hold the same parameters, and which ones a model reduces."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from .lone_rank import open_lone_rank

agreement = importlib.import_module("fleet_advisor_runtime.races.agreement")
bucket_plan = importlib.import_module("fleet_advisor_runtime.levers.buckets.bucket_plan")
proof = importlib.import_module("fleet_advisor_runtime.levers.reduction.reduction_proof")
reduced = importlib.import_module("fleet_advisor_runtime.observe.reduced")
reducer = importlib.import_module("fleet_advisor_runtime.levers.reduction.reducer")
results = importlib.import_module("fleet_advisor_runtime.races.results")
rank_arm = importlib.import_module("fleet_advisor_runtime.races.rank_arm")


@pytest.fixture
def rank() -> Iterator[None]:
    with open_lone_rank():
        yield


def make_net() -> torch.nn.Sequential:
    return torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(4)])


def test_bits_tell_the_smallest_difference_and_the_place_of_each_parameter() -> None:
    ones = torch.ones(100)
    other = ones.clone()
    other[50] = torch.nextafter(other[50], torch.tensor(2.0))
    assert agreement.sum_each([ones]) == agreement.sum_each([ones.clone()])
    assert agreement.sum_each([ones]) != agreement.sum_each([other])
    assert agreement.sum_each([ones, other]) == agreement.sum_each([other, ones])[::-1]
    kinds = [torch.ones(3, dtype=kind) for kind in (torch.bfloat16, torch.float64, torch.complex64)]
    assert len(agreement.sum_each([*kinds, torch.tensor([math.inf, math.nan])])) == 4
    assert agreement.sum_each([]) == []


@pytest.mark.parametrize(
    ("views", "apart"),
    [
        ([[([], 1), ([], 2)], [([], 1), ([], 2)]], {}),
        ([[([], 1), ([], 2)], [([], 1), ([], 3)]], {1: (0, 1)}),
        # Tensor parallel: ranks 0 and 2 reduce one shard together, 1 and 3 the other one.
        ([[([0, 2], 1)], [([1, 3], 5)], [([0, 2], 1)], [([1, 3], 5)]], {}),
        ([[([0, 2], 1)], [([1, 3], 5)], [([0, 2], 1)], [([1, 3], 6)]], {0: (1, 3)}),
    ],
)
def test_only_ranks_that_reduce_a_model_together_are_held_against_each_other(views: Any, apart: Any) -> None:
    assert agreement.find_apart(views) == apart


def test_names_of_parameters_that_differ_are_told() -> None:
    told = agreement.describe_apart(0, 1, [".a", ".b", ".c", "d.e"], 9)
    assert told == "rank 1 holds other values than rank 0 in 4 of 9 parameters (a, b, c and 1 more)"


def test_what_is_measured_after_ranks_have_drifted_apart_counts_no_more() -> None:
    one, two = (rank_arm.RankRace([], [([], bits)]) for bits in (1, 2))
    _, drifted = results.merge_race([one, two], [], [[([], 0)], [([], 0)]], False)
    assert drifted == results.DRIFTED
    _, later = results.merge_race([one, two], [], [[([], 1)], [([], 2)]], False, drifted)
    assert later == results.DRIFTED
    _, own = results.merge_race([one, two], [], [[([], 1)], [([], 2)]], False)
    assert own == "", "they differed before: the script's own doing"


@pytest.mark.usefixtures("rank")
@pytest.mark.parametrize("frozen", ["nothing", "half", "all"])
def test_a_new_reducer_has_the_parameters_of_the_scripts_own_whatever_is_frozen_now(frozen: str) -> None:
    net = make_net()
    net[3].requires_grad_(False)
    ddp = DistributedDataParallel(net, bucket_cap_mb=25, find_unused_parameters=True)
    net[3].requires_grad_(True)
    for layer in net[: {"nothing": 0, "half": 2, "all": 4}[frozen]]:
        layer.requires_grad_(False)
    before = [parameter.requires_grad for parameter in net.parameters()]
    reducer.rebuild_reducer(ddp, bucket_plan.BucketPlan(1, 1, searches_unused=True))
    assert [parameter.requires_grad for parameter in net.parameters()] == before
    assert len(reduced.list_reduced(ddp)) == 6
    net.requires_grad_(True)
    for _ in range(2):
        ddp(torch.ones(2, 8)).sum().backward()
    buckets, _ = bucket_plan.read_buckets(ddp)
    assert sorted(buckets) == [32] * 3 + [256] * 3
    assert proof.explain_missing_parameters(ddp, buckets) == ""
    assert proof.explain_missing_parameters(ddp, buckets[1:]) != ""


@pytest.mark.usefixtures("rank")
def test_a_reducer_that_cannot_be_built_leaves_the_one_before_in_force() -> None:
    ddp = DistributedDataParallel(make_net())
    before = (ddp.reducer, ddp.logger, ddp.bucket_bytes_cap, bucket_plan.observe_plan(ddp))

    def hook() -> None: ...

    with pytest.raises(AttributeError):
        # Its state has no attribute that a hook's registration reads: it fails after the reducer was built.
        reducer.rebuild_reducer(
            ddp, bucket_plan.BucketPlan(1, 1), None, type("Nameless", (), {"__call__": hook})()
        )
    assert (ddp.reducer, ddp.logger, ddp.bucket_bytes_cap, bucket_plan.observe_plan(ddp)) == before
    ddp(torch.ones(2, 8)).sum().backward()
    assert all(parameter.grad is not None for parameter in ddp.parameters())


@pytest.mark.usefixtures("rank")
@pytest.mark.parametrize("entered", [False, True])
def test_a_static_graph_reduces_first_in_a_pass_outside_no_sync(entered: bool) -> None:
    ddp = DistributedDataParallel(make_net(), static_graph=True)
    for _ in range(3):
        ddp(torch.ones(2, 8)).sum().backward()
    reducer.rebuild_reducer(ddp, bucket_plan.BucketPlan(1, 1), is_entered=entered)
    for _ in range(4):
        if not entered:
            with ddp.no_sync():
                ddp(torch.ones(2, 8)).sum().backward()
        ddp(torch.ones(2, 8)).sum().backward()
    assert bucket_plan.read_buckets(ddp) == ([32, 256] * 4, True)
