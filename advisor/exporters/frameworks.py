"""The strategy as arguments of Trainer, Accelerate and Lightning, and as a fragment of DeepSpeed's configuration."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from advisor.exporters.format import JSON, PYTHON, PYTORCH, Format, Written, comment, is_named, one_line
from advisor.exporters.words import choose_settings, list_knobs
from advisor.protocol.answers.advice import Advice
from advisor.protocol.answers.carried import HEAD
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.knobs.sharding import DEEPSPEED as ENGINE
from advisor.protocol.training.workload import DdpFacts

_HOOKS = "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks"
_CLASSES = ("DDPCommunicationHookType", "DistributedDataParallelKwargs", "DDPStrategy")


@dataclass(frozen=True)
class Library:
    """A library whose user gives a call arguments."""

    name: str
    """Of its format, and of its column in `Words`."""
    maker: str
    """What people call it."""
    call: str
    """What the arguments are given to."""
    filename: str
    in_place_of: str = ""
    """What of the script's own they replace."""
    ddp_argument: str = ""
    """Through which of them DDP's own arguments go; empty where none does."""
    ddp_value: str = "{}"
    """What it is given, around DDP's arguments."""
    ddp_module: str = ""
    """Where that value's names are from."""


LIBRARIES: Mapping[str, Library] = {
    "transformers": Library(
        name="trainer",
        maker="Hugging Face's Trainer",
        call="TrainingArguments",
        filename="training_arguments.py",
    ),
    "lightning": Library(
        name="lightning",
        maker="Lightning",
        call="Trainer",
        filename="trainer_arguments.py",
        in_place_of=", in the place of your own strategy=",
        ddp_argument="strategy",
        ddp_value="DDPStrategy({})",
        ddp_module="lightning.pytorch.strategies",
    ),
    "accelerate": Library(
        name="accelerate",
        maker="Hugging Face's Accelerate",
        call="Accelerator",
        filename="accelerator_arguments.py",
        ddp_argument="kwargs_handlers",
        ddp_value="[DistributedDataParallelKwargs({})]",
        ddp_module="accelerate",
    ),
}
"""By the name that the facts of a job know them by, in the order in which one that uses others comes first."""


def write_arguments(entries: Mapping[str, Value | None], library: Library, job: Job) -> dict[str, str]:
    """Return what the library's call is given, as Python: DDP's arguments in the one that they go through."""
    # What takes the place of the script's own DDP says what that was seen to be built with.
    built = job.facts.ddp if job.facts is not None else DdpFacts()
    names = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view")
    said = [f"{name}=True" for name in names if getattr(built, name) and f"ddp.{name}" not in entries]
    told = {name: repr(value) for name, value in entries.items() if not name.startswith("ddp.")}
    ddp = [
        f"{name.removeprefix('ddp.')}={value!r}" for name, value in entries.items() if name.startswith("ddp.")
    ]
    if ddp:
        told[library.ddp_argument] = library.ddp_value.format(", ".join([*ddp, *said]))
    return told


def _write_library(library: Library, advice: Advice, job: Job) -> Written:
    """The file `strategy_arguments()`, a dictionary to pass on with `**`."""
    made = choose_settings(advice, job, library.name, library.name.capitalize())
    arguments = write_arguments(made.entries, library, job)
    use = f"{library.call}(..., **strategy_arguments()){library.in_place_of}"
    head = made.head(advice, job, f"Strategy for {library.maker}: {use}.")
    if made.entries and not library.ddp_argument:
        flags = " ".join(f"--{name} {value}" for name, value in made.entries.items())
        head.append(f"For a script whose arguments come from the command line: {flags}")
    body = "".join(f'        "{name}": {text},\n' for name, text in arguments.items())
    made.content = comment(head) + _write_imports(arguments, library, job)
    made.content += f"\n\ndef strategy_arguments():\n    return {{\n{body}    }}\n"
    return made


def _write_imports(arguments: Mapping[str, str], library: Library, job: Job) -> str:
    value, module = arguments.get(library.ddp_argument, ""), library.ddp_module
    if job.facts is not None and "pytorch_lightning" in job.facts.software:
        module = module.replace("lightning.pytorch", "pytorch_lightning")
    classes = [name for name in _CLASSES if name in value]
    lines = [f"from {module} import {', '.join(classes)}"] if classes else []
    if "default_hooks" in value:
        lines.append(_HOOKS)
    return "\n" + "".join(f"{line}\n" for line in lines) if lines else ""


def _write_deepspeed(advice: Advice, job: Job) -> Written:
    """The fragment; what would be comments elsewhere stands under the key `_fleet_advisor`, ignored there.

    JSON without comments, because DeepSpeed takes them and the libraries around it do not.
    """
    made = choose_settings(advice, job, "deepspeed", "DeepSpeed's configuration", ENGINE)
    if made.entries and (job.facts is None or job.facts.sharding != ENGINE):
        made.warnings.append(
            "Measured with DistributedDataParallel, and translated: DeepSpeed's own engine was not timed."
        )
    head = made.head(advice, job, "Strategy for DeepSpeed: merge these keys into your configuration.")
    tree: dict[str, Any] = {HEAD: [one_line(line) for line in head]}
    for name, value in made.entries.items():
        *outer, last = name.split(".")
        place = tree
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = value
    made.content = json.dumps(tree, indent=2) + "\n"
    return made


TRAINER, LIGHTNING, ACCELERATE = (
    Format(
        name=library.name, filename=library.filename, media_type=PYTHON, kinds=PYTORCH, bundled=PYTORCH,
        knobs=list_knobs(library.name), software=software, write=partial(_write_library, library),
        meaning=f"A Python file for {library.maker}: {library.call}(..., **strategy_arguments()).",
    )
    for software, library in LIBRARIES.items()
)  # fmt: skip
DEEPSPEED = Format(
    name="deepspeed", filename="ds_config.json", media_type=JSON, kinds=PYTORCH, bundled=PYTORCH,
    knobs=list_knobs("deepspeed"), software="deepspeed", write=_write_deepspeed,
    # Trainer and Accelerate may have built the engine.
    is_used=lambda software, facts: facts.sharding == ENGINE or is_named(software, facts),
    meaning="Keys to merge into DeepSpeed's configuration.",
)  # fmt: skip
