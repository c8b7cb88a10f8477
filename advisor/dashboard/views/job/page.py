"""What a person may do about a job, and what its overview shows."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from advisor.dashboard.figures.charts import Figure, draw_phases, draw_waterfall
from advisor.dashboard.figures.rates import draw_rates
from advisor.dashboard.figures.study import draw_history
from advisor.dashboard.figures.utilisation import draw_utilisation
from advisor.dashboard.views.chips import Chip, chip_for_outcome
from advisor.dashboard.views.job.verdict import VerdictCard, view_verdict
from advisor.dashboard.views.trials.measured import QUIET, MeasuredTrial, measure_trials
from advisor.protocol.answers.advice import CONTINUE_S, Advice
from advisor.protocol.asked.jobs import Job, JobState, Stage
from advisor.protocol.measured.telemetry import SessionTelemetry
from advisor.protocol.measured.trials import JobHistory
from advisor.protocol.views import JobEvent
from advisor.services.jobs import may_change
from advisor.services.tokens import Principal
from advisor.tuning.history.study import study_job
from advisor.tuning.measure.phases import pool_phases

_LATEST = 6
"""Events that the overview of a live job shows."""


@dataclass(frozen=True)
class JobActions:
    """What this person may do about a job."""

    may_cancel: bool
    may_pause: bool
    may_resume: bool
    may_continue: bool
    """Whether it has ended after it measured something, and this person may give it more time."""
    continue_minutes: int
    """Minutes that are offered."""


@dataclass(frozen=True)
class Overview:
    """Everything that the overview shows."""

    stages: tuple[Stage, ...]
    """The way from probe to done; empty once there is an answer."""
    verdict: VerdictCard
    rates: Figure | None
    """The samples a second of each race."""
    breakdown: Figure | None
    """The waterfall from before to after; only the baseline's phases where nothing is to change, or not yet."""
    history: Figure | None
    """Every trial so far, while there is no advice."""
    utilisation: Figure | None
    """The devices of the latest session over time."""
    failures: tuple[tuple[Chip, int], ...]
    """How many trials and launches failed, by kind."""
    latest: tuple[JobEvent, ...]
    """The last events, while the job is live."""


def list_actions(job: Job, person: Principal, advice: Advice | None) -> JobActions:
    """Return what a person may do about a job; its advice says how much more time is worth trying."""
    is_theirs = may_change(person, job)
    may_pause = is_theirs and job.state in {JobState.QUEUED, JobState.RUNNING}
    may_resume = is_theirs and job.state is JobState.PAUSED
    return JobActions(
        may_cancel=may_pause or may_resume,
        may_pause=may_pause,
        may_resume=may_resume,
        may_continue=is_theirs and job.state.is_final and job.started_at is not None,
        continue_minutes=max(1, round(((advice and advice.continue_s) or CONTINUE_S) / 60)),
    )


def _draw_rates(job: Job, history: JobHistory, advice: Advice | None) -> Figure | None:
    """Draw each race's rates: of the strategy that the advice is about, or that is best so far, where it raced."""
    if advice is not None:
        return draw_rates(history, advice.changes or advice.candidate, advice.moods, advice.rate_unit)
    best = job.standing and next((t for t in history.trials if t.number == job.standing.trial_number), None)
    return draw_rates(history, best.changes if best else None, None, job.rate_unit)


def _draw_breakdown(history: JobHistory, advice: Advice | None) -> Figure | None:
    """Draw the step before and after; that of the script alone where nothing is advised, or not yet."""
    if advice is None:
        before = pool_phases([block for block in history.done_blocks() if block.trial_number == 0])
    else:
        before = advice.phases_before
        if advice.changes and before.total_s() and advice.phases_after.total_s():
            return draw_waterfall(before, advice.phases_after)
    if not before.total_s():
        return None
    return draw_phases([("yours", before)], "Where the step time goes")


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
    now: datetime,
    telemetry: SessionTelemetry = SessionTelemetry(),
) -> Overview:
    """Build the overview from what is stored."""
    trials = measure_trials(history)
    is_live = not job.state.is_final
    return Overview(
        stages=() if advice else tuple(Stage),
        verdict=view_verdict(job, history, advice, now),
        rates=_draw_rates(job, history, advice),
        breakdown=_draw_breakdown(history, advice),
        history=None if advice else draw_history(study_job(job, history)),
        utilisation=draw_utilisation(telemetry) if is_live else None,
        failures=_count_failures(trials, history),
        latest=tuple(events[-_LATEST:]) if is_live else (),
    )
