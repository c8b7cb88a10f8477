"""A Python file for a PyTorch script: `wrap(model, **ddp_arguments)` in place of DistributedDataParallel."""

from advisor.exporters.comments import comment, head_lines
from advisor.exporters.exported import Exported
from advisor.exporters.torch.ddp_code import DdpCode, write_ddp_code, write_imports
from advisor.exporters.torch.ddp_plan import plan_ddp
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job


def export_pytorch(advice: Advice, job: Job) -> Exported:
    """Return the file. It needs torch and nothing else."""
    plan = plan_ddp(advice, job)
    code = write_ddp_code(plan)
    title = (
        "Strategy for PyTorch: call wrap(model, ...) where you called DistributedDataParallel(model, ...)."
    )
    head = head_lines(advice, job, title, plan.provenance, plan.warnings, plan.unmapped)
    if "after_step" in code.functions:
        head.append("Call after_step(ddp) after every optimizer.step().")
    body = f"\n\n{code.body}" if code.body.startswith("def ") else f"\n{code.body}" if code.body else ""
    text = comment(head) + "\n" + write_imports(code.imports) + body + f"\n\n{_write_wrap(code)}"
    return Exported(
        format="pytorch",
        filename="ddp_strategy.py",
        media_type="text/x-python; charset=utf-8",
        content=text,
        provenance=plan.provenance,
        left=plan.left,
        unmapped=plan.unmapped,
        warnings=tuple(plan.warnings),
    )


def _write_wrap(code: DdpCode) -> str:
    lines = [
        "def wrap(model, **ddp_arguments):",
        '    """Return DistributedDataParallel(model, ...) under the strategy, whose arguments win over yours."""',
    ]
    if "prepare_process" in code.functions:
        lines.append("    prepare_process()")
    if "prepare_model" in code.functions:
        lines.append('    model = prepare_model(model, ddp_arguments.get("process_group"))')
    if "adjust_arguments" in code.functions:
        lines.append("    adjust_arguments(ddp_arguments)")
    if not code.calls_on_ddp():
        return "\n".join([*lines, "    return DistributedDataParallel(model, **ddp_arguments)"]) + "\n"
    lines.append("    ddp = DistributedDataParallel(model, **ddp_arguments)")
    lines += [f"    {name}(ddp)" for name in code.calls_on_ddp()]
    return "\n".join([*lines, "    return ddp"]) + "\n"
