"""Process groups as NCCL jobs make them: their names, their number, and the order of their collectives."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch")
dist = torch.distributed

from fleet_advisor_runtime.backends import find_backend, find_timeout  # noqa: E402
from fleet_advisor_runtime.levers.reduction.communicators import (  # noqa: E402
    Communicators,
    explain_no_order,
)
from fleet_advisor_runtime.races.parts import read_exposed_s  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from tests.unit.runtime.nccl_card import UNSET, NcclCard  # noqa: E402

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def group() -> Iterator[None]:
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("given", [None, "gloo", "cpu:gloo,cuda:gloo"])
def test_backend_is_found_however_the_script_named_it(given: str | None, group: None) -> None:
    dist.init_process_group(given, store=dist.HashStore(), rank=0, world_size=1)
    assert find_backend(dist.group.WORLD, CPU) == "gloo"


@pytest.mark.parametrize("config", ["cuda:nccl", "cpu:gloo,cuda:nccl"])
def test_each_device_has_its_own_backend(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_backend_config", lambda group: config)
    monkeypatch.setattr(dist, "get_backend", lambda group: "undefined")
    assert find_backend(object(), CUDA) == "nccl"


def test_levels_of_1024_ranks_take_one_call_each(group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=13, world_size=1024)
    made: list[list[int]] = []
    make = dist.new_group
    monkeypatch.setattr(dist, "new_group", lambda ranks, **how: made.append(ranks) or make(ranks, **how))
    levels = Communicators(13, 1024, CPU).provide_levels(2, 8)
    assert made == [list(range(8, 16)), list(range(5, 1024, 8))] * 2
    assert dist.get_world_size(levels[0].inner) == 8
    assert dist.get_world_size(levels[0].outer) == 128
    assert levels[0].leader == 8


def test_groups_of_a_world_that_the_script_destroyed_are_made_anew(group: None) -> None:
    own = Communicators(0, 1, CPU)
    made = []
    for is_second in (False, True):
        if is_second:
            dist.destroy_process_group()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        made.append((own.provide_flat(1)[0], own.provide_levels(1, 1)[0].inner))
        assert [dist.get_process_group_ranks(one) for one in made[-1]] == [[0], [0]]
    assert own.provide_flat(1)[0] is made[1][0]


def test_nccl_bound_to_a_device_splits_its_communicator_once_for_each_level(
    group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=16)
    card = NcclCard(monkeypatch)
    card.own.is_high_priority_stream, card.own._timeout = True, timedelta(hours=2)
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(dist.group.WORLD, "bound_device_id", torch.device("cpu", 0))
    splits: list[list[list[int]]] = []

    def split_group(
        parent_pg: Any = None, split_ranks: Any = None, timeout: Any = None, pg_options: Any = None
    ) -> Any:
        """As torch 2.6 does it: options that are not given are the parent's own, and written to."""
        options = pg_options or card.own
        assert (options.is_high_priority_stream, timeout) == (True, timedelta(hours=2))
        options.config.blocking = 1
        splits.append(split_ranks)
        return object()

    monkeypatch.setattr(dist, "split_group", split_group)
    Communicators(5, 16, CUDA).provide_levels(1, 8)
    assert splits == [
        [list(range(8)), list(range(8, 16))],
        [[place, place + 8] for place in range(8)],
    ]
    assert card.own.config.blocking == UNSET, "the job's own communicator is left as it is"


def test_groups_of_the_runtime_wait_as_long_as_the_scripts_own(group: None) -> None:
    patience = timedelta(hours=2)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=patience)
    own = Communicators(0, 1, CPU)
    made = [
        *own.provide_flat(1),
        own.provide_levels(1, 1)[0].inner,
        own.provide_levels(1, 1, "gloo")[0].outer,
    ]
    assert [find_timeout(one, CPU) for one in made] == [patience] * 3


@pytest.mark.parametrize(
    ("version", "order", "words"),
    [
        ((2, 21, 5), "1", "NCCL 2.21.5 keeps no order"),
        ((2, 25, 1), None, "use a torch with NCCL 2.26"),
        ((2, 27, 3), "0", "The job sets NCCL_LAUNCH_ORDER_IMPLICIT=0"),
        ((2, 26, 2), "1", None),
    ],
)
def test_communicators_side_by_side_need_one_order(
    version: tuple[int, ...], order: str | None, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: version)
    if order is None:
        monkeypatch.delenv("NCCL_LAUNCH_ORDER_IMPLICIT", raising=False)
    else:
        monkeypatch.setenv("NCCL_LAUNCH_ORDER_IMPLICIT", order)
    sentence = explain_no_order("nccl")
    assert (sentence is None) if words is None else (words in str(sentence))
    assert explain_no_order("gloo") is None


def test_exposed_communication_is_read_from_durations_not_from_host_stamps() -> None:
    """On NCCL a future's wait() returns at once: both ends have the same host time."""

    logged = {
        "backward_compute_time_end": 1_000_000_000,
        "backward_comm_time_end": 1_000_000_000,
        "backward_comm_time": 30_000_000,
        "backward_compute_comm_overlap_time": 12_000_000,
    }
    assert read_exposed_s(logged) == pytest.approx(0.018)
