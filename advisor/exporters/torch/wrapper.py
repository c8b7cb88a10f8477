"""`apply_strategy.py`: runs an unchanged training script with the strategy in force; needs Python and torch only.

It gives DistributedDataParallel the measured arguments when the script builds it, and then is out of the way.
"""

from advisor.exporters.comments import comment, head_lines
from advisor.exporters.exported import Exported
from advisor.exporters.torch.ddp_code import DdpCode, write_ddp_code, write_imports
from advisor.exporters.torch.ddp_plan import plan_ddp
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job

_SPAWN = (
    "It acts in the process that it starts: a script that spawns its own ranks (torch.multiprocessing.spawn) has to "
    "be launched by torchrun instead, or to use the pytorch export."
)
_RUN = '''\
def main():
    """Run `[-m module | script.py] arguments...` as Python would."""
    words = sys.argv[1:]
    if not words or words == ["-m"]:
        raise SystemExit("usage: apply_strategy.py [-m module | script.py] arguments...")
{prepare}    if words[0] == "-m":
        sys.path[0] = os.getcwd()
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.path[0] = os.path.dirname(os.path.realpath(words[0]))
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
'''
_AVERAGE = '''\
def average_after_steps():
    """Average the parameters as the script's first optimizer steps; further optimizers are not counted."""
    counted = []

    def after_optimizer(optimizer, args, kwargs):
        if not counted or counted[0]() is None:
            counted[:] = [weakref.ref(optimizer)]
        if counted[0]() is optimizer:
            for ddp in list(AVERAGERS):
                after_step(ddp)

    register_optimizer_step_post_hook(after_optimizer)
'''


def export_wrapper(advice: Advice, job: Job) -> Exported:
    """Return the file that is put before the user's script on nodes without fleet-advisor."""
    plan = plan_ddp(advice, job)
    code = write_ddp_code(plan)
    imports = set(code.imports) | {"import os", "import runpy", "import sys"}
    if not plan.is_empty:
        plan.warnings.append(_SPAWN)
    title = (
        "Runs an unchanged training script under the strategy: torchrun ... apply_strategy.py train.py ..."
    )
    head = head_lines(advice, job, title, plan.provenance, plan.warnings, plan.unmapped)
    pieces = [code.body] if code.body else []
    if code.touches_ddp:
        imports |= {"import functools", "import inspect"}
        pieces.append(_write_patch(code))
    else:
        imports.discard("from torch.nn.parallel import DistributedDataParallel")
    if "after_step" in code.functions:
        imports.add("from torch.optim.optimizer import register_optimizer_step_post_hook")
        pieces.append(_AVERAGE)
    pieces.append(_RUN.format(prepare=_write_preparation(code)))
    gap = "\n\n" if pieces[0].startswith("def ") else "\n"
    return Exported(
        format="wrapper",
        filename="apply_strategy.py",
        media_type="text/x-python; charset=utf-8",
        content=comment(head) + "\n" + write_imports(frozenset(imports)) + gap + "\n\n".join(pieces),
        provenance=plan.provenance,
        left=plan.left,
        unmapped=plan.unmapped,
        warnings=tuple(plan.warnings),
    )


def _write_patch(code: DdpCode) -> str:
    adjust = "        adjust_arguments(bound.arguments)\n" if "adjust_arguments" in code.functions else ""
    if "prepare_model" in code.functions:
        place = 'bound.arguments["module"]'
        adjust = f'        {place} = prepare_model({place}, bound.arguments.get("process_group"))\n' + adjust
    calls = "".join(f"        {name}(self)\n" for name in code.calls_on_ddp())
    return (
        "def patch_ddp():\n"
        '    """Put the strategy into every DistributedDataParallel that the script builds."""\n'
        "    original = DistributedDataParallel.__init__\n"
        "    signature = inspect.signature(original)\n\n"
        "    @functools.wraps(original)\n"
        "    def build(self, *args, **kwargs):\n"
        "        bound = signature.bind(self, *args, **kwargs)\n"
        f"{adjust}"
        "        original(*bound.args, **bound.kwargs)\n"
        f"{calls}\n"
        "    DistributedDataParallel.__init__ = build\n"
    )


def _write_preparation(code: DdpCode) -> str:
    calls = []
    if "prepare_process" in code.functions:
        calls.append("prepare_process()")
    if code.touches_ddp:
        calls.append("patch_ddp()")
    if "after_step" in code.functions:
        calls.append("average_after_steps()")
    return "".join(f"    {call}\n" for call in calls)
