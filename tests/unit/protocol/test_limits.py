"""What devices, link and several ranks could do, told from what was measured."""

import pytest

from advisor.protocol.answers.limits import (
    compare_with_one,
    find_limits,
    predict_link,
    say_limits,
    say_scaling,
)
from advisor.protocol.measured.results import BlockResult, Calibration, Ceiling, LinkLevel, LinkTiming, Phases
from advisor.protocol.training.workload import WorkloadFacts

FACTS = WorkloadFacts.model_validate(
    {
        "backend": "gloo", "device": "cpu", "world_size": 2, "local_world_size": 2, "gradient_bytes": 2**20,
        "parameter_tensors": 4, "layers": 2, "batch_size_per_rank": 8,
    }
)  # fmt: skip
PHASES = Phases(data_wait_s=0.02, forward_s=0.03, backward_s=0.03, exposed_comm_s=0.02)
LINKS = tuple(
    LinkTiming(LinkLevel.WORLD, 2, size, seconds) for size, seconds in ((1024, 0.001), (2**20 + 1024, 0.011))
)


def measure(ceiling: Ceiling | None, links: tuple[LinkTiming, ...] = LINKS) -> BlockResult:
    return BlockResult(
        steps=20, step_time_s=(0.1,) * 20, samples_per_step=16, wall_s=2.0, phases=PHASES,
        calibration=Calibration(links=links, ceiling=ceiling),
    )  # fmt: skip


def test_operations_of_a_step_are_held_against_the_product_and_the_exchange_against_the_link() -> None:
    limits = find_limits(measure(Ceiling(3.1e9, 100e9, "float32")), FACTS)
    assert limits.matrix_share == pytest.approx(0.31)
    assert limits.link_s == pytest.approx(0.011, rel=0.01)
    assert say_limits(limits) == (
        "31% of what matrices reach here (float32, 31 GFLOP/s of 100 GFLOP/s) · 1 MiB of gradients take 11 ms on this "
        "link, 20 ms are exposed · at most +25% from communication, +25% from data"
    )


def test_what_cannot_be_counted_is_refused_with_its_reason() -> None:
    limits = find_limits(measure(Ceiling(0.0, 0.0, "", "the model is compiled"), links=()), FACTS)
    assert limits.matrix_share is None
    assert say_limits(limits).startswith(
        "how near the devices are to their limit is not known: the model is compiled"
    )


def test_one_timed_size_is_stretched() -> None:
    assert predict_link(LINKS[:1], 4096) == pytest.approx(0.004)


def test_several_ranks_are_told_in_times_of_one_with_the_parts_that_grew() -> None:
    alone = Phases(data_wait_s=0.02, forward_s=0.02, backward_s=0.0299, exposed_comm_s=0.0)
    scaling = compare_with_one(2, 131.0, PHASES, 100.0, alone)
    assert say_scaling(2, scaling) == (
        "2 ranks give 1.31x of one (66%); a step is longer than its 69.9 ms by: exposed communication +20 ms, "
        "forward +10 ms"
    )
