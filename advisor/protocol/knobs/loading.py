"""The knobs of data reading: the documents read with DALI, here the script's own torch DataLoader reads."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect, Part, Place, Scale, Switch
from advisor.protocol.knobs.applicability import cuda_needed, refused
from advisor.protocol.knobs.knob import Knob, KnobContext, Rule
from advisor.protocol.training.workload import WorkloadFacts


class Reader(NamedTuple):
    """What takes a DataLoader's place in the script; all texts are parts of sentences."""

    name: str
    settings: str
    """Which it has in place of a DataLoader's."""
    remedy: str
    """What makes it faster."""


_READERS = {
    "nvidia.dali": Reader(
        "NVIDIA DALI",
        "its pipeline has num_threads and prefetch_queue_depth",
        "give DALI's pipeline more threads (num_threads) or a longer queue (prefetch_queue_depth), decode on the GPU "
        "(device='mixed'), or read from faster storage",
    ),
    "torchdata.nodes": Reader(
        "torchdata's nodes",
        "ParallelMapper has num_workers, and Prefetcher prefetch_factor",
        "read in a ParallelMapper(…, num_workers=2) in place of a Mapper or with more workers, and ahead by a "
        "Prefetcher(…, prefetch_factor=2) before the Loader, or read from faster storage",
    ),
}
"""By the module that WorkloadFacts.software names. The documents read with DALI."""


def find_reader(facts: WorkloadFacts) -> Reader | None:
    """Return what the script reads through in place of a DataLoader; None where it is none that is known."""
    there = (reader for module, reader in _READERS.items() if module in facts.software)
    return next(there, None) if facts.dataloader is None else None


_NEARLY_FULL = 0.85
"""Share of a device's memory from which its allocator begins to look for room."""
_MOST_WORKERS = 16
"""Beyond it a loader hands batches over no faster, and every worker costs memory."""


def _cpus_per_rank(context: KnobContext) -> int:
    cpus = min((node.cpu_count for node in context.cluster.nodes), default=1)
    return max(1, cpus // max(1, context.facts.local_world_size))


def _loader_needed(name: str) -> Callable[[KnobContext], str | None]:
    def unavailable_because(context: KnobContext) -> str | None:
        if reader := find_reader(context.facts):
            return f"The script reads through {reader.name}: {reader.settings} instead."
        if context.facts.dataloader is None:
            return "The script reads no batches through a torch DataLoader."
        return refused(context, name)

    return unavailable_because


def _pin_unavailable(context: KnobContext) -> str | None:
    if sentence := cuda_needed("Pinned memory", "loader_pin_memory")(context):
        return sentence
    return _loader_needed("loader_pin_memory")(context)


def _split_unavailable(context: KnobContext) -> str | None:
    if sentence := refused(context, "micro_batches"):
        return sentence
    share = context.facts.memory_share
    if share >= _NEARLY_FULL:
        return None
    known = (
        f"{share:.0%} of the fullest device's memory was in use"
        if share
        else "How full memory is was not measured"
    )
    return f"{known}: parts cost computing and save memory only. Set it by hand where a batch does not fit."


def _workers_rule(context: KnobContext) -> tuple[Rule, ...]:
    share = _cpus_per_rank(context)
    workers = max(1, min(_MOST_WORKERS, share - 1))
    because = f"One of a rank's {share} CPUs computes, the others can read."
    if share == 1:
        because = "A worker reads the next batch while the rank computes or communicates."
    rules = [Rule(workers, because)]
    if workers > 2:
        rules.append(
            Rule(2, "Two workers hide reading behind computation where a batch is read within two steps.")
        )
    return tuple(rules)


def _workers_grid(context: KnobContext) -> tuple[Value, ...]:
    own = int(context.baseline["loader_num_workers"])
    rule = int(_workers_rule(context)[0].value)
    most = max(own, min(_MOST_WORKERS, 2 * _cpus_per_rank(context)))
    return tuple(sorted({0, 1, 2, own, rule, *(n for n in (4, 8, 16) if n <= most)}))


def _prefetch_grid(context: KnobContext) -> tuple[Value, ...]:
    return tuple(sorted({int(context.baseline["loader_prefetch_factor"]), 2, 4, 8}))


def _idle_without_workers(values: Mapping[str, Value]) -> str | None:
    return None if values.get("loader_num_workers") else "The loader has no workers."


L = Place.DATA_READING

LOADING: tuple[Knob, ...] = (
    Knob(
        name="batch_size_multiple", title="batch size, times yours",
        place=L, default=1, low=1, high=64, scale=Scale.LOG, unit="batches",
        effect=Effect.CONVERGENCE, switch=Switch.HOT, same_meaning=True, grid=lambda _: (2, 4),
        meaning="Batch size, as a multiple of the script's own: 2 reads two of its batches as one. An epoch has as "
        "many samples and fewer updates; the learning rate stays as the script sets it.",
        realised="Index batches are joined before the loader reads and collates them; compared at equal samples.",
        unavailable_because=_loader_needed("batch_size_multiple"),
        rule=lambda _: (Rule(2, "Communicates and updates half as often, and fills the devices better."),),
    ),
    Knob(
        name="micro_batches", title="parts of each batch",
        place=L, part=Part.COMPUTATION, default=1, low=1, high=256, scale=Scale.LOG, unit="parts",
        effect=Effect.NUMERIC, switch=Switch.HOT, grid=lambda _: (2, 4),
        meaning="Parts in which forward and backward of each batch are computed, so that memory holds one of them at a "
        "time. The batch, the loss and the steps stay the script's own; dropout draws other random numbers of the same "
        "distribution.",
        realised="The model's forward is computed part by part and, but for the last one, again in the backward: about "
        "a sixth more computing in two parts, and up to a third in many. A rank that is short of memory makes more "
        "parts by itself. Refused with batch norm, and where a check finds that the model mixes samples.",
        unavailable_because=_split_unavailable,
        rule=lambda _: (Rule(2, "The fewest parts: each keeps half of what a batch keeps for its backward."),),
    ),
    Knob(
        name="loader_num_workers", title="DataLoader num_workers",
        place=L, part=Part.INPUT, default=0, low=0, high=64, unit="processes",
        effect=Effect.EXACT, switch=Switch.HOT, grid=_workers_grid,
        meaning="Processes that read batches ahead of the training. The same samples in the same order; a data set "
        "that draws random numbers draws others of the same distribution in other workers. Workers see the data set as "
        "it was when they started: not for one that the training itself changes.",
        realised="The training loader's live iterator goes on with that many workers.",
        unavailable_because=_loader_needed("loader_num_workers"), rule=_workers_rule,
    ),
    Knob(
        name="loader_prefetch_factor", title="DataLoader prefetch_factor",
        place=L, part=Part.INPUT, minor=True, default=2, low=1, high=64, unit="batches",
        effect=Effect.EXACT, switch=Switch.HOT, grid=_prefetch_grid,
        meaning="Batches that each worker reads ahead.",
        realised="Batches asked for ahead of each worker.",
        unavailable_because=_loader_needed("loader_prefetch_factor"),
        rule=lambda _: (Rule(4, "A longer queue rides out batches that take longer than most."),),
        inactive_because=_idle_without_workers,
    ),
    Knob(
        name="loader_pin_memory", title="DataLoader pin_memory",
        place=L, part=Part.STEP, minor=True,
        default=False, effect=Effect.EXACT, switch=Switch.HOT,
        meaning="Hand batches over in pinned memory, from which copies to the GPU are faster.",
        realised="Batches are pinned by the loader; the copy stays as the script makes it.",
        unavailable_because=_pin_unavailable,
        rule=lambda _: (Rule(True, "Copies from pinned memory are faster and need not wait."),),
    ),
    Knob(
        name="loader_persistent_workers", title="DataLoader persistent_workers",
        place=L, part=Part.INPUT, default=False,
        effect=Effect.EXACT, switch=Switch.HOT,
        meaning="Keep the workers from epoch to epoch instead of starting them anew.",
        realised="Workers that stay; never searched, because the timed steps leave an epoch's first step out.",
        unavailable_because=lambda _: "Workers are started once per epoch, and timed steps leave an epoch's first "
        "step out: what it saves cannot be measured in a trial. Set it by hand where epochs are short.",
        inactive_because=_idle_without_workers,
    ),
)  # fmt: skip
