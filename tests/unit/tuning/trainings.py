"""A written-down training: races of baseline and strategies with the losses that the runtime would have sent."""

import random
from collections.abc import Mapping
from datetime import timedelta

from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.measured.results import BlockResult, Calibration
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
)
from advisor.tuning.history.record import Record
from advisor.tuning.measure.statistics import summarise_race

from .simulated_cluster import START, make_job, make_spec

LOCAL: dict[str, Value] = {"localsgd": True, "localsgd_k_steps": 4}
SAMPLES = 64.0
SIZE = 24
"""Steps of a segment; the later half of it has its middle at step 18."""
MIDDLE = 18


class Training:
    """A loss that falls by `slope` per step; under the strategy a sample teaches only `efficiency` of it.

    Every segment of a race begins from one state of the training, as the runtime does it beside an inexact strategy,
    and is followed by a loss check on so many batches as are `checked`, which differ by a loss of 0.5. On some the
    strategy loses more than on others: the standard deviation of that is `uneven`.
    """

    def __init__(
        self,
        changes: Mapping[str, Value] = LOCAL,
        efficiency: float = 1.0,
        noise: float = 0.02,
        slope: float = 0.004,
        seed: int = 0,
        speed: float = 1.0,
        job: Job | None = None,
        calibration: Calibration | None = None,
        checked: int = 0,
        uneven: float = 0.0,
    ) -> None:
        self.efficiency, self.noise, self.slope = efficiency, noise, slope
        self.speed, self.calibration, self.checked = speed, calibration, checked
        self.uneven = uneven
        self.dice = random.Random(seed)
        self.job = job or make_job(make_spec(allow=CATALOGUE.effect_of(changes)))
        self.trials = [self._trial(0, Purpose.BASELINE, {}), self._trial(1, Purpose.CONFIRM, changes)]
        self.blocks: list[Block] = []
        self.sessions: list[Session] = []

    @staticmethod
    def _trial(number: int, purpose: Purpose, changes: Mapping[str, Value]) -> Trial:
        return Trial(
            number=number,
            purpose=purpose,
            changes=dict(changes),
            effect=CATALOGUE.effect_of(changes),
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

    def race(self, *trials: int, cycles: int = 4, number: int | None = None) -> None:
        """Let trials take turns in the running session; the first one is what the others are held against."""
        number = number or 1 + max((b.race for b in self.blocks), default=0)
        session = self.sessions[-1].id
        first = sum(b.session_id == session for b in self.blocks)
        at = START + timedelta(seconds=10 * len(self.blocks))
        results = [self._run(self.trials[trial].changes, cycles) for trial in trials]
        for place, (trial, result) in enumerate(zip(trials, results, strict=True)):
            block_id = f"b{len(self.blocks)}"
            changes = self.trials[trial].changes
            self.blocks.append(
                Block(
                    id=block_id,
                    session_id=session,
                    trial_number=trial,
                    race=number,
                    arm=place,
                    state=BlockState.DONE,
                    ordinal=first + place,
                    plan=BlockPlan(block_id=block_id, trial_number=trial, overrides=changes),
                    result=result,
                    summary=summarise_race(result, results[0] if place else None),
                    issued_at=at,
                    finished_at=at + timedelta(seconds=5),
                )
            )

    def _run(self, changes: Mapping[str, Value], cycles: int) -> BlockResult:
        exact = CATALOGUE.effect_of(changes).rank == 0
        pace = self.slope * (1.0 if exact else self.efficiency)
        losses = tuple(
            3.0 - pace * (i + 0.5) + self.dice.gauss(0, self.noise)
            for _ in range(cycles)
            for i in range(SIZE)
        )
        batches = random.Random(7)
        hard = [batches.gauss(0.0, 0.5) for _ in range(self.checked)]
        lags = [batches.gauss(0.0, 0.0 if exact else self.uneven) for _ in hard]
        checks = tuple(
            tuple(
                3.0 + batch + lag - pace * SIZE + self.dice.gauss(0, self.noise)
                for batch, lag in zip(hard, lags, strict=True)
            )
            for _ in range(cycles if self.checked else 0)
        )
        step_s, steps = 0.1 / (1.0 if exact else self.speed), cycles * SIZE
        return BlockResult(
            steps=steps,
            step_time_s=(step_s,) * steps,
            segments=(SIZE,) * cycles,
            samples_per_step=SAMPLES,
            samples=SAMPLES * steps,
            wall_s=step_s * steps,
            losses=losses,
            loss_at_start=tuple(3.0 + batch for batch in hard),
            loss_checks=checks,
            calibration=self.calibration if exact else None,
            consumed=dict.fromkeys(changes, "in force"),
        )

    def confirm(self, launches: int = 2, cycles: int = 4) -> "Training":
        """So many launches, each one race of the baseline and the strategy."""
        for _ in range(launches):
            self.launch()
            self.race(0, 1, cycles=cycles)
        return self

    @property
    def history(self) -> JobHistory:
        """What the planner would see."""
        return JobHistory(trials=tuple(self.trials), blocks=tuple(self.blocks), sessions=tuple(self.sessions))

    @property
    def record(self) -> Record:
        """The view of it."""
        return Record(self.job, self.history, START + timedelta(hours=1))
