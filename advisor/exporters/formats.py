"""The formats that a strategy can be exported in, and which of them suit a job."""

from collections.abc import Mapping
from types import MappingProxyType

from advisor.exporters.format import Exported, ExportError, Format
from advisor.exporters.frameworks import ACCELERATE, DEEPSPEED, LIGHTNING, TRAINER
from advisor.exporters.launch import COMMAND, RUNTIME, TORCHRUN
from advisor.exporters.paddle import PROTOTXT, SCRIPT
from advisor.exporters.paddle_servers import SERVERS_FILE, TRANSPILER
from advisor.exporters.plain import ENVIRONMENT, JSON, NCCL
from advisor.exporters.schedulers import KUBERNETES, SLURM
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job
from advisor.protocol.near_names import find_nearest

BUNDLE = "bundle"
"""What stands for the files that the job's own training loads, and a report, where one format is named."""
FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        made.name: made
        for made in (
            JSON, TORCHRUN, RUNTIME, SLURM, KUBERNETES, COMMAND, TRAINER, ACCELERATE, LIGHTNING, DEEPSPEED, PROTOTXT,
            SCRIPT, SERVERS_FILE, TRANSPILER, ENVIRONMENT, NCCL,
        )
    }
)  # fmt: skip
"""Every format by name, in the order people are shown them."""


def export(advice: Advice, job: Job, format: str, target: str | None = None) -> Exported:
    """Return the strategy of `advice` in `format`, for version `target` of the tool where the format has versions.

    Raises ExportError, with a sentence, for an unknown format or target, and for one that means nothing for this job.
    """
    if format not in FORMATS:
        near = find_nearest(format[:100], FORMATS)
        asked = f" (did you mean {' or '.join(near)}?)" if near else ""
        raise ExportError(f"There is no format {format[:100]!r}{asked}; there are {', '.join(FORMATS)}.")
    suitable = list_suitable(job)
    if FORMATS[format] not in suitable:
        raise ExportError(
            f"Format {format} cannot apply the strategy of a {job.spec.workload.kind.value} workload: choose one of "
            f"{', '.join(made.name for made in suitable)}."
        )
    if target is not None and not FORMATS[format].targets:
        versioned = ", ".join(made.name for made in FORMATS.values() if made.targets)
        raise ExportError(
            f"Format {format} has no target versions, but {target!r} was asked for: only {versioned} do."
        )
    return FORMATS[format].export(advice, job, target)


def list_suitable(job: Job) -> tuple[Format, ...]:
    """Return the formats that can apply the strategy of this job's workload."""
    return tuple(
        made for made in FORMATS.values() if job.spec.workload.kind in made.kinds and made.suits(job)
    )


def list_at_work(job: Job) -> tuple[Format, ...]:
    """Return the suitable formats without those of libraries that the training does not use."""
    facts = job.facts
    return tuple(
        made
        for made in list_suitable(job)
        if made.is_offered and (not made.software or (facts and made.is_used(made.software, facts)))
    )


def list_bundled(job: Job) -> tuple[Format, ...]:
    """Return what a bundle holds: the strategy, what starts the job's command, and what its framework loads."""
    return tuple(made for made in list_at_work(job) if job.spec.workload.kind in made.bundled)


def choose_start(job: Job) -> Format:
    """Return the format that puts the strategy into the job's own command."""
    return next(made for made in list_bundled(job) if made is not JSON and not made.software)


def choose_format(job: Job) -> Format:
    """Return the format for the library that wraps the model, else the one for the job's own command."""
    return next((made for made in list_bundled(job) if made.software), choose_start(job))
