"""`transpiler_config.py`: a DistributeTranspilerConfig, for programs that Fluid's transpiler distributes.

Paddle's fleet acts on none of this any more: how variables are sliced and placed on servers, and NCCL's hierarchical
allreduce and communicators (mode "nccl2"). The class is still there in 2.6.2 and 3.3.1.
"""

from collections.abc import Iterator, Mapping

from advisor.exporters.comments import comment, head_lines, one_line
from advisor.exporters.exported import Exported
from advisor.exporters.paddle.servers import GEO_K, MIN_BLOCK, MODE, PLACEMENT, Setup, read_setup
from advisor.exporters.selection import idle_because, select_knobs, typed_values
from advisor.protocol.answers.advice import Advice, Provenance, name_provenance
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.training.parameter_servers import Mode, Placement

NCCL2 = ("nccl_comm_num", "use_hierarchical_allreduce", "hierarchical_allreduce_inter_nranks")
"""Knobs of the catalogue that mode "nccl2" has by the same names."""
_METHODS: Mapping[Value | None, str] = {Placement.ROUND_ROBIN: "RoundRobin", Placement.HASH_NAME: "HashName"}
_MEMORY = (
    "memory_optimize(program, skip_grads=True), where a program calls it, belongs on trainers only and before "
    "transpile(): a server must not call it, and without skip_grads the gradients to send are renamed. Since Paddle "
    "1.6 it does nothing but warn."
)
_IMPORT = "from paddle.distributed.transpiler import DistributeTranspilerConfig"
_DISPATCHERS = "paddle.incubate.distributed.fleet.parameter_server.ir.ps_dispatcher"
_SMALLEST = 8192
"""Elements; the transpiler refuses smaller blocks."""
_Line = tuple[str, str, Value | None, Provenance]
"""Knob, attribute, value (None: the name behind the attribute is a class), how much is known."""


def export_transpiler(advice: Advice, job: Job) -> Exported:
    """Return the file; it sets what was timed, and the mode."""
    setup = read_setup(advice, job)
    lines = list(_list_nccl2(advice) if setup is None else _list_servers(setup))
    provenance = {knob: known for knob, _, _, known in lines}
    unmapped = {
        name: "The transpiler has no such setting." for name in advice.changes if name not in provenance
    }
    if setup is not None and PLACEMENT in unmapped:
        unmapped[PLACEMENT] = "The transpiler has RoundRobin and HashName: write a PSDispatcher of your own."
    if setup is not None and MIN_BLOCK in unmapped:
        unmapped[MIN_BLOCK] = f"The transpiler takes no block of fewer than {_SMALLEST} elements."
    title = "DistributeTranspilerConfig for PaddlePaddle: DistributeTranspiler(make_transpiler_config())."
    warnings = [
        "Read by Paddle 2.6.2 and 3.3.1; before 2.5 import the class from paddle.fluid. It was not run."
    ]
    if setup is not None:
        warnings.append(_MEMORY)
        warnings.append(
            f"transpile() has a sync_mode of its own: call it with sync_mode={setup.mode is Mode.SYNC}."
        )
    methods = [attribute.split(" = ")[1] for _, attribute, value, _ in lines if value is None]
    mode = "nccl2" if setup is None else "pserver"
    imports = [_IMPORT, *(f"from {_DISPATCHERS} import {method}" for method in methods)]
    text = (
        comment(head_lines(advice, job, title, provenance, warnings, unmapped))
        + "".join(f"{line}\n" for line in imports)
        + "\n\ndef make_transpiler_config():\n    config = DistributeTranspilerConfig()\n"
        + f'    config.mode = "{mode}"\n'
        + "".join(f"    config.{_assign(line)}\n" for line in lines)
        + "    return config\n"
    )
    return Exported(
        format="paddle-transpiler",
        filename="transpiler_config.py",
        media_type="text/x-python; charset=utf-8",
        content=text,
        provenance=provenance,
        unmapped=unmapped,
        warnings=tuple(warnings),
    )


def _assign(line: _Line) -> str:
    _, attribute, value, known = line
    text = attribute if value is None else f"{attribute} = {value!r}"
    return f"{text}  # {one_line(name_provenance(known))}"


def _list_nccl2(advice: Advice) -> Iterator[_Line]:
    values, meant = typed_values(advice), select_knobs(advice)
    for name in NCCL2:
        if name in meant and not idle_because(name, values):
            timed = advice.provenance.get(name, Provenance.CARRIED)
            known = Provenance.CARRIED if timed is Provenance.CARRIED else Provenance.TRANSLATED
            yield name, name, values[name], known


def _list_servers(setup: Setup) -> Iterator[_Line]:
    known = setup.provenance_of(MODE)
    yield MODE, "sync_mode", setup.mode is Mode.SYNC, known
    if setup.mode is Mode.ASYNC:
        # Otherwise trainers wait for each other to send (half_async).
        yield MODE, "runtime_split_send_recv", True, known
    if setup.mode is Mode.GEO:
        yield MODE, "geo_sgd_mode", True, known
        yield GEO_K, "geo_sgd_need_push_nums", int(setup.values[GEO_K]), setup.provenance_of(GEO_K)
    least = setup.count(MIN_BLOCK)
    if MIN_BLOCK in setup.varied and least is not None:
        known = setup.provenance_of(MIN_BLOCK)
        if not least:
            yield MIN_BLOCK, "slice_var_up", False, known
        elif least >= _SMALLEST:
            yield MIN_BLOCK, "slice_var_up", True, known
            yield MIN_BLOCK, "min_block_size", least, known
    method = _METHODS.get(setup.values.get(PLACEMENT))
    if method and PLACEMENT in setup.varied:
        yield PLACEMENT, f"split_method = {method}", None, setup.provenance_of(PLACEMENT)
