"""The formats that a strategy can be exported in, and the way from a name to a file."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from advisor.exporters.exported import Exported, ExportError, FormatInfo
from advisor.exporters.frameworks.arguments import LIBRARIES, export_arguments
from advisor.exporters.frameworks.deepspeed import TABLE as DEEPSPEED
from advisor.exporters.frameworks.deepspeed import export_deepspeed
from advisor.exporters.launch.command import export_command
from advisor.exporters.launch.environment import NCCL_KNOBS, VARIABLES, export_environment, export_nccl_conf
from advisor.exporters.launch.run_script import RUNTIME, export_torchrun
from advisor.exporters.launch.runtime_archive import export_runtime
from advisor.exporters.launch.schedulers import export_kubernetes, export_slurm
from advisor.exporters.paddle.launcher import KNOBS as OF_LAUNCHER
from advisor.exporters.paddle.launcher import export_paddle_servers
from advisor.exporters.paddle.prototxt import export_paddle
from advisor.exporters.paddle.python import export_paddle_python
from advisor.exporters.paddle.servers import list_today
from advisor.exporters.paddle.transpiler import NCCL2, export_transpiler
from advisor.exporters.strategy_json import export_json
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.paddle import VERSIONS, explain_not_written
from advisor.protocol.knobs.sharding import DEEPSPEED as DEEPSPEED_ENGINE
from advisor.protocol.training.workload import WorkloadKind

_PYTHON = "text/x-python; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"
_PADDLE_KNOBS = tuple(
    name for name in CATALOGUE if not all(explain_not_written(name, version) for version in VERSIONS)
)
_LEVERS = tuple(name for name, knob in CATALOGUE.items() if not knob.carried)
_NCCL, _DEEPSPEED = "nccl", "deepspeed"
_PYTORCH, _COMMAND = (WorkloadKind.PYTORCH,), (WorkloadKind.COMMAND,)
_IN_PADDLE = (WorkloadKind.PYTORCH, WorkloadKind.PADDLE, WorkloadKind.COMMAND)
_PADDLE, _TRANSPILER = "paddle", "paddle-transpiler"

_IN_EVERY_BUNDLE = ("json", "torchrun", "runtime", "command")
BUNDLE = "bundle"
"""What stands for the files that the job's own training loads, and a report, where one format is named."""
FORMATS: Mapping[str, FormatInfo] = MappingProxyType(
    {
        info.name: info
        for info in (
            FormatInfo(
                name="json", filename="strategy.json", media_type="application/json", knobs=tuple(CATALOGUE),
                meaning="The canonical file: every knob with its provenance, the gain and its interval.",
            ),
            FormatInfo(
                name="torchrun", filename="run.sh", media_type="text/x-shellscript; charset=utf-8", knobs=_LEVERS,
                kinds=_PYTORCH,
                meaning="Your own launch command behind the runtime: every change in force and proved, no line of the "
                "script changed. Save strategy.json and fleet_advisor_runtime.pyz beside it.",
            ),
            FormatInfo(
                name="runtime", filename=RUNTIME, media_type="application/zip", knobs=_LEVERS, kinds=_PYTORCH,
                meaning="The runtime that measured the strategy, for nodes without fleet-advisor: put it before a "
                "launch command or, behind a launcher, before the script's name. Reads strategy.json beside it.",
            ),
            FormatInfo(
                name="slurm", filename="train.sbatch", media_type="text/x-shellscript; charset=utf-8", knobs=_LEVERS,
                kinds=_PYTORCH,
                meaning="run.sh on every node of a Slurm allocation: sbatch train.sbatch.",
            ),
            FormatInfo(
                name="kubernetes", filename="job.yaml", media_type="application/yaml", knobs=_LEVERS, kinds=_PYTORCH,
                meaning="run.sh in one pod a node of a Kubernetes cluster: an indexed Job with the strategy in it.",
            ),
            FormatInfo(
                name="command", filename="run.sh", media_type="text/x-shellscript; charset=utf-8",
                knobs=tuple(CATALOGUE), kinds=_COMMAND,
                meaning="Your own command with the strategy's values in it and in its environment.",
            ),
            FormatInfo(
                name="trainer", filename="training_arguments.py", media_type=_PYTHON, kinds=_PYTORCH,
                knobs=tuple(LIBRARIES["transformers"].table), software="transformers",
                meaning="A Python file for Hugging Face's Trainer: TrainingArguments(..., **strategy_arguments()).",
            ),
            FormatInfo(
                name="accelerate", filename="accelerator_arguments.py", media_type=_PYTHON, kinds=_PYTORCH,
                knobs=tuple(LIBRARIES["accelerate"].table), software="accelerate",
                meaning="A Python file for Accelerate: Accelerator(..., **strategy_arguments()).",
            ),
            FormatInfo(
                name="lightning", filename="trainer_arguments.py", media_type=_PYTHON, kinds=_PYTORCH,
                knobs=tuple(LIBRARIES["lightning"].table), software="lightning",
                meaning="A Python file for Lightning: Trainer(..., **strategy_arguments()).",
            ),
            FormatInfo(
                name="deepspeed", filename="ds_config.json", media_type="application/json", kinds=_PYTORCH,
                knobs=tuple(DEEPSPEED), software=_DEEPSPEED,
                meaning="Keys to merge into DeepSpeed's configuration.",
            ),
            FormatInfo(
                name="paddle", filename="strategy.prototxt", media_type=_TEXT, targets=VERSIONS, knobs=_PADDLE_KNOBS,
                kinds=_IN_PADDLE,
                meaning="A file for PaddlePaddle's DistributedStrategy.load_from_prototxt.",
            ),
            FormatInfo(
                name="paddle-python", filename="paddle_strategy.py", media_type=_PYTHON, targets=VERSIONS,
                knobs=_PADDLE_KNOBS, kinds=_IN_PADDLE,
                meaning="A Python file for PaddlePaddle: builds the DistributedStrategy and initialises Fleet with it.",
            ),
            FormatInfo(
                name="paddle-servers", filename="paddle_servers.py", media_type=_PYTHON, kinds=_COMMAND,
                knobs=OF_LAUNCHER,
                meaning="Starts the servers and trainers of a PaddlePaddle training on one machine, and ends the "
                "servers: python paddle_servers.py -- python train.py.",
            ),
            FormatInfo(
                name=_TRANSPILER, filename="transpiler_config.py", media_type=_PYTHON, kinds=_IN_PADDLE, knobs=NCCL2,
                meaning="A Python file for programs that are still distributed by Fluid's transpiler: its "
                "DistributeTranspilerConfig. Not in a bundle.",
            ),
            FormatInfo(
                name="env", filename="strategy.env", media_type=_TEXT, knobs=tuple(VARIABLES),
                kinds=_PYTORCH,
                meaning="The knobs that are environment variables, for a shell or a container.",
            ),
            FormatInfo(
                name="nccl", filename="nccl.conf", media_type=_TEXT, knobs=NCCL_KNOBS, kinds=_PYTORCH, software=_NCCL,
                meaning="The knobs that NCCL itself reads, for NCCL_CONF_FILE or ~/.nccl.conf.",
            ),
        )
    }
)  # fmt: skip
"""Every format by name, in the order people are shown them."""

_VERSIONED: Mapping[str, Callable[[Advice, Job, str | None], Exported]] = {
    "paddle": export_paddle,
    "paddle-python": export_paddle_python,
}
_PLAIN: Mapping[str, Callable[[Advice, Job], Exported]] = {
    "json": export_json,
    "torchrun": export_torchrun,
    "runtime": export_runtime,
    "command": export_command,
    "env": export_environment,
    "nccl": export_nccl_conf,
    "slurm": export_slurm,
    "kubernetes": export_kubernetes,
    "paddle-servers": export_paddle_servers,
    _TRANSPILER: export_transpiler,
    "deepspeed": export_deepspeed,
}


def export(advice: Advice, job: Job, format: str, target: str | None = None) -> Exported:
    """Return the strategy of `advice` in `format`, for version `target` of the tool where the format has versions.

    Raises ExportError, with a sentence, for an unknown format or target, and for one that means nothing for this job.
    """
    if format not in FORMATS:
        raise ExportError(f"{format!r} is no export format: choose one of {', '.join(FORMATS)}.")
    suitable = [info.name for info in list_suitable(job)]
    if format not in suitable:
        raise ExportError(
            f"Format {format} cannot apply the strategy of a {job.spec.workload.kind.value} workload: choose one of "
            f"{', '.join(suitable)}."
        )
    if format in _VERSIONED:
        return _VERSIONED[format](advice, job, target)
    if target is not None:
        versioned = ", ".join(_VERSIONED)
        raise ExportError(
            f"Format {format} has no target versions, but {target!r} was asked for: only {versioned} do."
        )
    if format in _PLAIN:
        return _PLAIN[format](advice, job)
    return export_arguments(advice, job, LIBRARIES[FORMATS[format].software], FORMATS[format].filename)


def list_suitable(job: Job) -> tuple[FormatInfo, ...]:
    """Return the formats that can apply the strategy of this job's workload."""
    kind = job.spec.workload.kind
    # Of commands, Paddle's files suit those that train with parameter servers, and tell in which mode.
    is_open = kind is not WorkloadKind.COMMAND or bool(list_today(job))
    return tuple(
        info
        for info in FORMATS.values()
        if kind in info.kinds and (is_open or not info.name.startswith(_PADDLE))
    )


def choose_format(job: Job) -> FormatInfo:
    """Return the format for the library that wraps the model, else the one that starts the job's own command."""
    at_work = list_at_work(job)
    by_library = [info for info in at_work if info.software and info.software != _NCCL]
    return next(iter(by_library), next(info for info in at_work if info.name != "json"))


def list_at_work(job: Job) -> tuple[FormatInfo, ...]:
    """Return the suitable formats without those of libraries that the training does not use."""
    return tuple(
        info
        for info in list_suitable(job)
        if info.name != _TRANSPILER and (not info.software or _is_at_work(info.software, job))
    )


def _is_at_work(software: str, job: Job) -> bool:
    if job.facts is None:
        return False
    if software == _NCCL:
        return software == job.facts.backend
    if software == _DEEPSPEED and job.facts.sharding == DEEPSPEED_ENGINE:
        return True  # Trainer and Accelerate may have built the engine
    return any(name.endswith(software) for name in job.facts.software)  # pytorch_lightning is lightning, too


def list_bundled(job: Job) -> tuple[FormatInfo, ...]:
    """Return what a bundle holds: the strategy, what starts the job's command, and what its framework loads."""
    return tuple(
        info
        for info in list_at_work(job)
        if info.name in _IN_EVERY_BUNDLE
        or (info.software and info.software != _NCCL)
        or (info.name.startswith(_PADDLE) and job.spec.workload.kind is not WorkloadKind.PYTORCH)
    )
