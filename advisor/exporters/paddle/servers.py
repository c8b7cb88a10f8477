"""Exports for Paddle of a job that trains with parameter servers: which fields of a strategy say its mode.

Such a job is a command, and its mode stands in options of its own, which are known by their names (`Setup`): what the
program prints of them (`facts.parameter_servers`), what the command says, and the job's own knobs over both.

Paddle derives its mode from two fields: asynchronous is a_sync with k_steps 0, geo is a_sync with k_steps above 0,
synchronous is a_sync off with k_steps 0. The default of k_steps in a file is -1, which is none of them and trains
asynchronously, so that it is always written. What `a_sync_configs` has besides is read by nothing; geo's communicator
reads variables in its place (`VARIABLES`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from advisor.exporters.paddle.fields import PaddleField, PaddleFields, choose_fields
from advisor.exporters.selection import is_timed
from advisor.protocol.answers.advice import Advice, Provenance
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.training.own_knobs import find_option, read_value
from advisor.protocol.training.parameter_servers import Architecture, Mode, ServerSetup
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


def choose_for_job(advice: Advice, job: Job, target: str | None = None) -> PaddleFields:
    """Return the fields to write for Paddle `target`, of the mode that the job trains in."""
    setup = read_setup(advice, job)
    chosen = choose_fields(advice, job, target) if setup is None else _choose_fields(setup, target)
    for name in advice.changes:
        if name not in chosen.provenance() and job.spec.workload.kind is WorkloadKind.COMMAND:
            chosen.unmapped.setdefault(name, ELSEWHERE.get(name, "Paddle's strategy has no field for it."))
    return chosen


def _choose_fields(setup: Setup, target: str | None) -> PaddleFields:
    chosen = PaddleFields(target or VERSION, setup.timed_as, is_collective=False)
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
    chosen.warnings += list_warnings(setup, chosen.target)
    return chosen


def list_warnings(setup: Setup, target: str) -> list[str]:
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
