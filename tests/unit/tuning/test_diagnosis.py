"""Where the time goes, in words and figures."""

import pytest

from advisor.protocol.trials import Block, BlockPlan, BlockResult, BlockState, Phases
from advisor.tuning.diagnosis import diagnose, exposed_share, median_phases

from .simulated_cluster import START


def block(phases: Phases, worst: Phases | None = None, ranks: tuple[float, ...] = ()) -> Block:
    return Block(
        id="b", session_id="s", trial_number=0, ordinal=0, state=BlockState.DONE,
        plan=BlockPlan(block_id="b", trial_number=0), issued_at=START,
        result=BlockResult(
            steps=1, step_time_s=(0.1,), samples_per_step=1, wall_s=0.1, phases=phases,
            worst_rank_phases=worst or phases, per_rank_step_time_s=ranks,
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("phases", "bound"),
    [
        (Phases(forward_s=0.02, backward_s=0.04, exposed_comm_s=0.04), "communication"),
        (Phases(forward_s=0.03, backward_s=0.06, exposed_comm_s=0.001), "compute"),
        (Phases(data_wait_s=0.05, forward_s=0.02, backward_s=0.03, exposed_comm_s=0.001), "input"),
        (Phases(forward_s=0.03, backward_s=0.04, other_s=0.03, exposed_comm_s=0.001), "balanced"),
    ],
)
def test_the_largest_share_names_the_bound(phases: Phases, bound: str) -> None:
    assert diagnose([block(phases)]).bound == bound


def test_a_slow_rank_is_a_straggler_even_when_all_steps_take_the_same_time() -> None:
    usual = Phases(forward_s=0.02, backward_s=0.04, exposed_comm_s=0.04)
    slow = Phases(forward_s=0.03, backward_s=0.065, exposed_comm_s=0.005)

    diagnosis = diagnose([block(usual, slow, ranks=(0.1, 0.1))])

    assert diagnosis.bound == "straggler"
    assert diagnosis.skew == pytest.approx(0.35)


def test_the_ceiling_is_the_step_without_exposed_communication() -> None:
    diagnosis = diagnose([block(Phases(forward_s=0.05, backward_s=0.03, exposed_comm_s=0.02))])

    assert diagnosis.ceiling_ratio == pytest.approx(1.25)
    assert "25 % faster" in diagnosis.sentence


def test_unmeasured_communication_is_not_called_zero() -> None:
    diagnosis = diagnose([block(Phases(forward_s=0.05, backward_s=0.05))])

    assert diagnosis.ceiling_ratio is None
    assert "could not be measured" in diagnosis.sentence
    assert exposed_share(Phases(forward_s=0.1)) is None


def test_without_phases_nothing_is_said() -> None:
    assert "not measured" in diagnose([]).sentence
    assert median_phases([]).total_s() == 0.0
