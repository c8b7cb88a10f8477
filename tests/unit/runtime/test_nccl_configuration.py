"""NCCL's channels and cluster size per communicator: switched between two steps, proved, or refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from fleet_advisor_runtime.levers.lever import RelaunchNeeded, Training  # noqa: E402
from fleet_advisor_runtime.levers.reduction import nccl_options, reducer  # noqa: E402
from fleet_advisor_runtime.levers.registry import Levers  # noqa: E402
from fleet_advisor_runtime.loading.reading import Reading  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from tests.unit.runtime.lone_rank import open_lone_rank  # noqa: E402
from tests.unit.runtime.nccl_card import CPU, GIB, NcclCard, standing  # noqa: E402

MIN, MAX, CLUSTER = "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_CGA_CLUSTER_SIZE"


class Job:
    """This rank of a job with a model of two layers; without the others' part of a backward pass where it is one of
    several."""

    def __init__(self) -> None:
        self.ranks = dist.get_world_size()
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        self.ddp = DistributedDataParallel(model)
        self.training = Training([self.ddp], [torch.optim.SGD(model.parameters(), lr=0.1)])
        self.levers = Levers(0, self.ranks, min(2, self.ranks), CPU, None, {}, Reading())
        for _ in range(3):
            self.step()
        self.refusals = self.levers.list_refusals(self.training)
        self.observed = self.levers.observe(self.training)

    def step(self) -> None:
        if self.ranks == 1:
            self.ddp(torch.ones(2, 8)).sum().backward()

    def race(self, *strategies: dict[str, Any]) -> dict[str, str]:
        """Each in turn, and the last one's evidence, knob by knob."""
        self.levers.begin_race(strategies)
        self.levers.reduction.keeps_live = len(strategies) > 1
        for strategy in strategies:
            self.levers.switch(strategy, self.training)
            self.levers.begin_timing()
            self.step()
            evidence = self.levers.prove("nccl", self.training.replicas)
        self.levers.reduction.drop_spares()
        return {**evidence.consumed, **{knob: f"NOT: {why}" for knob, why in evidence.not_consumed.items()}}


@pytest.fixture
def group() -> Iterator[None]:
    with open_lone_rank():
        yield


@pytest.fixture
def card(group: None, monkeypatch: pytest.MonkeyPatch) -> NcclCard:
    return NcclCard(monkeypatch)


@pytest.fixture
def card_of_four(monkeypatch: pytest.MonkeyPatch) -> Iterator[NcclCard]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    destroy = dist.destroy_process_group
    yield NcclCard(monkeypatch)
    destroy()


def test_each_value_gets_a_communicator_that_is_opened_before_it_is_timed(card: NcclCard) -> None:
    job = Job()
    own = job.ddp.process_group
    assert not set(job.refusals) & {MIN, MAX, CLUSTER}
    found = job.race({}, {MIN: 8}, {MIN: 16, CLUSTER: 2}, {MIN: 8})
    assert [line for line in card.seen if line != "look"] == [
        "make 0 max_ctas=1024 min_ctas=8",
        "open 0",
        "make 1 cga_cluster_size=2 max_ctas=1024 min_ctas=16",
        "open 1",
    ], "the first value's own is used again"
    assert found[MIN] == "Gradients went over 1 communicator(s) of their own, made with min_ctas 8."
    assert job.ddp.process_group is own, "buffers stay where the script sends them"


def test_gradients_really_go_there(card: NcclCard) -> None:
    """Groups count their collectives."""
    job = Job()
    lever = job.levers.reduction
    lever.configure((("min_ctas", 8),))
    lever.switch({}, job.training)
    [made] = lever.communicators.provide_flat(1, (("min_ctas", 8),))
    count = made._get_sequence_number_for_group
    own, before = job.ddp.process_group._get_sequence_number_for_group(), count()
    for _ in range(3):
        job.step()
    assert count() >= before + 3
    assert job.ddp.process_group._get_sequence_number_for_group() == own
    lever.configure(())
    lever.switch({}, job.training)
    before = count()
    for _ in range(3):
        job.step()
    assert count() == before, "the baseline goes over the job's own again"


@pytest.mark.parametrize(
    ("strategy", "communicators"),
    [
        ({"nccl_comm_num": 3, "sync_nccl_allreduce": False}, 3),
        ({"use_hierarchical_allreduce": True, "hierarchical_allreduce_inter_nranks": 2}, 3),
        ({"fp16_allreduce": True}, 1),
        ({"dgc": True}, 1),
    ],
)
def test_all_communicators_of_a_reduction_are_made_with_it(
    strategy: dict[str, Any], communicators: int, card_of_four: NcclCard
) -> None:
    job, card = Job(), card_of_four
    found = job.race({**strategy, MAX: 4})
    assert [line for line in card.seen if "make" in line] == [
        f"make {number} max_ctas=4" for number in range(communicators)
    ]
    assert f"over {communicators} communicator(s)" in found[MAX]


def test_what_no_arm_of_the_next_race_needs_is_destroyed_and_its_memory_given_back(
    card_of_four: NcclCard,
) -> None:
    card = card_of_four
    job, before = Job(), card.free
    levels = {"use_hierarchical_allreduce": True, "hierarchical_allreduce_inter_nranks": 2}
    job.race({}, {MIN: 8}, {MIN: 16}, {"nccl_comm_num": 2, "sync_nccl_allreduce": False}, levels, {})
    assert len(card.list_alive()) == 5
    job.race({}, {MIN: 16}, {})
    assert card.list_alive() == [1]
    job.race({}, {})
    assert card.list_alive() == []
    assert card.free == before
    job.race({}, {MIN: 8}, {})
    assert card.list_alive() == [5], "what is asked for again is made again"


def test_what_is_still_in_force_when_a_race_begins_is_kept(card: NcclCard) -> None:
    job = Job()
    job.race({MIN: 8})
    job.levers.begin_race([{}])
    job.step()
    assert card.list_alive() == [0]


def test_without_room_it_takes_a_launch_and_several_communicators_are_refused(card: NcclCard) -> None:
    job = Job()
    card.free = 3 * GIB
    with pytest.raises(RelaunchNeeded, match=r"1 more communicator.* 3\.2 GiB .* fullest one has 3 GiB free"):
        job.race({MIN: 8})
    found = job.race({"nccl_comm_num": 4, "sync_nccl_allreduce": False, "fuse_grad_size_in_MB": 4})
    assert found["nccl_comm_num"].startswith("NOT: 3 more communicator(s) may take 6.3 GiB")
    assert "under a cap of 4194304 bytes" in found["fuse_grad_size_in_MB"], (
        "the rest of the strategy is in force"
    )
    assert card.groups == []


def test_what_one_communicator_took_is_what_the_next_one_may_take(card: NcclCard) -> None:
    """GiB: 1.6 for 2 % of the card, 2 for each communicator once one was seen to take that."""
    job, card.each, card.free = Job(), 2 * GIB, 11 * GIB
    job.race({MIN: 8})
    job.race({MIN: 8, "nccl_comm_num": 3, "sync_nccl_allreduce": False})
    assert len(card.groups) == 3
    with pytest.raises(RelaunchNeeded, match="2 more"):
        job.race({MIN: 8, "nccl_comm_num": 5, "sync_nccl_allreduce": False})
    assert len(card.groups) == 3


def test_a_full_card_of_another_rank_counts_for_all(card: NcclCard) -> None:
    job = Job()
    card.others = lambda own: [number + 30 * GIB for number in own]
    with pytest.raises(RelaunchNeeded, match="the fullest one has -"):
        job.race({MIN: 8})
    assert card.groups == []


def test_what_fails_to_open_on_some_rank_is_destroyed_on_all(card: NcclCard) -> None:
    job, card.each = Job(), 30 * GIB
    with pytest.raises(RelaunchNeeded, match="Cuda failure 2 'out of memory'"):
        job.race({MIN: 8})
    card.each = GIB
    card.others = lambda own: [1 if number == 0 else number for number in own]
    with pytest.raises(RelaunchNeeded, match="another rank says why"):
        job.race({MIN: 8})
    card.others = list
    assert card.list_alive() == []
    assert "min_ctas 8" in job.race({MIN: 8})[MIN]


def test_what_other_arms_use_outlives_a_failure_to_make_more(card_of_four: NcclCard) -> None:
    job, card = Job(), card_of_four
    levels = {"use_hierarchical_allreduce": True, "hierarchical_allreduce_inter_nranks": 2}
    several = {"sync_nccl_allreduce": False}
    job.levers.begin_race([{}])
    job.levers.reduction.keeps_live = True
    job.levers.switch({**levels}, job.training)
    assert card.list_alive() == [0, 1, 2]
    card.others = lambda own: [1] if own == [0] else own
    job.levers.switch({**several, **levels, "nccl_comm_num": 2}, job.training)
    assert (
        "another rank says why"
        in job.levers.prove("nccl", job.training.replicas).not_consumed["nccl_comm_num"]
    )
    assert len(card.groups) == 6
    assert card.list_alive() == [0, 1, 2]
    card.others = list
    job.levers.switch({**levels}, job.training)
    assert len(card.groups) == 6, "the arm before is switched back to"


def test_an_empty_variable_is_none(card: NcclCard) -> None:
    with standing(MIN, ""):
        assert "made with min_ctas 8" in Job().race({MIN: 8})[MIN]


def test_a_variable_beats_the_configuration_and_is_taken_as_it_stands(card: NcclCard) -> None:
    with standing(MIN, "8"):
        job = Job()
        found = job.race({MIN: 8})
        assert found[MIN].startswith("NCCL_MIN_CTAS=8 in the ranks' environment, which NCCL puts above")
        assert card.groups == [], "it is in force in the job's own communicator"
        with pytest.raises(RelaunchNeeded, match="NCCL_MIN_CTAS=8 stands in the ranks' environment"):
            job.race({MIN: 4})
        assert "made with max_ctas 16" in job.race({MIN: 8, MAX: 16})[MAX]


def test_variables_that_differ_from_rank_to_rank_leave_it_to_a_launch(card: NcclCard) -> None:
    card.others = lambda own: [8, -1, -1, *own[3:]] if len(own) == 7 else own
    job = Job()
    card.others = list
    with pytest.raises(RelaunchNeeded, match="not the same number in every rank"):
        job.race({MIN: 8})
    assert "max_ctas 8" in job.race({MAX: 8})[MAX]


def test_a_rank_that_cannot_leaves_it_to_a_launch_on_every_rank(card: NcclCard) -> None:
    card.others = lambda own: [*own[:-1], 1]
    job = Job()
    card.others = list
    with pytest.raises(
        RelaunchNeeded, match=r"Another rank cannot .* NCCL_MIN_CTAS can be set at launch only"
    ):
        job.race({MIN: 8})


class Wrapped:
    """Where TORCH_DISTRIBUTED_DEBUG=DETAIL wraps every backend, in a torch whose wrapper has no options."""

    def of(self, group: Any) -> Any:
        return lambda device: SimpleNamespace()

    def is_in(self, group: Any) -> bool:
        return True


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda m: m.delattr(dist, "ProcessGroupNCCL"), "built without NCCL"),
        (
            lambda m: m.setattr(nccl_options, "GET_BACKEND", Wrapped()),
            "does not tell what a SimpleNamespace was made with",
        ),
        (
            lambda m: m.setattr(dist.ProcessGroupNCCL, "Options", object),
            "gives NCCL's communicators no min_ctas",
        ),
        (lambda m: m.setattr(torch.cuda.nccl, "version", lambda: (2, 21, 5)), "keeps no order"),
    ],
)
def test_an_older_torch_leaves_it_to_a_launch(
    break_it: Any, words: str, card: NcclCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    job = Job()
    assert not set(job.refusals) & {MIN, MAX, CLUSTER}
    with pytest.raises(RelaunchNeeded, match=words):
        job.levers.switch({MIN: 8}, job.training)
    assert card.groups == []
    job.levers.switch({}, job.training)


def test_a_hook_of_the_scripts_own_leaves_it_to_a_launch(card: NcclCard) -> None:
    ddp = DistributedDataParallel(torch.nn.Linear(4, 4))
    ddp.register_comm_hook(None, lambda state, bucket: torch.futures.Future())
    training, levers = Training([ddp], []), Levers(0, 1, 1, CPU, None, {}, Reading())
    levers.list_refusals(training)
    with pytest.raises(RelaunchNeeded, match="a communication hook of its own"):
        levers.switch({MIN: 8}, training)


def test_a_sharded_model_takes_a_launch_and_is_not_refused(card: NcclCard) -> None:
    levers = Levers(0, 1, 1, CPU, None, {}, Reading())
    training = Training([], [], sharded=[torch.nn.Linear(4, 4)])
    assert not set(levers.list_refusals(training)) & {MIN, MAX}
    with pytest.raises(RelaunchNeeded, match="The model is sharded"):
        levers.switch({MIN: 8}, training)
    with standing(MIN, "8"):
        levers.list_refusals(training)
        levers.switch({MIN: 8}, training)
        assert "in the ranks' environment" in levers.prove("nccl", []).consumed[MIN]


def test_what_the_script_made_its_own_communicator_with_is_the_baseline(card: NcclCard) -> None:
    card.own.config.min_ctas, card.own.is_high_priority_stream = 4, True
    job = Job()
    assert job.observed[MIN] == 4
    assert MAX not in job.observed
    job.race({MAX: 16})
    [options] = card.options.values()
    assert (options.config.min_ctas, options.config.max_ctas, options.is_high_priority_stream) == (
        4,
        16,
        True,
    )


def test_further_communicators_are_made_as_the_scripts_own(card: NcclCard) -> None:
    """Else a strategy of several would be measured with another priority than the baseline."""
    card.own.config.max_ctas, card.own.is_high_priority_stream = 8, True
    Job().race({"nccl_comm_num": 3, "sync_nccl_allreduce": False})
    assert [
        (options.config.max_ctas, options.is_high_priority_stream) for options in card.options.values()
    ] == [(8, True)] * 2


def test_the_fewest_alone_are_given_a_most_that_limits_nothing(card: NcclCard) -> None:
    """NCCL compares the two before it fills in what is missing: the fewest alone are an invalid argument to it."""
    job = Job()
    job.race({MIN: 8})
    job.race({MIN: 8, MAX: 16})
    found = [(options.config.min_ctas, options.config.max_ctas) for options in card.options.values()]
    assert found == [(8, nccl_options.UNLIMITED), (8, 16)]
    assert nccl_options.UNLIMITED > 64, "NCCL's own limit, to which it lowers what is more"


def test_new_communicators_wait_as_long_as_the_scripts_own(card: NcclCard) -> None:
    """NCCL's watchdog ends the training when a collective takes longer: ten minutes where nobody says otherwise."""
    card.own._timeout = timedelta(hours=2)
    job = Job()
    job.race({MIN: 8})
    job.race({"nccl_comm_num": 3, "sync_nccl_allreduce": False})
    assert [options._timeout for options in card.options.values()] == [timedelta(hours=2)] * 3


def test_no_thread_hands_buckets_over_beside_another_one_that_talks(card_of_four: NcclCard) -> None:
    """SyncBatchNorm and DDP's map of used parameters communicate from the backward pass's own thread."""
    between, model = "hierarchical_allreduce_gloo_between", torch.nn.Linear(4, 4)
    for arguments, word in (
        ({}, None),
        ({"find_unused_parameters": True}, "find_unused_parameters"),
        ({"static_graph": True}, "static_graph"),
    ):
        ddp: Any = DistributedDataParallel(model, **arguments)
        refusals = Levers(0, 4, 2, CPU, None, {}, Reading()).list_refusals(Training([ddp], []))
        assert (word or "") in refusals.get(between, "")
        assert (between in refusals) == (word is not None)
    model.add_module("norm", torch.nn.SyncBatchNorm(4))
    assert reducer.find_talk_in_backward(SimpleNamespace(modules=model.modules)) == "SyncBatchNorm"


def test_over_gloo_they_are_refused(group: None) -> None:
    job = Job()
    assert "does not read NCCL's settings" in job.refusals[MIN]


def test_old_cards_have_no_clusters(card: NcclCard, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    [lever] = [lever for lever in job.levers._all if MIN in lever.knobs]
    agreeing = sys.modules[type(lever).__module__]
    monkeypatch.setattr(agreeing, "agree_on_most", lambda own, _device: own)
    for capability, refused in (((8, 0), {CLUSTER}), ((9, 0), set())):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        monkeypatch.setattr(lever, "_device", torch.device("cuda"))
        assert set(lever.list_refusals(job.training)) == refused


def test_a_script_that_has_ended_its_process_groups_is_proved_all_the_same(card: NcclCard) -> None:
    job = Job()
    job.race({MIN: 8})
    card.end_all()
    assert "made with min_ctas 8" in job.levers.prove("nccl", job.training.replicas).consumed[MIN]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def test_proof_reads_what_the_communicator_was_made_with(card: NcclCard) -> None:
    job = Job()
    job.race({MIN: 8})
    [options] = card.options.values()
    options.config.min_ctas = 2
    job.levers.begin_timing()
    evidence = job.levers.prove("nccl", job.training.replicas)
    assert evidence.not_consumed[MIN] == "The communicators of the gradients were made with min_ctas [2]."
