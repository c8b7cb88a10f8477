"""`fsdp_strategy.py`: what fully_shard is told, and what to call once the model is sharded."""

from collections.abc import Collection, Mapping

from advisor.exporters.comments import comment, head_lines
from advisor.exporters.exported import Exported
from advisor.exporters.selection import idle_because, typed_values
from advisor.exporters.torch.ddp_code import write_body, write_imports, write_process_code
from advisor.exporters.torch.ddp_plan import plan_ddp
from advisor.exporters.torch.sharding_words import (
    AFTERWARDS,
    AHEAD,
    ARGUMENTS,
    BACK,
    BUFFERS,
    DTYPES,
    GATHER,
    HALF,
    HALF_TYPE,
    MEMORY,
    SEPARATE,
    STAGE,
)
from advisor.protocol.answers.advice import Advice, Provenance
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value

KNOBS = (*AFTERWARDS, *ARGUMENTS)
_OWN_DEPTH: Mapping[str, int] = {AHEAD: 0, BACK: 1}
_RESHARD = '''\
def set_stage(model):
    """Gather parameters {often}: ZeRO's stage {stage}.

    What a forward without a backward (an evaluation) left gathered is the next forward's: call reshard() of every
    module in model.modules() that has it before an optimizer steps.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule) and module is not model:
            module.set_reshard_after_forward({again}, recurse=False)
'''
_MEMORY = '''\
def set_memory(model):
    """Gather and reduce in {whose} memory."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_allocate_memory_from_process_group_for_comm({on})
'''
_AHEAD = '''\
def gather_ahead(model):
    """Gather parameters ahead of their use, in the order of the first forward.

    Where a forward without gradients takes a part of the model only, what it gathered for the rest is the next
    forward's: call unshard() and then reshard() of the rest before an optimizer steps.
    """
    begun, ended, hooks = [], [], []

    def begin(module, args):
        begun.append(module)

    def end(module, args, output):
        ended.append(module)
        if module is not model:
            return
        for hook in hooks:
            hook.remove()
        first = list(dict.fromkeys(begun))
        last = list(dict.fromkeys(reversed(ended)))
{lines}
    for module in model.modules():
        if isinstance(module, FSDPModule):
            hooks.append(module.register_forward_pre_hook(begin))
            hooks.append(module.register_forward_hook(end))
'''
_LISTS: Mapping[str, str] = {
    AHEAD: """\
        for place, module in enumerate(first, 1):
            module.set_modules_to_forward_prefetch(first[place : place + {depth}])
""",
    BACK: """\
        for place, module in enumerate(last, 1):
            module.set_modules_to_backward_prefetch(last[place : place + {depth}])
""",
}
_ARGUMENTS = '''\
def shard_arguments(policy=None, outermost=False):
    """For each fully_shard(layer, **shard_arguments()) and fully_shard(model, **shard_arguments(outermost=True)).

    `policy` is the mp_policy that you gave before.
    """
    arguments = {{}}
{lines}    return arguments
'''


def export_fsdp(advice: Advice, job: Job) -> Exported:
    """Return the file. It needs torch 2.6 or later (two of the knobs 2.13) and nothing else."""
    plan, values = plan_ddp(advice, job), typed_values(advice)
    active = {name for name in advice.changes if idle_because(name, values) is None}
    ours = active & {*AFTERWARDS, GATHER}
    if job.facts is not None and job.facts.sharding:
        ours |= active & {HALF, HALF_TYPE}
    carried = {*plan.process, *ours}
    provenance = {
        knob: advice.provenance.get(knob, Provenance.CARRIED) for knob in advice.changes if knob in carried
    }
    unmapped = {
        knob: idle_because(knob, values)
        or plan.unmapped.get(knob, "It concerns DistributedDataParallel, and the model is sharded.")
        for knob in advice.changes
        if knob not in carried
    }
    imports, lines = write_process_code(plan.process)
    pieces, calls = _write_pieces(ours, values)
    if calls:
        imports.add("from torch.distributed.fsdp import FSDPModule")
    title = "Strategy for sharded models: call apply(model) after fully_shard(model), before the first step."
    if arguments := _write_arguments(ours, values):
        pieces.append(arguments)
        title = "Strategy for sharded models: give fully_shard the shard_arguments(), and call apply(model) afterwards."
        if ours & {HALF, HALF_TYPE}:
            imports |= {
                "import dataclasses",
                "import torch",
                "from torch.distributed.fsdp import MixedPrecisionPolicy",
            }
    body = "".join(f"{piece}\n\n" for piece in pieces)
    lines += calls
    head = head_lines(advice, job, title, provenance, plan.warnings, unmapped)
    return Exported(
        format="fsdp",
        filename="fsdp_strategy.py",
        media_type="text/x-python; charset=utf-8",
        content=comment(head)
        + (f"\n{write_imports(frozenset(imports))}" if imports else "")
        + f'\n\n{body}def apply(model):\n    """Put the strategy in force, in every rank."""\n'
        + write_body(lines)
        + "    return model\n",
        provenance=provenance,
        unmapped=unmapped,
        warnings=tuple(plan.warnings),
    )


def _write_pieces(ours: Collection[str], values: Mapping[str, Value]) -> tuple[list[str], list[str]]:
    """Return the functions that the strategy needs, and the statements of apply() that act on the model."""
    pieces, calls = [], []
    if STAGE in ours and not (GATHER in ours and values[GATHER]):
        # Else shard_arguments() says it, with the number of ranks that True would take back.
        again = values[STAGE] == 3
        often = "for the forward and again for the backward" if again else "once a step"
        pieces.append(_RESHARD.format(stage=values[STAGE], often=often, again=again))
        calls.append("set_stage(model)")
    if SEPARATE in ours:
        calls.append(f"model.set_separate_reduce_scatter_group({values[SEPARATE]})")
    if BUFFERS in ours:
        calls.append(f"model.set_reduce_scatter_max_input_buffers({values[BUFFERS]})")
    if MEMORY in ours:
        whose = "the communicator's" if values[MEMORY] else "torch's own"
        pieces.append(_MEMORY.format(whose=whose, on=values[MEMORY]))
        calls.append("set_memory(model)")
    if lists := [knob for knob in (AHEAD, BACK) if knob in ours]:
        # Without a list a module does what it does unasked.
        depths = {knob: int(values[knob]) if values[knob] != _OWN_DEPTH[knob] else 0 for knob in lists}
        lines = "".join(_LISTS[knob].format(depth=depths[knob]) for knob in lists)
        pieces.append(_AHEAD.format(lines=lines))
        calls.append("gather_ahead(model)")
    return pieces, calls


def _write_arguments(ours: Collection[str], values: Mapping[str, Value]) -> str:
    """Return shard_arguments(), empty where fully_shard is told nothing."""
    lines = ""
    if GATHER in ours:
        again = int(values[GATHER]) or True
        lines += f'    if not outermost:\n        arguments["reshard_after_forward"] = {again}\n'
    if {HALF, HALF_TYPE} & set(ours):
        kind = DTYPES[str(values[HALF_TYPE])] if values[HALF] else "None"
        lines += f"    policy = dataclasses.replace(policy or MixedPrecisionPolicy(), reduce_dtype={kind})\n"
        lines += '    arguments["mp_policy"] = policy\n'
    return _ARGUMENTS.format(lines=lines) if lines else ""
