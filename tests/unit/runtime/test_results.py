"""Merging ranks, choosing steps, and plans: the runtime's pure parts."""

from __future__ import annotations

import importlib
import itertools
import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
results = importlib.import_module("fleet_advisor_runtime.races.results")
rank_arm = importlib.import_module("fleet_advisor_runtime.races.rank_arm")
exchange = importlib.import_module("fleet_advisor_runtime.link.exchange")
lever = importlib.import_module("fleet_advisor_runtime.levers.lever")
bucket_plan = importlib.import_module("fleet_advisor_runtime.levers.buckets.bucket_plan")
reduction_plan = importlib.import_module("fleet_advisor_runtime.levers.reduction.reduction_plan")
environment = importlib.import_module("fleet_advisor_runtime.link.environment")
beat = importlib.import_module("fleet_advisor_runtime.link.beat")


def make_arm(step_time_s: list[float], **fields: Any) -> Any:
    """What one rank measured."""
    length = len(step_time_s)
    series: dict[str, Any] = {
        "samples": [8] * length,
        "flags": [0] * length,
        "losses": [1.0] * length,
        "cycles": [0] * length,
        "exposed_s": [None] * length,
        "saves_beside": [False] * length,
    }
    return rank_arm.RankArm(step_time_s, **{**series, **fields})


def test_steps_last_together_as_long_as_on_the_rank_for_which_they_took_longest() -> None:
    merged = results.merge_arm([make_arm([1.0, 3.0]), make_arm([2.0, 1.0])], script_ended=False)
    assert merged.step_time_s == pytest.approx((1.5 * 4.0 / 3.5, 2.0 * 4.0 / 3.5))
    assert merged.wall_s == 4.0
    assert merged.samples_per_step == 16
    assert merged.step_samples == ()


def test_samples_are_told_step_by_step_where_they_differ() -> None:
    ranks = [make_arm([1.0] * 3, samples=samples) for samples in ([8, 8, 3], [8, 8, 2])]
    merged = results.merge_arm(ranks, script_ended=False)
    assert (merged.step_samples, merged.samples_per_step) == ((16, 16, 5), pytest.approx(37 / 3))


@pytest.mark.parametrize("jitter", [0.002, 0.005, 0.02])
@pytest.mark.parametrize("ranks", [2, 8])
def test_ranks_that_pass_boundaries_a_little_apart_make_no_step_longer(jitter: float, ranks: int) -> None:
    """They wait for each other in every step of 100 ms; the slowest one of each step would be far too long."""
    dice = random.Random(f"{jitter}/{ranks}")
    arms = []
    for _ in range(ranks):
        passed = [0.1 * place + abs(dice.gauss(0.0, jitter)) for place in range(401)]
        arms.append(make_arm([end - start for start, end in itertools.pairwise(passed)]))
    merged = results.merge_arm(arms, False)
    assert sum(merged.step_time_s) == pytest.approx(merged.wall_s) == pytest.approx(40.0, rel=0.002)
    slowest = [max(step) for step in zip(*(arm.step_time_s for arm in arms), strict=True)]
    assert sum(slowest) > 40.0 * (1.0 + 3.0 * jitter)


def test_a_knob_refused_on_one_rank_is_not_consumed() -> None:
    proofs = [lever.Evidence({"a": "yes", "b": "yes"}, not_consumed) for not_consumed in ({}, {"b": "no"})]
    merged = results.merge_arm([make_arm([1.0], evidence=proof) for proof in proofs], False)
    assert set(merged.consumed) == {"a"}
    assert merged.not_consumed == {"b": "no"}


def test_not_finite_loss_is_divergence() -> None:
    merged = results.merge_arm([make_arm([1.0], losses=["nan"]), make_arm([1.0])], False)
    assert merged.diverged
    assert merged.losses == ()
    assert merged.nonfinite_losses == 1


@pytest.mark.parametrize(
    ("flags", "period", "kept"),
    [
        ([0, 0, 2, 0], 1, [0, 1, 3]),
        ([0, 0, 2, 0], 2, [0, 1]),
        ([1, 0, 1, 1], 1, [0, 1, 2, 3]),
        ([1, 2, 1, 1], 1, [0, 2, 3]),
        ([2, 2, 2, 0], 1, [0, 1, 2, 3]),
    ],
)
def test_interrupted_steps_are_left_out_unless_they_are_the_rule(
    flags: list[int], period: int, kept: list[int]
) -> None:
    assert results.choose_steps(flags, period) == kept


def test_segments_count_what_is_left_of_each_cycle_and_losses_belong_to_the_same_steps() -> None:
    fields = {"cycles": [0, 0, 1, 1, 2, 2], "losses": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}
    disturbed = make_arm([0.1] * 6, flags=[0, 0, 2, 2, 0, 0], **fields)
    merged = results.merge_arm([disturbed, make_arm([0.1] * 6, **fields)], False)
    assert merged.segments == (2, 0, 2)
    assert merged.losses == (1.0, 2.0, 5.0, 6.0)
    assert merged.excluded_steps == 2


def test_loss_checks_are_means_over_ranks_and_only_whole_ones_are_told() -> None:
    arms = [make_arm([1.0], loss_checks=[[1.0, 2.0], [3.0, 4.0]]) for _ in range(2)]
    arms[1].loss_checks[0] = [2.0, 4.0]

    assert results.merge_arm(arms, False).loss_checks == ((1.5, 3.0), (3.0, 4.0))

    arms[1].loss_checks[1] = [3.0, None]
    assert results.merge_arm(arms, False).loss_checks == ()

    arms[1].loss_checks[1] = [3.0, "nan"]
    assert results.merge_arm(arms, False).diverged


def test_an_arm_without_a_step_has_a_result() -> None:
    merged = results.merge_arm([make_arm([], same_as="other")] * 2, False)
    assert (merged.steps, merged.segments, merged.same_as) == (0, (), "other")


def test_what_every_rank_measured_arrives_at_rank_0_as_it_was() -> None:
    known = rank_arm.RankCalibration([[4, 0.1]], [], [[1.0, 2.0, 8]])
    fields = {"evidence": lever.Evidence({"a": "yes"}, {"b": "no"}), "bucket_bytes": [10, 20]}
    arms = [
        make_arm([0.1, 0.2], **fields, calibration=known, losses=["nan", None]),
        make_arm([], relaunch_needed="Launch again."),
    ]
    store = torch.distributed.HashStore()
    sent = [rank_arm.RankRace(arms, [([], bits)], [1.5]) for bits in (1, 2)]
    found = []
    for rank in (1, 0):  # rank 0 comes last: nobody waits
        ranks = exchange.Exchange(store, "session", rank, 2, lambda: None)
        found.append(rank_arm.gather_race(ranks, sent[rank], 1.0))
    assert found[0] is None
    assert [race.arms for race in found[1]] == [arms, arms]
    assert results.merge_race(found[1], "xy", [], True) == results.merge_race(sent, "xy", [], True)


def test_bucket_knobs_resolve_to_a_plan() -> None:
    baseline = bucket_plan.BucketPlan(1024 * 1024, 25 * 1024 * 1024)
    assert bucket_plan.resolve_plan(baseline, {})[0] == baseline
    assert bucket_plan.resolve_plan(baseline, {"fuse_grad_size_in_MB": 0.5})[0] == bucket_plan.BucketPlan(
        524288, 524288
    )
    assert bucket_plan.resolve_plan(baseline, {"fuse_all_reduce_ops": False})[0] == bucket_plan.BucketPlan(
        1, 1
    )
    plan, rejected = bucket_plan.resolve_plan(
        baseline, {"fuse_all_reduce_ops": False, "fuse_grad_size_in_MB": 2}
    )
    assert plan.cap_bytes == 1
    assert "no meaning" in rejected["fuse_grad_size_in_MB"]
    assert (
        "not a size"
        in bucket_plan.resolve_plan(baseline, {"last_comm_group_size_MB": "big"})[1][
            "last_comm_group_size_MB"
        ]
    )


def test_reduction_knobs_resolve_to_a_plan() -> None:
    resolve = reduction_plan.resolve_reduction
    assert resolve({}, 8, 4) == (reduction_plan.BASELINE, {})
    plan, rejected = resolve({"use_hierarchical_allreduce": True, "nccl_comm_num": 2}, 8, 4)
    assert (plan.inner_size, plan.communicators, rejected) == (4, 2, {})
    plan, rejected = resolve({"use_hierarchical_allreduce": True}, 4, 4)
    assert plan.inner_size == 0
    assert "two levels" in rejected["use_hierarchical_allreduce"]
    assert (
        "fp8"
        in resolve({"fp16_allreduce": True, "fp16_allreduce_dtype": "fp8"}, 4, 4)[1]["fp16_allreduce_dtype"]
    )


def test_environment_names_the_variable_that_is_wrong() -> None:
    with pytest.raises(ValueError, match="ADVISOR_COLD"):
        environment.read_environment({"ADVISOR_COLD": "{"})
    with pytest.raises(ValueError, match="WORLD_SIZE"):
        environment.read_environment({"WORLD_SIZE": "two"})
    assert environment.read_environment({"RANK": "3", "ADVISOR_SESSION": "s"}).rank == 3


def test_beat_is_read_back_and_anything_else_is_none(tmp_path: Path) -> None:
    writer = beat.BeatWriter(str(tmp_path), 5)
    writer.write(41, beat.TRAINING)
    writer.write(42, beat.TIMING)
    found = beat.read(beat.locate(str(tmp_path), 5))
    assert (found.rank, found.step, found.phase) == (5, 42, "timing")
    assert Path(beat.locate(str(tmp_path), 5)).stat().st_size == 32
    assert beat.read(str(tmp_path / "none")) is None
    (tmp_path / "junk").write_bytes(b"x" * 32)
    assert beat.read(str(tmp_path / "junk")) is None
