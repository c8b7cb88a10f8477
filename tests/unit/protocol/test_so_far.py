"""One basis for the figures of a page: rates are the user's clock's, a trial's gain is from its own races."""

from datetime import UTC, datetime

import pytest

from advisor.protocol.measured.estimates import estimate_blocks, mean_step_s, rate_of
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.so_far import gain_of
from advisor.protocol.measured.trials import (
    Block,
    BlockPlan,
    BlockState,
    BlockSummary,
    Contrast,
    Purpose,
    Trial,
)
from advisor.protocol.standing import SoFar, Standing

NOW = datetime(2026, 11, 26, tzinfo=UTC)


def make_block(number: int, step_s: float, lead: float | None = None, stall_s: float = 0.0) -> Block:
    """A block of twenty steps of which one stalls; `lead` is its ln ratio in its race."""
    steps = (*[step_s] * 19, step_s + stall_s)
    contrast = None
    if lead is not None:
        contrast = Contrast(
            mean=lead,
            error=0.01,
            freedom=8,
            cycles=4,
            total=lead,
            total_error=0.1,
            per_step=lead,
            excess_error=0.1,
            slow_shares=(0.0, 0.0),
        )
    summary = BlockSummary(
        samples_per_s=20 * 8 / sum(steps), log_step_time=0.0, log_step_time_se=0.02, steady_steps=20, steady=True,
        median_step_time_s=step_s, p95_step_time_s=step_s, contrast=contrast,
    )  # fmt: skip
    result = BlockResult(steps=20, step_time_s=steps, samples_per_step=8, wall_s=sum(steps))
    return Block(
        id=f"b{number}", session_id="s", trial_number=number, ordinal=0, race=1, state=BlockState.DONE, issued_at=NOW,
        plan=BlockPlan(block_id="b", trial_number=number), result=result, summary=summary,
    )  # fmt: skip


def make_trial(purpose: Purpose, number: int = 1) -> Trial:
    return Trial(number=number, purpose=purpose, because="", created_at=NOW)


def test_a_rate_is_what_the_clock_shows_slow_steps_included() -> None:
    stalled = make_block(0, 0.1, stall_s=6.0)
    assert stalled.result is not None
    assert mean_step_s(stalled.result) == pytest.approx(0.4)
    assert rate_of(stalled) == pytest.approx(8 / 0.4)


def test_a_trials_gain_is_from_its_races_and_not_from_another_hours_baseline() -> None:
    slow_hour, mine = make_block(0, 1.2), make_block(1, 0.1, lead=0.2)
    found = gain_of(make_trial(Purpose.SEARCH), [mine], lambda: estimate_blocks([slow_hour]))
    assert found is not None
    assert found.likely == "+22.1 %"


def test_what_is_measured_too_roughly_is_told_without_a_figure() -> None:
    rough = SoFar(ratio=63.0, low=0.09, high=4e3, races=1, launches=1)
    assert Standing(trial_number=7, gain=rough, chance=0.5).describe() == "gain not known yet"
    assert rough.describe() == "1 race in 1 launch · gain not known yet"
    sided = SoFar(ratio=15.0, low=2.9, high=79.0, races=1, launches=1)
    assert Standing(trial_number=7, gain=sided, chance=0.5).describe() == "at least 2.9x, unconfirmed"
    assert sided.describe() == "1 race in 1 launch · at least 2.9x so far"


def test_a_trial_that_raced_the_winner_is_held_against_the_baselines_blocks() -> None:
    without, baseline = make_block(3, 0.1, lead=-0.3), make_block(0, 0.2)
    found = gain_of(make_trial(Purpose.REVERT, 3), [without], lambda: estimate_blocks([baseline]))
    assert found is not None
    assert found.ratio == pytest.approx(2.0)
    assert gain_of(make_trial(Purpose.BASELINE, 0), [baseline], lambda: estimate_blocks([baseline])) is None
