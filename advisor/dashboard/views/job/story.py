"""A job's story: what happened, what failed, every launch, and the facts of its script."""

from dataclasses import dataclass

from advisor.dashboard import formats
from advisor.dashboard.views.chips import Chip, chip_for_outcome
from advisor.protocol.asked.jobs import Job
from advisor.protocol.measured.trials import JobHistory, Outcome
from advisor.protocol.training.workload import WorkloadFacts

_HINTS = {
    Outcome.OUT_OF_MEMORY: "The search keeps away from it; there is nothing to do.",
    Outcome.HUNG: "Look for the rank that stopped first in the log below.",
    Outcome.CRASHED: "Look for the first traceback in the log below.",
    Outcome.INEFFECTIVE: "The script may override the knob itself: the page of knobs says how each is realised.",
    Outcome.DIVERGED: "Its speed does not count.",
    Outcome.LOST: "It is measured again; see the agents if it keeps happening.",
}


@dataclass(frozen=True)
class Failure:
    """A trial or a session that failed, with what to do."""

    title: str
    trial_number: int | None
    chip: Chip
    sentence: str
    hint: str
    log_tail: str


@dataclass(frozen=True)
class Story:
    """What the view of the log shows beside the log."""

    failures: tuple[Failure, ...]
    facts: tuple[tuple[str, str], ...]
    refused: tuple[tuple[str, str], ...]
    """Knobs that the runtime cannot serve for this script."""


def list_failures(history: JobHistory) -> tuple[Failure, ...]:
    """List failed trials and sessions, newest first; a pruned or cancelled one is no failure."""
    quiet = {Outcome.FINISHED, Outcome.PRUNED, Outcome.CANCELLED}
    failures = [
        Failure(
            f"Trial {trial.number}", trial.number, chip_for_outcome(trial.outcome),
            trial.outcome_reason, _HINTS.get(trial.outcome, ""),
            formats.clean_tail(trial.log_tail),
        )
        for trial in history.trials
        if trial.outcome is not None and trial.outcome not in quiet
    ]  # fmt: skip
    failures += [
        Failure(
            f"Launch {session.generation}", None, chip_for_outcome(session.outcome),
            session.reason, _HINTS.get(session.outcome, ""),
            formats.clean_tail(session.log_tail),
        )
        for session in history.sessions
        if session.outcome is not None and session.outcome not in quiet
    ]  # fmt: skip
    return tuple(reversed(failures))


def _list_facts(job: Job) -> tuple[tuple[str, str], ...]:
    if job.facts is None:
        return ()
    facts = job.facts
    gradients = (
        f"{formats.size(facts.gradient_bytes)} of {facts.gradient_dtype}" if facts.gradient_bytes else ""
    )
    model = f"{facts.parameter_tensors} tensors in {facts.layers} layers" if facts.parameter_tensors else ""
    software = {"torch": facts.torch_version, **facts.software}
    told = {
        "ranks": f"{facts.world_size} ({facts.local_world_size} a node)",
        **({"sharding": _describe_sharding(facts)} if facts.sharding else {}),
        "gradients per step": gradients,
        "model": model,
        "batch per rank": f"{facts.batch_size_per_rank:g} samples",
        "backend": f"{facts.backend} on {facts.device_name or facts.device.value}" if facts.backend else "",
        **{name: version for name, version in software.items() if version},
    }
    return tuple((name, text or formats.NO_VALUE) for name, text in told.items())


def _describe_sharding(facts: WorkloadFacts) -> str:
    if not facts.shard_ranks:
        return facts.sharding
    copies = f", {facts.shard_copies} copies (HSDP)" if facts.shard_copies > 1 else ""
    return f"{facts.sharding} over {facts.shard_ranks} ranks{copies}"


def view_story(job: Job, history: JobHistory) -> Story:
    """Build the story from what is stored."""
    return Story(
        failures=list_failures(history),
        facts=_list_facts(job),
        refused=tuple(sorted(job.refusals.items())),
    )
