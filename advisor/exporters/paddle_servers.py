"""Exports for Paddle of a job that trains with parameter servers: its mode, what starts it, and Fluid's transpiler.

Such a job is a command, and its mode stands in options of its own, which are known by their names (`Setup`): what the
program prints of them (`facts.parameter_servers`), what the command says, and the job's own knobs over both.

Paddle derives its mode from two fields: asynchronous is a_sync with k_steps 0, geo is a_sync with k_steps above 0,
synchronous is a_sync off with k_steps 0. The default of k_steps in a file is -1, which is none of them and trains
asynchronously, so that it is always written. What `a_sync_configs` has besides is read by nothing; geo's communicator
reads variables in its place (`VARIABLES`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from advisor.exporters.format import (
    COMMAND,
    IN_PADDLE,
    PYTHON,
    ExportError,
    Format,
    Written,
    comment,
    one_line,
)
from advisor.exporters.paddle_fields import PaddleField, PaddleFields, choose_fields, is_timed, select_knobs
from advisor.exporters.words import idle_because, typed_values
from advisor.protocol.answers.advice import Advice, Provenance, name_provenance
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.training.command_options import find_option
from advisor.protocol.training.own_knobs import read_value, spell
from advisor.protocol.training.parameter_servers import Architecture, Mode, Placement, ServerSetup
from advisor.protocol.training.workload import WorkloadKind

MODE, GEO_K, SERVERS, PLACEMENT, MIN_BLOCK = "mode", "geo_k", "servers", "placement", "min_block"
TRAINERS = "trainers"
ARCHITECTURE = "architecture"
_OPTIONS = {MODE: "--mode", GEO_K: "--geo-k", SERVERS: "--servers", TRAINERS: "--trainers"}
"""What a command says of a job's servers where it has them for knobs."""
VARIABLES = {
    name: f"FLAGS_communicator_{name}"
    for name in ("max_merge_var_num", "send_queue_size", "thread_pool_size", "send_wait_times")
}
"""Settings of geo's communicator, by the names that they have in a_sync_configs, and the variables that it reads."""
VERSION = "2.6.2"
"""Of the two versions the one whose packages for CPUs hold parameter servers."""
ELSEWHERE = {
    SERVERS: "paddle_servers.py starts as many (format paddle-servers).",
    **dict.fromkeys(
        (PLACEMENT, MIN_BLOCK),
        "Paddle's fleet slices and places by itself; a transpiler can be told (format paddle-transpiler).",
    ),
    **dict.fromkeys(
        VARIABLES,
        "Paddle accepts it in a_sync_configs and nothing reads it: paddle_servers.py sets the variable.",
    ),
}
"""Own knobs that are no fields, with what says them."""
_SOURCE = Path(__file__).parents[2] / "agent" / "workloads" / "paddle_servers.py"
_NUMBERS, _EMPTY = "SERVERS, TRAINERS = 1, 2\n", "VARIABLES: dict[str, str] = {}\n"
_KNOBS = (SERVERS, *VARIABLES)
_NOT_HERE = {
    **dict.fromkeys((MODE, GEO_K), "paddle_strategy.py has it (format paddle-python)."),
    **dict.fromkeys((PLACEMENT, MIN_BLOCK), ELSEWHERE[PLACEMENT]),
    **dict.fromkeys(VARIABLES, "Geo's communicator alone reads it."),
}
_NO_SERVERS = "The advised architecture has no parameter servers: start trainers only."
_NCCL2 = ("nccl_comm_num", "use_hierarchical_allreduce", "hierarchical_allreduce_inter_nranks")
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


@dataclass(frozen=True)
class Setup:
    """How the servers of a job are set up under its advice."""

    values: Mapping[str, Value]
    timed_as: Provenance
    """How much is known about a value that was varied."""
    varied: frozenset[str]

    @property
    def mode(self) -> Mode:
        """When trainers wait for each other."""
        return Mode(str(self.values[MODE]))

    def count(self, name: str) -> int | None:
        """Return a value that is a whole number; None where there is none, or something else stands there."""
        value = self.values.get(name)
        return value if isinstance(value, int) else None

    def provenance_of(self, name: str) -> Provenance:
        """Return how much is known about a value in Paddle."""
        return self.timed_as if name in self.varied else Provenance.CARRIED


def list_today(job: Job) -> dict[str, Value]:
    """Return what is known of a job's parameter servers as it stands; empty for jobs without, or with too little."""
    if job.spec.workload.kind is not WorkloadKind.COMMAND:
        return {}
    told = job.facts.parameter_servers if job.facts else None
    values: dict[str, Value] = (
        {
            **told.model_dump(mode="json", include=set(ServerSetup.model_fields)),
            TRAINERS: len(told.trainer_nodes),
        }
        if told
        else {}
    )
    own = {knob.name: knob for knob in job.spec.workload.own}
    if not values and not own.keys() & _OPTIONS.keys():
        return {}
    command = job.spec.workload.command
    for name, option in _OPTIONS.items():
        if (found := find_option(command, option)) is not None:
            values[name] = read_value(command[found[0]].removeprefix(found[1]))
    values |= {name: knob.own_value for name, knob in own.items()}
    modes = {*own[MODE].values, values[MODE]} if MODE in own else {values.get(MODE)}
    is_whole = modes <= set(Mode) and (Mode.GEO not in modes or isinstance(values.get(GEO_K), int))
    return values if is_whole else {}


def read_setup(advice: Advice, job: Job) -> Setup | None:
    """Return the setup under the advice; None for a job, or an advised architecture, without parameter servers."""
    values = list_today(job)
    own = {knob.name for knob in job.spec.workload.own}
    values |= {name: advice.strategy[name] for name in own if values and name in advice.strategy}
    if not values or values.get(ARCHITECTURE, Architecture.SERVERS) != Architecture.SERVERS:
        return None
    in_paddle = "paddle" in advice.software or (job.facts is not None and "paddle" in job.facts.software)
    timed_as = Provenance.MEASURED if in_paddle else Provenance.TRANSLATED
    return Setup(values, timed_as, frozenset(name for name in own if is_timed(advice, name)))


def may_suit(job: Job) -> bool:
    """Whether files for Paddle suit a job: of commands, those that tell their servers' mode."""
    return job.spec.workload.kind is not WorkloadKind.COMMAND or bool(list_today(job))


def choose_for_job(advice: Advice, job: Job, target: str | None = None) -> PaddleFields:
    """Return the fields to write for Paddle `target`, of the mode that the job trains in."""
    setup = read_setup(advice, job)
    chosen = choose_fields(advice, job, target) if setup is None else _choose_fields(setup, target)
    chosen.provenance = {entry.knob: entry.provenance for entry in chosen.fields}
    for name in advice.changes:
        if name not in chosen.provenance and job.spec.workload.kind is WorkloadKind.COMMAND:
            chosen.unmapped.setdefault(name, ELSEWHERE.get(name, "Paddle's strategy has no field for it."))
    return chosen


def _choose_fields(setup: Setup, target: str | None) -> PaddleFields:
    chosen = PaddleFields(target=target or VERSION, timed_as=setup.timed_as, is_collective=False)
    is_geo, known = setup.mode is Mode.GEO, setup.provenance_of(MODE)
    # Setting a_sync resets a_sync_configs, so it stands first.
    chosen.fields.append(PaddleField(MODE, ("a_sync",), setup.mode is not Mode.SYNC, known))
    name, steps = (GEO_K, int(setup.values[GEO_K])) if is_geo else (MODE, 0)
    note = "" if is_geo else f"makes it {setup.mode}"
    chosen.fields.append(
        PaddleField(name, ("a_sync_configs", "k_steps"), steps, setup.provenance_of(name), note)
    )
    if not is_geo and GEO_K in setup.values:
        chosen.left[GEO_K] = f"It counts in geo, and the mode is {setup.mode}."
    chosen.warnings += _list_warnings(setup, chosen.target)
    return chosen


def _list_warnings(setup: Setup, target: str) -> list[str]:
    """Return what was seen of the mode in Paddle on CPUs."""
    said = []
    if target != VERSION:
        said.append(f"Paddle {target}'s packages for CPUs hold no parameter servers; {VERSION}'s do.")
    if setup.mode is Mode.SYNC:
        said.append(
            f"Trainers of Paddle {VERSION} crash in sync on CPUs (SIGSEGV in the barrier between them)."
        )
    if setup.mode is Mode.ASYNC:
        said.append(
            "Trainers that call exe.run in async do not fetch dense parameters again; those that call "
            "exe.train_from_dataset do."
        )
    return said


def _write_servers(advice: Advice, job: Job) -> Written:
    """The launcher, which is the bundled one with the advised numbers in it.

    Raises ExportError where the advised architecture has no servers.
    """
    setup = read_setup(advice, job)
    if setup is None:
        raise ExportError(_NO_SERVERS)
    servers = setup.count(SERVERS) or 1
    trainers = setup.count(TRAINERS) or (job.facts.world_size if job.facts else 2)
    # What the variables set is read by geo's communicator only, and only what was varied is set.
    told = [name for name in VARIABLES if setup.mode is Mode.GEO and name in setup.varied]
    variables = {VARIABLES[name]: spell(setup.values[name]) for name in told}
    names = [*([SERVERS] if setup.count(SERVERS) else []), *told]
    made = Written(
        target=VERSION,
        provenance={name: setup.provenance_of(name) for name in names},
        unmapped={
            name: _NOT_HERE.get(name, "The launcher has no such setting.")
            for name in advice.changes
            if name not in names
        },
        warnings=[
            *_list_warnings(setup, VERSION),
            "One machine. On several, Paddle's own launcher starts the same roles, and its servers have to be ended by "
            "hand: fleetrun --servers IP:PORT,IP:PORT --trainers IP:PORT,IP:PORT train.py",
        ],
    )
    title = f"Servers and trainers for PaddlePaddle {VERSION}: python paddle_servers.py -- python train.py"
    source = _SOURCE.read_text(encoding="utf-8")
    source = source.replace(_NUMBERS, f"SERVERS, TRAINERS = {servers}, {trainers}\n")
    source = source.replace(_EMPTY, f"VARIABLES: dict[str, str] = {variables!r}\n")
    made.content = comment(made.head(advice, job, title)) + source
    return made


def _write_transpiler(advice: Advice, job: Job) -> Written:
    """The DistributeTranspilerConfig, for programs that Fluid's transpiler distributes: what was timed, and the mode.

    Paddle's fleet acts on none of this any more: how variables are sliced and placed on servers, and NCCL's
    hierarchical allreduce and communicators (mode "nccl2"). The class is still there in 2.6.2 and 3.3.1.
    """
    setup = read_setup(advice, job)
    lines = list(_list_nccl2(advice) if setup is None else _list_servers(setup))
    made = Written(provenance={knob: known for knob, _, _, known in lines})
    made.unmapped = {
        name: "The transpiler has no such setting." for name in advice.changes if name not in made.provenance
    }
    if setup is not None and PLACEMENT in made.unmapped:
        made.unmapped[PLACEMENT] = (
            "The transpiler has RoundRobin and HashName: write a PSDispatcher of your own."
        )
    if setup is not None and MIN_BLOCK in made.unmapped:
        made.unmapped[MIN_BLOCK] = f"The transpiler takes no block of fewer than {_SMALLEST} elements."
    made.warnings = [
        "Read by Paddle 2.6.2 and 3.3.1; before 2.5 import the class from paddle.fluid. It was not run."
    ]
    if setup is not None:
        is_sync = setup.mode is Mode.SYNC
        made.warnings.append(_MEMORY)
        made.warnings.append(f"transpile() has a sync_mode of its own: call it with sync_mode={is_sync}.")
    title = "DistributeTranspilerConfig for PaddlePaddle: DistributeTranspiler(make_transpiler_config())."
    methods = [attribute.split(" = ")[1] for _, attribute, value, _ in lines if value is None]
    mode = "nccl2" if setup is None else "pserver"
    imports = [_IMPORT, *(f"from {_DISPATCHERS} import {method}" for method in methods)]
    made.content = (
        comment(made.head(advice, job, title))
        + "".join(f"{line}\n" for line in imports)
        + "\n\ndef make_transpiler_config():\n    config = DistributeTranspilerConfig()\n"
        + f'    config.mode = "{mode}"\n'
        + "".join(f"    config.{_assign(line)}\n" for line in lines)
        + "    return config\n"
    )
    return made


def _assign(line: _Line) -> str:
    _, attribute, value, known = line
    text = attribute if value is None else f"{attribute} = {value!r}"
    return f"{text}  # {one_line(name_provenance(known))}"


def _list_nccl2(advice: Advice) -> Iterator[_Line]:
    values, meant = typed_values(advice), select_knobs(advice)
    for name in _NCCL2:
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


SERVERS_FILE = Format(
    name="paddle-servers", filename="paddle_servers.py", media_type=PYTHON, kinds=COMMAND, bundled=COMMAND,
    knobs=_KNOBS, suits=may_suit, write=_write_servers,
    meaning="Starts the servers and trainers of a PaddlePaddle training on one machine, and ends the servers: "
    "python paddle_servers.py -- python train.py.",
)  # fmt: skip
TRANSPILER = Format(
    name="paddle-transpiler", filename="transpiler_config.py", media_type=PYTHON, kinds=IN_PADDLE, knobs=_NCCL2,
    suits=may_suit, is_offered=False, write=_write_transpiler,
    meaning="A Python file for programs that are still distributed by Fluid's transpiler: its "
    "DistributeTranspilerConfig. Not in a bundle.",
)  # fmt: skip
