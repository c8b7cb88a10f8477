"""The one to three lines that put an advice into a PyTorch script by hand, in the words of what the script uses.

A pure function of advice and job. `run.sh` needs none of them: they are for people who own the script.
"""

import re
import shlex
from collections.abc import Iterable, Mapping

from advisor.exporters.by_hand import (
    BUCKETS,
    DTYPES,
    WIRE,
    describe_by_hand,
    describe_reduction,
    find_buckets,
    spell_list,
)
from advisor.exporters.frameworks.arguments import LIBRARIES, write_arguments
from advisor.exporters.frameworks.settings import choose_settings
from advisor.exporters.launch.environment import VARIABLES
from advisor.exporters.selection import idle_because, typed_values
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Message, Value
from advisor.protocol.kinds import Place
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.training.own_knobs import UNSET, OwnKnob, spell
from advisor.protocol.training.workload import WorkloadKind

_FOR_PADDLE = frozenset({"FLAGS_fraction_of_gpu_memory_to_use"})
"""Variables that do nothing in PyTorch."""
_MOST_WORDS = 120
"""Longer instructions stand in the exported files."""
_OF_DDP = ("batched_grad_copy", "find_unused_parameters")
"""Arguments of DistributedDataParallel that have the knob's name."""
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
    left = [
        name for name in advice.changes if name in advice.catalogue and idle_because(name, values) is None
    ]
    lines = []
    for told in (
        *(_say_own(knob, values) for knob in job.spec.workload.own if knob.name in left),
        *_variables(left, values, job),
        *_arguments(advice, job),
        *_script(left, values, job),
    ):
        knobs = tuple(name for name in told.knobs if name in left)
        if knobs:
            left = [name for name in left if name not in knobs]
            lines.append(told.model_copy(update={"knobs": knobs}))
    return tuple(lines)


def _say_own(knob: OwnKnob, values: Mapping[str, Value]) -> OwnLine:
    """What to write where a knob of the user's own stands."""
    value = spell(values[knob.name])
    words = shlex.join(knob.words.get(value, ())) or value
    if knob.is_command:
        return OwnLine(text=words, where="the command", knobs=(knob.name,))
    if knob.words:
        return OwnLine(text=words, where="at the end of the command", knobs=(knob.name,))
    if knob.file:
        path, key = knob.file
        return OwnLine(text=f"{key} = {value}", where=f"in {path}", knobs=(knob.name,))
    if knob.variable:
        text = f"unset {knob.variable}" if value == UNSET else f"{knob.variable}={value}"
        return OwnLine(text=text, where="before the launch command", knobs=(knob.name,))
    if knob.at.startswith("-"):
        return OwnLine(text=f"{knob.at} {value}", where="in the command", knobs=(knob.name,))
    return OwnLine(
        text=f"{knob.at or knob.name} = {value}", where=f"{knob.describe_place()}", knobs=(knob.name,)
    )


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
    for name, library in LIBRARIES.items():
        if not any(known.endswith(name) for known in software):
            continue
        chosen = choose_settings(advice, job, library.call, library.table)
        told = write_arguments(chosen.entries, library, job)
        if not told:
            return []
        words = ", ".join(f"{argument}={value}" for argument, value in told.items())
        return [OwnLine(text=f"{library.call}(…, {words})", knobs=tuple(chosen.provenance))]
    return []


def _script(names: Iterable[str], values: Mapping[str, Value], job: Job) -> list[OwnLine]:
    """What is written into the script itself."""
    lines = []
    ours = {name for name in names if not describe_reduction(name, values, job)}
    if ours & set(BUCKETS):
        size, first = find_buckets(values)
        words = f"bucket_cap_mb={size:g}" if size == first else f"bucket_cap_mb_list=[{first:g}, {size:g}]"
        if (size, first) == (25.0, 1.0):
            words = "bucket_cap_mb=None"
        if listed := spell_list(values):
            words = f"bucket_cap_mb_list={listed}"
        where = "one gradient a bucket" if not values["fuse_all_reduce_ops"] else ""
        if "list" in words and not _reaches(job, 2, 12):
            where = "from torch 2.12 on"
        lines.append(OwnLine(text=f"DDP(…, {words})", where=where, knobs=BUCKETS))
    dtype = str(values["fp16_allreduce_dtype"])
    if ours & set(WIRE) and values["fp16_allreduce"] and (dtype == "fp16" or _backend(job) == "nccl"):
        lines.append(
            OwnLine(text=f"ddp.register_comm_hook(None, default_hooks.{dtype}_compress_hook)", knobs=WIRE)
        )
    if ours & {"amp", "amp_dtype"} and values["amp"] and values["amp_dtype"] == "bf16":
        text = f"with torch.autocast(device_type, {DTYPES['bf16']}):"
        lines.append(OwnLine(text=text, where="around the forward", knobs=("amp", "amp_dtype")))
    for name in names:
        value = values[name]
        if name in CATALOGUE and CATALOGUE[name].place is Place.DATA_READING and name.startswith("loader_"):
            lines.append(
                OwnLine(text=f"DataLoader(…, {name.removeprefix('loader_')}={value!r})", knobs=(name,))
            )
        elif name == "num_iteration_per_drop_scope" and value != 1:
            where = f"before the loop, and gc.collect() after every {value} steps"
            lines.append(OwnLine(text="gc.freeze(); gc.disable()", where=where, knobs=(name,)))
        elif name == "broadcast_buffers" and _reaches(job, 2, 13):
            lines.append(OwnLine(text=f"DDP(…, forward_sync_buffers={value})", knobs=(name,)))
        elif name == "broadcast_buffers":
            where = "and build buffers alike on every rank"
            lines.append(OwnLine(text=f"DDP(…, broadcast_buffers={value})", where=where, knobs=(name,)))
        elif name in ours & set(_OF_DDP):
            lines.append(OwnLine(text=f"DDP(…, {name}={value})", knobs=(name,)))
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


def _backend(job: Job) -> str:
    return job.facts.backend if job.facts is not None else "nccl"


def _reaches(job: Job, *version: int) -> bool:
    """Whether the training's torch is of that version or later; True where the job does not hold its version."""
    found = re.match(r"(\d+)\.(\d+)", job.facts.torch_version if job.facts is not None else "")
    return found is None or tuple(map(int, found.groups())) >= version
