"""How far a running job is, in lines of under a hundred characters: pure functions of job, history and time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import fmean, median, stdev

from advisor.cli.views.wording import count, spell_clock, spell_rate
from advisor.protocol.answers.gains import spell_gain, spell_range
from advisor.protocol.asked.jobs import Job, JobState, Stage
from advisor.protocol.measured.spending import measure_device_hours, measure_wall_s
from advisor.protocol.measured.trials import Block, Contrast, JobHistory, Outcome, Purpose, Session, Trial

STAGE_WORDS = {
    Stage.PROBE: "measuring your settings",
    Stage.SEARCH: "searching",
    Stage.FINALS: "choosing the winner",
    Stage.SIMPLIFY: "taking back what does not help",
    Stage.CONFIRM: "confirming",
    Stage.DONE: "writing the advice",
}
_STAGE_NAMES = {
    Stage.PROBE: "baseline",
    Stage.SEARCH: "search",
    Stage.FINALS: "search",
    Stage.SIMPLIFY: "trim",
    Stage.CONFIRM: "confirm",
    Stage.DONE: "done",
}
MOST_COLUMNS = 99
_NOISY = 0.05
"""Spread of the baseline's blocks from which a machine is called noisy."""
_FAULTS = {
    Outcome.OUT_OF_MEMORY: "ran out of memory",
    Outcome.HUNG: "hung",
    Outcome.CRASHED: "crashed",
    Outcome.DIVERGED: "diverged",
    Outcome.LOST: "was lost",
}
_TWO_SIDED = 2.0
"""Standard errors on each side of what is told while it is still being measured."""


@dataclass(frozen=True)
class SoFar:
    """What the races of one strategy against the baseline say up to now; not the statistics behind the advice."""

    ratio: float
    low: float
    high: float
    races: int
    launches: int


def describe_progress(job: Job, history: JobHistory, now: datetime) -> str:
    """Return one line, the most important first: a narrow terminal shows its beginning only."""
    parts = [" ".join(describe_stage(job, history).split())]
    if history.sessions and not job.state.is_final:
        parts.append(_describe_spending(job, history, now))
    return " · ".join([spell_clock(now - (job.started_at or job.created_at)), *parts])


def describe_stage(job: Job, history: JobHistory) -> str:
    """Return what the job is doing and what it has seen: `search     12/24 · best about +110 %, unconfirmed`."""
    if job.state is JobState.QUEUED:
        return "waiting for agents"
    if job.state.is_final or job.state in {JobState.CANCELLING, JobState.PAUSED}:
        return str(job.state)
    told = {
        Stage.PROBE: _describe_baseline,
        Stage.SEARCH: _describe_search,
        Stage.FINALS: _describe_search,
        Stage.SIMPLIFY: _describe_trimming,
        Stage.CONFIRM: _describe_confirmation,
        Stage.DONE: lambda *_: "writing the advice",
    }[job.stage](job, history)
    return _clip(f"{_STAGE_NAMES[job.stage]:<10} {told}")


def list_troubles(sessions: Sequence[Session]) -> list[str]:
    """Return a line for every launch that ended as it should not have, oldest first, each text once."""
    lines = {
        (
            session.outcome,
            session.reason,
        ): f"launch {session.generation} {_FAULTS[session.outcome]}: {session.reason}"
        for session in reversed(sessions)
        if session.outcome in _FAULTS
    }
    return [_clip(line) for line in reversed(lines.values())]


def best_so_far(job: Job, history: JobHistory) -> float | None:
    """Return the best search trial's throughput over the baseline's, a first impression only.

    From its races where it has some, else against the baseline's blocks of the same session. None while there is
    nothing to compare. Only strategies on a rung that the job allows count. Not the statistics behind the advice:
    noise, and the luck of the best of many, are still in it.
    """
    baselines: dict[str, list[float]] = {}
    trials = {trial.number: trial for trial in history.trials}
    for block in history.done_blocks():
        if trials[block.trial_number].purpose is Purpose.BASELINE:
            baselines.setdefault(block.session_id, []).append(_rate(block))
    ratios: dict[int, list[float]] = {}
    for block in history.done_blocks():
        if not _may_win(trials[block.trial_number], job):
            continue
        anchors = baselines.get(block.session_id)
        if (contrast := _contrast(block)) is not None:
            ratios.setdefault(block.trial_number, []).append(math.exp(contrast.mean))
        elif anchors and _rate(block) > 0:
            ratios.setdefault(block.trial_number, []).append(_rate(block) / median(anchors))
    return max((median(found) for found in ratios.values()), default=None)


def gain_so_far(job: Job, history: JobHistory) -> SoFar | None:
    """Return what the verdict's races of the strategy that is being confirmed say; None before the first one.

    That is the first strategy on an allowed rung that was confirmed in this budget; rungs beside it are not told.
    """
    numbers = {t.number for t in history.trials if t.purpose is Purpose.CONFIRM and t.changes}
    numbers = {n for n in numbers if history.trial(n).effect.rank <= job.spec.allow.rank}
    raced = [b for b in history.done_blocks() if b.trial_number in numbers and _contrast(b) is not None]
    began = max(job.continued_at, default=job.created_at)
    confirmed = next((b.trial_number for b in raced if b.issued_at >= began), None)
    if confirmed is None:
        return None
    launches: dict[str, list[tuple[float, float]]] = {}
    for block in raced:
        if block.trial_number == confirmed and (contrast := _contrast(block)) is not None:
            launches.setdefault(block.session_id, []).append((contrast.mean, contrast.error))
    means = [fmean(mean for mean, _ in races) for races in launches.values()]
    errors = [error for races in launches.values() for _, error in races]
    within = math.sqrt(sum(error**2 for error in errors)) / len(errors)
    between = stdev(means) / math.sqrt(len(means)) if len(means) > 1 else 0.0
    mean, half = fmean(means), _TWO_SIDED * max(within, between)
    return SoFar(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(errors), len(means))


def _describe_baseline(_: Job, history: JobHistory) -> str:
    rates = [_rate(block) for block in history.done_blocks() if not block.plan.overrides and _rate(block) > 0]
    if not rates:
        return "starting your script as it stands"
    told = f"{spell_rate(fmean(rates))} samples/s"
    if len(rates) < 2:
        return told
    spread = stdev(rates) / fmean(rates)
    noisy = ": a noisy machine" if spread > _NOISY else ""
    return f"{told} (blocks vary by {spread:.0%}{noisy})".replace("%", " %")


def _describe_search(job: Job, history: JobHistory) -> str:
    searched = [trial for trial in history.trials if trial.purpose is Purpose.SEARCH]
    parts = [f"{len(searched)}/{job.spec.budget.max_trials}"]
    if (best := best_so_far(job, history)) is not None:
        parts.append(f"best about {spell_gain(best)}, unconfirmed")
    if given_up := sum(trial.outcome is Outcome.PRUNED for trial in searched):
        parts.append(f"{given_up} given up as slower")
    if failed := sum(trial.outcome in _FAULTS for trial in searched):
        parts.append(f"{failed} failed")
    return " · ".join(parts)


def _describe_trimming(_: Job, history: JobHistory) -> str:
    tried = sum(trial.purpose is Purpose.REVERT for trial in history.trials)
    words = "without settings that may not help"
    return (
        f"{count(tried, 'strategy', 'strategies')} {words}"
        if tried
        else "looking for settings that do not help"
    )


def _describe_confirmation(job: Job, history: JobHistory) -> str:
    found = gain_so_far(job, history)
    if found is None:
        return "a fresh launch"
    figures = (found.ratio, found.low, found.high)
    measured = f"{count(found.races, 'race')} in {count(found.launches, 'launch', 'launches')}"
    return f"{measured} · {spell_gain(found.ratio)} ({spell_range(*figures)} so far)"


def _may_win(trial: Trial, job: Job) -> bool:
    sound = trial.outcome in {None, Outcome.FINISHED}
    return trial.purpose is Purpose.SEARCH and sound and trial.effect.rank <= job.spec.allow.rank


def _rate(block: Block) -> float:
    return block.summary.samples_per_s if block.summary else 0.0


def _contrast(block: Block) -> Contrast | None:
    return block.summary.contrast if block.summary else None


def _describe_spending(job: Job, history: JobHistory, now: datetime) -> str:
    budget = job.spec.budget
    spent = timedelta(seconds=measure_wall_s(history.sessions, now))
    sentence = f"{spell_clock(spent)} of {spell_clock(timedelta(seconds=budget.max_seconds))} spent"
    if budget.max_device_hours is None:
        return sentence
    hours = measure_device_hours(job, history.sessions, now)
    return f"{sentence}, {hours:.2f} of {budget.max_device_hours:g} device-hours"


def _clip(line: str) -> str:
    """One line that fits beside its clock."""
    text = " ".join(line.split("\n"))
    room = MOST_COLUMNS - len("1:00:00 ")
    return text if len(text) <= room else f"{text[: room - 1]}…"
