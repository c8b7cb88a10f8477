"""A simulated cluster that carries a job from its first launch to its advice, deciding with the real planner."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from advisor.protocol.advice import Advice
from advisor.protocol.base import Value
from advisor.protocol.cluster import Cluster, DeviceKind, Node
from advisor.protocol.jobs import Budget, Job, JobSpec, JobState, Measurement, Stage
from advisor.protocol.knobs import Effect
from advisor.protocol.strategy import period_of
from advisor.protocol.trials import (
    Block,
    BlockPlan,
    BlockResult,
    BlockState,
    JobHistory,
    Outcome,
    Phases,
    Session,
    SessionState,
    Trial,
    TrialState,
)
from advisor.protocol.workload import Workload, WorkloadFacts
from advisor.tuning.advice import build_advice
from advisor.tuning.decisions import Decision, EndSession, Fail, Finish, Launch, Measure
from advisor.tuning.outcomes import judge_block
from advisor.tuning.planner import plan
from advisor.tuning.statistics import summarise_block
from agent.runtime.early_end import GIVEN_UP, average_periods, judge_timing, plan_checkpoints

Changes = Mapping[str, Value]
START = datetime(2026, 1, 1, tzinfo=UTC)
SAMPLES = 64.0


def make_facts(**fields: object) -> WorkloadFacts:
    """Two nodes of two ranks with 40 MB of gradients over gloo."""
    values: dict[str, object] = {
        "backend": "gloo", "device": DeviceKind.CPU, "world_size": 4, "local_world_size": 2, "nodes": 2,
        "gradient_bytes": 40 * 2**20, "parameter_tensors": 60, "layers": 30, "batch_size_per_rank": 16,
        "torch_version": "2.13.0", "python_version": "3.11",
    }  # fmt: skip
    return WorkloadFacts.model_validate({**values, **fields})


def make_cluster(cpus: int = 4, nodes: int = 2) -> Cluster:
    """Nodes without accelerators."""
    return Cluster(
        nodes=tuple(Node(hostname=f"n{i}", cpu_count=cpus, memory_bytes=2**33) for i in range(nodes))
    )


def make_spec(**fields: object) -> JobSpec:
    """A job over two nodes with a budget that never runs out."""
    values: dict[str, object] = {
        "workload": Workload(command=("torchrun", "train.py")),
        "nodes": 2,
        "budget": Budget(max_trials=8, max_seconds=100_000),
        "measurement": Measurement(warmup_steps=2, min_steps=24, max_steps=24, block_s=3.0),
    }
    return JobSpec.model_validate({**values, **fields})


def make_job(spec: JobSpec | None = None, **fields: object) -> Job:
    """A running job whose runtime has said hello."""
    values: dict[str, object] = {
        "id": "job1", "spec": spec or make_spec(), "state": JobState.RUNNING, "created_at": START,
        "facts": make_facts(), "cluster": make_cluster(),
        "baseline": {"fuse_grad_size_in_MB": 25.0, "last_comm_group_size_MB": 1.0, "sync_nccl_allreduce": False},
    }  # fmt: skip
    return Job.model_validate({**values, **fields})


@dataclass
class Noise:
    """What makes two equal blocks differ; all standard deviations of ln(step time)."""

    step: float = 0.03
    correlation: float = 0.4
    """Lag-1 correlation of steps."""
    block: float = 0.015
    """Luck of a block."""
    session: float = 0.02
    """Luck of a launch, shared by all its blocks."""
    drift: float = 0.004
    """Random walk of the whole cluster, per block."""
    spikes: float = 0.02
    """Share of steps that take several times as long."""


QUIET = Noise(step=0.002, correlation=0.0, block=0.0005, session=0.0, drift=0.0, spikes=0.0)


@dataclass
class SimulatedCluster:
    """Plays services, agents and ranks. Every fault is a function of what is being measured, never of luck alone."""

    job: Job
    speed: Callable[[Changes], float] = lambda _: 1.0
    """Throughput of a strategy over the baseline's."""
    noise: Noise = field(default_factory=Noise)
    seed: int = 0
    step_s: float = 0.1
    startup_s: float = 6.0
    steps_per_session: int | None = None
    """The script ends by itself after that many steps."""
    session_fault: Callable[[int, int, Changes], Outcome | None] = lambda *_: None
    """(session's index, block's ordinal, changes) -> the session ends with that outcome instead of the block."""
    launch_fault: Callable[[int, Changes], Outcome | None] = lambda *_: None
    """(session's index, cold changes) -> the session ends before its first block."""
    alter: Callable[[Changes, Session, BlockResult], BlockResult] = lambda _changes, _session, result: result
    """Last word on a block's result."""
    loss: Callable[[Changes, int], float] = lambda _changes, step: 2.0 * math.exp(-step / 3000) + 0.5
    exposed: float = 0.3
    """Exposed communication's share of the baseline's step."""

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.now = START
        self.trials: list[Trial] = []
        self.blocks: list[Block] = []
        self.sessions: list[Session] = []
        self.decisions: list[Decision] = []
        self.drift = 0.0
        self.luck = 0.0
        self.steps = 0
        self.trained = 0
        """Steps of this launch that stayed part of the training: inexact blocks are undone."""

    @property
    def history(self) -> JobHistory:
        """What the planner sees."""
        return JobHistory.model_construct(
            trials=tuple(self.trials), blocks=tuple(self.blocks), sessions=tuple(self.sessions)
        )

    def run(self, most: int = 600) -> Advice | Fail:
        """Carry the job to its end; fails the test when it does not end."""
        for _ in range(most):
            decision = self.step()
            if isinstance(decision, Finish):
                return build_advice(self.job, self.history, self.now)
            if isinstance(decision, Fail):
                return decision
        raise AssertionError(f"the job did not end in {most} decisions; the last was {self.decisions[-1]}")

    def step(self) -> Decision:
        """Take one decision and carry it out."""
        decision = plan(self.job, self.history, self.now)
        self.decisions.append(decision)
        assert decision.because, decision
        if decision.stage is not Stage.DONE:
            self.job = self.job.model_copy(update={"stage": decision.stage})
        live = self.history.live_session()
        if isinstance(decision, Launch):
            assert live is None
            self._launch(decision)
        elif isinstance(decision, EndSession):
            assert live is not None
            self._end(Outcome.FINISHED, "Asked to end.")
        elif isinstance(decision, Measure):
            assert live is not None
            self._measure(decision, live)
        elif isinstance(decision, Finish | Fail):
            assert live is None
        return decision

    def _launch(self, decision: Launch) -> None:
        index = len(self.sessions)
        started = self.now
        self.sessions.append(
            Session(
                id=f"s{index}",
                job_id=self.job.id,
                generation=index,
                state=SessionState.RUNNING,
                because=decision.because,
                cold=dict(decision.cold),
                created_at=started,
                started_at=started,
            )
        )
        self.now += timedelta(seconds=self.startup_s)
        self.luck = self.dice.gauss(0, self.noise.session)
        self.steps = self.trained = 0
        if (outcome := self.launch_fault(index, decision.cold)) is not None:
            self._end(outcome, "It died at its launch.")

    def _end(self, outcome: Outcome, reason: str, total_steps: int = 0) -> None:
        session = self.sessions[-1]
        state = SessionState.LOST if outcome is Outcome.LOST else SessionState.ENDED
        self.sessions[-1] = session.model_copy(
            update={
                "state": state,
                "outcome": outcome,
                "reason": reason,
                "ended_at": self.now,
                "total_steps": total_steps,
            }
        )
        last = self.blocks[-1] if self.blocks else None
        if last is None or last.state is not BlockState.ISSUED:
            return
        self.blocks[-1] = last.model_copy(update={"state": BlockState.VOID, "note": reason})
        if outcome.is_configurations_fault and last.plan.overrides:
            self._close(last.trial_number, outcome, reason)

    def _close(self, number: int, outcome: Outcome, reason: str) -> None:
        self.trials[number] = self.trials[number].model_copy(
            update={
                "state": TrialState.CLOSED,
                "outcome": outcome,
                "outcome_reason": reason,
                "finished_at": self.now,
            }
        )

    def _measure(self, decision: Measure, live: Session) -> None:
        trial = self._open(decision)
        assert trial.state is TrialState.OPEN, "a closed trial gets no blocks"
        assert dict(decision.overrides) == dict(trial.changes)
        ordinal = sum(b.session_id == live.id for b in self.blocks)
        block_plan = BlockPlan(
            block_id=f"b{len(self.blocks)}", trial_number=trial.number, overrides=dict(decision.overrides),
            warmup_steps=decision.warmup_steps, min_steps=decision.min_steps, max_steps=decision.max_steps,
            target_s=decision.target_s, give_up_s=decision.give_up_s, target_error=decision.target_error,
            calibrate=decision.calibrate,
        )  # fmt: skip
        self.blocks.append(
            Block(
                id=block_plan.block_id,
                session_id=live.id,
                trial_number=trial.number,
                ordinal=ordinal,
                round=decision.round,
                state=BlockState.ISSUED,
                plan=block_plan,
                issued_at=self.now,
            )
        )
        fault = self.session_fault(len(self.sessions) - 1, ordinal, trial.changes)
        if fault is not None:
            self.now += timedelta(seconds=5)
            self._end(fault, f"It ended as {fault.value}.")
            return
        needed = decision.warmup_steps + decision.min_steps
        if self.steps_per_session is not None and self.steps + needed > self.steps_per_session:
            self._end(Outcome.FINISHED, "The script ended.", total_steps=self.steps_per_session)
            return
        result = self.alter(trial.changes, live, self._make_result(trial.changes, block_plan))
        self.steps += decision.warmup_steps + result.steps
        self.trained += decision.warmup_steps + result.steps if trial.effect is Effect.EXACT else 0
        self._accept(trial, result)

    def _open(self, decision: Measure) -> Trial:
        if isinstance(decision.trial, int):
            return self.trials[decision.trial]
        draft = decision.trial
        assert draft.because
        trial = Trial(
            number=len(self.trials), purpose=draft.purpose, changes=dict(draft.changes), effect=draft.effect,
            because=draft.because, created_at=self.now,
        )  # fmt: skip
        self.trials.append(trial)
        return trial

    def _accept(self, trial: Trial, result: BlockResult) -> None:
        self.now += timedelta(seconds=result.wall_s * 1.3 + 0.2)
        extended = any(
            b.trial_number == trial.number
            and b.state is BlockState.DONE
            and b.summary
            and b.summary.steady_steps
            for b in self.blocks
        )
        done = self.blocks[-1].model_copy(
            update={
                "state": BlockState.DONE,
                "result": result,
                "summary": summarise_block(result),
                "finished_at": self.now,
            }
        )
        self.blocks[-1] = done
        judged = judge_block(trial, result, extended)
        if judged is not None:
            self._close(trial.number, *judged)

    def _make_result(self, changes: Changes, asked: BlockPlan) -> BlockResult:
        self.drift += self.dice.gauss(0, self.noise.drift)
        centre = math.log(self.step_s / self.speed(changes)) + self.luck + self.drift
        centre += self.dice.gauss(0, self.noise.block)
        state, times = 0.0, []
        fresh = math.sqrt(1 - self.noise.correlation**2)
        period = period_of(changes)
        wanted = math.ceil(asked.target_s * self.speed(changes) / self.step_s / period) * period
        most = min(max(asked.min_steps, wanted), asked.max_steps)
        checkpoints = plan_checkpoints(asked.min_steps, most, period, asked.give_up_s, asked.target_error)
        verdict = ""
        while len(times) < most and not verdict:
            state = self.noise.correlation * state + fresh * self.dice.gauss(0, self.noise.step)
            spike = self.dice.expovariate(1.0) if self.dice.random() < self.noise.spikes else 0.0
            times.append(math.exp(centre + state) * (1 + spike))
            if len(times) in checkpoints:
                periods = average_periods(times, [0] * len(times), period)
                enough = len(times) >= asked.min_steps
                verdict = judge_timing(periods, enough, asked.give_up_s, asked.target_error)
        steps = len(times)
        hidden = self.exposed * self.step_s
        step = sum(times) / steps
        first = self.trained + 1000 * (len(self.sessions) - 1)
        return BlockResult(
            steps=steps, period=period, step_time_s=tuple(times), samples_per_step=SAMPLES, samples=SAMPLES * steps,
            wall_s=sum(times), given_up=verdict == GIVEN_UP,
            bucket_bytes=(2**20,) * (3 if changes else 5),
            phases=Phases(
                forward_s=0.2 * self.step_s, backward_s=0.4 * self.step_s, optimizer_s=0.1 * self.step_s,
                exposed_comm_s=max(0.0, hidden - (self.step_s - step)),
            ),
            losses=tuple(self.loss(changes, first + i) for i in range(steps)),
            consumed=dict.fromkeys(changes, "in force"),
        )  # fmt: skip
