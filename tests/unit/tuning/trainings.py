"""A written-down training: blocks of baseline and one strategy with the losses that the runtime would have sent."""

import random
from collections.abc import Mapping
from datetime import timedelta

from advisor.protocol.base import Value
from advisor.protocol.calibration import Calibration
from advisor.protocol.jobs import Job
from advisor.protocol.strategy import effect_of
from advisor.protocol.trials import (
    Block,
    BlockPlan,
    BlockResult,
    BlockState,
    JobHistory,
    Outcome,
    Purpose,
    Session,
    SessionState,
    Trial,
)
from advisor.tuning.record import Record
from advisor.tuning.statistics import summarise_block

from .simulated_cluster import START, make_job, make_spec

LOCAL: dict[str, Value] = {"localsgd": True, "localsgd_k_steps": 4}
WARMUP = 6
SAMPLES = 64.0


class Training:
    """A loss that falls by `slope` per step; under the strategy a sample teaches only `efficiency` of it.

    Blocks of the strategy are undone after they are measured, as the runtime does it: the next one starts from the
    state before.
    """

    def __init__(
        self,
        changes: Mapping[str, Value] = LOCAL,
        efficiency: float = 1.0,
        noise: float = 0.02,
        slope: float = 0.004,
        seed: int = 0,
        steps: int = 48,
        speed: float = 1.0,
        job: Job | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        self.efficiency, self.noise, self.slope = efficiency, noise, slope
        self.steps, self.speed, self.calibration = steps, speed, calibration
        self.dice = random.Random(seed)
        self.job = job or make_job(make_spec(allow=effect_of(changes)))
        self.trials = [self._trial(0, Purpose.BASELINE, {}), self._trial(1, Purpose.CONFIRM, changes)]
        self.blocks: list[Block] = []
        self.sessions: list[Session] = []
        self.trained = 0

    @staticmethod
    def _trial(number: int, purpose: Purpose, changes: Mapping[str, Value]) -> Trial:
        return Trial(
            number=number,
            purpose=purpose,
            changes=dict(changes),
            effect=effect_of(changes),
            because="A test.",
            created_at=START,
        )

    def add_trial(self, purpose: Purpose, changes: Mapping[str, Value]) -> int:
        """Return the number of another trial."""
        self.trials.append(self._trial(len(self.trials), purpose, changes))
        return len(self.trials) - 1

    def launch(self) -> None:
        """A fresh session trains from the start."""
        ended = {"state": SessionState.ENDED, "outcome": Outcome.FINISHED}
        self.sessions = [s.model_copy(update=ended) for s in self.sessions]
        self.sessions.append(
            Session(
                id=f"s{len(self.sessions)}",
                job_id=self.job.id,
                generation=len(self.sessions),
                state=SessionState.RUNNING,
                created_at=START,
                started_at=START,
            )
        )
        self.trained = 0

    def measure(self, trial: int, round_: int | None = None) -> None:
        """One block."""
        changes = self.trials[trial].changes
        exact = effect_of(changes).rank == 0
        pace = self.slope * (1.0 if exact else self.efficiency)
        level = 3.0 - self.slope * self.trained
        losses = tuple(
            level - pace * (WARMUP + i + 0.5) + self.dice.gauss(0, self.noise) for i in range(self.steps)
        )
        step_s = 0.1 / (1.0 if exact else self.speed)
        result = BlockResult(
            steps=self.steps,
            warmup_steps=WARMUP,
            step_time_s=(step_s,) * self.steps,
            samples_per_step=SAMPLES,
            samples=SAMPLES * self.steps,
            wall_s=step_s * self.steps,
            losses=losses,
            calibration=self.calibration if exact else None,
            consumed=dict.fromkeys(changes, "in force"),
        )
        session = self.sessions[-1].id
        number = len(self.blocks)
        self.blocks.append(
            Block(
                id=f"b{number}",
                session_id=session,
                trial_number=trial,
                round=round_,
                state=BlockState.DONE,
                ordinal=sum(b.session_id == session for b in self.blocks),
                plan=BlockPlan(block_id=f"b{number}", trial_number=trial, overrides=changes, profile_steps=2),
                result=result,
                summary=summarise_block(result),
                issued_at=START + timedelta(seconds=10 * number),
                finished_at=START + timedelta(seconds=10 * number + 5),
            )
        )
        self.trained += WARMUP + self.steps + 2 if exact else 0

    def confirm(self, rounds: int = 12) -> "Training":
        """Interleaved rounds (baseline strategy, strategy baseline, …), four to a launch behind a lead-in."""
        for index in range(rounds):
            if index % 4 == 0:
                self.launch()
                self.measure(0)
            for trial in (0, 1) if index % 2 == 0 else (1, 0):
                self.measure(trial, index + 1)
        return self

    @property
    def history(self) -> JobHistory:
        """What the planner would see."""
        return JobHistory(trials=tuple(self.trials), blocks=tuple(self.blocks), sessions=tuple(self.sessions))

    @property
    def record(self) -> Record:
        """The view of it."""
        return Record(self.job, self.history, START + timedelta(hours=1))
