"""The files that list values and nothing else: strategy.json, strategy.env and nccl.conf."""

import json
import shlex

from advisor.exporters.format import JSON as JSON_TYPE
from advisor.exporters.format import PYTORCH, TEXT, Format, Written, comment
from advisor.exporters.words import VARIABLES, idle_because, typed_values
from advisor.protocol.answers.advice import Advice, Provenance
from advisor.protocol.answers.strategy_file import StrategyFile
from advisor.protocol.asked.jobs import Job
from advisor.protocol.kinds import Place
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.environment import TUNER
from advisor.protocol.training.own_knobs import UNSET
from advisor.protocol.training.workload import WorkloadKind

_IN_RANKS = (
    "NCCL takes it from a plugin that the runtime builds in the ranks: use the torchrun export (run.sh)."
)
"""Of the knobs `TUNER`."""
_MEMORY, _ALLOCATOR = "FLAGS_fraction_of_gpu_memory_to_use", "FLAGS_allocator_strategy"
"""Paddle takes memory ahead with the second flag at naive_best_fit only; by default it allocates on demand."""
_NCCL_KNOBS = tuple(
    name for name, knob in CATALOGUE.items() if knob.place is Place.ENVIRONMENT and name.startswith("NCCL_")
)


def write_json(advice: Advice, job: Job) -> Written:
    """Return the canonical file, from which every other format can be understood. It expresses every knob."""
    provenance = {name: advice.provenance.get(name, Provenance.CARRIED) for name in job.catalogue}
    file = StrategyFile(
        job_id=job.id,
        job_name=job.spec.name,
        date=job.finished_at or job.started_at or job.created_at,
        verdict=advice.verdict,
        headline=advice.headline,
        gain=advice.gain,
        baseline_samples_per_s=advice.baseline_samples_per_s,
        allowed=advice.allowed,
        certificate=advice.certificate,
        effect=job.catalogue.effect_of(advice.changes),
        changes=advice.changes,
        strategy=advice.strategy,
        baseline=advice.baseline,
        provenance=provenance,
        cluster=advice.cluster or job.cluster.describe(),
        software=advice.software,
        kind=job.spec.workload.kind,
        own=job.spec.workload.own,
        holds_for=job.facts,
    )
    content = json.dumps(file.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return Written(content=content, provenance=provenance)


def _choose_variables(advice: Advice) -> dict[str, str]:
    """The values of the changed knobs that are variables, by knob, unquoted."""
    values = typed_values(advice)
    return {
        knob: str(int(value)) if isinstance(value := values[knob], bool) else str(value)
        for knob in advice.changes
        if knob in VARIABLES and idle_because(knob, values) is None
    }


def _write_environment(advice: Advice, job: Job) -> Written:
    """The file, for `set -a; . ./strategy.env; set +a` before the launch, on every node."""
    chosen = _choose_variables(advice)
    variables = {VARIABLES[knob]: text for knob, text in chosen.items()}
    if _MEMORY in variables:
        variables[_ALLOCATOR] = "naive_best_fit"
    unset = {own.name: own.variable for own in job.spec.workload.own if advice.changes.get(own.name) == UNSET}
    made = Written(
        provenance={knob: advice.provenance.get(knob, Provenance.CARRIED) for knob in chosen},
        left={knob: "Unchanged: as your environment has it." for knob in VARIABLES if knob not in chosen},
    )
    for knob in advice.changes:
        if knob in TUNER:
            made.unmapped[knob] = _IN_RANKS
        elif unset.get(knob):
            made.unmapped[knob] = (
                f"A file of variables takes none away: unset {unset[knob]} before the launch."
            )
        elif knob not in chosen:
            made.unmapped[knob] = "No environment variable sets it: use the torchrun or paddle export."
    if variables:
        made.warnings.append(
            "A variable that the launcher or the script sets itself replaces the one given here."
        )
    if any(name.startswith("FLAGS_") for name in variables):
        made.warnings.append(
            "FLAGS_... variables are read by PaddlePaddle only; PyTorch takes the torchrun export."
        )
    title = "Environment of the strategy: set -a; . ./strategy.env; set +a before the launch, on every node."
    head = made.head(advice, job, title)
    if not variables:
        head.append("The strategy sets no environment variable.")
    lines = "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())
    made.content = comment(head) + lines
    return made


def _write_nccl_conf(advice: Advice, job: Job) -> Written:
    """The file, for `NCCL_CONF_FILE` (NCCL 2.23 and later) or as `~/.nccl.conf`."""
    variables = {name: text for name, text in _choose_variables(advice).items() if name in _NCCL_KNOBS}
    made = Written(
        provenance={name: advice.provenance.get(name, Provenance.CARRIED) for name in variables},
        unmapped={knob: "It is no setting of NCCL's." for knob in advice.changes if knob not in variables},
    )
    if variables:
        made.warnings.append(
            "A variable that is exported already beats this file; so does NCCL_CONF_FILE beat ~/.nccl.conf."
        )
    if ours := sorted(variables.keys() & job.spec.workload.environment.keys()):
        made.warnings.append(f"The job itself sets {', '.join(ours)}: take them out there.")
    title = "Strategy for NCCL: export NCCL_CONF_FILE=<this file> on every node, or save it as ~/.nccl.conf."
    head = made.head(advice, job, title)
    if not variables:
        head.append("The strategy sets nothing of NCCL's.")
    made.content = comment(head) + "".join(f"{name}={text}\n" for name, text in variables.items())
    return made


JSON = Format(
    name="json", filename="strategy.json", media_type=JSON_TYPE, knobs=tuple(CATALOGUE), write=write_json,
    bundled=tuple(WorkloadKind),
    meaning="The canonical file: every knob with its provenance, the gain and its interval.",
)  # fmt: skip
ENVIRONMENT = Format(
    name="env", filename="strategy.env", media_type=TEXT, knobs=tuple(VARIABLES), kinds=PYTORCH,
    write=_write_environment,
    meaning="The knobs that are environment variables, for a shell or a container.",
)  # fmt: skip
NCCL = Format(
    name="nccl", filename="nccl.conf", media_type=TEXT, knobs=_NCCL_KNOBS, kinds=PYTORCH, software="nccl",
    is_used=lambda software, facts: facts.backend == software, write=_write_nccl_conf,
    meaning="The knobs that NCCL itself reads, for NCCL_CONF_FILE or ~/.nccl.conf.",
)  # fmt: skip
