"""How far a running job is, in lines of under a hundred characters: pure functions of job, history and time."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from statistics import fmean, stdev

from advisor.answers.wording import count, spell_clock
from advisor.protocol.asked.jobs import Job, JobState, Stage
from advisor.protocol.gains import spell_rate, spell_share
from advisor.protocol.measured.estimates import rate_of
from advisor.protocol.measured.spending import measure_device_hours, measure_wall_s
from advisor.protocol.measured.trials import JobHistory, Outcome, Purpose, Session

_STAGE_NAMES = {
    Stage.PROBE: "baseline",
    Stage.SEARCH: "search",
    Stage.TRIM: "trim",
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


def describe_progress(job: Job, history: JobHistory, now: datetime, since: datetime | None = None) -> str:
    """Return one line, the most important first: a narrow terminal shows its beginning only.

    Its clock runs from `since` on, or from the job's start.
    """
    parts = [" ".join(describe_stage(job, history).split())]
    if history.sessions and not job.state.is_final:
        parts.append(_describe_spending(job, history, now))
    return " · ".join([spell_clock(now - (since or job.started_at or job.created_at)), *parts])


def describe_stage(job: Job, history: JobHistory) -> str:
    """Return what the job is doing and what it has seen: `search     12/24 · best about +110 %, unconfirmed`."""
    if job.state is JobState.QUEUED:
        return "waiting for agents"
    if job.state.is_final or job.state in {JobState.CANCELLING, JobState.PAUSED}:
        return str(job.state)
    told = {
        Stage.PROBE: _describe_baseline,
        Stage.SEARCH: _describe_search,
        Stage.TRIM: _describe_trimming,
        Stage.CONFIRM: _describe_confirmation,
        Stage.DONE: lambda *_: "writing the advice",
    }[job.stage](job, history)
    return _clip(f"{_STAGE_NAMES[job.stage]:<10} {told}")


def list_troubles(sessions: Sequence[Session], since: datetime) -> list[str]:
    """Return a line for every launch that ended after `since` as it should not have, oldest first, each text once."""
    lines = {
        (
            session.outcome,
            session.reason,
        ): f"launch {session.generation} {_FAULTS[session.outcome]}: {session.reason}"
        for session in reversed(sessions)
        if session.outcome in _FAULTS and session.created_at >= since
    }
    return [_clip(line) for line in reversed(lines.values())]


def _describe_baseline(job: Job, history: JobHistory) -> str:
    rates = [
        rate_of(block) for block in history.done_blocks() if not block.plan.overrides and rate_of(block) > 0
    ]
    if not rates:
        return "starting your script as it stands"
    told = f"{spell_rate(fmean(rates))} {job.rate_unit}"
    if len(rates) < 2:
        return told
    spread = stdev(rates) / fmean(rates)
    noisy = ": a noisy machine" if spread > _NOISY else ""
    return f"{told} (blocks vary by {spell_share(spread)}{noisy})"


def _describe_search(job: Job, history: JobHistory) -> str:
    searched = [trial for trial in history.trials if trial.purpose is Purpose.SEARCH]
    parts = [f"{len(searched)}/{job.spec.budget.max_trials}"]
    if job.standing is not None:
        parts.append(f"best {job.standing.describe()}{_describe_moods(job)}")
    if given_up := sum(trial.outcome is Outcome.PRUNED for trial in searched):
        parts.append(f"{given_up} given up as slower")
    if uncertified := sum(trial.outcome is Outcome.UNCERTIFIED for trial in searched):
        parts.append(f"{uncertified} not bit for bit")
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


def _describe_confirmation(job: Job, _: JobHistory) -> str:
    best = job.standing
    return (
        f"{best.gain.describe()}{_describe_moods(job)}"
        if best is not None and best.is_confirmed
        else "a fresh launch"
    )


def _describe_moods(job: Job) -> str:
    """Why the gain moves: the script's own speed has several levels."""
    if job.standing is None or not job.standing.moods:
        return ""
    return f" · yours at {' or '.join(map(spell_rate, job.standing.moods))} {job.rate_unit}"


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
