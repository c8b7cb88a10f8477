"""What was seen of the script itself that its owner should know, whatever the verdict."""

from advisor.protocol.nodes.cluster import DeviceKind
from advisor.tuning.history.breakoffs import find_script_failure
from advisor.tuning.history.record import Record
from advisor.tuning.measure.outcomes import count_nonfinite, say_share
from advisor.tuning.stages.undecided import say_failure


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
    if sentence := _say_crowded(record):
        found.append(sentence)
    return tuple(found)


def _say_crowded(record: Record) -> str:
    """Say that the ranks' threads outnumber the processors, where no measurement tells what fewer would do."""
    facts, nodes = record.job.facts, record.job.cluster.nodes
    if facts is None or not nodes or facts.device is not DeviceKind.CPU:
        return ""
    cpus, ranks, threads = min(node.cpu_count for node in nodes), facts.local_world_size, facts.cpu_threads
    is_tried = any("num_threads" in block.plan.overrides for block in record.usable)
    if is_tried or ranks * threads <= cpus or threads < 2:
        return ""
    fewer = max(1, cpus // ranks)
    remedy = (
        f"torch.set_num_threads({fewer}) in the script" if facts.sets_threads else f"OMP_NUM_THREADS={fewer}"
    )
    return (
        f"{ranks} ranks with {threads} threads each compute on a node's {cpus} CPUs, and fewer threads were not "
        f"measured yet: they are likely to help ({remedy})."
    )
