"""The list of jobs as its page shows it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from advisor.dashboard import formats
from advisor.dashboard.views.evidence import interval, likely
from advisor.protocol.answers.advice import Advice, Verdict
from advisor.protocol.asked.jobs import Job, JobState
from advisor.protocol.gains import End, spell_bound, spell_gain
from advisor.protocol.measured.spending import measure_device_hours
from advisor.protocol.measured.trials import JobHistory, Purpose


@dataclass(frozen=True)
class JobLine:
    """One row of the list: a job, what is advised, and what it spent."""

    job: Job
    advice: Advice | None
    trials: int
    """Strategies tried."""
    device_hours: float


def name_job(job: Job) -> str:
    """Return the name for people: the owner's, else the training script's, else the id."""
    scripts = [word for word in job.spec.workload.command if word.endswith(".py")]
    return job.spec.name or (scripts[0].rsplit("/", 1)[-1] if scripts else job.id)


def count_search_trials(history: JobHistory) -> int:
    """Return how many strategies the search has tried."""
    return sum(trial.purpose is Purpose.SEARCH for trial in history.trials)


def tell_gain(line: JobLine) -> str:
    """Return what a job brought: `at least +13.9 %`, `keep`, `undecided`; `measuring` before there is an answer."""
    if line.advice is None:
        return "measuring" if line.job.state is JobState.RUNNING else formats.NO_VALUE
    gain, verdict = line.advice.gain, line.advice.verdict
    if verdict is not Verdict.CHANGE or gain is None:
        return "undecided" if verdict is Verdict.UNDECIDED else "keep"
    return spell_bound(gain.ratio, gain.low, gain.high).removesuffix(" faster") or likely(gain)


def tell_gain_range(line: JobLine) -> str:
    """Return the line below it: what is likeliest, or what the gain lies between; "" where there is nothing to say."""
    if line.advice is None:
        return ""
    gain, verdict = line.advice.gain, line.advice.verdict
    if verdict is Verdict.UNDECIDED:
        return (interval(gain) or likely(gain)) if gain else "not measured"
    if gain is None:
        return ""
    if verdict is Verdict.CHANGE:
        return f"most likely {likely(gain)}" if interval(gain) else ""
    return f"at most {spell_gain(gain.high, End.HIGH)}"


def view_job_line(job: Job, advice: Advice | None, history: JobHistory | None, now: datetime) -> JobLine:
    """Build a row. `history` is needed only without an advice, which already carries its counts."""
    trials, hours = 0, 0.0
    if advice is not None:
        trials, hours = advice.cost.trials, advice.cost.device_hours
    elif history is not None:
        trials, hours = count_search_trials(history), measure_device_hours(job, history.sessions, now)
    return JobLine(job, advice, trials, hours)


def view_job_lines(
    jobs: Sequence[Job],
    look_up_advice: Callable[[str], Advice | None],
    look_up_history: Callable[[str], JobHistory],
    now: datetime,
) -> list[JobLine]:
    """Build the rows; a history, which is large, is looked up only for jobs without an advice."""
    lines = []
    for job in jobs:
        advice = look_up_advice(job.id) if job.state.is_final else None
        history = look_up_history(job.id) if advice is None else None
        lines.append(view_job_line(job, advice, history, now))
    return lines
