"""Races, trials, blocks and sessions: what was asked, what was measured, how it ended, and pages of it."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from advisor.protocol.base import Message
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import BlockResult, RaceRules
from advisor.protocol.measured.telemetry import NodeTelemetry
from advisor.protocol.training.workload import WorkloadFacts


class BlockPlan(Message):
    """One arm of a race: what its block is to measure."""

    block_id: str
    """Id of the block; the result names it."""
    trial_number: int
    """The trial it belongs to."""
    overrides: Changes = Changes()
    """Knobs to set against the script as it stands; empty is the baseline."""
    rules: RaceRules = RaceRules()
    """The rules of its race."""


class RacePlan(Message):
    """A race to be run: what the server answers to "what comes next?"."""

    arms: tuple[BlockPlan, ...] = Field(min_length=1)
    """Who takes part; the first one is what the others are held against."""

    @property
    def race_id(self) -> str:
        """The id of the first arm's block."""
        return self.arms[0].block_id

    @property
    def rules(self) -> RaceRules:
        """The rules, the same for all arms."""
        return self.arms[0].rules


class SessionState(StrEnum):
    """The life of one launch. `assembling` waits for all agents of the gang; the last two are final."""

    ASSEMBLING = "assembling"
    RUNNING = "running"
    ENDING = "ending"
    """Asked to end; the agents still have to say that every rank is gone."""
    ENDED = "ended"
    LOST = "lost"
    """The lease ran out, or the gang did not assemble."""

    @property
    def is_final(self) -> bool:
        """Whether the gang is released."""
        return self in {SessionState.ENDED, SessionState.LOST}


class Outcome(StrEnum):
    """How a trial, or a whole session, ended."""

    FINISHED = "finished"
    OUT_OF_MEMORY = "out_of_memory"
    HUNG = "hung"
    CRASHED = "crashed"
    INEFFECTIVE = "ineffective"
    """A knob was set and nothing consumed it."""
    UNCERTIFIED = "uncertified"
    """A job that allows nothing but equal bits has no certificate of them for this strategy."""
    PRUNED = "pruned"
    DIVERGED = "diverged"
    CANCELLED = "cancelled"
    LOST = "lost"
    """Infrastructure: teaches the search nothing."""

    @property
    def words(self) -> str:
        """What is said of a trial that ended so: `is done`, `ran out of memory`."""
        return {
            Outcome.FINISHED: "is done",
            Outcome.OUT_OF_MEMORY: "ran out of memory",
            Outcome.HUNG: "hung",
            Outcome.CRASHED: "crashed",
            Outcome.INEFFECTIVE: "had no effect",
            Outcome.UNCERTIFIED: "was not certified bit for bit",
            Outcome.PRUNED: "was pruned",
            Outcome.DIVERGED: "diverged",
            Outcome.CANCELLED: "was cancelled",
            Outcome.LOST: "was lost",
        }[self]

    @property
    def is_configurations_fault(self) -> bool:
        """Whether the strategy itself is to blame, so that the search learns to avoid it."""
        return self in {
            Outcome.OUT_OF_MEMORY,
            Outcome.HUNG,
            Outcome.CRASHED,
            Outcome.DIVERGED,
            Outcome.UNCERTIFIED,
        }


class TrialState(StrEnum):
    """Whether a trial still has blocks to come."""

    OPEN = "open"
    CLOSED = "closed"


class Purpose(StrEnum):
    """Why a trial is measured."""

    BASELINE = "baseline"
    """The script as it stands: the probe, and what every race holds the others against."""
    SEARCH = "search"
    REVERT = "revert"
    """The winner with some knobs back at the baseline's value: whether they earn their place."""
    CONFIRM = "confirm"
    """The winner (or the best of a higher rung) in the rounds that are reported."""


class Contrast(Message):
    """What one race says of an arm against its reference: ln(throughput of the arm / of the reference)."""

    mean: float
    """With slow steps capped at the same excess in seconds in both arms: what they would be if such steps were the
    machine's."""
    error: float
    """Its standard error within the race."""
    freedom: float
    """Degrees of freedom of that error."""
    cycles: int
    """Cycles of the race that both arms have; 0 where the two were measured one after the other."""
    total: float
    """The same over all of the time: what the user's clock shows."""
    total_error: float
    """Its standard error."""
    per_step: float
    """With what slow steps take shared out over the steps of both arms: what it would be if they were the script's."""
    excess_error: float
    """Standard error of `total` - `mean`."""
    slow_shares: tuple[float, float]
    """What of the reference's and of the arm's time slow steps take beyond the cap."""


class BlockSummary(Message):
    """A block's robust statistics (`advisor.tuning.measure.statistics`)."""

    samples_per_s: float
    """Samples of all steady steps over their total wall time."""
    log_step_time: float
    """Mean of the batch medians of ln(step time)."""
    log_step_time_se: float
    """Its standard error."""
    freedom: int = 5
    """Degrees of freedom of that standard error: batches minus 1."""
    steady_steps: int
    """Steps left after the warm-up was cut."""
    steady: bool
    """Whether a steady state was found."""
    median_step_time_s: float
    """Median of the steady steps."""
    p95_step_time_s: float
    """95th percentile of the steady steps."""
    autocorrelation: float = 0.0
    """Lag-1 autocorrelation of the steady steps."""
    spike_share: float = 0.0
    """Mean step time over the median, minus 1: what stalls cost."""
    contrast: Contrast | None = None
    """Against the first arm of its race; None for the first arm itself, and for a block that was measured alone."""


class BlockState(StrEnum):
    """The life of a block."""

    ISSUED = "issued"
    DONE = "done"
    VOID = "void"
    """Its session ended before it was measured."""


class Block(Message):
    """A stretch of timed steps under one strategy inside a session."""

    id: str
    session_id: str
    trial_number: int
    ordinal: int
    """Place in its session, from 0."""
    race: int
    """Race it belongs to, counted through the job: the arms of one race took turns."""
    arm: int = 0
    """Place among the arms of its race; 0 is what the others are held against."""
    state: BlockState
    plan: BlockPlan
    """What was asked."""
    result: BlockResult | None = None
    """What was measured."""
    summary: BlockSummary | None = None
    """Its statistics."""
    note: str = ""
    """A sentence: why it is void, or what went wrong."""
    issued_at: datetime
    finished_at: datetime | None = None
    telemetry: tuple[NodeTelemetry, ...] = ()
    """What every node did during the block; empty before telemetry arrived."""
    utilisation: float | None = None
    """Mean device busy share (GPU) or CPU share during the block, 0 to 1; None before telemetry arrived."""


class Trial(Message):
    """One strategy measured, with its outcome."""

    number: int
    """From 0, in the order of creation; 0 is the baseline."""
    purpose: Purpose
    changes: Changes = Changes()
    """Knobs that differ from the baseline."""
    effect: Effect = Effect.EXACT
    """Its rung: the highest effect among its changes."""
    because: str
    """A sentence: why this strategy was chosen."""
    state: TrialState = TrialState.OPEN
    outcome: Outcome | None = None
    """How it ended; None while open."""
    outcome_reason: str = ""
    """A sentence: what happened and what to do."""
    log_tail: str = ""
    """Last lines of the log when it failed."""
    created_at: datetime
    finished_at: datetime | None = None
    asked_again_at: datetime | None = None
    """When another race of it was last asked for (UTC); None: never."""


class Session(Message):
    """One launch of the training processes, in which many trials may be measured."""

    id: str
    job_id: str
    generation: int
    """Grows with every session of the job; fences every write."""
    state: SessionState
    because: str = ""
    """A sentence: why it was launched."""
    cold: Changes = Changes()
    """Cold changes it was launched with."""
    agents: tuple[str, ...] = ()
    """Agent names in node-rank order."""
    outcome: Outcome | None = None
    reason: str = ""
    """A sentence: how it ended."""
    log_tail: str = ""
    """Last lines of the log when it failed."""
    created_at: datetime
    started_at: datetime | None = None
    """When all agents were ready."""
    ended_at: datetime | None = None
    total_steps: int = 0
    """Steps the script made in it, where it ended or failed by itself."""
    limit_s: float | None = None
    """Seconds that it may last from `started_at` on, by its job's budget."""
    facts: WorkloadFacts | None = None
    """What the runtime saw of the script in a launch with cold changes; None: what the job's own launches show."""

    @property
    def was_lost(self) -> bool:
        """Whether it ended for a reason outside script and strategy."""
        return self.state is SessionState.LOST or self.outcome is Outcome.LOST


_MOST_VOID_REPEATS = 3
"""Races without a result after which another race that a user asked for is given up."""


class EarlierJob(Message):
    """A strategy that an earlier, similar job confirmed."""

    job_id: str
    changes: Changes
    """Knobs that it changed against its own baseline."""
    ratio: float
    """Its confirmed throughput ratio, at the lower end of its interval: a rough verdict is not told as a sure one."""
    likeness: float = Field(ge=0, le=1)
    """How alike the jobs are; 1 is the same workload on the same cluster."""
    because: str
    """A phrase: what is alike and what differs."""


class EarlierLaunches(Message):
    """How the verdict of an earlier job on the same nodes differed from launch to launch."""

    job_id: str
    ratios: tuple[tuple[float, float], ...]
    """For each launch the ln ratio that it measured, and its standard error within the launch."""


class JobHistory(Message):
    """Everything measured for a job so far: what the planner decides from."""

    trials: tuple[Trial, ...] = ()
    blocks: tuple[Block, ...] = ()
    sessions: tuple[Session, ...] = ()
    earlier: tuple[EarlierJob, ...] = ()
    """Confirmed strategies of similar jobs, most alike first; fixed when the search begins."""
    earlier_launches: tuple[EarlierLaunches, ...] = ()
    """What the verdicts of earlier jobs on the same nodes say of how much launches differ; fixed at the same time."""

    def trial(self, number: int) -> Trial:
        """Return the trial with that number; raises KeyError."""
        for trial in self.trials:
            if trial.number == number:
                return trial
        raise KeyError(number)

    def awaits_repeat(self, trial: Trial) -> bool:
        """Whether a user asked for another race of the trial, and none that counts has begun since."""
        asked_at = trial.asked_again_at
        if asked_at is None:
            return False
        since = [b for b in self.blocks if b.trial_number == trial.number and b.issued_at >= asked_at]
        return len(since) < _MOST_VOID_REPEATS and all(b.state is BlockState.VOID for b in since)

    def done_blocks(self) -> tuple[Block, ...]:
        """Blocks with a summary, in the order they were issued."""
        return tuple(block for block in self.blocks if block.state is BlockState.DONE and block.summary)

    def live_session(self) -> Session | None:
        """The session that is assembling, running or ending, if any: a job holds one at a time."""
        return next((session for session in self.sessions if not session.state.is_final), None)


class TrialPage(Message):
    """Trials of a job, by number."""

    items: tuple[Trial, ...]
    next_cursor: str | None = None
    """What to pass as `cursor` to get the next page; None on the last one."""


class BlockPage(Message):
    """Blocks of a job, session by session, each in the order they were issued."""

    items: tuple[Block, ...]
    next_cursor: str | None = None
    """What to pass as `cursor` to get the next page; None on the last one."""


class SessionPage(Message):
    """Sessions of a job, oldest first."""

    items: tuple[Session, ...]
    next_cursor: str | None = None
    """What to pass as `cursor` to get the next page; None on the last one."""


class HistoryPage(JobHistory):
    """A part of what was measured for a job: trials, blocks and sessions, each after those of the page before."""

    next_cursor: str | None = None
    """What to pass as `cursor` to get the next part; None on the last one."""
