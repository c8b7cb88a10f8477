"""The Python that both PyTorch exports share: constants and the functions that put a plan into a DDP script."""

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files

from advisor.exporters.torch.ddp_plan import DdpPlan
from advisor.protocol.base import Value

_DTYPES = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}
_HOOKS = "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks"
_POWER_SGD = "from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd"
_STEP_HOOK = "from torch.optim.optimizer import register_optimizer_step_post_hook"
_COLLECT = """\
# A long evaluation makes no steps: Python's own collector comes after 100,000 new objects all the same.
gc.set_threshold(100_000, *gc.get_threshold()[1:])
counts = {{"steps": 0, "grown": 0, "settled": 0}}
first = []

def collect(optimizer, args, kwargs):
    if not first or first[0]() is None:
        first[:] = [weakref.ref(optimizer)]
    counts["steps"] += first[0]() is optimizer
    if first[0]() is not optimizer or counts["steps"] % {steps}:
        return
    young = len(gc.get_objects(0)) + len(gc.get_objects(1))
    counts["grown"] += young - gc.collect(1)
    if counts["grown"] > 0.25 * counts["settled"]:
        # What died among the old stays for ever otherwise.
        gc.collect()
        counts.update(grown=0, settled=len(gc.get_objects(2)))

register_optimizer_step_post_hook(collect)
"""
_DEFAULT_BUCKETS = (25.0, 1.0)
"""What DDP does when it is given no bucket_cap_mb."""


@dataclass(frozen=True)
class DdpCode:
    """Pieces of a Python file."""

    imports: frozenset[str]
    """Import lines of the standard library and of torch."""
    body: str
    """Constants and functions; empty for an empty plan."""
    functions: frozenset[str]
    """Which of prepare_process, prepare_model, adjust_arguments, reserve_memory, mix_precision, install_hook and
    after_step the body defines."""

    def calls_on_ddp(self) -> list[str]:
        """Return the functions to call with every new DistributedDataParallel, in this order."""
        return [
            name for name in ("reserve_memory", "mix_precision", "install_hook") if name in self.functions
        ]

    @property
    def touches_ddp(self) -> bool:
        """Whether anything happens when a DistributedDataParallel is built."""
        before = {"prepare_model", "adjust_arguments"}
        return bool(before & self.functions or self.calls_on_ddp())


def write_ddp_code(plan: DdpPlan) -> DdpCode:
    """Return the code for `plan`; only what the plan needs is in it."""
    imports: set[str] = {"from torch.nn.parallel import DistributedDataParallel"}
    pieces: list[str] = []
    functions: set[str] = set()
    for name, write in (
        ("prepare_process", _process),
        ("prepare_model", _model),
        ("adjust_arguments", _buckets),
        ("reserve_memory", _memory),
        ("mix_precision", _precision),
        ("install_hook", _hook),
        ("after_step", _local_sgd),
    ):
        needed, text = write(plan)
        if text:
            imports |= needed
            pieces.append(text)
            functions.add(name)
    if plan.local_steps is not None:
        functions.add("install_hook")
    return DdpCode(frozenset(imports), "\n\n".join(pieces), frozenset(functions))


def write_imports(imports: frozenset[str]) -> str:
    """Return import lines in the usual order: standard library, then torch."""
    torch_lines = sorted(line for line in imports if " torch" in line)
    others = sorted(line for line in imports if " torch" not in line)
    plain_first = sorted(others, key=lambda line: line.startswith("from"))
    torch_sorted = sorted(torch_lines, key=lambda line: line.startswith("from"))
    return "\n\n".join("\n".join(lines) for lines in (plain_first, torch_sorted) if lines) + "\n"


def write_process_code(values: Mapping[str, Value]) -> tuple[set[str], list[str]]:
    """Return imports and statements for those of `values` that concern the whole process (`PROCESS`)."""
    imports, lines = set(), []
    if "num_threads" in values:
        imports.add("import torch")
        lines.append(f"torch.set_num_threads({values['num_threads']})")
    if "cudnn_exhaustive_search" in values:
        imports.add("import torch")
        lines.append(f"torch.backends.cudnn.benchmark = {values['cudnn_exhaustive_search']}")
    steps = values.get("num_iteration_per_drop_scope", 1)
    if steps != 1:
        imports |= {"import gc", "import weakref", _STEP_HOOK}
        lines += _COLLECT.format(steps=steps).splitlines()
    return imports, lines


def write_body(lines: Iterable[str]) -> str:
    """Return statements as the body of a function."""
    return textwrap.indent("".join(f"{line}\n" for line in lines), "    ")


def _process(plan: DdpPlan) -> tuple[set[str], str]:
    needed, lines = write_process_code(plan.process)
    if not lines:
        return set(), ""
    head = 'def prepare_process():\n    """Set what concerns the whole process."""\n'
    return needed, head + write_body(lines)


def _model(plan: DdpPlan) -> tuple[set[str], str]:
    lines = []
    if plan.sync_batch_norm:
        lines.append("    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model, process_group)\n")
    if plan.compiled:
        lines.append("    model.compile()\n")
    if not lines:
        return set(), ""
    head = (
        "def prepare_model(model, process_group):\n"
        '    """Return the model as DistributedDataParallel is to get it."""\n'
    )
    return {"import torch"}, head + "".join(lines) + "    return model\n"


def _memory(plan: DdpPlan) -> tuple[set[str], str]:
    if plan.memory_fraction is None:
        return set(), ""
    return (
        {"import torch"},
        f"""\
MEMORY_FRACTION = {plan.memory_fraction!r}


def reserve_memory(ddp):
    \"\"\"Let the caching allocator take its share of the model's GPU now, and no more than that later.\"\"\"
    device = next(ddp.module.parameters()).device
    if device.type != "cuda":
        return
    torch.cuda.set_per_process_memory_fraction(MEMORY_FRACTION, device)
    free, total = torch.cuda.mem_get_info(device)
    wanted = int(total * MEMORY_FRACTION) - torch.cuda.memory_reserved(device)
    # The block goes back to the allocator at once, which serves the training from it. Some stays free for NCCL, and
    # below the cap for small tensors, which the allocator keeps in blocks of their own.
    torch.empty(max(0, min(wanted, free) - 256 * 2**20), dtype=torch.uint8, device=device)
""",
    )


def _buckets(plan: DdpPlan) -> tuple[set[str], str]:
    if plan.bucket_mb is None or plan.first_bucket_mb is None:
        return set(), ""
    signature = (
        'def adjust_arguments(arguments):\n    """Replace DDP\'s bucket arguments by the measured ones."""\n'
    )
    forget = '    arguments.pop("bucket_cap_mb_list", None)\n'
    if (plan.bucket_mb, plan.first_bucket_mb) == _DEFAULT_BUCKETS:
        note = "    # None, and not 25: only None gives the small first bucket.\n"
        return set(), signature + forget + note + '    arguments["bucket_cap_mb"] = None\n'
    if plan.bucket_mb == plan.first_bucket_mb:
        text = signature + forget + f'    arguments["bucket_cap_mb"] = {plan.bucket_mb!r}\n'
        if not plan.compiled or plan.bucket_mb >= 1:
            return set(), text
        return {"import torch.distributed as dist"}, text + (
            "    # torch.compile refuses a model whose buckets are smaller than torch's own first one, 1 MiB.\n"
            f"    dist._DEFAULT_FIRST_BUCKET_BYTES = {int(plan.bucket_mb * 2**20)}\n"
        )
    text = f"""\
BUCKET_MB = {plan.bucket_mb!r}
FIRST_BUCKET_MB = {plan.first_bucket_mb!r}


{signature}    if "bucket_cap_mb_list" in inspect.signature(DistributedDataParallel.__init__).parameters:
        arguments.pop("bucket_cap_mb", None)
        arguments["bucket_cap_mb_list"] = [FIRST_BUCKET_MB, BUCKET_MB]
        return
    # bucket_cap_mb alone makes the first bucket as large as the others.
    warnings.warn(f"This torch cannot give DDP a first bucket of {{FIRST_BUCKET_MB}} MB; upgrade it.", stacklevel=2)
    arguments["bucket_cap_mb"] = BUCKET_MB
"""
    return {"import inspect", "import warnings"}, text


def _precision(plan: DdpPlan) -> tuple[set[str], str]:
    if plan.autocast_dtype is None:
        return set(), ""
    return (
        {
            "import copy",
            "import dataclasses",
            "import types",
            "import torch",
            "from torch.utils._pytree import tree_map",
        },
        f"""\
AUTOCAST_DTYPE = {_DTYPES[plan.autocast_dtype]}


def mix_precision(ddp):
    \"\"\"Run the model's training forwards under autocast; what they return is in float32.\"\"\"
    # A bound method: a copy of the model computes with the copy's own parameters.
    ddp.forward = types.MethodType(forward_mixed, ddp)


def forward_mixed(ddp, *args, **kwargs):
    if not ddp.module.training:
        return type(ddp).forward(ddp, *args, **kwargs)
    with torch.autocast(next(ddp.module.parameters()).device.type, dtype=AUTOCAST_DTYPE):
        output = type(ddp).forward(ddp, *args, **kwargs)
    return tree_map(to_float32, output)


def to_float32(value):
    \"\"\"Return a tensor of AUTOCAST_DTYPE in float32, also inside a dataclass, and everything else as it is.\"\"\"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        replaced = copy.copy(value)
        for entry in dataclasses.fields(value):
            object.__setattr__(replaced, entry.name, tree_map(to_float32, getattr(value, entry.name)))
        return replaced
    return value.float() if isinstance(value, torch.Tensor) and value.dtype is AUTOCAST_DTYPE else value
""",
    )


def _hook(plan: DdpPlan) -> tuple[set[str], str]:
    if plan.needs_reduction:
        constants = (
            f"COMMUNICATORS = {plan.communicators}\n"
            f"INNER_RANKS = {plan.inner_ranks}  # 0: one level\n"
            f"IN_ORDER = {plan.in_order}\n"
            f"WIRE_DTYPE = {_DTYPES[plan.wire_dtype] if plan.wire_dtype else None}\n"
        )
        template = (
            files("advisor.exporters.torch").joinpath("templates/reduction_hook.txt").read_text("utf-8")
        )
        install = (
            "\n\ndef install_hook(ddp):\n"
            '    """Let the strategy\'s hook reduce the gradients of `ddp`."""\n'
            "    ddp.register_comm_hook(Reduction(ddp), reduce_bucket)\n"
        )
        needed = {
            "from concurrent.futures import ThreadPoolExecutor",
            "import torch",
            "import torch.distributed as dist",
        }
        if plan.communicators > 1:
            needed.add("import os")
            constants += (
                "# From NCCL 2.26 on: the same launch order of the communicators on every rank, or they might wait for "
                "each other.\n"
                'os.environ.setdefault("NCCL_LAUNCH_ORDER_IMPLICIT", "1")\n'
            )
        return needed, constants + template + install
    if plan.compression_rank:
        return {_POWER_SGD}, (
            "def install_hook(ddp):\n"
            f'    """Send gradients compressed to rank {plan.compression_rank}."""\n'
            "    state = power_sgd.PowerSGDState(\n"
            "        ddp.process_group, start_powerSGD_iter=2,\n"
            f"        matrix_approximation_rank={plan.compression_rank},\n"
            "    )\n"
            "    ddp.register_comm_hook(state, power_sgd.powerSGD_hook)\n"
        )
    if plan.wire_dtype:
        return {_HOOKS}, (
            "def install_hook(ddp):\n"
            f'    """Send gradients as {plan.wire_dtype}."""\n'
            f"    ddp.register_comm_hook(ddp.process_group, default_hooks.{plan.wire_dtype}_compress_hook)\n"
        )
    return set(), ""


def _local_sgd(plan: DdpPlan) -> tuple[set[str], str]:
    if plan.local_steps is None:
        return set(), ""
    needed = {
        "import torch",
        "import weakref",
        _HOOKS,
        "from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager",
    }
    return (
        needed,
        f"""\
LOCAL_STEPS = {plan.local_steps}  # steps between two averagings
LOCAL_BEGIN = {plan.local_begin}  # gradients are averaged up to this step, counted from 1
AVERAGERS = weakref.WeakKeyDictionary()


def install_hook(ddp):
    \"\"\"Stop averaging gradients after step LOCAL_BEGIN.\"\"\"
    averager = PeriodicModelAverager(LOCAL_STEPS, LOCAL_BEGIN - 1 + LOCAL_STEPS, ddp.process_group)
    ddp.register_comm_hook(averager, reduce_bucket)
    AVERAGERS[ddp] = averager


def reduce_bucket(averager, bucket):
    \"\"\"Average a bucket of the first steps; steps are those of after_step, whatever backwards one of them has.\"\"\"
    if averager.step < LOCAL_BEGIN:
        return default_hooks.allreduce_hook(averager.process_group, bucket)
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def after_step(ddp):
    \"\"\"Call it after every optimizer.step(), on every rank alike: every LOCAL_STEPS calls it averages.\"\"\"
    AVERAGERS[ddp].average_parameters(ddp.parameters())
""",
    )
