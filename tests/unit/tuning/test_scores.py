"""Scores against the baseline: unbiased, with errors that hold what is not known."""

import math
import random
from collections.abc import Sequence
from datetime import timedelta
from statistics import fmean

import pytest

from advisor.protocol.base import Value
from advisor.protocol.trials import (
    Block,
    BlockPlan,
    BlockResult,
    BlockState,
    BlockSummary,
    JobHistory,
    Outcome,
    Purpose,
    Session,
    SessionState,
    Trial,
    TrialState,
)
from advisor.tuning.record import Record
from advisor.tuning.scores import Noise
from advisor.tuning.search import rank_trials

from .simulated_cluster import START, make_job

Measured = tuple[int, str, float]
"""Trial's number, session's id, and ln(step time) that its block shows."""


def make_record(
    measured: Sequence[Measured],
    se: float = 0.003,
    outcomes: dict[int, Outcome] | None = None,
    gangs: dict[str, tuple[str, ...]] | None = None,
    unsteady: frozenset[int] = frozenset(),
) -> Record:
    """A record of blocks a minute apart; trial 0 is the baseline, the others change one knob each."""
    numbers = sorted({number for number, _, _ in measured})
    trials = [
        Trial(
            number=number,
            purpose=Purpose.SEARCH if number else Purpose.BASELINE,
            changes={"fuse_grad_size_in_MB": float(number)} if number else {},
            because="A test.",
            created_at=START,
            state=TrialState.CLOSED if number else TrialState.OPEN,
            outcome=(outcomes or {}).get(number, Outcome.FINISHED) if number else None,
        )
        for number in numbers
    ]
    sessions = [
        Session(
            id=name,
            job_id="job1",
            generation=i,
            state=SessionState.ENDED,
            created_at=START,
            started_at=START,
            ended_at=START,
            agents=(gangs or {}).get(name, ("a", "b")),
        )
        for i, name in enumerate(dict.fromkeys(name for _, name, _ in measured))
    ]
    blocks = []
    for i, (number, session, centre) in enumerate(measured):
        changes: dict[str, Value] = {"fuse_grad_size_in_MB": float(number)} if number else {}
        step_s = math.exp(centre)
        blocks.append(
            Block(
                id=f"b{i}", session_id=session, trial_number=number, ordinal=i, state=BlockState.DONE,
                plan=BlockPlan(block_id=f"b{i}", trial_number=number, overrides=changes),
                result=BlockResult(
                    steps=30, step_time_s=(step_s,) * 30, samples_per_step=1.0, wall_s=30 * step_s
                ),
                summary=BlockSummary(
                    samples_per_s=1 / step_s, log_step_time=centre, log_step_time_se=se, steady_steps=30,
                    steady=number not in unsteady, median_step_time_s=step_s, p95_step_time_s=step_s,
                ),
                issued_at=START + timedelta(minutes=i), finished_at=START + timedelta(minutes=i + 1),
            )
        )  # fmt: skip
    history = JobHistory(trials=tuple(trials), blocks=tuple(blocks), sessions=tuple(sessions))
    return Record(make_job(), history, START + timedelta(minutes=len(blocks)))


def score_of(record: Record, number: int) -> tuple[float, float]:
    trial = record.history.trial(number)
    mean, error = record.score(trial), record.score_error(trial)
    assert mean is not None
    assert error is not None
    return mean, error


def test_a_score_is_the_ratio_to_the_baseline() -> None:
    record = make_record([(0, "s", 0.0), (0, "s", 0.0), (1, "s", -0.1), (2, "s", 0.05), (0, "s", 0.0)])

    assert score_of(record, 1)[0] == pytest.approx(0.1)
    assert score_of(record, 2)[0] == pytest.approx(-0.05)


def test_anchors_on_both_sides_cancel_a_steady_drift() -> None:
    drift = 0.01
    order = [0, 0, 1, 2, 3, 0, 4, 5, 6, 0]
    record = make_record([(number, "s", drift * i) for i, number in enumerate(order)])

    for number in range(1, 7):
        assert score_of(record, number)[0] == pytest.approx(0.0, abs=0.015)
    assert score_of(record, 6)[0] > -0.03, "the last anchor alone would be an hour old"


def test_the_luck_of_a_launch_is_cancelled_by_its_own_anchors_only() -> None:
    with_anchor = make_record(
        [(0, "s", 0.0), (0, "s", 0.0), (1, "s", -0.1), (0, "t", 0.05), (2, "t", -0.05), (0, "t", 0.05)]
    )
    without = make_record([(0, "s", 0.0), (0, "s", 0.0), (1, "s", -0.1), (2, "t", -0.05)])

    assert score_of(with_anchor, 2)[0] == pytest.approx(0.1, abs=0.02)
    assert score_of(without, 2)[1] > 1.25 * score_of(without, 1)[1]
    assert score_of(without, 2)[1] >= Noise().launch


def test_other_nodes_are_a_further_doubt() -> None:
    measured = [(0, "s", 0.0), (0, "s", 0.0), (1, "t", -0.1)]

    same = make_record(measured)
    other = make_record(measured, gangs={"t": ("c", "d")})

    assert score_of(other, 1)[1] > score_of(same, 1)[1]


def test_an_error_grows_with_that_of_its_block_and_shrinks_with_repeats() -> None:
    measured = [(0, "s", 0.0), (0, "s", 0.0), (1, "s", -0.1), (0, "s", 0.0)]
    repeated = [*measured[:3], (1, "s", -0.1), (1, "s", -0.1), measured[3]]

    assert score_of(make_record(measured, se=0.03), 1)[1] > score_of(make_record(measured), 1)[1]
    assert score_of(make_record(repeated), 1)[1] < score_of(make_record(measured), 1)[1]


def test_repeats_of_a_strategy_are_weighted_by_what_they_are_worth() -> None:
    record = make_record(
        [(0, "s", 0.0), (0, "s", 0.0), (1, "s", -0.10), (0, "s", 0.0), (1, "t", -0.20)],
        gangs={"t": ("c", "d")},
    )

    assert 0.10 < score_of(record, 1)[0] < 0.14, (
        "the block without an anchor, on other nodes, counts for less"
    )


def test_failed_trials_have_no_score_and_given_up_ones_have_but_are_not_ranked() -> None:
    measured = [(0, "s", 0.0), (0, "s", 0.0), (1, "s", 0.4), (2, "s", -0.1), (3, "s", -0.3)]
    record = make_record(measured, outcomes={1: Outcome.PRUNED, 3: Outcome.DIVERGED})

    assert score_of(record, 1)[0] == pytest.approx(-0.4)
    assert record.score(record.history.trial(3)) is None
    assert [trial.number for _, trial in rank_trials(record)] == [2]


def test_noise_is_learnt_from_the_baseline() -> None:
    dice = random.Random(5)
    restless = [(0, "s", dice.gauss(0, 0.05)) for _ in range(12)]
    calm = [(0, "s", dice.gauss(0, 0.001)) for _ in range(12)]

    assert make_record(restless).noise.block == pytest.approx(0.05, rel=0.4)
    assert make_record(calm).noise.block < 0.6 * Noise().block
    assert make_record(restless[:1]).noise.block == pytest.approx(Noise().block)
    assert make_record(restless[:1]).noise.drift == pytest.approx(Noise().drift)


def test_the_luck_of_launches_is_learnt_from_their_anchors() -> None:
    dice = random.Random(2)
    measured = []
    for session in range(10):
        luck = dice.gauss(0, 0.06)
        measured += [(0, f"s{session}", luck + dice.gauss(0, 0.002)) for _ in range(2)]

    noise = make_record(measured).noise

    assert noise.launch == pytest.approx(0.06, rel=0.5)
    assert noise.block < 0.02


def test_anchors_come_more_often_where_the_machine_drifts() -> None:
    dice = random.Random(3)
    walk, measured = 0.0, []
    for i in range(40):
        walk += dice.gauss(0, 0.02)
        if i % 5 == 0:
            measured.append((0, "s", walk))
        else:
            measured.append((i, "s", walk))

    assert make_record(measured).anchor_every <= 4
    assert make_record([(0, "s", 0.0)] * 40).anchor_every == 10


def draw(seed: int, noise: Noise, anchor_every: int = 7) -> Record:
    """Two launches with ten equal strategies each, anchored; all scores should be nothing."""
    dice = random.Random(seed)
    drift, number, measured = 0.0, 0, []
    for session in ("s", "t"):
        launch = dice.gauss(0, noise.launch)
        for i in range(13):
            drift += dice.gauss(0, noise.drift)
            is_anchor = i % anchor_every == 0 or i in {1, 12}
            number += 0 if is_anchor else 1
            centre = launch + drift + dice.gauss(0, noise.block) + dice.gauss(0, 0.005)
            measured.append((0 if is_anchor else number, session, centre))
    return make_record(measured, se=0.005)


@pytest.mark.parametrize(
    "noise",
    [
        Noise(block=0.003, drift=0.001, launch=0.01),
        Noise(block=0.015, drift=0.004, launch=0.02),
        Noise(block=0.05, drift=0.005, launch=0.05),
        Noise(block=0.005, drift=0.03, launch=0.02),
    ],
)
def test_errors_hold_what_scores_are_off_by(noise: Noise) -> None:
    """Of 800 scores of equal strategies about 95 % should lie within two standard errors of nothing.

    Sixty jobs of other seeds gave 0.97, 0.91, 0.91, 0.96: few anchors tell variances roughly only. Jobs differ much,
    because their scores share anchors, so that the bound is 0.87; errors of two thirds of these would cover 0.8.
    """
    scores = [score for seed in range(40) for score in draw(seed, noise).scores.values()]

    assert len(scores) == 40 * 18
    assert fmean(abs(score.mean) <= 2 * score.error for score in scores) >= 0.87
    assert abs(fmean(score.mean for score in scores)) <= 0.3 * fmean(score.error for score in scores)
