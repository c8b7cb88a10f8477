"""A planner small enough to see through, and the messages that tests of the server send."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from advisor.protocol.advice import Advice, Cost, Diagnosis, Forecast, Provenance, Verdict
from advisor.protocol.base import Value
from advisor.protocol.cluster import DeviceKind, Node
from advisor.protocol.jobs import Job, JobSpec, Stage
from advisor.protocol.knobs import Effect
from advisor.protocol.strategy import DistributedStrategy
from advisor.protocol.trials import (
    BlockResult,
    BlockState,
    BlockSummary,
    JobHistory,
    Outcome,
    Phases,
    Purpose,
    Trial,
    TrialState,
)
from advisor.protocol.workload import Workload, WorkloadFacts
from advisor.tuning.decisions import Decision, EndSession, Finish, Launch, Measure, TrialDraft, Wait
from advisor.tuning.forecast import forecast
from advisor.tuning.gangs import find_asking


class ScriptedTuning:
    """Measures the baseline once and then each of `strategies` once, and finishes."""

    def __init__(self, strategies: Sequence[Mapping[str, Value]] = ({"fuse_grad_size_in_MB": 8.0},)) -> None:
        self.strategies = [dict(changes) for changes in strategies]

    def plan(
        self,
        job: Job,
        history: JobHistory,
        now: datetime,
        session_id: str | None = None,
        *,
        quick: bool = False,
    ) -> Decision:
        """Return the next trial that was not measured, or the end."""
        live = find_asking(history, session_id, job.spec.gangs)
        taken = {block.trial_number for block in history.done_blocks()}
        taken |= {block.trial_number for block in history.blocks if block.state is BlockState.ISSUED}
        open_trial = next(
            (t for t in history.trials if t.state is TrialState.OPEN and t.number not in taken), None
        )
        if live is not None and live.state.value != "running":
            return Wait(job.stage, "The session is not running.")
        over = open_trial is None and len(history.trials) > len(self.strategies)
        if live is None and history.live_sessions():
            if over or session_id or len(history.live_sessions()) >= job.spec.gangs:
                return Wait(job.stage, "No further gang is needed.")
            return Launch(Stage.SEARCH, "Another gang measures what is left.")
        if over:
            reason = "Everything was measured."
            return EndSession(Stage.SEARCH, reason) if live else Finish(reason)
        if live is None:
            return Launch(Stage.PROBE, "There is something to measure.")
        return self._measure(open_trial, len(history.trials))

    def judge(self, trial: Trial, result: BlockResult, extended: bool) -> tuple[Outcome, str] | None:
        """Every search trial ends with its first block."""
        return Outcome.FINISHED, "It was measured."

    def summarise(self, result: BlockResult) -> BlockSummary:
        """Return plain averages."""
        times = result.step_time_s or (1.0,)
        mean = sum(times) / len(times)
        return BlockSummary(
            samples_per_s=result.samples_per_step / mean,
            log_step_time=0.0,
            log_step_time_se=0.0,
            steady_steps=len(times),
            steady=True,
            median_step_time_s=mean,
            p95_step_time_s=mean,
        )

    def advise(self, job: Job, history: JobHistory, now: datetime) -> Advice:
        """Keep the defaults."""
        values = DistributedStrategy().values()
        return Advice(
            job_id=job.id,
            verdict=Verdict.KEEP,
            headline="No reliable gain: keep your defaults.",
            allowed=Effect.EXACT,
            strategy=values,
            baseline=values,
            changes={},
            provenance=dict.fromkeys(values, Provenance.CARRIED),
            baseline_samples_per_s=1.0,
            strategy_samples_per_s=1.0,
            diagnosis=Diagnosis(bound="balanced", sentence="Nothing stands out."),
            phases_before=Phases(),
            phases_after=Phases(),
            cost=Cost(
                wall_s=1.0, device_hours=0.1, trials=len(history.trials), sessions=len(history.sessions)
            ),
        )

    def forecast(
        self, job: Job, history: JobHistory, now: datetime, nodes: int | None, bits_per_s: float | None
    ) -> Forecast:
        """What the real cost model expects."""
        return forecast(job, history, now, nodes, bits_per_s)

    def _measure(self, open_trial: Trial | None, count: int) -> Measure:
        trial: int | TrialDraft
        if open_trial is not None:
            trial, changes = open_trial.number, open_trial.changes
        else:
            changes = self.strategies[count - 1] if count else {}
            purpose = Purpose.SEARCH if count else Purpose.BASELINE
            trial = TrialDraft(purpose, changes, Effect.EXACT, f"It is number {count} of the script.")
        return Measure(
            stage=Stage.SEARCH if changes else Stage.PROBE,
            because="It has not been measured.",
            trial=trial,
            overrides=dict(changes),
            warmup_steps=1,
            min_steps=5,
            max_steps=5,
            target_s=0.1,
            profile_steps=0,
        )


def make_spec(**fields: Any) -> JobSpec:
    """A job of one node."""
    return JobSpec(workload=Workload(command=("torchrun", "train.py")), **fields)


def make_node(name: str) -> Node:
    """A small CPU node."""
    return Node(hostname=name, cpu_count=2, memory_bytes=2**30)


def make_facts() -> WorkloadFacts:
    """A small model on two ranks."""
    return WorkloadFacts(
        backend="gloo",
        device=DeviceKind.CPU,
        world_size=2,
        local_world_size=2,
        gradient_bytes=2**20,
        parameter_tensors=4,
        layers=2,
        batch_size_per_rank=8,
    )


def make_result(step_time_s: float = 0.1, **fields: Any) -> BlockResult:
    """Five steps that all took the same time."""
    values: dict[str, Any] = {
        "steps": 5,
        "step_time_s": (step_time_s,) * 5,
        "samples_per_step": 16,
        "samples": 80,
        "wall_s": 5 * step_time_s,
    }
    return BlockResult(**values | fields)
