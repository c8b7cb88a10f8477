"""The top of a job's page: how far it is, and the verdict with its bound first, why, and what to do next."""

import shlex
from dataclasses import dataclass
from datetime import datetime

from advisor.answers.answer import Answer, Line, Use, make_answer
from advisor.dashboard import formats
from advisor.dashboard.views.chips import STAGES, Chip, chip_for_verdict
from advisor.dashboard.views.server.jobs import count_search_trials
from advisor.exporters.own_lines import list_own_lines
from advisor.protocol.answers.advice import Action, Advice
from advisor.protocol.asked.jobs import Job, JobState, Stage
from advisor.protocol.gains import spell_rate
from advisor.protocol.measured.estimates import estimate_blocks
from advisor.protocol.measured.spending import measure_device_hours, measure_time_left_s
from advisor.protocol.measured.trials import JobHistory
from advisor.protocol.training.workload import WorkloadKind


@dataclass(frozen=True)
class RateBar:
    """A rate on the axis of the verdict's bars."""

    name: str
    told: str
    """`277 samples/s`"""
    share: float
    """Its length, in per cent of the axis."""
    low: float | None = None
    """Where its 95 % interval begins, in per cent of the axis; None where that is not known."""
    high: float | None = None


@dataclass(frozen=True)
class VerdictCard:
    """The answer, or how far it is."""

    tone: str
    """good, muted, caution, busy or bad."""
    figure: str
    """Large text: `+13.9 %`, or a few words."""
    interval: str
    sentence: str
    why: tuple[str, ...]
    next_steps: tuple[str, ...]
    cost: tuple[tuple[str, str], ...]
    """Label and value."""
    tried: int | None = None
    """Strategies tried, while the search is on."""
    most: int = 0
    """Most that it may try."""
    label: str = "State"
    """What the card is: the verdict, or the state of the job in its place."""
    lead: str = ""
    """Smaller words before the large text: `at least`."""
    chip: Chip | None = None
    """The verdict in a word, with its icon: colour alone says nothing."""
    lines: tuple[Line, ...] = ()
    """For the user's own script or command in place of the command below, largest saving first."""
    command: str = ""
    """What to paste: it uses the strategy, or gives the job more time; empty where nothing is to be done."""
    command_lead: str = ""
    """A sentence before it."""
    moods: str = ""
    """The moods of the script as it stands, right below the headline."""
    bars: tuple[RateBar, ...] = ()
    """Yours and advised on one axis."""


def place_stage(stage: Stage, job: Job) -> str:
    """Return where a stage is: past, now or ahead; a failed or cancelled job stops where it stood."""
    index, current = (list(Stage).index(at) for at in (stage, job.stage))
    if index < current or job.state is JobState.FINISHED:
        return "past"
    return "now" if index == current else "ahead"


def view_verdict(job: Job, history: JobHistory, advice: Advice | None, now: datetime) -> VerdictCard:
    """Build the card on top: the verdict with its interval, or the state of the search in its place."""
    if advice is not None:
        return _view_answer(job, advice)
    hours = formats.device_hours(measure_device_hours(job, history.sessions, now))
    tried, most = count_search_trials(history), job.spec.budget.max_trials
    left_s = max(0.0, measure_time_left_s(job, history.sessions, now))
    yours = estimate_blocks([block for block in history.done_blocks() if block.trial_number == 0])
    cost: tuple[tuple[str, str], ...] = (
        ("device-hours so far", hours),
        ("strategies tried", f"{tried} of at most {most}"),
    )
    reason = (job.state_reason,) if job.state_reason else ()
    if job.state is JobState.FAILED:
        return VerdictCard(
            "bad", "Failed", "", "There is no advice for this job.", reason, _failure_steps(job), cost
        )
    if job.state is JobState.CANCELLED:
        sentence = "It was stopped before it had an answer; what it measured stays below."
        return VerdictCard("muted", "Cancelled", "", sentence, reason, (), cost)
    if job.state is JobState.QUEUED:
        nodes = formats.plural(job.spec.nodes, "agent")
        sentence = f"Waits for {nodes}, and starts by itself as soon as there are as many idle ones."
        return VerdictCard(
            "muted", "Queued", "", sentence, reason, ("The page of agents shows who is there.",), cost
        )
    if job.state is JobState.PAUSED:
        sentence = "Starts nothing new until it is resumed; what it measured is kept."
        return VerdictCard("muted", "Paused", "", sentence, reason, (f"advisor resume {job.id}",), cost)
    if job.state is JobState.CANCELLING:
        sentence = "Waits until every training process is gone."
        return VerdictCard("muted", "Cancelling", "", sentence, reason, (), cost)
    cost = (("left of the budget", formats.duration(left_s)), *cost)
    if yours is not None:
        cost = (("your settings", f"{spell_rate(yours.samples_per_s)} {job.rate_unit}"), *cost)
    return VerdictCard(
        "busy",
        "Measuring",
        "",
        _describe_progress(job, history),
        reason,
        (_say_next(job.stage),),
        cost,
        tried,
        most,
    )


def _failure_steps(job: Job) -> tuple[str, ...]:
    return (f"Read the log, then submit the job again: advisor logs {job.id}",)


def _say_next(stage: Stage) -> str:
    return {
        Stage.PROBE: "The search begins once the baseline and its noise are known.",
        Stage.SEARCH: "The best strategy races your settings in fresh launches; nothing is advised before that.",
        Stage.TRIM: "What is left races your settings in fresh launches.",
        Stage.CONFIRM: "The verdict follows as soon as the interval decides, or the budget ends.",
        Stage.DONE: "The advice is being written.",
    }[stage]


def _describe_progress(job: Job, history: JobHistory) -> str:
    name, meaning = STAGES[job.stage]
    done = len(history.done_blocks())
    text = f"{name}: {meaning[0].lower()}{meaning[1:]} {formats.plural(done, 'block')} measured so far."
    best = job.standing
    if best is None:
        return text
    if best.is_confirmed:
        return f"{text} The best strategy against yours: {best.gain.describe()}."
    surely = (
        f", the best of those measured with {formats.percent(best.chance)} probability" if best.chance else ""
    )
    return f"{text} Best so far: trial {best.trial_number}, {best.describe()}{surely}."


def _tell_how_to_use(job: Job) -> tuple[str, str]:
    """What to paste for the strategy, and the sentence before it."""
    command = shlex.join(job.spec.workload.command)
    if job.spec.workload.kind is WorkloadKind.COMMAND:
        return (
            f"advisor export {job.id} --format command --output run.sh\nbash run.sh",
            "Start it with the strategy:",
        )
    if job.spec.nodes > 1 and job.spec.workload.kind is WorkloadKind.PYTORCH:
        here = job.cluster.shares_one_machine
        where = "which starts all of them here" if here else "on each, with NODE_RANK and MASTER_ADDR set"
        return (
            f"advisor export {job.id} --output advisor-{job.id}\nbash advisor-{job.id}/run.sh",
            f"Your own command under the strategy on {job.spec.nodes} nodes, {where}:",
        )
    return (
        f"advisor export {job.id} --format json --output strategy.json\n"
        f"advisor run --strategy strategy.json --watch -- {command}",
        "Your own command under the strategy, no line of the script changed:",
    )


def _view_answer(job: Job, advice: Advice) -> VerdictCard:
    cost = [
        ("device-hours", formats.device_hours(advice.cost.device_hours)),
        ("wall time", formats.duration(advice.cost.wall_s)),
        ("strategies tried", str(advice.cost.trials)),
        ("launches", str(advice.cost.sessions)),
    ]
    if advice.cost.pays_back_after_s is not None:
        cost.append(("pays back after", f"{formats.duration(advice.cost.pays_back_after_s)} of training"))
    command, before = "", "Give it more time; nothing measured is lost:"
    if advice.changes:
        command, before = _tell_how_to_use(job)
    answer = make_answer(advice, Use(command=command, lines=list_own_lines(advice, job)))
    lead, figure, told, sentence = answer.card
    first = () if advice.action is Action.CONTINUE else (advice.what_to_do.replace("`", ""),)
    return VerdictCard(
        answer.tone,
        figure,
        told,
        sentence,
        answer.why,
        (*first, *advice.next_steps),
        tuple(cost),
        label="Verdict",
        lead=lead,
        chip=chip_for_verdict(advice.verdict),
        lines=answer.lines,
        command=answer.command,
        command_lead=before if answer.command else "",
        moods=answer.moods,
        bars=_draw_bars(answer),
    )


def _draw_bars(answer: Answer) -> tuple[RateBar, ...]:
    """Yours and advised; a single rate has nothing to stand beside."""
    if len(answer.rates) < 2:
        return ()
    low, high = answer.rate_range or (None, None)
    most = max(high or 0.0, *(rate for _, rate in answer.rates)) or 1.0
    (yours, base), (advised, rate) = answer.rates
    scale = 100.0 / most
    ends = (low * scale, high * scale) if low is not None and high is not None else (None, None)
    return (
        RateBar(yours, f"{spell_rate(base)} {answer.rate_unit}", base * scale),
        RateBar(advised, f"{spell_rate(rate)} {answer.rate_unit}", rate * scale, *ends),
    )
