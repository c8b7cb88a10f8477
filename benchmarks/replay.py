"""A world without training: the real planner tunes a surface, and the true regret of what it would advise is known.

Used by search_quality.py and honesty.py. Services, agents and ranks are played by `Replay`; the decisions are those of
`advisor.tuning`, the measurements those of the surface, the clock is simulated.
"""

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from statistics import median

from surface_model import Surface

from advisor.protocol.advice import Advice
from advisor.protocol.base import Value
from advisor.protocol.jobs import Budget, Job, Measurement, Stage
from advisor.protocol.knobs import Effect
from advisor.protocol.strategy import effect_of, period_of
from advisor.protocol.trials import (
    Block,
    BlockPlan,
    BlockResult,
    BlockState,
    JobHistory,
    Outcome,
    Session,
    SessionState,
    Trial,
    TrialState,
)
from advisor.tuning.advice import build_advice
from advisor.tuning.decisions import EndSession, Fail, Finish, Launch, Measure
from advisor.tuning.outcomes import judge_block
from advisor.tuning.planner import plan
from advisor.tuning.record import Record
from advisor.tuning.search import best_changes
from advisor.tuning.simplify import choose_winner
from advisor.tuning.statistics import summarise_block
from agent.runtime.early_end import GIVEN_UP, GO_ON, average_periods, judge_timing, plan_checkpoints

_START = datetime(2026, 1, 1, tzinfo=UTC)
MEASUREMENT = Measurement(warmup_steps=3, min_steps=12, max_steps=40, block_s=1.0)
"""Short blocks, as short jobs have them; the same for every method that is compared."""
_NO_BUDGET_S = 1e7
_MOST_DECISIONS = 2_000


@dataclass
class Replay:
    """One job on a surface, carried on decision by decision."""

    surface: Surface
    seed: int = 0
    max_trials: int = 40
    """Search trials of the job's budget."""
    max_seconds: float = _NO_BUDGET_S
    measurement: Measurement = MEASUREMENT
    startup_s: float = 6.0
    overhead_s: float = 0.3
    """What a block costs beside its steps: the switch, the hand-over."""
    job: Job = field(init=False)
    watched: Collection[int] = ()
    """Numbers of measured blocks after which the regret is taken."""
    evaluations: int = 0
    """Blocks measured so far, failed ones and those of the baseline included."""
    regrets: dict[int, float] = field(default_factory=dict)
    """True regret of what would be advised after each watched number of blocks."""
    settled: Advice | Fail | None = None

    def __post_init__(self) -> None:
        job = self.surface.job
        spec = job.spec.model_copy(
            update={
                "budget": Budget(max_trials=self.max_trials, max_seconds=self.max_seconds),
                "measurement": self.measurement,
                "seed": self.seed,
            }
        )
        self.job = job.model_copy(update={"spec": spec})
        self.dice = random.Random(f"{self.surface.name} {self.seed}")
        self.weather = self.surface.weather(self.dice)
        self.now = _START
        self.trials: list[Trial] = []
        self.blocks: list[Block] = []
        self.sessions: list[Session] = []
        self.steps = 0

    @property
    def history(self) -> JobHistory:
        """What the planner sees."""
        return JobHistory.model_construct(
            trials=tuple(self.trials), blocks=tuple(self.blocks), sessions=tuple(self.sessions), earlier=()
        )

    def run(self, evaluations: int | None = None) -> "Replay":
        """Carry the job on until so many blocks are measured, or to its verdict; return itself."""
        for _ in range(_MOST_DECISIONS):
            if self.settled is not None or (evaluations is not None and self.evaluations >= evaluations):
                return self
            self.step()
        raise RuntimeError(f"{self.surface.name}: the job did not end in {_MOST_DECISIONS} decisions")

    def regret_after(self, evaluations: int) -> float:
        """Return the true regret after so many blocks, a watched number; the verdict of a job that was over sooner."""
        if evaluations in self.regrets:
            return self.regrets[evaluations]
        return self.surface.regret(self.recommend())

    def recommend(self) -> Mapping[str, Value]:
        """Return the changes that would be advised if nothing more were measured."""
        if isinstance(self.settled, Advice):
            return self.settled.changes
        record = Record(self.job, self.history, self.now)
        if any(block.round is not None for block in self.blocks):
            winner = choose_winner(record)
            return winner.changes if winner else {}
        return best_changes(record)

    def step(self) -> None:
        """Take one decision and carry it out."""
        decision = plan(self.job, self.history, self.now)
        if decision.stage is not Stage.DONE:
            self.job = self.job.model_copy(update={"stage": decision.stage})
        if isinstance(decision, Launch):
            self._launch(decision)
        elif isinstance(decision, EndSession):
            self._end(Outcome.FINISHED, "Asked to end.")
        elif isinstance(decision, Measure):
            self._measure(decision)
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
        self.weather = self.surface.weather(self.dice)
        self.steps = 0

    def _end(self, outcome: Outcome, reason: str) -> None:
        self.sessions[-1] = self.sessions[-1].model_copy(
            update={"state": SessionState.ENDED, "outcome": outcome, "reason": reason, "ended_at": self.now}
        )

    def _measure(self, decision: Measure) -> None:
        trial = self._find_trial(decision)
        order = self._order(decision, trial)
        session = self.sessions[-1]
        block = Block(
            id=order.block_id, session_id=session.id, trial_number=trial.number,
            ordinal=sum(b.session_id == session.id for b in self.blocks), round=decision.round,
            state=BlockState.ISSUED, plan=order, issued_at=self.now,
        )  # fmt: skip
        self.blocks.append(block)
        answer = self.surface.measure(trial.changes, next(self.weather), order.max_steps, self.dice)
        if answer.result is None and answer.cell.outcome is not Outcome.INEFFECTIVE:
            self._fail(block, trial, answer.cell.outcome, answer.cell.reason)
        else:
            result = answer.result or _nothing_consumed(trial, answer.cell.reason)
            self._accept(block, trial, self._time(result, order), answer.note)
        self.evaluations += 1
        if self.evaluations in self.watched:
            self.regrets[self.evaluations] = self.surface.regret(self.recommend())

    def _find_trial(self, decision: Measure) -> Trial:
        if isinstance(decision.trial, int):
            return self.trials[decision.trial]
        draft = decision.trial
        trial = Trial(
            number=len(self.trials), purpose=draft.purpose, changes=dict(draft.changes), effect=draft.effect,
            because=draft.because, created_at=self.now,
        )  # fmt: skip
        self.trials.append(trial)
        return trial

    def _order(self, decision: Measure, trial: Trial) -> BlockPlan:
        values = {
            name: getattr(decision, name)
            for name in BlockPlan.model_fields
            if name not in {"block_id", "trial_number", "overrides"} and hasattr(decision, name)
        }
        return BlockPlan(
            block_id=f"b{len(self.blocks)}",
            trial_number=trial.number,
            overrides=dict(trial.changes),
            **values,
        )

    def _time(self, result: BlockResult, order: BlockPlan) -> BlockResult:
        """Return as much of the block as the ranks would time, by the runtime's own rules."""
        period = max(1, result.period)
        step_s = median(result.step_time_s)
        wanted = max(order.min_steps, min(order.max_steps, round(order.target_s / step_s)))
        wanted = min(-(-wanted // period) * period, len(result.step_time_s))
        given_up = False
        for point in plan_checkpoints(order.min_steps, wanted, period, order.give_up_s, order.target_error):
            times = result.step_time_s[:point]
            periods = average_periods(times, [0] * point, period)
            verdict = judge_timing(periods, point >= order.min_steps, order.give_up_s, order.target_error)
            if verdict != GO_ON:
                wanted, given_up = point, verdict == GIVEN_UP
                break
        times = result.step_time_s[:wanted]
        first = self.steps + order.warmup_steps + 100_000 * (len(self.sessions) - 1)
        # An inexact block is undone, as in the ranks: the next one trains from the same state.
        if effect_of(order.overrides) is Effect.EXACT:
            self.steps += wanted + order.warmup_steps
        return result.model_copy(
            update={
                "steps": wanted,
                "warmup_steps": order.warmup_steps,
                "step_time_s": times,
                "samples": result.samples_per_step * wanted,
                "wall_s": sum(times),
                "losses": result.losses[:wanted] or tuple(_loss(first + i) for i in range(wanted)),
                "given_up": given_up,
                "calibration": self.surface.calibration if order.calibrate else None,
            }
        )

    def _fail(self, block: Block, trial: Trial, outcome: Outcome, reason: str) -> None:
        """The strategy kills the session; the trial learns why."""
        self.now += timedelta(seconds=self.overhead_s + 5.0)
        self.blocks[-1] = block.model_copy(update={"state": BlockState.VOID, "note": reason})
        self._end(outcome, reason)
        self._close(trial, outcome, reason)

    def _accept(self, block: Block, trial: Trial, result: BlockResult, note: str) -> None:
        warmup_s = block.plan.warmup_steps * (median(result.step_time_s) if result.steps else 0.0)
        self.now += timedelta(seconds=result.wall_s + warmup_s + self.overhead_s)
        extended = any(
            b.trial_number == trial.number
            and b.state is BlockState.DONE
            and b.summary
            and b.summary.steady_steps
            for b in self.blocks
        )
        self.blocks[-1] = block.model_copy(
            update={
                "state": BlockState.DONE, "result": result, "summary": summarise_block(result), "note": note,
                "finished_at": self.now,
            }
        )  # fmt: skip
        if (judged := judge_block(trial, result, extended)) is not None:
            self._close(trial, *judged)

    def _close(self, trial: Trial, outcome: Outcome, reason: str) -> None:
        self.trials[trial.number] = trial.model_copy(
            update={
                "state": TrialState.CLOSED, "outcome": outcome, "outcome_reason": reason, "finished_at": self.now,
            }
        )  # fmt: skip


def _nothing_consumed(trial: Trial, reason: str) -> BlockResult:
    """The block of a strategy that had no effect when it was recorded."""
    return BlockResult(
        steps=1, period=period_of(trial.changes), step_time_s=(1.0,), samples_per_step=1.0, samples=1.0, wall_s=1.0,
        not_consumed=dict.fromkeys(trial.changes, reason),
    )  # fmt: skip


def _loss(step: int) -> float:
    """The same falling loss for every strategy: guards have nothing to object on a surface without losses."""
    return 2.0 * 0.9997**step + 0.5
