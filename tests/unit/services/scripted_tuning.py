"""A planner small enough to see through, and the messages that tests of the server send."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from advisor.protocol.answers.advice import (
    Action,
    Advice,
    Cost,
    Diagnosis,
    Provenance,
    Verdict,
)
from advisor.protocol.asked.jobs import Job, JobSpec, Stage
from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.knobs.strategy import DistributedStrategy
from advisor.protocol.measured.results import BlockResult, Phases, RaceRules
from advisor.protocol.measured.trials import BlockState, BlockSummary, JobHistory, Outcome, Purpose, Trial
from advisor.protocol.nodes.cluster import DeviceKind, Node
from advisor.protocol.training.workload import Workload, WorkloadFacts
from advisor.tuning.asked import Tuning
from advisor.tuning.decisions import Candidate, Decision, EndSession, Finish, Launch, Race, Wait

PROBE = Candidate(Purpose.BASELINE, Changes(), "The script as it stands.")
RULES = RaceRules(warmup_steps=1, min_steps=5, max_steps=5, target_s=0.1, profile_steps=0)


class ScriptedTuning(Tuning):
    """Measures the baseline once and then each of `strategies` once, and finishes.

    `beside`: so many strategies race with the baseline at one time; with 0 each strategy is measured alone.
    """

    def __init__(
        self,
        strategies: Sequence[Mapping[str, Value]] = ({"fuse_grad_size_in_MB": 8.0},),
        beside: int = 0,
    ) -> None:
        self.strategies = [dict(changes) for changes in strategies]
        self.beside = beside

    def plan(
        self,
        job: Job,
        history: JobHistory,
        now: datetime,
        *,
        quick: bool = False,
    ) -> Decision:
        """Return the next race of what was not measured, or the end."""
        live = history.live_session()
        if live is not None and live.state.value != "running":
            return Wait(job.stage, "The session is not running.")
        missing = self._list_missing(history)
        if not missing:
            reason = "Everything was measured."
            return EndSession(Stage.SEARCH, reason) if live else Finish(reason)
        if live is None:
            return Launch(Stage.PROBE, "There is something to measure.")
        arms = missing[:1]
        if arms[0].purpose is Purpose.SEARCH and self.beside:
            arms = [PROBE, *missing[: self.beside]]
        stage = Stage.PROBE if arms == [PROBE] else Stage.SEARCH
        number = 1 + max((block.race or 0 for block in history.blocks), default=0)
        return Race(stage, "It has not been measured.", tuple(arms), RULES, number)

    def _list_missing(self, history: JobHistory) -> list[Candidate]:
        """What was not measured yet, is not being measured, and has not failed; the baseline first."""
        wanted = [PROBE]
        for number, changes in enumerate(self.strategies, 1):
            because = f"It is number {number} of the script."
            wanted.append(Candidate(Purpose.SEARCH, Changes(changes), because))
        trials = {(t.purpose, str(t.changes)): t for t in history.trials}
        counts = Counter(b.trial_number for b in history.blocks if b.state is not BlockState.VOID)
        missing = []
        for candidate in wanted:
            trial = trials.get((candidate.purpose, str(candidate.changes)))
            if trial is not None and trial.outcome not in {None, Outcome.FINISHED}:
                continue
            if trial is None or counts[trial.number] < 1:
                missing.append(candidate)
            else:
                counts[trial.number] -= 1
        return missing

    def judge(
        self, trial: Trial, result: BlockResult, baseline: Sequence[BlockResult]
    ) -> tuple[Outcome, str] | None:
        """Every search trial ends with its first block."""
        if result.diverged and trial.changes:
            return Outcome.DIVERGED, "Its loss was not finite."
        return (Outcome.FINISHED, "It was measured.") if trial.purpose is Purpose.SEARCH else None

    def summarise(self, result: BlockResult, reference: BlockResult | None = None) -> BlockSummary:
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
            action=Action.KEEP,
            what_to_do="Change nothing.",
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
