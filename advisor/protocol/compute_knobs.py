"""The knobs of computation: threads, memory, kernels, fusion."""

from advisor.protocol.applicability import cuda_needed, refused
from advisor.protocol.knobs import Effect, Knob, KnobContext, Part, Place, Rule, Scale, Switch


def _threads_unavailable(context: KnobContext) -> str | None:
    node_cpus = max((node.cpu_count for node in context.cluster.nodes), default=1)
    if node_cpus <= 1:
        return "A rank has one CPU: more threads cannot help."
    return refused(context, "num_threads")


def _threads_rule(context: KnobContext) -> tuple[Rule, ...]:
    cpus = min((node.cpu_count for node in context.cluster.nodes), default=1)
    share = max(1, cpus // max(1, context.facts.local_world_size))
    rules = [Rule(share, f"The node's {cpus} CPUs shared by its {context.facts.local_world_size} ranks.")]
    if share != 1:
        rules.append(Rule(1, "One thread a rank leaves the cores to the other ranks."))
    return tuple(rules)


E, X = Place.ENVIRONMENT, Place.EXECUTION_STRATEGY

COMPUTE: tuple[Knob, ...] = (
    Knob(
        name="num_threads", place=X, part=Part.COMPUTATION, default=1, low=1, high=256, scale=Scale.LOG, unit="threads",
        effect=Effect.EXACT, switch=Switch.HOT,
        meaning="CPU threads of a training process. Bigger is not better.",
        realised="Intra-op threads (torch.set_num_threads).", paddle_field="execution_strategy.num_threads",
        paddle_versions=("2.6.2",), unavailable_because=_threads_unavailable, rule=_threads_rule,
    ),
    Knob(
        name="FLAGS_fraction_of_gpu_memory_to_use", place=E, default=0.92, low=0.1, high=0.98,
        effect=Effect.EXACT, switch=Switch.HOT, grid=lambda _: (0.5, 0.7, 0.8, 0.92),
        meaning="Share of GPU memory allocated ahead, because allocating during training is slow.",
        realised="That share is reserved in the caching allocator and capped.",
        unavailable_because=cuda_needed("Memory pre-allocation", "FLAGS_fraction_of_gpu_memory_to_use"),
        rule=lambda _: (Rule(0.92, "Allocate ahead, leave some for the driver and NCCL."),),
    ),
)  # fmt: skip
