"""A job without a service: the planner decides, and whatever plays the training answers, in this process alone."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job, Stage
from advisor.protocol.measured.races import BlockPlan
from advisor.protocol.measured.trials import (
    Block,
    BlockResult,
    BlockState,
    JobHistory,
    Outcome,
    Session,
    SessionState,
    Trial,
    TrialState,
)
from advisor.tuning.decisions import Candidate, EndSession, Fail, Finish, Launch, Race
from advisor.tuning.explain.advice import build_advice
from advisor.tuning.history.breakoffs import is_to_blame
from advisor.tuning.measure.outcomes import judge_block
from advisor.tuning.measure.statistics import summarise_race
from advisor.tuning.planner import plan

START = datetime(2026, 1, 1, tzinfo=UTC)
_MOST_DECISIONS = 2_000


@dataclass(frozen=True)
class Raced:
    """What a race measured."""

    results: Sequence[BlockResult]
    """Of each arm, in order."""
    seconds: float
    notes: Sequence[str] = ()
    """A sentence for each arm, or nothing."""


@dataclass(frozen=True)
class Died:
    """A launch that ended in the middle of a race."""

    outcome: Outcome
    reason: str
    seconds: float = 5.0


class InMemoryJob(ABC):
    """One job, carried on decision by decision; subclasses play the launches and the races."""

    def __init__(self, job: Job, startup_s: float, now: datetime = START) -> None:
        self.job = job
        self.startup_s = startup_s
        """What a launch takes, in seconds."""
        self.now = now
        """The job's clock: it moves by what launches and races take."""
        self.trials: list[Trial] = []
        self.blocks: list[Block] = []
        self.sessions: list[Session] = []
        self.settled: Advice | Fail | None = None
        """How it ended."""

    @abstractmethod
    def play_launch(self) -> None:
        """The processes start anew."""

    @abstractmethod
    def play_race(self, race: Race, trials: Sequence[Trial], first: Block) -> Raced | Died:
        """Race these trials, in the order of the arms; `first` is the first arm's block."""

    @property
    def history(self) -> JobHistory:
        """What the planner sees."""
        return JobHistory.model_construct(
            trials=tuple(self.trials), blocks=tuple(self.blocks), sessions=tuple(self.sessions), earlier=()
        )

    def run(self) -> "InMemoryJob":
        """Carry the job to its end."""
        for _ in range(_MOST_DECISIONS):
            if self.settled is not None:
                return self
            self.step()
        raise RuntimeError(f"{self.job.id}: the job did not end in {_MOST_DECISIONS} decisions")

    def step(self) -> None:
        """Take one decision and carry it out."""
        decision = plan(self.job, self.history, self.now)
        if decision.stage is not Stage.DONE:
            self.job = self.job.model_copy(update={"stage": decision.stage})
        if isinstance(decision, Launch):
            self._launch(decision)
        elif isinstance(decision, EndSession):
            self._end(Outcome.FINISHED, "Asked to end.")
        elif isinstance(decision, Race):
            self._race(decision)
        elif isinstance(decision, Finish):
            self.settled = build_advice(self.job, self.history, self.now)
        elif isinstance(decision, Fail):
            self.settled = decision
        else:
            raise RuntimeError(f"the planner waits though nothing is under way: {decision.because}")

    def _launch(self, decision: Launch) -> None:
        index = len(self.sessions)
        self.sessions.append(
            Session(
                id=f"s{index}", job_id=self.job.id, generation=index, state=SessionState.RUNNING,
                because=decision.because, cold=dict(decision.cold), created_at=self.now, started_at=self.now,
            )
        )  # fmt: skip
        self.now += timedelta(seconds=self.startup_s)
        self.play_launch()

    def _end(self, outcome: Outcome, reason: str) -> None:
        self.sessions[-1] = self.sessions[-1].model_copy(
            update={"state": SessionState.ENDED, "outcome": outcome, "reason": reason, "ended_at": self.now}
        )
        lost = [i for i, block in enumerate(self.blocks) if block.state is BlockState.ISSUED]
        for i in lost:
            self.blocks[i] = self.blocks[i].model_copy(update={"state": BlockState.VOID, "note": reason})
        blamed = {self.blocks[i].trial_number for i in lost if self.blocks[i].plan.overrides}
        if outcome.is_configurations_fault and len(blamed) == 1:
            number = blamed.pop()
            if is_to_blame(self.history, self.sessions[-1], self.trials[number].changes):
                self._close(number, outcome, reason)

    def _race(self, race: Race) -> None:
        trials = [self._find_trial(arm) for arm in race.arms]
        session = self.sessions[-1]
        begun = sum(b.session_id == session.id for b in self.blocks)
        places = []
        for arm, trial in enumerate(trials):
            order = BlockPlan(
                block_id=f"b{len(self.blocks)}", trial_number=trial.number, overrides=dict(trial.changes),
                rules=race.rules,
            )  # fmt: skip
            places.append(len(self.blocks))
            self.blocks.append(
                Block(
                    id=order.block_id, session_id=session.id, trial_number=trial.number, ordinal=begun + arm,
                    race=race.number, arm=arm, state=BlockState.ISSUED, plan=order, issued_at=self.now,
                )
            )  # fmt: skip
        played = self.play_race(race, trials, self.blocks[places[0]])
        self.now += timedelta(seconds=played.seconds)
        if isinstance(played, Died):
            self._end(played.outcome, played.reason)
            return
        baseline = [
            result for trial, result in zip(trials, played.results, strict=True) if not trial.changes
        ] or [b.result for b in self.blocks if b.result and not b.plan.overrides]
        for arm, (trial, place, result) in enumerate(zip(trials, places, played.results, strict=True)):
            self.blocks[place] = self.blocks[place].model_copy(
                update={
                    "state": BlockState.DONE,
                    "result": result,
                    "summary": summarise_race(result, played.results[0] if arm else None),
                    "note": played.notes[arm] if played.notes else "",
                    "finished_at": self.now,
                }
            )
            if (
                trial.state is TrialState.OPEN
                and (judged := judge_block(trial, result, baseline)) is not None
            ):
                self._close(trial.number, *judged)

    def _find_trial(self, arm: Candidate) -> Trial:
        for trial in self.trials:
            if trial.purpose is arm.purpose and dict(trial.changes) == dict(arm.changes):
                return trial
        trial = Trial(
            number=len(self.trials), purpose=arm.purpose, changes=arm.changes, effect=arm.effect,
            because=arm.because, created_at=self.now,
        )  # fmt: skip
        self.trials.append(trial)
        return trial

    def _close(self, number: int, outcome: Outcome, reason: str) -> None:
        self.trials[number] = self.trials[number].model_copy(
            update={
                "state": TrialState.CLOSED, "outcome": outcome, "outcome_reason": reason, "finished_at": self.now,
            }
        )  # fmt: skip
