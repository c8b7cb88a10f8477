"""`fsdp_strategy.py`: what to call once the model is sharded by `fully_shard`."""

from advisor.exporters.comments import comment, head_lines
from advisor.exporters.exported import Exported
from advisor.exporters.torch.ddp_code import write_imports, write_process_code
from advisor.exporters.torch.ddp_plan import plan_ddp
from advisor.protocol.advice import Advice, Provenance
from advisor.protocol.jobs import Job

STAGE = "sharding_stage"
_RESHARD = '''\
def set_stage(model):
    """Gather parameters {often}: ZeRO's stage {stage}."""
    for module in model.modules():
        if isinstance(module, FSDPModule) and module is not model:
            module.set_reshard_after_forward({again}, recurse=False)
'''


def export_fsdp(advice: Advice, job: Job) -> Exported:
    """Return the file. It needs torch 2.6 or later and nothing else."""
    plan = plan_ddp(advice, job)
    carried = {*plan.process, *({STAGE} & advice.changes.keys())}
    provenance = {
        knob: advice.provenance.get(knob, Provenance.CARRIED) for knob in advice.changes if knob in carried
    }
    unmapped = {
        knob: plan.unmapped.get(knob, "It concerns DistributedDataParallel, and the model is sharded.")
        for knob in advice.changes
        if knob not in carried
    }
    imports, lines = write_process_code(plan.process)
    body = ""
    if STAGE in carried:
        imports.add("from torch.distributed.fsdp import FSDPModule")
        stage = advice.changes[STAGE]
        often = "for the forward and again for the backward" if stage == 3 else "once a step"
        body = _RESHARD.format(stage=stage, often=often, again=stage == 3) + "\n\n"
        lines.append("set_stage(model)")
    title = "Strategy for sharded models: call apply(model) after fully_shard(model), before the first step."
    head = head_lines(advice, job, title, provenance, plan.warnings, unmapped)
    return Exported(
        format="fsdp",
        filename="fsdp_strategy.py",
        media_type="text/x-python; charset=utf-8",
        content=comment(head)
        + (f"\n{write_imports(frozenset(imports))}" if imports else "")
        + f'\n\n{body}def apply(model):\n    """Put the strategy in force, in every rank."""\n'
        + "".join(f"    {line}\n" for line in lines)
        + "    return model\n",
        provenance=provenance,
        unmapped=unmapped,
        warnings=tuple(plan.warnings),
    )
