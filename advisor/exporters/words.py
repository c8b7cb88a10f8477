"""What each knob is called in each tool: one table, which files, first screen, pages and report read.

A knob that is an environment variable is in `VARIABLES`; its field in Paddle stands in the catalogue (`paddle_field`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from advisor.exporters import settings
from advisor.exporters.format import Written
from advisor.exporters.settings import DTYPES, Line, Refusal, Said, Situation, find_buckets, spell_list
from advisor.protocol.answers.advice import Advice, Provenance
from advisor.protocol.answers.found_recomputed import write_kept
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.kinds import Place
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.environment import TUNER
from advisor.protocol.knobs.sharding import DEEPSPEED

VARIABLES = {
    **{
        name: knob.variable or name
        for name, knob in CATALOGUE.items()
        if (knob.place is Place.ENVIRONMENT or knob.variable) and name not in TUNER
    },
    "num_threads": "OMP_NUM_THREADS",
}
"""Knob -> the variable that carries it."""
_WIRE = ("fp16_allreduce", "fp16_allreduce_dtype")
_OF_THE_ENGINE = ("fuse_grad_size_in_MB", *_WIRE, "sharding_overlap")
_ENGINE = "DeepSpeed's engine reduces the gradients: merge ds_config.json (export deepspeed) into its configuration."
_MOST_WORDS = 104
"""Longer instructions stand in the exported files alone."""

ScriptLine = tuple[str, str] | None
"""What is written into a PyTorch script, and where it goes or when it runs ("" where the line says it)."""


@dataclass(frozen=True)
class Words:
    """What one knob is called in each tool; nothing where the tool has no word for it.

    Texts have the knob's value for `{value}`.
    """

    script: ScriptLine | Callable[[Situation], ScriptLine] = None
    """Its line on the first screen; knobs that say the same share it."""
    by_hand: str | Callable[[Mapping[str, Value]], str] = ""
    """What to do in the script, in a sentence of the exported files."""
    trainer: str | Line = ""
    """The setting of Trainer that takes the knob's own value, or what tells the settings; so for the other three."""
    lightning: str | Line = ""
    accelerate: str | Line = ""
    deepspeed: str | Line = ""


def _scripts_buckets(situation: Situation) -> ScriptLine:
    size, first = find_buckets(situation.values)
    words = f"bucket_cap_mb={size:g}" if size == first else f"bucket_cap_mb_list=[{first:g}, {size:g}]"
    if (size, first) == (25.0, 1.0):
        words = "bucket_cap_mb=None"
    if listed := spell_list(situation.values):
        words = f"bucket_cap_mb_list={listed}"
    where = "one gradient a bucket" if not situation.values["fuse_all_reduce_ops"] else ""
    if "list" in words and not situation.reaches(2, 12):
        where = "from torch 2.12 on"
    return f"DDP(…, {words})", where


def _scripts_wire(situation: Situation) -> ScriptLine:
    dtype = str(situation.values["fp16_allreduce_dtype"])
    if not situation.values["fp16_allreduce"] or not (dtype == "fp16" or situation.backend == "nccl"):
        return None
    return f"ddp.register_comm_hook(None, default_hooks.{dtype}_compress_hook)", ""


def _scripts_precision(situation: Situation) -> ScriptLine:
    if not situation.values["amp"] or situation.values["amp_dtype"] != "bf16":
        return None
    return f"with torch.autocast(device_type, {DTYPES['bf16']}):", "around the forward"


def _scripts_broadcast(situation: Situation) -> ScriptLine:
    if situation.reaches(2, 13):
        return "DDP(…, forward_sync_buffers={value})", ""
    return "DDP(…, broadcast_buffers={value})", "and build buffers alike on every rank"


def _scripts_accumulation(situation: Situation) -> ScriptLine:
    if not situation.values["gradient_merge"]:
        return None
    steps = situation.values["gradient_merge_k_steps"]
    return f"with ddp.no_sync(): for all but the last of {steps} batches", "then optimizer.step()"


def _if_set(knob: str, text: str, where: str, unset: Value = False) -> Callable[[Situation], ScriptLine]:
    return lambda situation: (text, where) if situation.values[knob] != unset else None


def _accumulate_by_hand(values: Mapping[str, Value]) -> str:
    steps = values["gradient_merge_k_steps"]
    share = f", each loss divided by {steps}" if values["gradient_merge_avg"] else ""
    return (
        f"of every {steps} steps run all but the last under ddp.no_sync(){share}, and clip gradients, call "
        "optimizer.step() and zero_grad() after the last one only."
    )


def _reads_data(name: str) -> Words:
    argument = name.removeprefix("loader_")
    told = f"{argument}={{value!r}}"
    return Words(
        script=(f"DataLoader(…, {told})", "") if argument != name else None,
        by_hand=f"give DataLoader(..., {told}) for the training.",
        trainer=f"dataloader_{argument}" if argument != name else "",
    )


_ACCUMULATE = "it acts where the loop runs under `with accelerator.accumulate(model):`."
_SIZE = Words(
    script=_scripts_buckets,
    trainer=settings.bucket_in_one_size("ddp_bucket_cap_mb", whole=True),
    lightning=settings.lightnings_buckets,
    accelerate=settings.bucket_in_one_size("ddp.bucket_cap_mb"),
    deepspeed=settings.engines_bucket,
)
_ON_THE_WIRE = Words(
    script=_scripts_wire,
    lightning=settings.lightnings_wire,
    accelerate=settings.accelerates_wire,
    deepspeed=settings.engines_wire,
)
_ACCUMULATION = Words(
    script=_scripts_accumulation,
    by_hand=_accumulate_by_hand,
    trainer=settings.accumulation("gradient_accumulation_steps"),
    lightning=settings.accumulation("accumulate_grad_batches"),
    accelerate=settings.accumulation("gradient_accumulation_steps", _ACCUMULATE),
    deepspeed=settings.accumulation("gradient_accumulation_steps"),
)
_PRECISION = Words(
    script=_scripts_precision,
    trainer=settings.trainers_precision,
    lightning=settings.precision("precision", {"bf16": "bf16-mixed", "fp16": "16-mixed"}, off="32-true"),
    accelerate=settings.precision("mixed_precision", {"bf16": "bf16", "fp16": "fp16"}, off="no"),
    deepspeed=settings.engines_precision,
)
_COMPRESSION = Words(accelerate=settings.accelerates_compression)
WORDS: Mapping[str, Words] = {
    **{
        name: _reads_data(name) for name, knob in CATALOGUE.items() if knob.place is Place.DATA_READING
    },
    **dict.fromkeys(("fuse_all_reduce_ops", "fuse_grad_size_in_MB"), _SIZE),
    "last_comm_group_size_MB": replace(
        _SIZE, trainer=settings.first_bucket, accelerate=settings.first_bucket, deepspeed=settings.first_bucket
    ),
    "bucket_cap_mb_list": Words(
        script=_scripts_buckets,
        by_hand=lambda values: f"give DistributedDataParallel bucket_cap_mb_list={spell_list(values)} (torch 2.12).",
        lightning=settings.lightnings_buckets,
    ),
    **dict.fromkeys(_WIRE, _ON_THE_WIRE),
    **dict.fromkeys(("gradient_merge", "gradient_merge_k_steps", "gradient_merge_avg"), _ACCUMULATION),
    **dict.fromkeys(("amp", "amp_dtype"), _PRECISION),
    **dict.fromkeys(("dgc", "dgc_rank"), _COMPRESSION),
    "find_unused_parameters": Words(
        script=("DDP(…, find_unused_parameters={value})", ""),
        by_hand="give DistributedDataParallel find_unused_parameters={value}. Should a step leave out a parameter "
        "after all, DDP then ends the training with an error; under `advisor run` it goes on.",
        trainer="ddp_find_unused_parameters",
        lightning="ddp.find_unused_parameters",
        accelerate="ddp.find_unused_parameters",
    ),
    "defer_gradient_sync": Words(
        script=_if_set(
            "defer_gradient_sync", "with model.no_sync():",
            "around forward and backward of all micro-batches but the last",
        ),
        by_hand="run forward and backward of all micro-batches but the last of a step under `with model.no_sync():`, "
        "also where the last step of an epoch has fewer of them.",
    ),
    "activation_checkpointing": Words(
        script=lambda situation: write_kept(situation.recomputed),
        by_hand="leave torch.utils.checkpoint out: call the function itself, and use neither checkpoint_wrapper nor "
        "gradient_checkpointing_enable().",
        trainer=settings.trainers_recomputation,
    ),
    "broadcast_buffers": Words(
        script=_scripts_broadcast,
        by_hand="build buffers alike on all ranks and give DistributedDataParallel broadcast_buffers={value}, which "
        "sends none when it is built either (forward_sync_buffers={value} of torch 2.13 does).",
        trainer="ddp_broadcast_buffers",
        lightning="ddp.broadcast_buffers",
        accelerate="ddp.broadcast_buffers",
    ),
    "batched_grad_copy": Words(
        script=("DDP(…, batched_grad_copy={value})", ""),
        by_hand="give DistributedDataParallel batched_grad_copy={value} (torch 2.12).",
    ),
    "fuse_all_optimizer_ops": Words(
        script=("optimizer(…, fused={value})", ""),
        by_hand="build the optimizers with fused={value}; where one has no such argument, with foreach={value}.",
        trainer=settings.trainers_optimizer,
    ),
    **{
        name: Words(
            script=_if_set(name, "model.compile()", "before DDP"),
            trainer=lambda situation: Said({"torch_compile": situation.is_compiled}),
            accelerate=lambda situation: Said({"dynamo_backend": "inductor" if situation.is_compiled else "no"}),
        )
        for name in ("fuse_elewise_add_act_ops", "fuse_bn_act_ops")
    },
    "sync_batch_norm": Words(
        script=_if_set(
            "sync_batch_norm", "model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)", "before DDP"
        ),
        lightning="sync_batchnorm",
    ),
    "cudnn_exhaustive_search": Words(
        script=("torch.backends.cudnn.benchmark = {value}", ""),
        lightning="benchmark",
    ),
    "num_iteration_per_drop_scope": Words(
        script=_if_set(
            "num_iteration_per_drop_scope", "gc.freeze(); gc.disable()",
            "before the loop, and gc.collect() after every {value} steps", unset=1,
        ),
    ),
    "batch_size_multiple": Words(
        by_hand="multiply the training loader's batch size by {value}; an epoch then has that many times fewer steps, "
        "also for schedules that count them.",
        trainer=settings.batch_size("per_device_train_batch_size"),
        deepspeed=settings.batch_size("train_micro_batch_size_per_gpu"),
    ),
    "micro_batches": Words(
        by_hand="cut each batch into {value} parts; run forward and backward of each, with its loss divided by "
        "{value}, all but the last under ddp.no_sync(), and step after the last one."
    ),
    "fuse_grad_size_in_TFLOPS": Words(
        by_hand="give DistributedDataParallel a bucket_cap_mb_list (torch 2.12) that holds the bytes of {value:g} "
        "layers each time, in the order in which gradients become ready."
    ),
    "numa_binding": Words(
        by_hand="launch GPU ranks with torchrun --numa-binding {value} (torch 2.9, numactl installed); ranks that "
        "compute on CPUs are bound under run.sh and `advisor run` only."
    ),
    "hierarchical_allreduce_gloo_between": Words(
        by_hand="give the upper level's groups backend='gloo' (new_group), and hand buckets over in a thread of their "
        "own."
    ),
    "num_iteration_per_run": Words(
        by_hand="record a torch.cuda.Event after every step, and synchronize() with the one of {value} steps before."
    ),
    "sharding_stage": Words(
        by_hand=lambda values: f"call set_reshard_after_forward({values['sharding_stage'] == 3}, recurse=False) on "
        "each sharded layer.",
        deepspeed="zero_optimization.stage",
    ),
    "sharding_overlap": Words(deepspeed="zero_optimization.overlap_comm"),
    "sharding_gather_ranks": Words(
        by_hand="give fully_shard(..., reshard_after_forward={value}) for each layer."
    ),
    "sharding_forward_prefetch": Words(
        by_hand="call set_modules_to_forward_prefetch() on each sharded module with the {value} after it."
    ),
    "sharding_backward_prefetch": Words(
        by_hand="call set_modules_to_backward_prefetch() on each sharded module with the {value} before it."
    ),
    "sharding_separate_reduction": Words(
        by_hand="call set_separate_reduce_scatter_group({value}) on the sharded model."
    ),
    "sharding_reduce_buffers": Words(
        by_hand="call set_reduce_scatter_max_input_buffers({value}) on the sharded model."
    ),
    "sharding_group_memory": Words(
        by_hand="call set_allocate_memory_from_process_group_for_comm({value}) on each sharded module."
    ),
}  # fmt: skip
_NO_WORDS = Words()


def list_knobs(framework: str) -> tuple[str, ...]:
    """Return the knobs that a framework, as `Words` spells it, has settings for."""
    return tuple(name for name, words in WORDS.items() if getattr(words, framework))


def idle_because(knob: str, values: Mapping[str, Value]) -> str | None:
    """Return a sentence when another knob's value makes `knob` idle in a strategy, else None."""
    return CATALOGUE[knob].inactive_because(values) if knob in CATALOGUE else None


def typed_values(advice: Advice) -> dict[str, Value]:
    """Return the advised value of every knob in the knob's own type; JSON turns 32.0 into 32 on its way.

    Ranges are not judged: a script may stand outside the range that a search would try.
    """
    return {
        name: knob.kind(advice.strategy.get(name, knob.default)) for name, knob in advice.catalogue.items()
    }


def say_by_hand(knob: str, values: Mapping[str, Value]) -> str:
    """Return what to do in the script itself for a knob; empty where PyTorch has nothing for it."""
    told = WORDS.get(knob, _NO_WORDS).by_hand
    return told.format(value=values.get(knob)) if isinstance(told, str) else told(values)


def write_in_script(knob: str, situation: Situation) -> ScriptLine:
    """Return the line that sets a knob in the script, and where it goes; None where there is no short one."""
    if _say_of_shards(knob, situation):
        return None
    told = WORDS.get(knob, _NO_WORDS).script
    line = told(situation) if callable(told) else told
    if line is None:
        by_hand = say_by_hand(knob, situation.values)
        return (by_hand, "") if 0 < len(by_hand) <= _MOST_WORDS else None
    return line[0].format(value=situation.values[knob]), line[1].format(value=situation.values[knob])


def _say_of_shards(knob: str, situation: Situation) -> str:
    """What to write where for how gradients are reduced; empty for another knob, and for DDP models."""
    if situation.sharding == DEEPSPEED:
        return _ENGINE if knob in _OF_THE_ENGINE else ""
    if not situation.sharding or knob not in _WIRE:
        return ""
    values = situation.values
    dtype = DTYPES[str(values["fp16_allreduce_dtype"])] if values["fp16_allreduce"] else "None"
    return (
        f"Apply by hand: give each fully_shard(...) mp_policy=MixedPrecisionPolicy(reduce_dtype={dtype}); the model is "
        "sharded, and DistributedDataParallel's hooks do not act on it. Where the script accumulates gradients "
        "(set_requires_gradient_sync(False)), that policy also adds the micro-batches up in 16 bits, each with a "
        "rounding of its own; `advisor run` does not, and only that was measured."
    )


@dataclass
class Settings(Written):
    """A strategy in a framework's settings, and what is not among them."""

    entries: dict[str, Value | None] = field(default_factory=dict)
    """Setting -> value."""


def choose_settings(advice: Advice, job: Job, framework: str, title: str, engine: str = "") -> Settings:
    """Return the settings for every change of the strategy that the framework, as `Words` spells it, has a line for.

    Knobs that others make idle bring none; members of a group (`amp`, `amp_dtype`) share a line. `engine` is what the
    facts of a job call the framework's own engine, where that was measured; `title` names it for people.
    """
    values = typed_values(advice)
    situation = Situation.of(values, job)
    chosen = Settings()
    for knob in advice.changes:
        line: str | Line = getattr(WORDS.get(knob, _NO_WORDS), framework)
        sharded = _say_of_shards(knob, situation)
        if idle := idle_because(knob, values):
            chosen.unmapped[knob] = idle
        elif sharded and not (engine == situation.sharding and line):
            chosen.unmapped[knob] = sharded
        elif not line and knob in VARIABLES:
            variable = VARIABLES[knob]
            chosen.unmapped[knob] = (
                f"It is read from the environment when the ranks start: source strategy.env ({variable})."
            )
        elif not line:
            by_hand = say_by_hand(knob, values)
            told = f" Apply by hand: {by_hand}" if by_hand else ""
            chosen.unmapped[knob] = f"{title} has no plain setting for it.{told}"
        elif isinstance(
            answer := Said({line: values[knob]}) if isinstance(line, str) else line(situation), Refusal
        ):
            chosen.unmapped[knob] = answer.sentence
        else:
            chosen.entries |= answer.settings
            chosen.provenance[knob] = advice.provenance.get(knob, Provenance.CARRIED)
            if answer.note and answer.note not in chosen.warnings:
                chosen.warnings.append(answer.note)
    return chosen
