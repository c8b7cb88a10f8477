"""What the view of the log shows beside the log: what failed, with what to do, and the facts of the script."""

from advisor.dashboard import formats
from advisor.dashboard.views.trials.measured import QUIET
from advisor.protocol.asked.jobs import Job
from advisor.protocol.measured.trials import JobHistory, Outcome, Session, Trial
from advisor.protocol.training.workload import WorkloadFacts

_HINTS = {
    Outcome.OUT_OF_MEMORY: "The search keeps away from it; there is nothing to do.",
    Outcome.HUNG: "Look for the rank that stopped first in the log below.",
    Outcome.CRASHED: "Look for the first traceback in the log below.",
    Outcome.DIVERGED: "Its speed does not count.",
    Outcome.UNCERTIFIED: "--allow exact advises it, too.",
    Outcome.LOST: "It is measured again; see the agents if it keeps happening.",
}


def hint_at(outcome: Outcome) -> str:
    """Return what to do about a failure; "" where there is nothing to say."""
    return _HINTS.get(outcome, "")


def list_failures(history: JobHistory) -> tuple[Trial | Session, ...]:
    """List failed trials and sessions, newest first; a pruned or cancelled one is no failure."""
    ended: tuple[Trial | Session, ...] = (*history.trials, *history.sessions)
    failed = [one for one in ended if one.outcome is not None and one.outcome not in QUIET]
    return tuple(reversed(failed))


def list_idle(history: JobHistory) -> tuple[Trial, ...]:
    """List the trials that had no effect, newest first: no failures, and nothing is to be done about them."""
    return tuple(trial for trial in reversed(history.trials) if trial.outcome is Outcome.INEFFECTIVE)


def list_facts(job: Job) -> tuple[tuple[str, str], ...]:
    """Return what is known of the script, as label and value."""
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
        "batch per rank": f"{facts.batch_size_per_rank:g} samples"
        if facts.batch_size_per_rank
        else "not told by its batches",
        "backend": f"{facts.backend} on {facts.device_name or facts.device.value}" if facts.backend else "",
        **{name: version for name, version in software.items() if version},
    }
    return tuple((name, text or formats.NO_VALUE) for name, text in told.items())


def _describe_sharding(facts: WorkloadFacts) -> str:
    if not facts.shard_ranks:
        return facts.sharding
    copies = f", {facts.shard_copies} copies (HSDP)" if facts.shard_copies > 1 else ""
    return f"{facts.sharding} over {facts.shard_ranks} ranks{copies}"
