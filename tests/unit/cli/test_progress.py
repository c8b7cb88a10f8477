"""The progress line: stage, trials, first impression of the best, what is being measured."""

from datetime import UTC, datetime, timedelta

from advisor.cli.progress import STAGE_WORDS, best_so_far, describe_progress
from advisor.protocol.base import Value
from advisor.protocol.jobs import Job, JobSpec, JobState, Stage
from advisor.protocol.knobs import Effect
from advisor.protocol.trials import (
    Block,
    BlockPlan,
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


def block(trial: int, rate: float | None, session: str = "s1") -> Block:
    summary = rate and BlockSummary(
        samples_per_s=rate,
        log_step_time=0.0,
        log_step_time_se=0.01,
        steady_steps=20,
        steady=True,
        median_step_time_s=0.1,
        p95_step_time_s=0.1,
    )
    return Block(
        id=f"b{trial}",
        session_id=session,
        trial_number=trial,
        ordinal=0,
        state=BlockState.DONE if rate else BlockState.ISSUED,
        plan=BlockPlan(block_id=f"b{trial}", trial_number=trial),
        summary=summary or None,
        issued_at=START,
    )


def test_line_tells_stage_trial_best_blocks_and_the_current_strategy() -> None:
    history = JobHistory(
        trials=(BASELINE, search(1), search(2, None, fuse_grad_size_in_MB=8.0)),
        blocks=(block(0, 100.0), block(1, 116.1), block(2, None)),
    )
    line = describe_progress(job(), history, START + timedelta(seconds=252))
    assert line == (
        "4:12 · searching · trial 2 of 40 · best +16.1 % (unconfirmed) · 2 blocks measured · "
        "now: fuse_grad_size_in_MB = 8 MB"
    )


def test_line_tells_what_is_spent_and_what_every_gang_measures() -> None:
    start = {"job_id": "j", "state": SessionState.RUNNING, "created_at": START, "started_at": START}
    sessions = (Session(id="s1", generation=1, **start), Session(id="s2", generation=2, gang=1, **start))
    history = JobHistory(
        trials=(BASELINE, search(1, None, num_threads=2), search(2, None, fuse_grad_size_in_MB=8.0)),
        blocks=(block(1, None), block(2, None, "s2")),
        sessions=sessions,
    )
    budget = {"max_device_hours": 0.5, "max_seconds": 1800}
    spec = JobSpec.model_validate(
        {"workload": {"command": ["torchrun", "t.py"]}, "nodes": 3, "budget": budget}
    )
    line = describe_progress(job().model_copy(update={"spec": spec}), history, START + timedelta(seconds=60))
    # Three ranks a gang (one a node, before the script told), two gangs, one minute each: 0.1 device-hours.
    assert "1:00 of 30:00 spent, 0.10 of 0.5 device-hours" in line
    assert line.endswith("now: num_threads = 2 threads | fuse_grad_size_in_MB = 8 MB")


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
    assert abs(best - 1.05) < 1e-9


def test_best_ignores_rungs_that_the_job_does_not_allow_and_failed_trials() -> None:
    risky = search(1).model_copy(update={"effect": Effect.NUMERIC})
    history = JobHistory(
        trials=(BASELINE, risky, search(2, Outcome.DIVERGED)),
        blocks=(block(0, 100.0), block(1, 300.0), block(2, 200.0)),
    )
    assert best_so_far(job(), history) is None


def test_every_stage_has_words() -> None:
    assert set(STAGE_WORDS) == set(Stage)
