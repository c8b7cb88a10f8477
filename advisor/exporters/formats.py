"""The formats that a strategy can be exported in, and the way from a name to a file."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from advisor.exporters.exported import Exported, ExportError, FormatInfo
from advisor.exporters.launch.command import export_command
from advisor.exporters.launch.environment import VARIABLES, export_environment
from advisor.exporters.launch.run_script import export_torchrun
from advisor.exporters.paddle.fields import TARGETS
from advisor.exporters.paddle.prototxt import export_paddle
from advisor.exporters.paddle.python import export_paddle_python
from advisor.exporters.strategy_json import export_json
from advisor.exporters.summary import write_summary
from advisor.exporters.torch.ddp_plan import EXPRESSED
from advisor.exporters.torch.snippet import export_pytorch
from advisor.exporters.torch.wrapper import export_wrapper
from advisor.protocol.advice import Advice
from advisor.protocol.jobs import Job
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.workload import WorkloadKind

_PYTHON = "text/x-python; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"
_PADDLE_KNOBS = tuple(name for name, knob in CATALOGUE.items() if knob.paddle_field is not None)
_LEVERS = tuple(name for name, knob in CATALOGUE.items() if not knob.carried)
_PYTORCH, _COMMAND = (WorkloadKind.PYTORCH,), (WorkloadKind.COMMAND,)
_IN_PADDLE = (WorkloadKind.PYTORCH, WorkloadKind.PADDLE)

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
                meaning="Your own launch command under `advisor run`: every change in force and proved, no line of the "
                "script changed. Save strategy.json beside it.",
            ),
            FormatInfo(
                name="command", filename="run.sh", media_type="text/x-shellscript; charset=utf-8",
                knobs=tuple(CATALOGUE), kinds=_COMMAND,
                meaning="Your own command with the strategy's values in it and in its environment.",
            ),
            FormatInfo(
                name="wrapper", filename="apply_strategy.py", media_type=_PYTHON, knobs=EXPRESSED, kinds=_PYTORCH,
                meaning="For nodes without fleet-advisor: runs an unchanged PyTorch script under what it can carry of "
                "the strategy. Put it before the script's name.",
            ),
            FormatInfo(
                name="pytorch", filename="ddp_strategy.py", media_type=_PYTHON, knobs=EXPRESSED, kinds=_PYTORCH,
                meaning="A Python file for PyTorch: call its wrap() in place of DistributedDataParallel.",
            ),
            FormatInfo(
                name="paddle", filename="strategy.prototxt", media_type=_TEXT, targets=TARGETS, knobs=_PADDLE_KNOBS,
                kinds=_IN_PADDLE,
                meaning="A file for PaddlePaddle's DistributedStrategy.load_from_prototxt.",
            ),
            FormatInfo(
                name="paddle-python", filename="paddle_strategy.py", media_type=_PYTHON, targets=TARGETS,
                knobs=_PADDLE_KNOBS, kinds=_IN_PADDLE,
                meaning="A Python file for PaddlePaddle: builds the DistributedStrategy and initialises Fleet with it.",
            ),
            FormatInfo(
                name="env", filename="strategy.env", media_type=_TEXT, knobs=tuple(VARIABLES),
                kinds=_PYTORCH,
                meaning="The knobs that are environment variables, for a shell or a container.",
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
    "command": export_command,
    "wrapper": export_wrapper,
    "pytorch": export_pytorch,
    "env": export_environment,
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
    return _PLAIN[format](advice, job)


def list_suitable(job: Job) -> tuple[FormatInfo, ...]:
    """Return the formats that can apply the strategy of this job's workload."""
    return tuple(info for info in FORMATS.values() if job.spec.workload.kind in info.kinds)


def export_bundle(advice: Advice, job: Job) -> dict[str, str]:
    """Return every file of the export by name, for each default target, and a SUMMARY.txt that explains them."""
    files = [export(advice, job, info.name) for info in list_suitable(job)]
    return {file.filename: file.content for file in files} | {
        "SUMMARY.txt": write_summary(advice, job, files, FORMATS)
    }
