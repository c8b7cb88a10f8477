"""A job's page: header, verdict, and the sections below them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from advisor.dashboard import formats
from advisor.dashboard.figures.charts import (
    Figure,
    HistoryPoint,
    Side,
    draw_comparison,
    draw_history,
    draw_phases,
    draw_waterfall,
)
from advisor.dashboard.figures.estimates import estimate_blocks
from advisor.dashboard.figures.utilisation import draw_utilisation
from advisor.dashboard.source import Person
from advisor.dashboard.views.advice import AdviceSections, view_advice
from advisor.dashboard.views.chips import Chip, chip_for_job, chip_for_session
from advisor.dashboard.views.jobs import name_job
from advisor.dashboard.views.trials import (
    Failure,
    TrialLine,
    describe_changes,
    list_failures,
    view_trial_lines,
)
from advisor.dashboard.views.verdict import StageStep, VerdictCard, view_stages, view_verdict
from advisor.protocol.answers.advice import CONTINUE_S, Advice, Verdict
from advisor.protocol.asked.jobs import Job, JobState, Priority
from advisor.protocol.measured.telemetry import SessionTelemetry
from advisor.protocol.measured.trials import Block, JobHistory, Outcome, Purpose
from advisor.protocol.training.workload import WorkloadFacts
from advisor.protocol.views import JobEvent


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
class SessionLine:
    """One launch."""

    generation: int
    chip: Chip
    because: str
    agents: str
    length: str
    reason: str


@dataclass(frozen=True)
class EventLine:
    """One line of the story."""

    at: str
    clock: str
    kind: str
    sentence: str
    trial_number: int | None


@dataclass(frozen=True)
class JobPage:
    """Everything the page shows."""

    header: JobHeader
    stages: tuple[StageStep, ...]
    verdict: VerdictCard
    comparison: Figure | None
    breakdown: Figure | None
    """The waterfall from before to after; only the baseline's phases where nothing is to change."""
    history: Figure | None
    utilisation: Figure | None
    """The devices of the latest session over time."""
    advice: AdviceSections | None
    trials: tuple[TrialLine, ...]
    failures: tuple[Failure, ...]
    sessions: tuple[SessionLine, ...]
    events: tuple[EventLine, ...]
    facts: tuple[tuple[str, str], ...]
    last_event: int
    refused: tuple[tuple[str, str], ...]
    """Knobs that the runtime cannot serve for this script, shown while there is no advice."""


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
    words = f"{formats.gain(advice.gain.ratio)}, 95 % interval {formats.gain_range(advice.gain)} %"
    return draw_comparison(before, after, words)


def _draw_breakdown(advice: Advice) -> Figure | None:
    if not advice.phases_before.total_s():
        return None
    if advice.changes and advice.phases_after.total_s():
        return draw_waterfall(advice.phases_before, advice.phases_after)
    return draw_phases([("baseline", advice.phases_before)], "Where the step time goes")


def _list_throughputs(blocks: Sequence[Block]) -> tuple[float, ...]:
    return tuple(block.summary.samples_per_s for block in blocks if block.summary is not None)


def _draw_history(job: Job, history: JobHistory) -> Figure | None:
    done = history.done_blocks()
    if not done:
        return None
    points = []
    for trial in history.trials:
        if trial.purpose not in {Purpose.BASELINE, Purpose.SEARCH}:
            continue
        failed = trial.outcome is not None and trial.outcome not in {Outcome.FINISHED, Outcome.PRUNED}
        kind = "failed" if failed else "baseline" if trial.purpose is Purpose.BASELINE else trial.effect.value
        outcome = trial.outcome.value.replace("_", " ") if trial.outcome else "open"
        points.append(
            HistoryPoint(
                number=trial.number,
                label=describe_changes(trial.changes),
                kind=kind,
                estimate=None
                if failed
                else estimate_blocks([b for b in done if b.trial_number == trial.number]),
                outcome=outcome,
                counts=not failed and trial.effect.rank <= job.spec.allow.rank,
            )
        )
    return draw_history(points) if points else None


def _list_facts(job: Job) -> tuple[tuple[str, str], ...]:
    if job.facts is None:
        return ()
    facts = job.facts
    gradients = (
        f"{formats.size(facts.gradient_bytes)} of {facts.gradient_dtype}" if facts.gradient_bytes else ""
    )
    model = f"{facts.parameter_tensors} tensors in {facts.layers} layers" if facts.parameter_tensors else ""
    software = {"torch": facts.torch_version, **facts.software}
    told = {
        "ranks": f"{facts.world_size} ({facts.local_world_size} a node)",
        **({"sharding": _describe_sharding(facts)} if facts.sharding else {}),
        "gradients per step": gradients,
        "model": model,
        "batch per rank": f"{facts.batch_size_per_rank:g} samples",
        "backend": f"{facts.backend} on {facts.device_name or facts.device.value}" if facts.backend else "",
        **{name: version for name, version in software.items() if version},
    }
    return tuple((name, text or formats.NO_VALUE) for name, text in told.items())


def _describe_sharding(facts: WorkloadFacts) -> str:
    if not facts.shard_ranks:
        return facts.sharding
    copies = f", {facts.shard_copies} copies (HSDP)" if facts.shard_copies > 1 else ""
    return f"{facts.sharding} over {facts.shard_ranks} ranks{copies}"


def _view_sessions(history: JobHistory, now: datetime) -> tuple[SessionLine, ...]:
    lines = []
    for session in history.sessions:
        started = session.started_at
        length = formats.NO_VALUE
        if started is not None:
            length = formats.duration(((session.ended_at or now) - started).total_seconds())
        lines.append(
            SessionLine(
                session.generation, chip_for_session(session.state), formats.clean_text(session.because),
                ", ".join(session.agents), length, formats.clean_text(session.reason),
            )
        )  # fmt: skip
    return tuple(lines)


def view_events(events: Sequence[JobEvent]) -> tuple[EventLine, ...]:
    """Build the story, newest first."""
    return tuple(
        EventLine(
            event.at.isoformat(), event.at.strftime("%H:%M:%S"), event.kind, formats.clean_text(event.sentence),
            event.trial_number,
        )
        for event in reversed(events)
    )  # fmt: skip


def view_job_page(
    job: Job,
    history: JobHistory,
    advice: Advice | None,
    events: Sequence[JobEvent],
    person: Person,
    now: datetime,
    telemetry: SessionTelemetry = SessionTelemetry(),
) -> JobPage:
    """Build the page from what is stored."""
    return JobPage(
        header=view_header(job, person, advice is not None, now, advice),
        stages=view_stages(job),
        verdict=view_verdict(job, history, advice, now),
        comparison=_draw_sides(history, advice) if advice else None,
        breakdown=_draw_breakdown(advice) if advice else None,
        history=_draw_history(job, history),
        utilisation=draw_utilisation(telemetry),
        advice=view_advice(advice) if advice else None,
        trials=view_trial_lines(history, advice.changes if advice else None),
        failures=list_failures(history),
        sessions=_view_sessions(history, now),
        events=view_events(events),
        facts=_list_facts(job),
        last_event=events[-1].seq if events else 0,
        refused=() if advice else tuple(sorted(job.refusals.items())),
    )
