"""A simulated cluster that carries a job from its first launch to its advice, deciding with the real planner."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Budget, Job, JobSpec, JobState, Measurement, Stage
from advisor.protocol.knobs.changes import Changes, period_of
from advisor.protocol.knobs.knob import Effect
from advisor.protocol.measured.phases import Phases
from advisor.protocol.measured.races import BlockPlan, RaceRules
from advisor.protocol.measured.trials import (
    Block,
    BlockResult,
    BlockState,
    EarlierJob,
    JobHistory,
    Outcome,
    Session,
    SessionState,
    Trial,
    TrialState,
)
from advisor.protocol.nodes.cluster import Cluster, DeviceKind, Node
from advisor.protocol.training.workload import Workload, WorkloadFacts
from advisor.tuning.decisions import Candidate, Decision, EndSession, Fail, Finish, Launch, Race
from advisor.tuning.explain.advice import build_advice
from advisor.tuning.history.breakoffs import is_to_blame
from advisor.tuning.measure.outcomes import judge_block
from advisor.tuning.measure.statistics import summarise_race
from advisor.tuning.planner import plan

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
    """Lag-1 correlation of steps, whatever strategy they are of."""
    arm: float = 0.002
    """Luck of a strategy in one race."""
    session: float = 0.02
    """Luck of a launch, shared by all its blocks."""
    launch: float = 0.003
    """Luck of a strategy in a launch: it does not cancel within the launch."""
    drift: float = 0.002
    """Random walk of the whole cluster, per second."""
    spikes: float = 0.02
    """Share of steps that take several times as long."""


QUIET = Noise(step=0.002, correlation=0.0, arm=0.0, session=0.0, launch=0.0, drift=0.0, spikes=0.0)


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
    script_fault: Callable[[int], tuple[int, Outcome, str] | None] = lambda _: None
    """Session's index -> the step at which the script breaks off by itself, how, and the reason that is told."""
    session_fault: Callable[[int, int, Changes], Outcome | None] = lambda *_: None
    """(session's index, block's ordinal, changes) -> the session ends with that outcome instead of the block."""
    launch_fault: Callable[[int, Changes], Outcome | None] = lambda *_: None
    """(session's index, cold changes) -> the session ends before its first block."""
    alter: Callable[[Changes, Session, BlockResult], BlockResult] = lambda _changes, _session, result: result
    """Last word on a block's result."""
    loss: Callable[[Changes, int], float] = lambda _changes, step: 2.0 * math.exp(-step / 3000) + 0.5
    exposed: float = 0.3
    """Exposed communication's share of the baseline's step."""
    earlier: tuple[EarlierJob, ...] = ()
    """What similar jobs confirmed."""
    quick: bool = False
    """Whether the planner is asked for suggestions that cost next to nothing."""

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
            trials=tuple(self.trials),
            blocks=tuple(self.blocks),
            sessions=tuple(self.sessions),
            earlier=self.earlier,
        )

    @property
    def races(self) -> list[Race]:
        """Every race that was decided, in order."""
        return [decision for decision in self.decisions if isinstance(decision, Race)]

    def races_of(self, stage: Stage) -> list[Race]:
        """The races of one stage."""
        return [race for race in self.races if race.stage is stage]

    def arms_in(self, session_id: str) -> list[dict[int, list[Block]]]:
        """The races of a session in order, each as arm's place -> blocks."""
        found: dict[int, dict[int, list[Block]]] = {}
        for block in self.blocks:
            if block.session_id == session_id:
                found.setdefault(block.race or 0, {}).setdefault(block.arm, []).append(block)
        return list(found.values())

    def resume(self, more_s: float, more_trials: int = 0) -> None:
        """Give the job that has ended more budget, as the server does."""
        self.now += timedelta(seconds=60)
        budget = self.job.spec.budget
        grown = budget.model_copy(
            update={
                "max_seconds": budget.max_seconds + more_s,
                "max_trials": budget.max_trials + more_trials,
            }
        )
        self.job = self.job.model_copy(
            update={
                "spec": self.job.spec.model_copy(update={"budget": grown}),
                "stage": Stage.PROBE,
                "continued_at": (*self.job.continued_at, self.now),
            }
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
        decision = plan(self.job, self.history, self.now, quick=self.quick)
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
        elif isinstance(decision, Race):
            assert live is not None
            self._race(decision, live)
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
        issued = [i for i, block in enumerate(self.blocks) if block.state is BlockState.ISSUED]
        for i in issued:
            self.blocks[i] = self.blocks[i].model_copy(update={"state": BlockState.VOID, "note": reason})
        blamed = {self.blocks[i].trial_number for i in issued if self.blocks[i].plan.overrides}
        if outcome.is_configurations_fault and len(blamed) == 1:
            number = blamed.pop()
            if is_to_blame(self.history, self.sessions[-1], self.trials[number].changes):
                self._close(number, outcome, reason)

    def _close(self, number: int, outcome: Outcome, reason: str) -> None:
        self.trials[number] = self.trials[number].model_copy(
            update={
                "state": TrialState.CLOSED,
                "outcome": outcome,
                "outcome_reason": reason,
                "finished_at": self.now,
            }
        )

    def _race(self, decision: Race, live: Session) -> None:
        trials = [self._find(arm) for arm in decision.arms]
        first = sum(b.session_id == live.id for b in self.blocks)
        rules = decision.rules
        arms = []
        for place, trial in enumerate(trials):
            assert trial.outcome in {None, Outcome.FINISHED}, "a failed trial races no more"
            plan_ = BlockPlan(
                block_id=f"b{len(self.blocks)}",
                trial_number=trial.number,
                overrides=trial.changes,
                rules=rules,
            )
            arms.append(len(self.blocks))
            self.blocks.append(
                Block(
                    id=plan_.block_id, session_id=live.id, trial_number=trial.number, ordinal=first + place,
                    race=decision.number, arm=place, state=BlockState.ISSUED, plan=plan_, issued_at=self.now,
                )
            )  # fmt: skip
        for place, trial in enumerate(trials):
            fault = self.session_fault(len(self.sessions) - 1, first + place, trial.changes)
            if fault is not None:
                self.now += timedelta(seconds=5)
                self._end(fault, f"It ended as {fault.value}.", total_steps=self.steps)
                return
        needed = len(trials) * (rules.warmup_steps + rules.min_steps + rules.min_steps // rules.segment_steps)
        if self.steps_per_session is not None and self.steps + needed > self.steps_per_session:
            self._end(Outcome.FINISHED, "The script ended.", total_steps=self.steps_per_session)
            return
        index = len(self.sessions) - 1
        if (broken := self.script_fault(index)) is not None and self.steps + needed > broken[0]:
            self.now += timedelta(seconds=20)
            self._end(broken[1], broken[2], total_steps=broken[0])
            return
        results = self._run_race([trial.changes for trial in trials], rules)
        results = [self.alter(t.changes, live, r) for t, r in zip(trials, results, strict=True)]
        for result in results:
            self.steps += rules.warmup_steps + result.steps + len(result.segments) + rules.profile_steps
        untimed = sum(
            (rules.warmup_steps + rules.profile_steps + len(r.segments)) * r.wall_s / max(1, r.steps)
            for r in results
        )
        self.now += timedelta(seconds=sum(r.wall_s for r in results) + untimed + 0.1)
        if all(trial.effect is Effect.EXACT for trial in trials):
            self.trained += sum(r.steps for r in results)
        for place, (trial, result) in enumerate(zip(trials, results, strict=True)):
            self.blocks[arms[place]] = self.blocks[arms[place]].model_copy(
                update={
                    "state": BlockState.DONE,
                    "result": result,
                    "summary": summarise_race(result, results[0] if place else None),
                    "finished_at": self.now,
                }
            )
            judged = judge_block(
                self.trials[trial.number],
                result,
                [r for t, r in zip(trials, results, strict=True) if not t.changes],
            )
            final = judged and (judged[0] is not Outcome.FINISHED or trial.purpose.value == "search")
            if judged is not None and final and self.trials[trial.number].outcome != judged[0]:
                self._close(trial.number, *judged)

    def _find(self, arm: Candidate) -> Trial:
        for trial in self.trials:
            if trial.purpose is arm.purpose and trial.changes == dict(arm.changes):
                return trial
        assert arm.because
        trial = Trial(
            number=len(self.trials), purpose=arm.purpose, changes=dict(arm.changes), effect=arm.effect,
            because=arm.because, created_at=self.now,
        )  # fmt: skip
        self.trials.append(trial)
        return trial

    def _run_race(self, arms: Sequence[Changes], rules: RaceRules) -> list[BlockResult]:
        """Let the arms take turns as ranks do: segments in random order, the next cycle in the reverse one."""
        session = self.sessions[-1]
        centres, timed = [], [list[float]() for _ in arms]
        for changes in arms:
            lucky = random.Random(f"{self.seed}/{session.id}/{sorted(changes.items())}")
            luck = lucky.gauss(0, self.noise.launch) if changes else 0.0
            luck += self.dice.gauss(0, self.noise.arm) if changes else 0.0
            centres.append(math.log(self.step_s / self.speed(changes)) + self.luck + luck)
        inexact = any(Changes(changes).effect is not Effect.EXACT for changes in arms)
        period = max(period_of(changes) for changes in arms)
        size = -(-rules.segment_steps // period) * period
        size = max(size, 12 * period) if inexact else size
        segments = [list[int]() for _ in arms]
        given_up: set[int] = set()
        fastest = min(math.exp(c) for c in centres)
        order = list(range(len(arms)))
        cycle, state = 0, 0.0
        fresh = math.sqrt(1 - self.noise.correlation**2)
        losses = [list[float]() for _ in arms]
        begin = self.trained + 1000 * (len(self.sessions) - 1)
        while True:
            self.dice.shuffle(order) if cycle % 2 == 0 else order.reverse()
            for arm in order:
                if arm in given_up:
                    continue
                for step in range(size):
                    state = self.noise.correlation * state + fresh * self.dice.gauss(0, self.noise.step)
                    spike = self.dice.expovariate(1.0) if self.dice.random() < self.noise.spikes else 0.0
                    time_s = math.exp(centres[arm] + state + self.drift) * (1 + spike)
                    self.drift += self.dice.gauss(0, self.noise.drift) * math.sqrt(time_s)
                    timed[arm].append(time_s)
                    losses[arm].append(self.loss(arms[arm], begin + step))
                segments[arm].append(size)
                slow = (
                    rules.give_up_ratio is not None and math.exp(centres[arm]) > rules.give_up_ratio * fastest
                )
                if arm and slow:
                    given_up.add(arm)
            cycle += 1
            left = [arm for arm in range(len(arms)) if arm not in given_up]
            if all(len(timed[a]) >= rules.min_steps for a in left) and (
                all(sum(timed[a]) >= rules.target_s or len(timed[a]) >= rules.max_steps for a in left)
                or (
                    rules.target_error is not None
                    and self.noise.step / math.sqrt(cycle * size) < rules.target_error
                )
            ):
                break
        return [
            self._make_result(arms[a], timed[a], segments[a], losses[a], period, a in given_up)
            for a in range(len(arms))
        ]

    def _make_result(
        self,
        changes: Changes,
        times: list[float],
        segments: list[int],
        losses: list[float],
        period: int,
        slow: bool,
    ) -> BlockResult:
        hidden, steps = self.exposed * self.step_s, len(times)
        step = sum(times) / steps
        return BlockResult(
            steps=steps, period=period, step_time_s=tuple(times), segments=tuple(segments),
            samples_per_step=SAMPLES, samples=SAMPLES * steps, wall_s=sum(times), given_up=slow,
            bucket_bytes=(2**20,) * (3 if changes else 5),
            phases=Phases(
                forward_s=0.2 * self.step_s, backward_s=0.4 * self.step_s, optimizer_s=0.1 * self.step_s,
                exposed_comm_s=max(0.0, hidden - (self.step_s - step)),
            ),
            losses=tuple(losses),
            consumed=dict.fromkeys(changes, "in force"),
        )  # fmt: skip
