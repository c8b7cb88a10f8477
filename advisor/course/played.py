"""A job without a service: the planner decides, and whatever plays the training answers, in this process alone."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from advisor.course.races import Changed, accept_race, end_race, issue_race
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job, Stage
from advisor.protocol.knobs.catalogue import Catalogue
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import (
    Block,
    BlockState,
    EarlierJob,
    JobHistory,
    Outcome,
    Session,
    SessionState,
    Trial,
    TrialState,
)
from advisor.tuning.asked import Tuning
from advisor.tuning.decisions import Decision, EndSession, Fail, Finish, Launch, Race
from advisor.tuning.explain.advice import build_advice
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
    """A launch that ended before a race did."""

    outcome: Outcome
    reason: str
    seconds: float = 5.0
    total_steps: int = 0
    is_silent: bool = False
    """Whether its agents fell silent, so that they did not report how it ended."""


class PlayedJob(ABC):
    """One job, carried on decision by decision; subclasses play the launches and the races."""

    def __init__(
        self, job: Job, startup_s: float, now: datetime = START, earlier: tuple[EarlierJob, ...] = ()
    ) -> None:
        self.job = job
        self.startup_s = startup_s
        """What a launch takes, in seconds."""
        self.now = now
        """The job's clock: it moves by what launches and races take."""
        self.earlier = earlier
        self.trials: list[Trial] = []
        self.blocks: list[Block] = []
        self.sessions: list[Session] = []
        self.settled: Advice | Fail | None = None
        """How it ended."""

    @abstractmethod
    def play_launch(self) -> Died | None:
        """The processes start anew; how they ended where they did at once."""

    @abstractmethod
    def play_race(self, race: Race, trials: Sequence[Trial], arms: Sequence[Block]) -> Raced | Died:
        """Race these trials; `arms` are the blocks that were issued for them, in order."""

    @property
    def history(self) -> JobHistory:
        """What the planner sees."""
        return JobHistory.model_construct(
            trials=tuple(self.trials),
            blocks=tuple(self.blocks),
            sessions=tuple(self.sessions),
            earlier=self.earlier,
        )

    def run(self) -> "PlayedJob":
        """Carry the job to its end."""
        for _ in range(_MOST_DECISIONS):
            if self.settled is not None:
                return self
            self.step()
        raise RuntimeError(f"{self.job.id}: the job did not end in {_MOST_DECISIONS} decisions")

    def step(self) -> Decision:
        """Take one decision and carry it out."""
        decision = self.decide()
        self.carry_out(decision)
        return decision

    def decide(self) -> Decision:
        """What the planner would do now."""
        return plan(self.job, self.history, self.now)

    def carry_out(self, decision: Decision) -> None:
        """Do what was decided."""
        if decision.stage is not Stage.DONE:
            self.job = self.job.model_copy(update={"stage": decision.stage})
        if isinstance(decision, Launch):
            self._launch(decision)
        elif isinstance(decision, EndSession):
            self._end(Died(Outcome.FINISHED, "Asked to end.", 0.0))
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
                because=decision.because, cold=decision.cold, created_at=self.now, started_at=self.now,
            )
        )  # fmt: skip
        self.now += timedelta(seconds=self.startup_s)
        if (died := self.play_launch()) is not None:
            self._end(died)

    def _race(self, race: Race) -> None:
        session = self.sessions[-1]
        ordinal = sum(block.session_id == session.id for block in self.blocks)
        ids = (f"b{number}" for number in range(len(self.blocks), len(self.blocks) + len(race.arms)))
        issued = issue_race(
            session, race, self.trials, self.job.catalogue, ordinal, self.now, lambda: next(ids)
        )
        self._apply(issued)
        self.job = self.job.model_copy(update={"standing": issued.standing})
        arms = issued.blocks
        trials = {arm.trial_number: self.trials[arm.trial_number] for arm in arms}
        played = self.play_race(race, [trials[arm.trial_number] for arm in arms], arms)
        if isinstance(played, Died):
            self._end(played)
            return
        self.now += timedelta(seconds=played.seconds)
        results = {arm.id: result for arm, result in zip(arms, played.results, strict=True)}
        self._apply(
            accept_race(arms, results, trials, self._list_baseline, self._read_job, self.now, Tuning())
        )
        for place, note in enumerate(played.notes, start=len(self.blocks) - len(arms)):
            self.blocks[place] = self.blocks[place].model_copy(update={"note": note})

    def _end(self, died: Died) -> None:
        self.now += timedelta(seconds=died.seconds)
        ended = self.sessions[-1].model_copy(
            update={
                "state": SessionState.LOST if died.is_silent else SessionState.ENDED,
                "outcome": died.outcome,
                "reason": died.reason,
                "ended_at": self.now,
                "total_steps": died.total_steps,
            }
        )
        self.sessions[-1] = ended
        arms = [block for block in self.blocks if block.state is BlockState.ISSUED]
        self._apply(end_race(ended, arms, lambda: self.history, self.now))

    def _list_baseline(self) -> list[BlockResult]:
        return [block.result for block in self.blocks if block.result and not block.plan.overrides]

    def _read_job(self) -> tuple[Catalogue, Sequence[Trial]]:
        return self.job.catalogue, self.trials

    def _apply(self, changed: Changed) -> None:
        self.trials += changed.trials
        places = {block.id: place for place, block in enumerate(self.blocks)}
        for block in changed.blocks:
            if block.id in places:
                self.blocks[places[block.id]] = block
            else:
                self.blocks.append(block)
        for closing in changed.closings:
            self.trials[closing.number] = (closing.ran or self.trials[closing.number]).model_copy(
                update={
                    "state": TrialState.CLOSED,
                    "outcome": closing.outcome,
                    "outcome_reason": closing.reason,
                    "finished_at": self.now,
                }
            )
