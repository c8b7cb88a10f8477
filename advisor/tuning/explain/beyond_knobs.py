"""What no knob can mend (waits for the device, uneven data, network, storage), and what is odd about the script."""

from advisor.protocol.answers.advice import Diagnosis
from advisor.protocol.answers.found_between_ranks import say_exchanges
from advisor.protocol.answers.parts import PARTS
from advisor.protocol.asked.jobs import Job
from advisor.protocol.knobs.loading import find_reader
from advisor.protocol.measured.results import Phases
from advisor.protocol.measured.trials import Trial
from advisor.protocol.nodes.cluster import DeviceKind
from advisor.protocol.training.crowd import find_crowd
from advisor.protocol.training.own_knobs import spell
from advisor.protocol.training.workload import WorkloadFacts
from advisor.tuning.history.breakoffs import find_script_failure, list_break_offs
from advisor.tuning.history.record import Record
from advisor.tuning.measure.outcomes import count_nonfinite, say_share
from advisor.tuning.stages.undecided import say_failure

_STALLING = 0.15
"""Share of a step from which on something that no knob changes is told."""
_BUSY = 0.5
"""Of a processor for each process that reads: below it they wait themselves, for storage or for each other."""
_EVERY_STEP = 0.5
"""Reads a step from which a line is named."""
FETCH_STEPS = 30
"""The documents' interval between two fetches of the loss."""


def list_beyond_knobs(
    job: Job, chosen: Trial | None, diagnosis: Diagnosis, after: Phases, host_cores: float | None = None
) -> list[str]:
    """Return sentences, what costs most steps first; `after` are the phases under the advised strategy.

    `host_cores` is how many processors a rank and its workers kept busy; None where that is not known.
    """
    return [
        *_describe_reducer(job.facts),
        *_describe_accumulation(job.facts),
        *_describe_phases(diagnosis, after, _advise_on_reading(job.facts, chosen, host_cores)),
        *_describe_reads(job.facts),
        *_describe_tables(job),
        *list_uneven_parts(job.facts),
        *_describe_network(job, chosen, after),
    ]


def say_apart(facts: WorkloadFacts | None) -> str:
    """Say that ranks held different parameters as the script stands; empty where all held the same."""
    if facts is None or not facts.ranks_apart:
        return ""
    return (
        f"Your script trains a model of its own on each rank: {facts.ranks_apart}, before any setting was changed. "
        "Gradients are not averaged in every step that updates (a no_sync() that ends too late, a model that is not "
        "wrapped), or the script averages parameters by itself now and then. Mend that before any speed."
    )


def _describe_phases(diagnosis: Diagnosis, after: Phases, on_reading: str) -> list[str]:
    total = after.total_s()
    if total <= 0:
        return []
    left = after.exposed_comm_s or 0.0
    steps = []
    if left / total >= _STALLING:
        steps.append(
            f"{left * 1e3:.1f} ms of each {total * 1e3:.1f} ms step is still exposed communication: faster links, or a "
            "larger batch per rank, would help where knobs no longer do."
        )
    for words in PARTS.values():
        if (spent := getattr(after, words.part)) / total >= _STALLING:
            steps.append(f"{words.say(spent, f'of each {total * 1e3:.1f} ms step')} {words.advise()}")
    if after.data_wait_s / total >= 0.05:
        steps.append(
            f"{after.data_wait_s * 1e3:.1f} ms of each {total * 1e3:.1f} ms step waits for data: {on_reading}."
        )
    if diagnosis.bound == "compute":
        steps.append(
            "The step is computation: mixed precision, a compiled model or faster devices come next."
        )
    return steps


def _advise_on_reading(facts: WorkloadFacts | None, chosen: Trial | None, host_cores: float | None) -> str:
    """Return what makes reading faster: preparing batches on the GPU only where processors may be what is short."""
    plainly = "give the DataLoader more workers, or read from faster storage"
    if facts is None:
        return plainly
    if reader := find_reader(facts):
        return reader.remedy
    workers = int((facts.dataloader or {}).get("num_workers") or 0)
    if chosen is not None:
        workers = int(chosen.changes.get("loader_num_workers", workers))
    are_idle = host_cores is not None and host_cores < _BUSY * (1 + workers)
    if facts.device is not DeviceKind.CUDA or are_idle:
        return plainly
    busy = f", of which a rank and its workers keep {host_cores:.1f} busy" if host_cores is not None else ""
    return (
        "give the DataLoader more workers, prepare batches on the GPU (NVIDIA DALI, which reads ahead and spares the "
        f"processors{busy}), or read from faster storage"
    )


def _describe_reducer(facts: WorkloadFacts | None) -> list[str]:
    """Say that the script asks for a mode of DDP that is made for compiled models, and trains one that is not."""
    if facts is None or not facts.ddp.reduces_one_by_one:
        return []
    return [
        "torch._dynamo.config.optimize_ddp is 'python_reducer', and the model is not compiled: DDP then sums each "
        "parameter's gradient by itself and waits for it. Take that setting out, and buckets and overlap come back."
    ]


def _describe_accumulation(facts: WorkloadFacts | None) -> list[str]:
    """Say that a sharded model reduces every micro-batch's gradients: DDP has a knob that puts that off."""
    if facts is None or not facts.sharding or (told := say_exchanges(facts)) is None:
        return []
    seen, remedy = told
    return [f"{seen[0].upper()}{seen[1:]}: {remedy}."]


def _describe_reads(facts: WorkloadFacts | None) -> list[str]:
    """Name the lines that make the host wait for the device in every step: no knob changes a script's lines."""
    if facts is None:
        return []
    whole_s = facts.step_time_s_hint
    steps = []
    for read in facts.host_reads:
        if read.per_step < _EVERY_STEP:
            continue
        share = f" of each {whole_s * 1e3:.1f} ms step" if whole_s else " a step"
        times = f"{read.per_step:g} times in every step" if read.per_step > 1 else "in every step"
        steps.append(
            f"{read.site} reads a value off the device {times} ({read.call.strip('_')}): the host waits "
            f"{read.waited_s * 1e3:.1f} ms{share} there and queues no further work meanwhile. Read it every "
            f"{FETCH_STEPS} steps, as the Fleet documents do, and keep the tensor until then."
        )
    return steps


def _describe_tables(job: Job) -> list[str]:
    """Say how a plan of sharded tables is tuned, where the job does not vary one: its owner's options are knobs."""
    if job.facts is None or "torchrec" not in job.facts.software or job.spec.workload.own:
        return []
    return [
        "TorchRec's planner estimates which rank holds what of the embedding tables, and nothing here has measured "
        "it: python -m agent.workloads.torchrec_plans TRAIN.PY:FUNCTION --ranks "
        f"{job.facts.world_size} writes plans as files, and advisor tune --try 'plan=FILE,FILE:numeric' races them."
    ]


def list_uneven_parts(facts: WorkloadFacts | None) -> list[str]:
    """Warn of ranks that would run out of data before the others: the last step of an epoch would wait for good."""
    counts = facts.batches_per_rank if facts is not None else ()
    if len(set(counts)) < 2:
        return []
    fewest, most = counts.index(min(counts)), counts.index(max(counts))
    return [
        f"Rank {fewest} reads {counts[fewest]} batches an epoch and rank {most} {counts[most]}: the others would wait "
        "for it in the last steps. Pad the shorter parts by resampling (DistributedSampler does so unless drop_last is "
        "set), or end every epoch after the same number of batches."
    ]


def _describe_network(job: Job, chosen: Trial | None, after: Phases) -> list[str]:
    """Say what keeps NCCL from the right network on nodes that reach each other over it."""
    uses_nccl = job.facts is not None and job.facts.backend == "nccl" and job.cluster.node_count > 1
    nodes = job.cluster.nodes if uses_nccl else ()
    told = [f"{node.hostname}: {sentence}" for node in nodes for sentence in node.network]
    return [*dict.fromkeys(told), *_describe_tcp(job, chosen, after)]


def _describe_tcp(job: Job, chosen: Trial | None, after: Phases) -> list[str]:
    """Say that TCP is what is left to mend, where mixed precision made computation short and no RDMA adapter is up."""
    exposed, total = after.exposed_comm_s or 0.0, after.total_s()
    if (
        chosen is None
        or not chosen.changes.get("amp")
        or job.cluster.node_count < 2
        or exposed < 0.05 * total
    ):
        return []
    if any(node.rdma for node in job.cluster.nodes):
        return []
    return [
        f"With mixed precision {exposed * 1e3:.1f} ms of each {total * 1e3:.1f} ms step wait for the network, which is "
        "TCP: no node has an RDMA adapter (InfiniBand, RoCE) that is up. Here the Fleet documents move to RDMA."
    ]


def list_warnings(record: Record, *, is_told: bool) -> tuple[str, ...]:
    """Return sentences, the gravest first; `is_told`: the answer itself says why nothing was decided."""
    found = []
    failure = find_script_failure(record)
    if failure is not None and not is_told:
        found.append(say_failure(record, failure))
    counts = count_nonfinite([block.result for block in record.baseline_blocks if block.result])
    if counts[0]:
        found.append(
            f"The script's own loss is not finite in {say_share(counts)} of the baseline's steps: speeds are measured "
            "all the same, and strategies are held against that share. Look for bad samples or too large a learning "
            "rate."
        )
    found += _list_failed_values(record)
    if sentence := _say_crowded(record):
        found.append(sentence)
    return tuple(found)


def _list_failed_values(record: Record) -> list[str]:
    """Which values of the user's own knobs were not measured, because their launches broke off."""
    own = {knob.name for knob in record.job.spec.workload.own}
    measured = {block.plan.overrides for block in record.usable}
    failed = {
        b.session.cold: b.session.reason for b in list_break_offs(record) if own & b.session.cold.keys()
    }
    told = {
        ", ".join(f"{name} {spell(value)}" for name, value in cold.items()): reason
        for cold, reason in failed.items()
        if cold not in measured
    }
    return [f"{values} was not measured. {reason}" for values, reason in told.items()]


def _say_crowded(record: Record) -> str:
    """Say that the ranks' threads outnumber the processors, where no measurement tells what fewer would do."""
    crowd = find_crowd(record.job.facts, record.job.cluster)
    if crowd is None or any("num_threads" in block.plan.overrides for block in record.usable):
        return ""
    return (
        f"The ranks' threads outnumber the cores ({crowd}), and fewer were not measured yet: they are likely to help "
        f"({crowd.remedy})."
    )
