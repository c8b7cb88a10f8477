"""The one to three lines that put an advice into a PyTorch script by hand, in the words of what the script uses.

A pure function of advice and job. `run.sh` needs none of them: they are for people who own the script.
"""

from collections.abc import Iterable, Mapping

from advisor.exporters.frameworks.accelerate import TABLE as ACCELERATE
from advisor.exporters.frameworks.lightning import TABLE as LIGHTNING
from advisor.exporters.frameworks.settings import Table, choose_settings, list_ddp_words
from advisor.exporters.frameworks.trainer import TABLE as TRAINER
from advisor.exporters.launch.environment import VARIABLES
from advisor.exporters.selection import idle_because, typed_values
from advisor.exporters.torch.ddp_plan import BUCKETS, DdpPlan, describe_by_hand, plan_ddp
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Message, Value
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.knob import Place
from advisor.protocol.training.workload import WorkloadKind

_FRAMEWORKS: tuple[tuple[str, str, str, Table], ...] = (
    ("transformers", "TrainingArguments", "", TRAINER),
    ("lightning", "Trainer", "strategy=DDPStrategy", LIGHTNING),
    ("accelerate", "Accelerator", "kwargs_handlers=[DistributedDataParallelKwargs", ACCELERATE),
)
"""Library, what its users give arguments to, what it gives DDP's own arguments to, and what it has settings for."""
_PLAIN_DDP = frozenset({"ddp.bucket_cap_mb", "ddp.bucket_cap_mb_list"})
_FOR_PADDLE = frozenset({"FLAGS_fraction_of_gpu_memory_to_use"})
"""Variables that do nothing in PyTorch."""
_MOST_WORDS = 120
"""Longer instructions stand in the exported files."""
_ACCUMULATION = frozenset({"gradient_merge", "gradient_merge_k_steps", "gradient_merge_avg"})


class OwnLine(Message):
    """One line to write, and where."""

    text: str
    where: str = ""
    """Where it goes, or when it runs; empty where the line says it."""
    knobs: tuple[str, ...] = ()
    """The changes that it makes."""


def list_own_lines(advice: Advice, job: Job) -> tuple[OwnLine, ...]:
    """Return a line for each change that has one; other changes come in by run.sh and the exported files."""
    if job.spec.workload.kind is not WorkloadKind.PYTORCH:
        return ()
    values = typed_values(advice)
    left = [name for name in advice.changes if name in CATALOGUE and idle_because(name, values) is None]
    lines = []
    for told in (
        *_variables(left, values, job),
        *_arguments(advice, job),
        *_script(left, values, plan_ddp(advice, job)),
    ):
        knobs = tuple(name for name in told.knobs if name in left)
        if knobs:
            left = [name for name in left if name not in knobs]
            lines.append(told.model_copy(update={"knobs": knobs}))
    return tuple(lines)


def _variables(names: Iterable[str], values: Mapping[str, Value], job: Job) -> list[OwnLine]:
    found = [name for name in names if name in VARIABLES and name not in _FOR_PADDLE]
    lines = []
    if "num_threads" in found and job.facts is not None and job.facts.sets_threads:
        found.remove("num_threads")
        text = f"torch.set_num_threads({values['num_threads']})"
        lines.append(OwnLine(text=text, where="in place of the script's own", knobs=("num_threads",)))
    words = [f"{VARIABLES[name]}={int(v) if isinstance(v := values[name], bool) else v}" for name in found]
    typed = [
        word for word in job.spec.workload.command for name in found if word.startswith(f"{VARIABLES[name]}=")
    ]
    where = f"in the command, in place of {' '.join(typed)}" if typed else "before the launch command"
    return [*lines, OwnLine(text=" ".join(words), where=where, knobs=tuple(found))]


def _arguments(advice: Advice, job: Job) -> list[OwnLine]:
    """The arguments of the library that the script trains with, where it is not DDP's own."""
    software = job.facts.software if job.facts is not None else {}
    for library, call, ddp_call, table in _FRAMEWORKS:
        if not any(name.endswith(library) for name in software):
            continue
        chosen = choose_settings(advice, job, call, table)
        plain = [
            f"{name}={_spell(name, value)}"
            for name, value in chosen.entries.items()
            if not name.startswith("ddp.")
        ]
        ddp = [
            f"{name.removeprefix('ddp.')}={_spell(name, value)}"
            for name, value in chosen.entries.items()
            if name in _PLAIN_DDP
        ]
        if ddp:
            # It stands in the place of the script's own, which says these.
            words = ", ".join([*ddp, *list_ddp_words(job)])
            plain.append(f"{ddp_call}({words}){']' if '[' in ddp_call else ''}")
        if not plain or any(name.startswith("ddp.") and name not in _PLAIN_DDP for name in chosen.entries):
            return []  # hooks take more than a line: the exported file has them
        return [OwnLine(text=f"{call}(…, {', '.join(plain)})", knobs=tuple(chosen.provenance))]
    return []


def _spell(name: str, value: Value | None) -> str:
    if name.endswith("_list"):
        return f"[{', '.join(str(value).split())}]"
    return f"{value:g}" if isinstance(value, float) else repr(value)


def _script(names: Iterable[str], values: Mapping[str, Value], plan: DdpPlan) -> list[OwnLine]:
    """What is written into the script itself."""
    lines = []
    if plan.bucket_mb is not None and plan.first_bucket_mb is not None:
        size, first = plan.bucket_mb, plan.first_bucket_mb
        words = f"bucket_cap_mb={size:g}" if size == first else f"bucket_cap_mb_list=[{first:g}, {size:g}]"
        if (size, first) == (25.0, 1.0):
            words = "bucket_cap_mb=None"
        where = "one gradient a bucket" if not values["fuse_all_reduce_ops"] else ""
        lines.append(OwnLine(text=f"DDP(…, {words})", where=where, knobs=tuple(BUCKETS)))
    if plan.wire_dtype and not plan.needs_reduction:
        hook = f"ddp.register_comm_hook(None, default_hooks.{plan.wire_dtype}_compress_hook)"
        lines.append(OwnLine(text=hook, knobs=("fp16_allreduce", "fp16_allreduce_dtype")))
    if plan.autocast_dtype:
        kind = {"fp16": "float16", "bf16": "bfloat16"}[plan.autocast_dtype]
        text = f"with torch.autocast(device_type, torch.{kind}):"
        lines.append(OwnLine(text=text, where="around the forward", knobs=("amp", "amp_dtype")))
    for name in names:
        value = values[name]
        if CATALOGUE[name].place is Place.DATA_READING and name.startswith("loader_"):
            lines.append(
                OwnLine(text=f"DataLoader(…, {name.removeprefix('loader_')}={value!r})", knobs=(name,))
            )
        elif name == "num_iteration_per_drop_scope" and value != 1:
            where = f"before the loop, and gc.collect() after every {value} steps"
            lines.append(OwnLine(text="gc.freeze(); gc.disable()", where=where, knobs=(name,)))
        elif name == "fuse_all_optimizer_ops":
            lines.append(OwnLine(text=f"optimizer(…, fused={value})", knobs=(name,)))
        elif name == "cudnn_exhaustive_search":
            lines.append(OwnLine(text=f"torch.backends.cudnn.benchmark = {value}", knobs=(name,)))
        elif name == "sync_batch_norm" and value:
            text = "model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)"
            lines.append(OwnLine(text=text, where="before DDP", knobs=(name,)))
        elif name in ("fuse_elewise_add_act_ops", "fuse_bn_act_ops") and value:
            lines.append(OwnLine(text="model.compile()", where="before DDP", knobs=(name,)))
        elif name in _ACCUMULATION and values["gradient_merge"]:
            text = f"with ddp.no_sync(): for all but the last of {values['gradient_merge_k_steps']} batches"
            lines.append(OwnLine(text=text, where="then optimizer.step()", knobs=tuple(_ACCUMULATION)))
        elif (by_hand := describe_by_hand(name, values)) and len(by_hand) < _MOST_WORDS:
            lines.append(OwnLine(text=by_hand.removeprefix("Apply by hand: "), knobs=(name,)))
    return lines
