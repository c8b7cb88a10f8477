"""The formats that a strategy can be exported in, and the way from a name to a file."""

from collections.abc import Callable, Mapping
from contextlib import suppress
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
from advisor.exporters.own_words import list_own_lines
from advisor.exporters.paddle.launcher import KNOBS as OF_LAUNCHER
from advisor.exporters.paddle.launcher import export_paddle_servers
from advisor.exporters.paddle.prototxt import export_paddle
from advisor.exporters.paddle.python import export_paddle_python
from advisor.exporters.paddle.servers import list_today
from advisor.exporters.paddle.transpiler import NCCL2, export_transpiler
from advisor.exporters.strategy_json import export_json
from advisor.exporters.summary.report import write_report
from advisor.exporters.summary.text import write_summary
from advisor.exporters.timings import export_timings
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.paddle import VERSIONS, explain_not_written
from advisor.protocol.knobs.sharding import DEEPSPEED as DEEPSPEED_ENGINE
from advisor.protocol.measured.trials import JobHistory
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
_PADDLE, _TRANSPILER, _TIMINGS = "paddle", "paddle-transpiler", "timings"
_ASKED_FOR = (_TRANSPILER, _TIMINGS)
"""Formats that are written only when asked for by name."""

BUNDLE = "bundle"
"""What stands for every format, and a summary, where one is named."""
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
            FormatInfo(
                name=_TIMINGS, filename="timings.json", media_type="application/json", kinds=_PYTORCH,
                meaning="When each gradient becomes ready, and what an allreduce costs: for compilers' passes and "
                "other tools that choose buckets. Not in a bundle.",
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
    _TIMINGS: export_timings,
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
        if info.name not in _ASKED_FOR and (not info.software or _is_at_work(info.software, job))
    )


def _is_at_work(software: str, job: Job) -> bool:
    if job.facts is None:
        return False
    if software == _NCCL:
        return software == job.facts.backend
    if software == _DEEPSPEED and job.facts.sharding == DEEPSPEED_ENGINE:
        return True  # Trainer and Accelerate may have built the engine
    return any(name.endswith(software) for name in job.facts.software)  # pytorch_lightning is lightning, too


def export_report(advice: Advice, job: Job, history: JobHistory) -> str:
    """Return the answer and everything that was measured as one HTML page that opens without a network."""
    return write_report(advice, job, _export_all(advice, job), FORMATS, history)


def _export_all(advice: Advice, job: Job) -> list[Exported]:
    files = []
    for info in list_at_work(job):
        with suppress(ExportError):  # no parameter servers in what was advised
            files.append(export(advice, job, info.name))
    carried = set(advice.changes)
    return [file for file in files if not carried or file.format == "json" or carried & set(file.provenance)]


def export_bundle(advice: Advice, job: Job) -> dict[str, bytes]:
    """Return the files of the export by name, for each default target, and two that explain them to people.

    Files of libraries that the training does not use are left out, and those that carry none of the changes;
    `export` writes them when asked.
    """
    files = _export_all(advice, job)
    return {file.filename: file.data for file in files} | {
        "SUMMARY.txt": write_summary(advice, job, files, FORMATS, list_own_lines(advice, job)).encode(),
        "report.html": write_report(advice, job, files, FORMATS).encode(),
    }
