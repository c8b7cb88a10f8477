"""The line that says how far a running job is: a pure function of job, history and time."""

from datetime import datetime, timedelta
from statistics import median

from advisor.cli.wording import count, spell_changes, spell_clock, spell_percent
from advisor.protocol.jobs import Job, JobState, Stage
from advisor.protocol.spending import measure_device_hours, measure_wall_s
from advisor.protocol.trials import Block, BlockState, JobHistory, Outcome, Purpose, Trial

STAGE_WORDS = {
    Stage.PROBE: "measuring your settings",
    Stage.SEARCH: "searching",
    Stage.FINALS: "choosing the winner",
    Stage.SIMPLIFY: "taking back what does not help",
    Stage.CONFIRM: "confirming",
    Stage.DONE: "writing the advice",
}


def describe_progress(job: Job, history: JobHistory, now: datetime) -> str:
    """Return one line, the most important first: a narrow terminal shows its beginning only."""
    if job.state is JobState.QUEUED:
        parts = ["waiting for agents"]
    elif job.state.is_final or job.state is JobState.CANCELLING:
        parts = [str(job.state)]
    else:
        parts = [STAGE_WORDS[job.stage]]
    searched = sum(trial.purpose is Purpose.SEARCH for trial in history.trials)
    if searched:
        parts.append(f"trial {searched} of {job.spec.budget.max_trials}")
    if (best := best_so_far(job, history)) is not None:
        parts.append(f"best {spell_percent(best)} (unconfirmed)")
    if done := len(history.done_blocks()):
        parts.append(f"{count(done, 'block')} measured")
    if history.sessions and not job.state.is_final:
        parts.append(_describe_spending(job, history, now))
    if current := _current_trials(history):
        parts.append(f"now: {' | '.join(spell_changes(trial.changes) for trial in current)}")
    return " · ".join([spell_clock(now - (job.started_at or job.created_at)), *parts])


def best_so_far(job: Job, history: JobHistory) -> float | None:
    """Return the best search trial's throughput over the baseline's in the same session, a first impression only.

    None while there is nothing to compare. Only strategies on a rung that the job allows count. Not the
    statistics behind the advice: drift and noise are still in it.
    """
    baselines: dict[str, list[float]] = {}
    trials = {trial.number: trial for trial in history.trials}
    for block in history.done_blocks():
        if trials[block.trial_number].purpose is Purpose.BASELINE:
            baselines.setdefault(block.session_id, []).append(_rate(block))
    ratios: dict[int, list[float]] = {}
    for block in history.done_blocks():
        trial = trials[block.trial_number]
        if _may_win(trial, job) and (anchors := baselines.get(block.session_id)):
            ratios.setdefault(trial.number, []).append(_rate(block) / median(anchors))
    return max((median(found) for found in ratios.values()), default=None)


def _may_win(trial: Trial, job: Job) -> bool:
    sound = trial.outcome in {None, Outcome.FINISHED}
    return trial.purpose is Purpose.SEARCH and sound and trial.effect.rank <= job.spec.allow.rank


def _rate(block: Block) -> float:
    return block.summary.samples_per_s if block.summary else 0.0


def _describe_spending(job: Job, history: JobHistory, now: datetime) -> str:
    budget = job.spec.budget
    spent = timedelta(seconds=measure_wall_s(history.sessions, now))
    sentence = f"{spell_clock(spent)} of {spell_clock(timedelta(seconds=budget.max_seconds))} spent"
    if budget.max_device_hours is None:
        return sentence
    hours = measure_device_hours(job, history.sessions, now)
    return f"{sentence}, {hours:.2f} of {budget.max_device_hours:g} device-hours"


def _current_trials(history: JobHistory) -> list[Trial]:
    """What is measured now: one strategy in each gang."""
    return [history.trial(block.trial_number) for block in history.blocks if block.state is BlockState.ISSUED]
