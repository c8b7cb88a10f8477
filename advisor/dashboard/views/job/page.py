"""The top of every view of a job, and what its overview shows below the verdict."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from advisor.dashboard import formats
from advisor.dashboard.figures.charts import Figure, Side, draw_comparison, draw_phases, draw_waterfall
from advisor.dashboard.figures.utilisation import draw_utilisation
from advisor.dashboard.source import Person
from advisor.dashboard.views.chips import Chip, chip_for_job, chip_for_outcome
from advisor.dashboard.views.job.advice import AdviceSections, view_advice
from advisor.dashboard.views.job.verdict import StageStep, VerdictCard, view_stages, view_verdict
from advisor.dashboard.views.server.jobs import name_job
from advisor.dashboard.views.trials.explore import draw_search
from advisor.dashboard.views.trials.measured import QUIET, MeasuredTrial, measure_trials
from advisor.protocol.answers.advice import CONTINUE_S, Advice, Verdict
from advisor.protocol.answers.gains import spell_likely, spell_range
from advisor.protocol.asked.jobs import Job, JobState, Priority
from advisor.protocol.measured.estimates import estimate_blocks
from advisor.protocol.measured.telemetry import SessionTelemetry
from advisor.protocol.measured.trials import Block, JobHistory, Purpose
from advisor.protocol.views import JobEvent

_LATEST = 6
"""Events that the overview of a live job shows."""


@dataclass(frozen=True)
class JobHeader:
    """What every page of a job has on top."""

    id: str
    name: str
    chip: Chip
    cluster: str
    command: str
    working_dir: str
    owner: str
    priority: str
    """Empty for the usual one."""
    created: str
    is_live: bool
    may_cancel: bool
    may_pause: bool
    may_resume: bool
    may_continue: bool
    """Whether it has ended after it measured something, and this person may give it more time."""
    continue_minutes: int
    """Minutes that are offered."""
    is_undecided: bool
    has_advice: bool


@dataclass(frozen=True)
class Overview:
    """Everything that the overview shows."""

    header: JobHeader
    stages: tuple[StageStep, ...]
    """The way from probe to done; empty once there is an answer."""
    verdict: VerdictCard
    comparison: Figure | None
    breakdown: Figure | None
    """The waterfall from before to after; only the baseline's phases where nothing is to change."""
    history: Figure | None
    """Every trial so far, while there is no advice."""
    utilisation: Figure | None
    """The devices of the latest session over time."""
    advice: AdviceSections | None
    failures: tuple[tuple[Chip, int], ...]
    """How many trials and launches failed, by kind."""
    latest: tuple[JobEvent, ...]
    """The last events, while the job is live."""


def view_header(
    job: Job, person: Person, has_advice: bool, now: datetime, advice: Advice | None = None
) -> JobHeader:
    """Build the top of a job's pages; with the advice it says how much more time is worth trying."""
    return JobHeader(
        id=job.id,
        name=name_job(job),
        chip=chip_for_job(job.state),
        cluster=job.cluster.describe(),
        command=" ".join(job.spec.workload.command),
        working_dir=job.spec.workload.working_dir,
        owner=job.owner,
        priority="" if job.spec.priority is Priority.NORMAL else job.spec.priority.value,
        created=formats.age(job.created_at, now),
        is_live=not job.state.is_final,
        may_cancel=person.may_change(job)
        and job.state in {JobState.QUEUED, JobState.RUNNING, JobState.PAUSED},
        may_pause=person.may_change(job) and job.state in {JobState.QUEUED, JobState.RUNNING},
        may_resume=person.may_change(job) and job.state is JobState.PAUSED,
        may_continue=person.may_change(job) and job.state.is_final and job.started_at is not None,
        continue_minutes=max(1, round(((advice and advice.continue_s) or CONTINUE_S) / 60)),
        is_undecided=advice is not None and advice.verdict is Verdict.UNDECIDED,
        has_advice=has_advice,
    )


def _draw_sides(history: JobHistory, advice: Advice) -> Figure | None:
    if advice.gain is None or not advice.changes:
        return None
    rounds = [block for block in history.done_blocks() if block.race is not None]
    winners = {
        trial.number
        for trial in history.trials
        if trial.purpose is Purpose.CONFIRM and trial.changes == advice.changes
    }
    confirmed = {block.race for block in rounds if block.trial_number in winners}
    ours = [block for block in rounds if block.trial_number in winners]
    theirs = [block for block in rounds if block.trial_number == 0 and block.race in confirmed]
    estimate = estimate_blocks(theirs)
    half = estimate.half_width if estimate else 0.0
    base = advice.baseline_samples_per_s
    before = Side("baseline", base, base - half, base + half, _list_throughputs(theirs))
    after = Side(
        "strategy", advice.strategy_samples_per_s, base * advice.gain.low, base * advice.gain.high,
        _list_throughputs(ours),
    )  # fmt: skip
    figures = (advice.gain.ratio, advice.gain.low, advice.gain.high)
    words = f"{spell_likely(*figures)}, 95 % interval {spell_range(*figures)}"
    return draw_comparison(before, after, words)


def _draw_breakdown(advice: Advice) -> Figure | None:
    if not advice.phases_before.total_s():
        return None
    if advice.changes and advice.phases_after.total_s():
        return draw_waterfall(advice.phases_before, advice.phases_after)
    return draw_phases([("baseline", advice.phases_before)], "Where the step time goes")


def _list_throughputs(blocks: Sequence[Block]) -> tuple[float, ...]:
    return tuple(block.summary.samples_per_s for block in blocks if block.summary is not None)


def _count_failures(trials: Sequence[MeasuredTrial], history: JobHistory) -> tuple[tuple[Chip, int], ...]:
    outcomes = [found.trial.outcome for found in trials]
    outcomes += [session.outcome for session in history.sessions]
    counts = Counter(outcome for outcome in outcomes if outcome is not None and outcome not in QUIET)
    return tuple((chip_for_outcome(outcome), count) for outcome, count in counts.most_common())


def view_overview(
    job: Job,
    history: JobHistory,
    advice: Advice | None,
    events: Sequence[JobEvent],
    person: Person,
    now: datetime,
    telemetry: SessionTelemetry = SessionTelemetry(),
) -> Overview:
    """Build the overview from what is stored."""
    trials = measure_trials(history)
    is_live = not job.state.is_final
    return Overview(
        header=view_header(job, person, advice is not None, now, advice),
        stages=() if advice else view_stages(job),
        verdict=view_verdict(job, history, advice, now),
        comparison=_draw_sides(history, advice) if advice else None,
        breakdown=_draw_breakdown(advice) if advice else None,
        history=None if advice else draw_search(job, trials),
        utilisation=draw_utilisation(telemetry) if is_live else None,
        advice=view_advice(advice) if advice else None,
        failures=_count_failures(trials, history),
        latest=tuple(events[-_LATEST:]) if is_live else (),
    )
