"""Status chips: one look (tone, icon, word) for every state, outcome and rung."""

from dataclasses import dataclass

from advisor.protocol.answers.advice import Verdict
from advisor.protocol.asked.jobs import JobState, Stage
from advisor.protocol.kinds import Allow, Effect
from advisor.protocol.measured.trials import BlockState, Outcome, SessionState, Trial, TrialState
from advisor.protocol.views import AgentState


@dataclass(frozen=True)
class Chip:
    """A state in one word; colour and icon say the same twice."""

    tone: str
    """good, busy, waiting, muted, caution or bad."""
    icon: str
    """Name of an icon in parts/icons.html."""
    word: str
    title: str = ""
    """Meaning, for a tooltip."""


_JOBS = {
    JobState.QUEUED: Chip("waiting", "clock", "queued", "Waits for agents."),
    JobState.RUNNING: Chip("busy", "pulse", "running", "A session is measuring."),
    JobState.PAUSED: Chip("muted", "minus", "paused", "Starts nothing new until a user resumes it."),
    JobState.CANCELLING: Chip("caution", "stop", "cancelling", "Waits until every training process is gone."),
    JobState.FINISHED: Chip("good", "check", "finished", "The advice is ready."),
    JobState.FAILED: Chip("bad", "cross", "failed", "Nothing can be advised; the reason is on the page."),
    JobState.CANCELLED: Chip("muted", "stop", "cancelled", "A user stopped it."),
}
_VERDICTS = {
    Verdict.CHANGE: Chip("good", "check", "change", "The whole interval lies above no gain."),
    Verdict.KEEP: Chip("muted", "equals", "keep", "A gain worth a change is excluded."),
    Verdict.UNDECIDED: Chip(
        "caution", "clock", "undecided", "More time may decide it; nothing measured is lost."
    ),
}
_OUTCOMES = {
    Outcome.FINISHED: Chip("good", "check", "finished"),
    Outcome.OUT_OF_MEMORY: Chip("bad", "cross", "out of memory", "The search avoids it from now on."),
    Outcome.HUNG: Chip("bad", "cross", "hung", "A rank made no progress; the search avoids it from now on."),
    Outcome.CRASHED: Chip("bad", "cross", "crashed", "The search avoids it from now on."),
    Outcome.INEFFECTIVE: Chip(
        "muted",
        "equals",
        "no effect",
        "What it set was in force already, or nothing acted on it: no failure.",
    ),
    Outcome.UNCERTIFIED: Chip(
        "muted", "approx", "not bit for bit", "The job advises only what leaves every bit as it is."
    ),
    Outcome.PRUNED: Chip("muted", "minus", "pruned", "Stopped early: it was clearly slower."),
    Outcome.DIVERGED: Chip(
        "bad", "cross", "diverged", "More of its losses were not finite than of the baseline's."
    ),
    Outcome.CANCELLED: Chip("muted", "stop", "cancelled"),
    Outcome.LOST: Chip(
        "caution", "alert", "lost", "The infrastructure failed; the search learns nothing from it."
    ),
}
_BLOCKS = {
    BlockState.ISSUED: Chip("busy", "pulse", "measuring"),
    BlockState.DONE: Chip("good", "check", "done"),
    BlockState.VOID: Chip("muted", "minus", "void"),
}
_SESSIONS = {
    SessionState.ASSEMBLING: Chip("waiting", "clock", "assembling", "Waits for every agent of the gang."),
    SessionState.RUNNING: Chip("busy", "pulse", "running"),
    SessionState.ENDING: Chip("caution", "stop", "ending", "Waits until every rank is gone."),
    SessionState.ENDED: Chip("muted", "check", "ended"),
    SessionState.LOST: Chip("caution", "alert", "lost"),
}
_EFFECTS = {
    Effect.EXACT: Chip("muted", "equals", "exact", "The same mathematics."),
    Effect.NUMERIC: Chip("caution", "approx", "numeric", "Changes rounding."),
    Effect.CONVERGENCE: Chip("caution", "alert", "convergence", "Changes the optimisation."),
    Allow.BITWISE: Chip("muted", "equals", "bitwise", "The same bits, which was checked."),
}
_AGENTS = {
    AgentState.IDLE: Chip("good", "check", "idle", "Waits for work."),
    AgentState.BUSY: Chip("busy", "pulse", "in a session"),
    AgentState.SILENT: Chip("muted", "minus", "silent", "It has not called for a while."),
    AgentState.REVOKED: Chip(
        "muted", "minus", "revoked", "Its token was revoked: `advisor token readmit NAME`."
    ),
}
STAGES = {
    Stage.PROBE: ("Probe", "Measure the baseline: noise, facts, where the time goes."),
    Stage.SEARCH: ("Search", "Race strategies against the baseline."),
    Stage.TRIM: ("Trim", "Take back knobs that do not help."),
    Stage.CONFIRM: (
        "Confirm",
        "Race the winner against the baseline in fresh launches until the interval decides.",
    ),
    Stage.DONE: ("Done", "The advice is written."),
}


def chip_for_job(state: JobState) -> Chip:
    """Return the chip of a job's state."""
    return _JOBS[state]


def chip_for_verdict(verdict: Verdict) -> Chip:
    """Return the chip of an advice's verdict."""
    return _VERDICTS[verdict]


def chip_for_trial(trial: Trial, measuring: bool) -> Chip:
    """Return the chip of a trial; `measuring` says that one of its blocks is being measured now."""
    if trial.outcome is not None:
        return _OUTCOMES[trial.outcome]
    if trial.state is TrialState.OPEN and measuring:
        return Chip("busy", "pulse", "measuring")
    return Chip("waiting", "clock", "open", "More blocks may follow.")


def chip_for_outcome(outcome: Outcome) -> Chip:
    """Return the chip of an outcome."""
    return _OUTCOMES[outcome]


def chip_for_block(state: BlockState) -> Chip:
    """Return the chip of a block's state."""
    return _BLOCKS[state]


def chip_for_session(state: SessionState) -> Chip:
    """Return the chip of a session's state."""
    return _SESSIONS[state]


def chip_for_effect(effect: Effect) -> Chip:
    """Return the chip of a rung."""
    return _EFFECTS[effect]


def chip_for_agent(state: AgentState) -> Chip:
    """Return the chip of an agent's state."""
    return _AGENTS[state]
