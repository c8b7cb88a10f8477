"""What the cost model is made of: rings, bucket timelines, gradients found in logs, knobs turned into schedules."""

from dataclasses import replace

import numpy as np
import pytest

from advisor.protocol.base import Value
from advisor.protocol.measured.results import Calibration, GradientTiming
from advisor.tuning.model.collectives import Shape, flat, hierarchical
from advisor.tuning.model.communication_schedule import find_gradients, schedule_of, shape_of
from advisor.tuning.model.timeline import (
    Costs,
    Gradient,
    Line,
    Plan,
    Schedule,
    run_backward,
    tabulate,
)
from tests.unit.tuning.measured_job import PHASES, make_block, make_context, with_changes

# --- collectives and the timeline -----------------------------------------------------------------------


def test_ring_moves_what_the_textbook_says() -> None:
    ring = flat(Shape(world=8, local=2, nodes=4, lockstep=True, scatters=False))
    assert ring.wire == pytest.approx(2 * 7 / 8)
    assert (ring.hops, ring.inner_hops) == (14, 0)
    pipelined = flat(Shape(world=8, local=2, nodes=4, lockstep=False, scatters=True))
    assert (pipelined.hops, pipelined.inner_hops) == (6, 8)


def test_two_levels_cross_the_network_with_fewer_hops() -> None:
    shape = Shape(world=32, local=8, nodes=4, lockstep=False, scatters=True)
    levels, ring = hierarchical(shape, 8), flat(shape)
    assert levels.wire == pytest.approx(2 * 3 / 4)
    assert levels.wire < ring.wire
    leaders = hierarchical(replace(shape, scatters=False, lockstep=True), 8)
    assert leaders.wire == pytest.approx(2 * 3 / 4)
    assert leaders.hops < flat(replace(shape, lockstep=True)).hops


def test_group_that_does_not_split_the_ranks_reduces_flat() -> None:
    shape = Shape(world=4, local=2, nodes=2, lockstep=True, scatters=False)
    assert hierarchical(shape, 1) == flat(shape) == hierarchical(shape, 4)


def run(
    entries: tuple[tuple[float, float, float], ...],
    channels: int = 1,
    stolen: float = 0.0,
    latency_s: float = 0.0,
    burst_s: float = 0.0,
) -> tuple[float, float]:
    """A timeline of 1 s of backward over a link of 1 s per byte, with 1 s per byte of own work where it steals."""

    def one(value: float) -> np.ndarray:
        return np.array([[value]])

    traffic = flat(Shape(world=2, local=1, nodes=2, lockstep=True, scatters=False))
    costs = Costs(
        hop_s=one(latency_s / 2), inner_hop_s=one(0), wire_s=one(1.0), inner_wire_s=one(0), handling_s=one(0),
        inner_handling_s=one(0), message_s=one(0), copy_s=one(1.0 if stolen else 0.0),
        stolen=one(stolen), bend=one(1.0), burst_s=burst_s,
    )  # fmt: skip
    table = tabulate([Schedule(np.array(entries), traffic, channels, copied=1.0 if stolen else 0.0)])
    ended, exposed = run_backward(table, costs, one(1.0), one(1.0), one(1.0))
    return float(ended[0, 0]), float(exposed[0, 0])


def test_last_bucket_is_exposed_and_earlier_ones_hide() -> None:
    halves = ((0.3, 1, 0.5), (0.3, 1, 1.0))
    assert run(halves) == pytest.approx((1.0, 0.3))
    assert run(((0.6, 1, 1.0),)) == pytest.approx((1.0, 0.6))


def test_second_channel_hides_latency_but_shares_the_link() -> None:
    halves = ((0.5, 1, 1.0), (0.5, 1, 1.0))
    assert run(halves, channels=1, latency_s=0.2)[1] == pytest.approx(1.4)
    assert run(halves, channels=2, latency_s=0.2)[1] == pytest.approx(1.2)


def test_reduction_beside_backward_steals_from_it() -> None:
    # 0.2 s of own work and 0.2 s on the wire from 0.5 s on: all of it beside backward, half of which it steals.
    ended, exposed = run(((0.2, 1, 0.5), (1e-9, 1, 1.0)), stolen=0.5)
    assert ended == pytest.approx(1.1, abs=1e-3)
    assert exposed < 1e-3


def test_a_shaped_link_passes_its_burst_at_once_after_a_rest_only() -> None:
    assert run(((0.6, 1, 1.0),), burst_s=0.1)[1] == pytest.approx(0.5)
    assert run(((0.05, 1, 1.0),), burst_s=0.1)[1] == pytest.approx(0.0)
    assert run(((0.3, 1, 1.0), (0.3, 1, 1.0)), burst_s=0.1)[1] == pytest.approx(0.5), (
        "the second follows at once"
    )


# --- buckets and gradients ------------------------------------------------------------------------------


def test_buckets_close_as_ddp_closes_them() -> None:
    line = Line(tuple(Gradient(4.0, (i + 1) / 6, i // 2) for i in range(6)))
    assert [b[0] for b in line.form_buckets(Plan((1.0, 10.0)))] == [4, 12, 8]
    assert [b[0] for b in line.form_buckets(Plan((100.0,), 1))] == [8, 8, 8]
    assert [b[2] for b in line.form_buckets(Plan((1.0, 10.0)))] == pytest.approx([1 / 6, 4 / 6, 1.0])


def test_buckets_that_stay_as_defined_are_cut_from_the_end_of_backward() -> None:
    line = Line(tuple(Gradient(4.0, (i + 1) / 6, i // 2) for i in range(6)))
    assert line.form_buckets(Plan((1.0, 10.0), 0, True))[:, 0].tolist() == [8, 12, 4]
    assert line.form_buckets(Plan((1.0, 10.0), 0, True))[:, 2].tolist() == pytest.approx([2 / 6, 5 / 6, 1.0])
    assert line.form_buckets(Plan((1.0, 10.0)))[:, 0].tolist() == [4, 12, 8]


def test_logs_of_several_strategies_show_the_gradients_together() -> None:
    facts = make_context(gradient_bytes=12, parameter_tensors=4, largest_parameter_bytes=0).facts
    blocks = [
        make_block(0.5, PHASES, bucket_bytes=(2, 10)),
        make_block(0.5, PHASES, {"fuse_grad_size_in_MB": 3.0}, bucket_bytes=(5, 7)),
        make_block(0.5, PHASES, {"fuse_grad_size_in_MB": 3.0}, bucket_bytes=(1, 1)),
    ]
    gradients = find_gradients(facts, blocks)
    edges = {round(sum(g.bytes for g in gradients[: i + 1]), 6) for i in range(len(gradients))}
    assert {2, 5, 12} <= edges
    assert sum(g.bytes for g in gradients) == pytest.approx(12)


def test_timed_gradients_are_taken_as_they_are() -> None:
    facts = make_context(gradient_bytes=30, parameter_tensors=3).facts
    timed = tuple(GradientTiming(bytes=10, ready_s=s) for s in (0.01, 0.03, 0.04))
    gradients = find_gradients(facts, [make_block(0.5, PHASES, calibration=Calibration(gradients=timed))])
    assert [g.ready for g in gradients] == pytest.approx([0.25, 0.75, 1.0])


def test_knobs_become_channels_bytes_and_intervals() -> None:
    context = make_context()
    gradients = find_gradients(context.facts, [])

    def schedule(**changes: Value) -> Schedule:
        values = with_changes(context, **changes)
        return schedule_of(values, context.baseline, context.facts, shape_of(context.facts), Line(gradients))

    assert schedule().channels == 2, "gloo carries out two collectives at once"
    assert schedule(nccl_comm_num=2).channels == 4
    assert schedule(sync_nccl_allreduce=True).channels == 1
    assert schedule(fp16_allreduce=True).traffic.wire == pytest.approx(schedule().traffic.wire / 2)
    assert len(schedule(fuse_all_reduce_ops=False).entries) > len(schedule().entries)
    assert schedule(localsgd=True, localsgd_k_steps=8).interval == 8
    assert schedule(gradient_merge=True, gradient_merge_k_steps=4).merges
    assert schedule(dgc=True).traffic.wire < 0.3 * schedule().traffic.wire
