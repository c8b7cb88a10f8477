"""Knobs that are read when a process starts: an environment file, and `nccl.conf` for the variables of NCCL."""

import shlex

from advisor.exporters.comments import comment, head_lines
from advisor.exporters.exported import Exported
from advisor.exporters.selection import idle_because, typed_values
from advisor.protocol.answers.advice import Advice, Provenance
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.kinds import Place
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.environment import TUNER
from advisor.protocol.training.own_knobs import UNSET

VARIABLES = {
    **{
        name: knob.variable or name
        for name, knob in CATALOGUE.items()
        if (knob.place is Place.ENVIRONMENT or knob.variable) and name not in TUNER
    },
    "num_threads": "OMP_NUM_THREADS",
}
"""Knob -> the variable that carries it."""
IN_RANKS = (
    "NCCL takes it from a plugin that the runtime builds in the ranks: use the torchrun export (run.sh)."
)
"""Of the knobs `TUNER`."""
MEMORY, _ALLOCATOR = "FLAGS_fraction_of_gpu_memory_to_use", "FLAGS_allocator_strategy"
"""Paddle takes memory ahead with the second flag at naive_best_fit only; by default it allocates on demand."""


def choose_variables(advice: Advice) -> dict[str, str]:
    """Return the variables for the changed knobs, by variable name, unquoted."""
    values = typed_values(advice)
    chosen = {
        VARIABLES[knob]: _text(values[knob])
        for knob in advice.changes
        if knob in VARIABLES and idle_because(knob, values) is None
    }
    if MEMORY in chosen:
        chosen[_ALLOCATOR] = "naive_best_fit"
    return chosen


def export_environment(advice: Advice, job: Job) -> Exported:
    """Return the file, for `set -a; . ./strategy.env; set +a` before the launch, on every node."""
    variables = choose_variables(advice)
    by_variable = {variable: knob for knob, variable in VARIABLES.items()}
    provenance = {
        by_variable[name]: advice.provenance.get(by_variable[name], Provenance.CARRIED)
        for name in variables
        if name in by_variable
    }
    unset = {own.name: own.variable for own in job.spec.workload.own if advice.changes.get(own.name) == UNSET}
    unmapped = {
        knob: IN_RANKS
        if knob in TUNER
        else f"A file of variables takes none away: unset {unset[knob]} before the launch."
        if unset.get(knob)
        else "No environment variable sets it: use the torchrun or paddle export."
        for knob in advice.changes
        if knob not in provenance
    }
    warnings = []
    if variables:
        warnings.append("A variable that the launcher or the script sets itself replaces the one given here.")
    if any(name.startswith("FLAGS_") for name in variables):
        warnings.append(
            "FLAGS_... variables are read by PaddlePaddle only; PyTorch takes the torchrun export."
        )
    title = "Environment of the strategy: set -a; . ./strategy.env; set +a before the launch, on every node."
    head = head_lines(advice, job, title, provenance, warnings, unmapped)
    if not variables:
        head.append("The strategy sets no environment variable.")
    lines = "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())
    return Exported(
        format="env",
        filename="strategy.env",
        media_type="text/plain; charset=utf-8",
        content=comment(head) + lines,
        provenance=provenance,
        left={knob: "Unchanged: as your environment has it." for knob in VARIABLES if knob not in provenance},
        unmapped=unmapped,
        warnings=tuple(warnings),
    )


def _text(value: Value) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


NCCL_KNOBS = tuple(
    name for name, knob in CATALOGUE.items() if knob.place is Place.ENVIRONMENT and name.startswith("NCCL_")
)


def export_nccl_conf(advice: Advice, job: Job) -> Exported:
    """Return the file, for `NCCL_CONF_FILE` (NCCL 2.23 and later) or as `~/.nccl.conf`."""
    variables = {name: text for name, text in choose_variables(advice).items() if name in NCCL_KNOBS}
    provenance = {name: advice.provenance.get(name, Provenance.CARRIED) for name in variables}
    unmapped = {knob: "It is no setting of NCCL's." for knob in advice.changes if knob not in provenance}
    warnings = []
    if variables:
        warnings.append(
            "A variable that is exported already beats this file; so does NCCL_CONF_FILE beat ~/.nccl.conf."
        )
    if ours := sorted(variables.keys() & job.spec.workload.environment.keys()):
        warnings.append(f"The job itself sets {', '.join(ours)}: take them out there.")
    title = "Strategy for NCCL: export NCCL_CONF_FILE=<this file> on every node, or save it as ~/.nccl.conf."
    head = head_lines(advice, job, title, provenance, warnings, unmapped)
    if not variables:
        head.append("The strategy sets nothing of NCCL's.")
    return Exported(
        format="nccl",
        filename="nccl.conf",
        media_type="text/plain; charset=utf-8",
        content=comment(head) + "".join(f"{name}={text}\n" for name, text in variables.items()),
        provenance=provenance,
        unmapped=unmapped,
        warnings=tuple(warnings),
    )
