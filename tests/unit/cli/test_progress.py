"""The progress lines: stage, trials, first impression of the best, what the confirmation has seen, troubles."""

from datetime import UTC, datetime, timedelta

from advisor.cli.views.progress import (
    MOST_COLUMNS,
    describe_progress,
    describe_stage,
    list_troubles,
)
from advisor.protocol.asked.jobs import Job, JobSpec, JobState, Stage
from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.measured.trials import (
    Block,
    BlockPlan,
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
from advisor.protocol.standing import SoFar, Standing
from advisor.protocol.states import STAGE_WORDS

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


def test_line_tells_stage_trial_and_best() -> None:
    history = JobHistory(
        trials=(BASELINE, search(1), search(2, None, fuse_grad_size_in_MB=8.0)),
        blocks=(block(0, 100.0), block(1, 116.1), block(2, None)),
    )
    believed = SoFar(ratio=1.161, low=1.12, high=1.2, races=1, launches=1)
    best = Standing(trial_number=1, gain=believed, chance=0.9)
    told = job().model_copy(update={"standing": best})
    line = describe_progress(told, history, START + timedelta(seconds=252))
    assert line == "4:12 · search 2/40 · best about +16.1 %, unconfirmed"
    moody = told.model_copy(update={"standing": best.model_copy(update={"moods": (53.2, 246.0)})})
    line = describe_progress(moody, history, START + timedelta(seconds=252))
    assert line.endswith("best about +16.1 %, unconfirmed · yours at 53.2 or 246 samples/s")


def test_line_tells_what_is_spent() -> None:
    start = {"job_id": "j", "state": SessionState.RUNNING, "created_at": START, "started_at": START}
    sessions = (Session(id="s1", generation=1, **start),)
    history = JobHistory(trials=(BASELINE,), sessions=sessions)
    budget = {"max_device_hours": 0.5, "max_seconds": 1800}
    spec = JobSpec.model_validate(
        {"workload": {"command": ["torchrun", "t.py"]}, "nodes": 3, "budget": budget}
    )
    line = describe_progress(job().model_copy(update={"spec": spec}), history, START + timedelta(seconds=60))
    # Three ranks (one a node, before the script told), one minute: 0.05 device-hours.
    assert "1:00 of 30:00 spent, 0.05 of 0.5 device-hours" in line


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


def test_confirmation_tells_the_verdicts_own_interval() -> None:
    confirming, gain = job(stage=Stage.CONFIRM), SoFar(ratio=3.0, low=2.9, high=3.1, races=3, launches=3)
    assert describe_stage(confirming, JobHistory()) == "confirm    a fresh launch"
    searched = confirming.model_copy(update={"standing": Standing(trial_number=1, gain=gain, chance=0.9)})
    assert describe_stage(searched, JobHistory()) == "confirm    a fresh launch", "no race of the verdict yet"
    raced = confirming.model_copy(update={"standing": Standing(trial_number=2, gain=gain)})
    assert describe_stage(raced, JobHistory()).startswith("confirm    3 races in 3 launches · 3.0x (2.")


def test_every_stage_has_words() -> None:
    assert set(STAGE_WORDS) == set(Stage)
