"""The top of a job's page: how far it is, and the verdict with its interval, why, and what to do next."""

from dataclasses import dataclass
from datetime import datetime

from advisor.dashboard import formats
from advisor.dashboard.estimates import estimate_blocks
from advisor.dashboard.views_chips import STAGES
from advisor.dashboard.views_jobs import count_search_trials
from advisor.protocol.advice import Advice, Verdict
from advisor.protocol.jobs import Job, JobState, Stage
from advisor.protocol.spending import measure_device_hours
from advisor.protocol.trials import JobHistory, Outcome, Purpose, Trial


@dataclass(frozen=True)
class StageStep:
    """One step of the way."""

    name: str
    meaning: str
    place: str
    """past, now or ahead."""


@dataclass(frozen=True)
class VerdictCard:
    """The answer, or how far it is."""

    tone: str
    """good, muted, busy or bad."""
    figure: str
    """Large text: `+16.1 %`, or a few words."""
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


def view_stages(job: Job) -> tuple[StageStep, ...]:
    """Build the way from probe to done; a failed or cancelled job stops where it stood."""
    order = list(Stage)
    current = order.index(job.stage)
    steps = []
    for index, stage in enumerate(order):
        place = (
            "past"
            if index < current or job.state is JobState.FINISHED
            else "now"
            if index == current
            else "ahead"
        )
        name, meaning = STAGES[stage]
        steps.append(StageStep(name, meaning, place))
    return tuple(steps)


def view_verdict(job: Job, history: JobHistory, advice: Advice | None, now: datetime) -> VerdictCard:
    """Build the card on top: the verdict with its interval, or the state of the search in its place."""
    if advice is not None:
        return _view_answer(advice)
    hours = formats.device_hours(measure_device_hours(job, history.sessions, now))
    tried, most = count_search_trials(history), job.spec.budget.max_trials
    cost = (("device-hours so far", hours), ("strategies tried", f"{tried} of at most {most}"))
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
        sentence = f"Waits for {nodes}. It starts by itself as soon as they are free."
        return VerdictCard(
            "muted", "Queued", "", sentence, reason, ("The page of agents shows who is there.",), cost
        )
    if job.state is JobState.CANCELLING:
        sentence = "Waits until every training process is gone."
        return VerdictCard("muted", "Cancelling", "", sentence, reason, (), cost)
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
        Stage.PROBE: "The search begins once the baseline is known twice over.",
        Stage.SEARCH: "The best strategies go to the finals; nothing is advised before its gain is confirmed.",
        Stage.FINALS: "Knobs that do not earn their place are taken back from the winner.",
        Stage.SIMPLIFY: "What is left is confirmed against the baseline in fresh launches.",
        Stage.CONFIRM: "The verdict follows as soon as the interval is narrow enough.",
        Stage.DONE: "The advice is being written.",
    }[stage]


def _describe_progress(job: Job, history: JobHistory) -> str:
    name, meaning = STAGES[job.stage]
    done = len(history.done_blocks())
    text = f"{name}: {meaning[0].lower()}{meaning[1:]} {formats.plural(done, 'block')} measured so far."
    best = find_best_trial(job, history)
    if best is not None:
        trial, words = best
        text += f" Fastest so far, unconfirmed: trial {trial.number} with {words} samples/s."
    return text


def find_best_trial(job: Job, history: JobHistory) -> tuple[Trial, str] | None:
    """Return the search's fastest trial on an allowed rung and its throughput in words; unconfirmed."""
    best: tuple[float, Trial, str] | None = None
    for trial in history.trials:
        failed = trial.outcome is not None and trial.outcome is not Outcome.FINISHED
        if trial.purpose is Purpose.BASELINE or failed or trial.effect.rank > job.spec.allow.rank:
            continue
        estimate = estimate_blocks([b for b in history.done_blocks() if b.trial_number == trial.number])
        if estimate is not None and (best is None or estimate.samples_per_s > best[0]):
            best = (estimate.samples_per_s, trial, formats.rate(estimate.samples_per_s, estimate.half_width))
    return None if best is None else (best[1], best[2])


def _view_answer(advice: Advice) -> VerdictCard:
    cost = [
        ("device-hours", formats.device_hours(advice.cost.device_hours)),
        ("wall time", formats.duration(advice.cost.wall_s)),
        ("strategies tried", str(advice.cost.trials)),
        ("launches", str(advice.cost.sessions)),
    ]
    if advice.cost.pays_back_after_s is not None:
        cost.append(("pays back after", f"{formats.duration(advice.cost.pays_back_after_s)} of training"))
    why = tuple(reason.sentence for reason in advice.reasons) or (advice.diagnosis.sentence,)
    if advice.verdict is Verdict.CHANGE and advice.gain is not None:
        interval = f"95 % interval {formats.gain_range(advice.gain)} %"
        rounds = f"{formats.plural(advice.gain.rounds, 'interleaved round')}"
        launches = formats.plural(advice.gain.sessions, "fresh launch").replace("launchs", "launches")
        sentence = f"more throughput, confirmed in {rounds} over {launches}"
        return VerdictCard(
            "good",
            formats.gain(advice.gain.ratio),
            interval,
            sentence,
            why,
            advice.next_steps,
            tuple(cost),
            label="Verdict",
        )
    interval = (
        f"95 % interval of the best candidate {formats.gain_range(advice.gain)} %" if advice.gain else ""
    )
    return VerdictCard(
        "muted",
        "No reliable gain",
        interval,
        "Keep your defaults.",
        why,
        advice.next_steps,
        tuple(cost),
        label="Verdict",
    )
