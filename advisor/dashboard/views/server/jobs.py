"""The list of jobs as its page shows it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from advisor.dashboard import formats
from advisor.dashboard.views.chips import STAGES, Chip, chip_for_job
from advisor.protocol.answers.advice import Advice, Verdict
from advisor.protocol.answers.gains import spell_bound, spell_gain, spell_likely, spell_range
from advisor.protocol.asked.jobs import Job, JobState
from advisor.protocol.measured.spending import measure_device_hours
from advisor.protocol.measured.trials import JobHistory, Purpose


@dataclass(frozen=True)
class GainCell:
    """What a job brought, in one cell."""

    tone: str
    """good, muted, caution or busy."""
    figure: str
    """`at least +13.9 %`, `keep` or `undecided`."""
    interval: str = ""


@dataclass(frozen=True)
class JobLine:
    """One row of the list."""

    id: str
    name: str
    command: str
    owner: str
    chip: Chip
    stage: str
    trials: str
    gain: GainCell
    device_hours: str
    age: str
    created_at: str


def name_job(job: Job) -> str:
    """Return the name for people: the owner's, else the training script's, else the id."""
    scripts = [word for word in job.spec.workload.command if word.endswith(".py")]
    return job.spec.name or (scripts[0].rsplit("/", 1)[-1] if scripts else job.id)


def count_search_trials(history: JobHistory) -> int:
    """Return how many strategies the search has tried."""
    return sum(trial.purpose is Purpose.SEARCH for trial in history.trials)


def _describe_gain(job: Job, advice: Advice | None) -> GainCell:
    if advice is None:
        is_measuring = job.state is JobState.RUNNING
        return GainCell("busy", "measuring") if is_measuring else GainCell("muted", formats.NO_VALUE)
    if advice.verdict is Verdict.CHANGE and advice.gain is not None:
        figures = (advice.gain.ratio, advice.gain.low, advice.gain.high)
        bound = spell_bound(*figures).removesuffix(" faster")
        return GainCell("good", bound or spell_likely(*figures), f"most likely {spell_likely(*figures)}")
    if advice.verdict is Verdict.UNDECIDED:
        seen = advice.gain
        return GainCell(
            "caution", "undecided", spell_range(seen.ratio, seen.low, seen.high) if seen else "not measured"
        )
    return GainCell("muted", "keep", f"at most {spell_gain(advice.gain.high)}" if advice.gain else "")


def view_job_line(job: Job, advice: Advice | None, history: JobHistory | None, now: datetime) -> JobLine:
    """Build a row. `history` is needed only without an advice, which already carries its counts."""
    trials, hours = "0", 0.0
    if advice is not None:
        trials, hours = str(advice.cost.trials), advice.cost.device_hours
    elif history is not None:
        trials, hours = str(count_search_trials(history)), measure_device_hours(job, history.sessions, now)
    return JobLine(
        id=job.id,
        name=name_job(job),
        command=" ".join(job.spec.workload.command),
        owner=job.owner,
        chip=chip_for_job(job.state),
        stage=formats.NO_VALUE if job.state.is_final else STAGES[job.stage][0].lower(),
        trials=f"{trials} / {job.spec.budget.max_trials}",
        gain=_describe_gain(job, advice),
        device_hours=formats.device_hours(hours) if hours else formats.NO_VALUE,
        age=formats.age(job.created_at, now),
        created_at=job.created_at.isoformat(),
    )


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
