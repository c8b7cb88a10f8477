"""A job's history written down race by race: who took part, in which launch, and how fast each arm was."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import (
    Block,
    BlockPlan,
    BlockState,
    JobHistory,
    Outcome,
    Purpose,
    Session,
    SessionState,
    Trial,
    TrialState,
)
from advisor.tuning.history.record import Record
from advisor.tuning.measure.statistics import summarise_race

from .simulated_cluster import START, make_job

Arm = tuple[Purpose, Mapping[str, Value], float]
"""What for, which changes, and ln(throughput over the baseline's)."""
BASE: Arm = (Purpose.BASELINE, {}, 0.0)


class Raced:
    """Races of 16 cycles of 4 steps each; steps of 0.1 s vary by `spread`, launches take 10 s."""

    def __init__(self, job: Job | None = None, spread: float = 0.01, seed: int = 0) -> None:
        self.job = job or make_job()
        self.spread = spread
        self.dice = random.Random(seed)
        self.trials: list[Trial] = []
        self.blocks: list[Block] = []
        self.sessions: list[Session] = []
        self.now = START

    def launch(self, cold: Mapping[str, Value] | None = None) -> "Raced":
        """End the session and start another one."""
        ended = {"state": SessionState.ENDED, "outcome": Outcome.FINISHED, "ended_at": self.now}
        self.sessions = [s if s.state.is_final else s.model_copy(update=ended) for s in self.sessions]
        number = len(self.sessions)
        self.sessions.append(
            Session(
                id=f"s{number}",
                job_id=self.job.id,
                generation=number,
                state=SessionState.RUNNING,
                cold=dict(cold or {}),
                created_at=self.now,
                started_at=self.now,
            )
        )
        self.now += timedelta(seconds=10)
        return self

    def race(
        self,
        *arms: Arm,
        number: int | None = None,
        cycles: int = 16,
        results: Sequence[BlockResult] | None = None,
        **fields: object,
    ) -> "Raced":
        """Let arms take turns in the live session; `fields` are those of every result but the first one's.

        `results` are what the arms measured, where that is not drawn.
        """
        number = number or 1 + max((b.race or 0 for b in self.blocks), default=0)
        session = self.sessions[-1].id
        first = sum(b.session_id == session for b in self.blocks)
        results = results or [self._run(gain, cycles) for _, _, gain in arms]
        results = [replace(r, **fields) if i else r for i, r in enumerate(results)]
        end = self.now + timedelta(seconds=sum(r.wall_s for r in results) + 1)
        for place, ((purpose, changes, _), result) in enumerate(zip(arms, results, strict=True)):
            block_id = f"b{len(self.blocks)}"
            trial = self.find(purpose, changes)
            plan = BlockPlan(block_id=block_id, trial_number=trial, overrides=dict(changes))
            self.blocks.append(
                Block(
                    id=block_id, session_id=session, trial_number=trial, ordinal=first + place, race=number,
                    arm=place, state=BlockState.DONE, plan=plan, result=result,
                    summary=summarise_race(result, results[0] if place else None), issued_at=self.now,
                    finished_at=end,
                )
            )  # fmt: skip
        self.now = end
        return self

    def find(self, purpose: Purpose, changes: Mapping[str, Value]) -> int:
        """The number of a trial, which is made where there is none."""
        for trial in self.trials:
            if trial.purpose is purpose and trial.changes == dict(changes):
                return trial.number
        self.trials.append(
            Trial(
                number=len(self.trials),
                purpose=purpose,
                changes=dict(changes),
                effect=CATALOGUE.effect_of(changes),
                because="A test.",
                created_at=START,
            )
        )
        return len(self.trials) - 1

    def close(self, purpose: Purpose, changes: Mapping[str, Value], outcome: Outcome) -> "Raced":
        """End a trial."""
        number = self.find(purpose, changes)
        update = {"state": TrialState.CLOSED, "outcome": outcome}
        self.trials[number] = self.trials[number].model_copy(update=update)
        return self

    @property
    def record(self) -> Record:
        """What the planner would see now."""
        history = JobHistory(
            trials=tuple(self.trials), blocks=tuple(self.blocks), sessions=tuple(self.sessions)
        )
        return Record(self.job, history, self.now)

    def _run(self, gain: float, cycles: int) -> BlockResult:
        times = [0.1 * math.exp(-gain + self.dice.gauss(0, self.spread)) for _ in range(4 * cycles)]
        return self.make_result(times, (4,) * cycles)

    @staticmethod
    def make_result(times: Sequence[float], segments: tuple[int, ...] = ()) -> BlockResult:
        return BlockResult(
            steps=len(times),
            step_time_s=tuple(times),
            segments=segments,
            samples_per_step=64,
            samples=64 * len(times),
            wall_s=sum(times),
        )
