"""The progress lines: stage, trials, first impression of the best, what the confirmation has seen, troubles."""

from datetime import UTC, datetime, timedelta

import pytest

from advisor.cli.views.progress import (
    MOST_COLUMNS,
    STAGE_WORDS,
    describe_progress,
    describe_stage,
    list_troubles,
)
from advisor.protocol.answers.so_far import best_so_far, gain_so_far
from advisor.protocol.asked.jobs import Job, JobSpec, JobState, Stage
from advisor.protocol.base import Value
from advisor.protocol.knobs.knob import Effect
from advisor.protocol.measured.races import BlockPlan
from advisor.protocol.measured.trials import (
    Block,
    BlockState,
    BlockSummary,
    Contrast,
    JobHistory,
    Outcome,
    Purpose,
    Session,
    SessionState,
    Trial,
    TrialState,
)

START = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
BASELINE = Trial(number=0, purpose=Purpose.BASELINE, because="The script as it stands.", created_at=START)


def job(state: JobState = JobState.RUNNING, stage: Stage = Stage.SEARCH) -> Job:
    spec = JobSpec.model_validate(
        {"workload": {"command": ["torchrun", "t.py"]}, "budget": {"max_trials": 40}}
    )
    return Job(id="j", spec=spec, state=state, stage=stage, created_at=START, started_at=START)


def search(number: int, outcome: Outcome | None = Outcome.FINISHED, **changes: Value) -> Trial:
    return Trial(
        number=number,
        purpose=Purpose.SEARCH,
        changes=changes,
        because="A rule of thumb.",
        state=TrialState.CLOSED if outcome else TrialState.OPEN,
        outcome=outcome,
        created_at=START,
    )


def confirmed(number: int, effect: Effect = Effect.EXACT, **changes: Value) -> Trial:
    return search(number, None, **changes).model_copy(update={"purpose": Purpose.CONFIRM, "effect": effect})


def summary(rate: float, log_ratio: float | None = None) -> BlockSummary:
    contrast = None
    if log_ratio is not None:
        contrast = Contrast(
            mean=log_ratio,
            error=0.02,
            freedom=9,
            cycles=10,
            total=log_ratio,
            total_error=0.03,
            per_step=log_ratio,
            excess_error=0.03,
            slow_shares=(0.0, 0.0),
        )
    return BlockSummary(
        samples_per_s=rate, log_step_time=0.0, log_step_time_se=0.01, steady_steps=20, steady=True,
        median_step_time_s=0.1, p95_step_time_s=0.1, contrast=contrast,
    )  # fmt: skip


def block(trial: int, rate: float | None, session: str = "s1") -> Block:
    return Block(
        id=f"b{trial}",
        session_id=session,
        trial_number=trial,
        ordinal=0,
        race=1,
        state=BlockState.DONE if rate else BlockState.ISSUED,
        plan=BlockPlan(block_id=f"b{trial}", trial_number=trial),
        summary=summary(rate) if rate else None,
        issued_at=START,
    )


def race(number: int, trial: int, log_ratio: float, session: str = "s1") -> tuple[Block, Block]:
    """A race of the baseline and one strategy."""
    baseline = block(0, 100.0, session).model_copy(update={"race": number})
    plan = BlockPlan(block_id="x", trial_number=trial, overrides={"num_threads": 1})
    update = {"race": number, "arm": 1, "plan": plan, "summary": summary(200.0, log_ratio)}
    return baseline, block(trial, 200.0, session).model_copy(update=update)


def test_line_tells_stage_trial_and_best() -> None:
    history = JobHistory(
        trials=(BASELINE, search(1), search(2, None, fuse_grad_size_in_MB=8.0)),
        blocks=(block(0, 100.0), block(1, 116.1), block(2, None)),
    )
    line = describe_progress(job(), history, START + timedelta(seconds=252))
    assert line == "4:12 · search 2/40 · best about +16.1 %, unconfirmed"


def test_line_tells_what_is_spent() -> None:
    start = {"job_id": "j", "state": SessionState.RUNNING, "created_at": START, "started_at": START}
    sessions = (Session(id="s1", generation=1, **start), Session(id="s2", generation=2, gang=1, **start))
    history = JobHistory(trials=(BASELINE,), sessions=sessions)
    budget = {"max_device_hours": 0.5, "max_seconds": 1800}
    spec = JobSpec.model_validate(
        {"workload": {"command": ["torchrun", "t.py"]}, "nodes": 3, "budget": budget}
    )
    line = describe_progress(job().model_copy(update={"spec": spec}), history, START + timedelta(seconds=60))
    # Three ranks a gang (one a node, before the script told), two gangs, one minute each: 0.1 device-hours.
    assert "1:00 of 30:00 spent, 0.10 of 0.5 device-hours" in line


def test_probe_tells_the_rate_and_whether_the_machine_is_noisy() -> None:
    probing = job(stage=Stage.PROBE)
    assert describe_stage(probing, JobHistory()) == "baseline   starting your script as it stands"
    blocks = (block(0, 150.0), block(0, 190.0))
    told = describe_stage(probing, JobHistory(trials=(BASELINE,), blocks=blocks))
    assert told == "baseline   170 samples/s (blocks vary by 17 %: a noisy machine)"


def test_search_counts_what_was_given_up_and_what_failed() -> None:
    trials = (BASELINE, search(1, Outcome.PRUNED), search(2, Outcome.CRASHED), search(3, Outcome.FINISHED))
    told = describe_stage(job(), JobHistory(trials=trials))
    assert told == "search     3/40 · 1 given up as slower · 1 failed"


def test_confirmation_tells_the_gain_so_far_over_its_launches() -> None:
    history = JobHistory(
        trials=(BASELINE, confirmed(1, num_threads=1)),
        blocks=(*race(1, 1, 1.0), *race(2, 1, 1.1, "s2"), *race(3, 1, 1.2, "s3")),
    )
    told = describe_stage(job(stage=Stage.CONFIRM), history)
    assert told.startswith("confirm    3 races in 3 launches · 3.0x (2.")
    assert describe_stage(job(stage=Stage.CONFIRM), JobHistory()) == "confirm    a fresh launch"


def test_gain_so_far_is_of_the_strategy_that_is_confirmed_and_of_nothing_beside_it() -> None:
    trials = (
        BASELINE,
        search(1, num_threads=1),
        confirmed(2, Effect.CONVERGENCE, localsgd=True),
        confirmed(3, num_threads=1),
        confirmed(4, num_threads=2),
    )
    blocks = (
        *race(1, 1, 0.9),
        *race(2, 2, 0.8),
        *race(3, 3, 0.1, "s2"),
        *race(4, 4, 0.7, "s2"),
        *race(5, 3, 0.1, "s3"),
    )
    found = gain_so_far(job(), JobHistory(trials=trials, blocks=blocks))
    assert found is not None
    assert (found.races, found.launches) == (2, 2)
    assert found.ratio == pytest.approx(1.105, abs=1e-3)
    assert gain_so_far(job(), JobHistory(trials=trials, blocks=blocks[:4])) is None


def test_gain_so_far_begins_anew_with_a_job_that_is_continued() -> None:
    continued = job().model_copy(update={"continued_at": (START + timedelta(hours=1),)})
    later = [b.model_copy(update={"issued_at": START + timedelta(hours=2)}) for b in race(2, 2, 0.5, "s2")]
    trials = (BASELINE, confirmed(1, num_threads=1), confirmed(2, num_threads=2))
    assert gain_so_far(continued, JobHistory(trials=trials, blocks=race(1, 1, 0.1))) is None
    found = gain_so_far(continued, JobHistory(trials=trials, blocks=(*race(1, 1, 0.1), *later)))
    assert found is not None
    assert found.ratio == pytest.approx(1.649, abs=1e-3)


def test_best_takes_the_race_before_the_rates() -> None:
    history = JobHistory(trials=(BASELINE, search(1, num_threads=1)), blocks=race(1, 1, 0.1))
    best = best_so_far(job(), history)
    assert best is not None
    assert (best.trial_number, best.gain.ratio) == (1, pytest.approx(1.105, abs=1e-3))


def test_launch_that_failed_is_told_once_and_shortened() -> None:
    ended = {"job_id": "j", "state": SessionState.ENDED, "created_at": START, "outcome": Outcome.CRASHED}
    sessions = tuple(
        Session(id=f"s{number}", generation=number, reason="No GPU. " * 40, **ended) for number in (1, 2)
    )
    (line,) = list_troubles(sessions, START)
    assert not list_troubles(sessions, START + timedelta(seconds=1)), "what was before a pause was told then"
    assert line.startswith("launch 1 crashed: No GPU.")
    assert len(line) < MOST_COLUMNS


def test_line_of_a_queued_job_says_what_it_waits_for() -> None:
    line = describe_progress(job(JobState.QUEUED), JobHistory(), START + timedelta(hours=1, seconds=5))
    assert line == "1:00:05 · waiting for agents"


def test_best_compares_within_a_session_only() -> None:
    history = JobHistory(
        trials=(BASELINE, search(1)),
        blocks=(block(0, 100.0, "slow hour"), block(0, 200.0, "fast hour"), block(1, 210.0, "fast hour")),
    )
    best = best_so_far(job(), history)
    assert best is not None
    assert abs(best.gain.ratio - 1.05) < 1e-9


def test_best_ignores_rungs_that_the_job_does_not_allow_and_failed_trials() -> None:
    risky = search(1).model_copy(update={"effect": Effect.NUMERIC})
    history = JobHistory(
        trials=(BASELINE, risky, search(2, Outcome.DIVERGED)),
        blocks=(block(0, 100.0), block(1, 300.0), block(2, 200.0)),
    )
    assert best_so_far(job(), history) is None


def test_every_stage_has_words() -> None:
    assert set(STAGE_WORDS) == set(Stage)
