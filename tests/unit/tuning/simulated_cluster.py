"""A simulated cluster that carries a job from its first launch to its advice, deciding with the real planner."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from advisor.course.played import START, Died, PlayedJob, Raced
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Budget, Job, JobSpec, JobState, Measurement, Stage
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes, period_of
from advisor.protocol.measured.results import BlockResult, Phases, RaceRules
from advisor.protocol.measured.trials import Block, EarlierJob, Outcome, Session, Trial
from advisor.protocol.nodes.cluster import Cluster, DeviceKind, Node
from advisor.protocol.training.workload import Workload, WorkloadFacts
from advisor.tuning.decisions import Decision, EndSession, Fail, Finish, Launch, Race
from advisor.tuning.planner import plan

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
class SimulatedCluster(PlayedJob):
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
        super().__init__(self.job, self.startup_s, START, self.earlier)
        self.dice = random.Random(self.seed)
        self.decisions: list[Decision] = []
        self.drift = 0.0
        self.luck = 0.0
        self.steps = 0
        self.trained = 0
        """Steps of this launch that stayed part of the training: inexact blocks are undone."""

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

    def run(self, most: int = 600) -> Advice | Fail:  # type: ignore[override]
        """Carry the job to its end; fails the test when it does not end."""
        self.settled = None
        for _ in range(most):
            self.step()
            if self.settled is not None:
                return self.settled
        raise AssertionError(f"the job did not end in {most} decisions; the last was {self.decisions[-1]}")

    def decide(self) -> Decision:
        """Take note of the decision; one of another session than there is fails the test."""
        decision = plan(self.job, self.history, self.now, quick=self.quick)
        self.decisions.append(decision)
        assert decision.because, decision
        live = self.history.live_session()
        if isinstance(decision, Launch | Finish | Fail):
            assert live is None
        elif isinstance(decision, EndSession | Race):
            assert live is not None
        return decision

    def play_launch(self) -> Died | None:
        """New processes with luck of their own."""
        self.luck = self.dice.gauss(0, self.noise.session)
        self.steps = self.trained = 0
        session = self.sessions[-1]
        if (outcome := self.launch_fault(session.generation, session.cold)) is not None:
            return Died(outcome, "It died at its launch.", 0.0, is_silent=outcome is Outcome.LOST)
        return None

    def play_race(self, race: Race, trials: Sequence[Trial], arms: Sequence[Block]) -> Raced | Died:
        """Let a fault have its way, or let the arms take turns."""
        rules, session = race.rules, self.sessions[-1]
        index = session.generation
        for trial, arm in zip(trials, arms, strict=True):
            assert trial.outcome in {None, Outcome.FINISHED}, "a failed trial races no more"
            fault = self.session_fault(index, arm.ordinal, trial.changes)
            if fault is not None:
                return Died(fault, f"It ended as {fault.value}.", 5.0, self.steps, fault is Outcome.LOST)
        needed = len(trials) * (rules.warmup_steps + rules.min_steps + rules.min_steps // rules.segment_steps)
        if self.steps_per_session is not None and self.steps + needed > self.steps_per_session:
            return Died(Outcome.FINISHED, "The script ended.", 0.0, self.steps_per_session)
        if (broken := self.script_fault(index)) is not None and self.steps + needed > broken[0]:
            return Died(broken[1], broken[2], 20.0, broken[0])
        results = self._run_race([trial.changes for trial in trials], rules)
        results = [self.alter(t.changes, session, r) for t, r in zip(trials, results, strict=True)]
        for result in results:
            self.steps += rules.warmup_steps + result.steps + len(result.segments) + rules.profile_steps
        untimed = sum(
            (rules.warmup_steps + rules.profile_steps + len(r.segments)) * r.wall_s / max(1, r.steps)
            for r in results
        )
        if all(trial.effect is Effect.EXACT for trial in trials):
            self.trained += sum(r.steps for r in results)
        return Raced(results, sum(r.wall_s for r in results) + untimed + 0.1)

    def _run_race(self, arms: Sequence[Changes], rules: RaceRules) -> list[BlockResult]:
        """Let the arms take turns as ranks do: segments in random order, the next cycle in the reverse one."""
        session = self.sessions[-1]
        centres, timed = [], [list[float]() for _ in arms]
        for changes in arms:
            lucky = random.Random(f"{self.seed}/{session.id}/{sorted(changes.items())}")
            luck = lucky.gauss(0, self.noise.launch) if changes else 0.0
            luck += self.dice.gauss(0, self.noise.arm) if changes else 0.0
            centres.append(math.log(self.step_s / self.speed(changes)) + self.luck + luck)
        inexact = any(self.job.spec.catalogue.effect_of(changes) is not Effect.EXACT for changes in arms)
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
