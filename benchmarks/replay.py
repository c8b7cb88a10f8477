"""A world without training: the real planner tunes a surface, and the true regret of what it would advise is known.

Used by search_quality.py and honesty.py: decisions are those of `advisor.tuning`, turns those of the runtime's own
rules, steps those of the surface, the clock is simulated.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from played_race import PlayedArm, play_race
from surface_model import Cell, Surface

from advisor.course.played import Died, PlayedJob, Raced
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Budget, Measurement, Stage
from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import period_of
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import Block, Outcome, Trial
from advisor.tuning.decisions import Decision, Race
from advisor.tuning.history.record import Record
from advisor.tuning.search.state import look

MEASUREMENT = Measurement(warmup_steps=3, min_steps=12, max_steps=40, block_s=1.0)
"""Short races, as short jobs have them; the same for every method that is compared."""
_NO_BUDGET_S = 1e7
_TRIP_S = 0.3


@dataclass(frozen=True)
class Standing:
    """What the search would recommend at one moment, and what it had spent until then."""

    arms: int
    """Arms measured, failed ones included and the baseline's left out."""
    seconds: float
    """Seconds that the ranks spent in races, the baseline's turns included."""
    regret: float


class Replay(PlayedJob):
    """One job on a surface."""

    def __init__(
        self, surface: Surface, seed: int = 0, *, max_trials: int = 40, max_seconds: float = _NO_BUDGET_S,
        measurement: Measurement = MEASUREMENT, startup_s: float = 6.0, watched: bool = False,
    ) -> None:  # fmt: skip
        spec = surface.job.spec.model_copy(
            update={
                "budget": Budget(max_trials=max_trials, max_seconds=max_seconds),
                "measurement": measurement,
                "seed": seed,
            }
        )
        super().__init__(surface.job.model_copy(update={"spec": spec}), startup_s)
        self.surface = surface
        self.dice = random.Random(f"{surface.name} {seed}")
        self.watched = watched
        """Whether the recommendation is looked at after every race of the search."""
        self.standings = [Standing(0, 0.0, surface.regret({}))] if watched else []
        self.arms = 0
        self.race_s = 0.0
        self._steps = 0

    def search(self, arms: int) -> "Replay":
        """Carry the job on until so many arms are measured, or its search is over."""
        searching = (Stage.PROBE, Stage.SEARCH)
        while self.settled is None and self.arms < arms and self.job.stage in searching:
            self.step()
        return self

    def recommend(self) -> Mapping[str, Value]:
        """Return the changes that would be advised if nothing more were measured."""
        if isinstance(self.settled, Advice):
            return self.settled.changes
        state = look(Record(self.job, self.history, self.now))
        return state.recommendation.changes if state is not None else {}

    def regret_after(self, *, arms: float = float("inf"), seconds: float = float("inf")) -> float:
        """Return the regret of the last recommendation that so much measuring had led to."""
        return [s for s in self.standings if s.arms <= arms and s.seconds <= seconds][-1].regret

    def step(self) -> Decision:
        """Take one decision, and note the recommendation after a race of the search."""
        before = self.arms
        decision = super().step()
        if self.watched and self.arms > before and self.job.stage is Stage.SEARCH:
            self.standings.append(Standing(self.arms, self.race_s, self.surface.regret(self.recommend())))
        return decision

    def play_launch(self) -> None:
        """A fresh launch of the surface's training."""
        self._launch_played = self.surface.launch(self.dice)
        self._steps = 0

    def play_race(self, race: Race, trials: Sequence[Trial], arms: Sequence[Block]) -> Raced | Died:
        """Race what the surface knows of these strategies."""
        cells = [self.surface.find(trial.changes) for trial in trials]
        self.arms += sum(bool(trial.changes) for trial in trials)
        for cell in cells:
            if cell.truth is None and cell.outcome is not Outcome.INEFFECTIVE:
                self.race_s += 5.0
                return Died(cell.outcome, cell.reason, is_silent=cell.outcome is Outcome.LOST)
        base = self.surface.find({})
        # Nothing acted on an ineffective strategy: its steps are the baseline's.
        raced = [base if cell.truth is None else cell for cell in cells]
        heat = self._launch_played.race(raced)
        restores = any(trial.effect is not Effect.EXACT for trial in trials)
        periods = [period_of(trial.changes) for trial in trials]
        played = play_race(arms[0].id, periods, heat, race.rules, restores=restores)
        self.race_s += played.seconds
        results = [
            self._report(arm, trial, cell, shown, race)
            for arm, trial, cell, shown in zip(played.arms, trials, cells, raced, strict=True)
        ]
        notes = [self.surface.note(trial.changes) for trial in trials]
        return Raced(results, played.seconds + _TRIP_S, notes)

    def _report(self, arm: PlayedArm, trial: Trial, cell: Cell, shown: Cell, race: Race) -> BlockResult:
        """What the ranks report of one arm."""
        times = tuple(arm.times)
        first = self._steps + 100_000 * (len(self.sessions) - 1)
        # Inexact segments are undone, as in the ranks: the next one trains from the same state.
        if trial.effect is Effect.EXACT:
            self._steps += len(times)
        described = self._launch_played.describe(shown, times)
        ignored = cell.outcome is Outcome.INEFFECTIVE
        return replace(
            described,
            steps=len(times),
            period=arm.period,
            warmup_steps=len(arm.warm),
            segments=arm.segments,
            losses=described.losses or tuple(_loss(first + i) for i in range(len(times))),
            given_up=arm.given_up,
            relaunch_needed=arm.relaunch_needed,
            consumed={} if ignored else dict.fromkeys(trial.changes, "in force"),
            not_consumed=dict.fromkeys(trial.changes, cell.reason) if ignored else {},
            calibration=self.surface.calibration if race.rules.calibrate else None,
        )


def _loss(step: int) -> float:
    """The same falling loss for every strategy: guards have nothing to object on a surface without losses."""
    return 2.0 * 0.9997**step + 0.5
