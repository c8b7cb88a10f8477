"""What a diagnosis finds between ranks: the exchange of gradients, what DDP does beside it, and other collectives.

Pure functions. `left` holds the seconds of each part of the account that no finding has taken yet; what one takes is
taken from it.
"""

import shlex
from collections.abc import Iterator, Sequence

from advisor.protocol.answers.found import Found, make_found, say_often
from advisor.protocol.answers.limits import predict_link
from advisor.protocol.measured.results import BlockResult, CollectiveCall
from advisor.protocol.training.workload import WorkloadFacts

_REDUCING = 0.5
"""Share of what a sharded model sends that reduces gradients, at most: a micro-batch also gathers parameters, once or
twice."""
_MAP_ENTRY = 4
"""Bytes that DDP's map of used parameters, which all ranks exchange, has for each."""
_FEW_BYTES = 1024
"""A call that sends no more is taken for a loss or a few such numbers: it is told to be made less often."""
_SHARDED_REMEDIES = {
    "fully_shard": "fully_shard(…, reshard_after_forward=False) where memory holds all parameters: backward "
    "then gathers none; advisor tune races that and prefetching",
    "FullyShardedDataParallel": "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP where memory holds all parameters: "
    "backward gathers none then",
    "DeepSpeed": 'in "zero_optimization": "overlap_comm": true and a larger "reduce_bucket_size"; advisor tune races '
    "both in stages 1 and 2",
}
"""By what shards the model."""
_AS_MANY = 0.02
"""What calls send is taken for the gradients up to this share apart: a loss may be in one tensor with them."""
BY_HAND = "calls of the script's own"
"""What a rank says where no engine that it knows exchanges gradients."""
_OWN_LINES = 3
"""Lines of the script with collectives that are told by themselves."""


def say_exchanges(facts: WorkloadFacts) -> tuple[str, str] | None:
    """What is seen, and what to write; None where a step's gradients are exchanged once, or that was not counted."""
    times = facts.exchanges_per_step
    if times < 2 or facts.microbatches_per_step < 2:
        return None
    if facts.sharding:
        kept = facts.gradient_bytes * (1.0 - 1.0 / max(1, facts.shard_ranks)) / 2**20
        return (
            f"gradients are reduced {times} times a step, once for each accumulated micro-batch",
            "model.set_requires_gradient_sync(is_last) before each micro-batch, with no_sync() in FSDP1: each rank "
            f"then keeps whole gradients between them, {kept:.3g} MiB more",
        )
    return (
        f"gradients are exchanged {times} times a step, once for each accumulated micro-batch",
        "with model.no_sync(): around forward and backward of all micro-batches but the last; or as it stands: "
        "advisor tune races defer_gradient_sync",
    )


def find_communication(
    left: dict[str, float], facts: WorkloadFacts, command: Sequence[str]
) -> Iterator[Found]:
    exposed_s, times = left["exposed_comm_s"], facts.exchanges_per_step
    if (told := say_exchanges(facts)) is not None:
        counted = f"{times} exchanges in each of the optimizer's steps, counted"
        if facts.sharding:
            exposed_s = _REDUCING * left["collectives_s"]
            left["collectives_s"] -= exposed_s
            counted += "; at most half of what a sharded model sends"
        found = make_found("accumulation", exposed_s, *told, counted)
        yield found.model_copy(update={"saves_s": exposed_s * (1.0 - 1.0 / times)})
        return
    yield make_found(
        "communication",
        exposed_s,
        "the exchange of gradients is not hidden behind computation",
        f"advisor tune --minutes 10 -- {shlex.join(command)}",
        "steps with and without the exchange",
    )


def find_search(left: dict[str, float], result: BlockResult, facts: WorkloadFacts) -> Iterator[Found]:
    """DDP searches for unused parameters where there are none: the search, and the exchange of what it finds."""
    if not facts.vain_search_s:
        return
    links = result.calibration.links if result.calibration is not None else ()
    timed = [link for link in links if link.level == "world"]
    sent_s = predict_link(timed, _MAP_ENTRY * facts.parameter_tensors) if timed else 0.0
    sent_s = min(sent_s, left["exposed_comm_s"])
    left["exposed_comm_s"] -= sent_s
    left["forward_s"] = max(0.0, left["forward_s"] - facts.vain_search_s)
    yield make_found(
        "unused_search",
        facts.vain_search_s + sent_s,
        "DDP searches each step's graph for parameters without a gradient, and no rank has had any",
        write_ddp_argument(facts, "find_unused_parameters"),
        "the searches of the first steps, and an exchange of their size on this link",
        facts.ddp.built_at,
    )


def write_ddp_argument(facts: WorkloadFacts, name: str) -> str:
    """Return how a script has DDP's argument False, by what builds its DDP."""
    if "transformers" in facts.software:
        return f"TrainingArguments(…, ddp_{name}=False)"
    if "accelerate" in facts.software:
        return f"Accelerator(…, kwargs_handlers=[DistributedDataParallelKwargs({name}=False)])"
    if {"lightning", "pytorch_lightning"} & facts.software.keys():
        return f"Trainer(…, strategy=DDPStrategy({name}=False))"
    return f"DistributedDataParallel(…, {name}=False)"


def find_collectives(
    left: dict[str, float], calls: Sequence[CollectiveCall], facts: WorkloadFacts, least_s: float
) -> Iterator[Found]:
    """SyncBatchNorm's, those of a sharded model and of split layers, and the script's own by line; what is left, an
    engine's among it, is told together, as is what takes less than `least_s`."""
    whole_s = sum(call.seconds for call in calls)
    if not whole_s:
        return
    measured_s = left["collectives_s"]  # without waiting, which the calls' seconds hold
    lines: dict[str, list[CollectiveCall]] = {}
    for call in calls:
        if call.kind == "own" and call.site:
            lines.setdefault(call.site, []).append(call)
    kinds = ["sync_batch_norm", "split", *(["sharded"] if facts.sharding in _SHARDED_REMEDIES else [])]
    together = [[call for call in calls if call.kind == kind] for kind in kinds]
    groups = sorted(lines.values(), key=lambda made: -sum(call.seconds for call in made))[:_OWN_LINES]
    for made in filter(None, (*groups, *together)):
        cost_s = measured_s * sum(call.seconds for call in made) / whole_s
        if cost_s >= least_s:
            left["collectives_s"] = max(0.0, left["collectives_s"] - cost_s)
            yield _TELL[made[0].kind](cost_s, made, facts)


def _tell_line(cost_s: float, made: Sequence[CollectiveCall], facts: WorkloadFacts) -> Found:
    names = " and ".join(dict.fromkeys(f"{call.name}()" for call in made))
    times, size = sum(call.per_step for call in made), max(call.bytes for call in made)
    often = f", {say_often(times)}" if times else ""
    if times and 0 < size <= _FEW_BYTES:
        of, remedy = (
            f" of {size} bytes",
            "call it every 50 steps, and add the value up on each rank meanwhile",
        )
    else:
        of = f" of {size / 2**20:.3g} MiB" if size else ""
        remedy = (
            "call it less often, on less data, or with async_op=True and wait() where its result is needed"
        )
    what = "communication of the script's own beside its gradients"
    sent = sum(call.bytes_per_step for call in made)
    if facts.exchanges_by and abs(sent - facts.gradient_bytes) <= _AS_MANY * facts.gradient_bytes:
        what = f"as many bytes as the gradients have, {facts.gradient_bytes / 2**20:.3g} MiB"
        remedy = "DistributedDataParallel sends them in buckets, while backward computes the rest"
        if times > 1:
            remedy += "; or send all at once, in one tensor"
        if facts.exchanges_by != BY_HAND:
            remedy = (
                "let the engine send them while backward computes, as Megatron's --overlap-grad-reduce does"
            )
    elif facts.exchanges_by:
        what = "communication of the script's own"
    return make_found(
        "collectives",
        cost_s,
        f"{names}{of}{often}: {what}",
        remedy,
        "calls of torch.distributed, by line",
        made[0].site,
    )


def _tell_sharded(cost_s: float, made: Sequence[CollectiveCall], facts: WorkloadFacts) -> Found:
    return make_found(
        "collectives",
        cost_s,
        f"the sharded model gathers parameters and reduces gradients, {say_often(sum(call.per_step for call in made))}",
        _SHARDED_REMEDIES[facts.sharding],
        "calls of torch.distributed, by what makes them",
    )


def _tell_norms(cost_s: float, made: Sequence[CollectiveCall], _: WorkloadFacts) -> Found:
    return make_found(
        "sync_batch_norm",
        cost_s,
        f"SyncBatchNorm exchanges statistics {say_often(sum(call.per_step for call in made))}",
        "BatchNorm without convert_sync_batchnorm, where a rank's own batch is large enough: it trains otherwise, so "
        "compare the losses",
        "calls of torch.distributed, by what makes them",
    )


def _tell_split(cost_s: float, made: Sequence[CollectiveCall], _: WorkloadFacts) -> Found:
    size = max(call.bytes for call in made) / 2**20
    return make_found(
        "split_layers",
        cost_s,
        f"layers that DTensor splits over ranks exchange up to {size:.3g} MiB, "
        f"{say_often(sum(call.per_step for call in made))}",
        "split over fewer ranks, over those of one node, or large layers only",
        "calls of torch.distributed, by what makes them",
    )


_TELL = {"own": _tell_line, "sync_batch_norm": _tell_norms, "sharded": _tell_sharded, "split": _tell_split}
"""By the kind of calls that are told as one."""
