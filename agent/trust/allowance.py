"""What this agent's operator lets a workload do here: which launchers, code of which directories, which environment.

The server is not asked. Patterns are the shell's (`*`, `?`), one for each word. Where no root is `/`, what cannot
be shown to lie in them is refused: code that no path names (a module, a shell's `-c`), and variables that load code.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import ValidationInfo, field_validator

from advisor.protocol.base import Spec
from advisor.protocol.training.launch_command import Command
from advisor.protocol.training.launcher_paths import list_launcher_paths
from agent.files import DIRECT, Files

TRAINING_LAUNCHERS = ("torchrun", "python*", "accelerate launch", "deepspeed")
"""What an agent runs whose operator said nothing."""


class Allowance(Spec):
    """The `[allow]` table of an agent's configuration."""

    launchers: tuple[str, ...] = ("*",)
    """Beginnings of launch commands, e.g. "torchrun" or "python* -m torch.distributed.run"; `*` allows every command.
    A first word without a slash stands for that program on PATH, or anywhere inside the roots."""
    roots: tuple[Path, ...] = (Path("/"),)
    """Directories that hold what may be started; `/` holds everything, modules and foreign commands too."""
    modules: tuple[str, ...] = ()
    """Modules that may be started wherever Python finds them, e.g. "my_package.train"."""
    commands: tuple[str, ...] = ()
    """Beginnings of commands that may be started although what code they start cannot be seen: "accelerate launch"."""
    environment: tuple[str, ...] | None = None
    """Names of variables that a workload may set, e.g. "NCCL_*"; None: every one where a root is `/`, else none."""

    @property
    def is_everywhere(self) -> bool:
        """Whether the roots hold everything."""
        return Path("/") in self.roots

    @property
    def variables(self) -> tuple[str, ...]:
        """`environment`, or what stands for it: a variable like PYTHONPATH or LD_PRELOAD leads out of every root."""
        if self.environment is not None:
            return self.environment
        return ("*",) if self.is_everywhere else ()

    @field_validator("launchers", "commands")
    @classmethod
    def _refuse_empty_beginnings(cls, beginnings: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if not all(beginning.split() for beginning in beginnings):
            raise ValueError(
                f"allow.{info.field_name} holds an empty text: write a command's beginning, or remove it."
            )
        return beginnings

    @field_validator("roots")
    @classmethod
    def _refuse_missing_roots(cls, roots: tuple[Path, ...]) -> tuple[Path, ...]:
        if not roots:
            raise ValueError(
                "Nothing says what may be started on this node. Name the directories that hold it with --allow-root "
                "(repeatable; allow.roots of the configuration); --allow-root / lets every submitter start any code."
            )
        for root in roots:
            if not root.is_dir():
                raise ValueError(
                    f"allow.roots names {root}, which is no directory on this node. Create it, or remove it."
                )
        return tuple(root.resolve() for root in roots)


def find_refusal(
    allowance: Allowance,
    command: Command,
    working_dir: Path,
    environment: Mapping[str, str],
    protect: Sequence[str] = (),
    files: Files = DIRECT,
) -> str:
    """Return a sentence that names the field and the value that are not allowed, "" when everything is.

    `command` is the job's as it is started, `working_dir` where it is to be on this node, and `environment` and
    `protect` what the job names. Nothing of it need exist, and `files` is asked for no more than where links lead.
    """
    places = [("working_dir", working_dir), *((f"protect: {name}", working_dir / name) for name in protect)]
    places += [(f"option {option}", working_dir / path) for option, path in list_launcher_paths(command)]
    return (
        _refuse_environment(allowance, environment)
        or _refuse_launcher(allowance, command.words, working_dir, files)
        or next(filter(None, (_refuse_place(allowance, field, path, files) for field, path in places)), "")
        or _refuse_code(allowance, command, working_dir, files)
    )


def _refuse_launcher(allowance: Allowance, command: Sequence[str], working_dir: Path, files: Files) -> str:
    beginnings = (*allowance.launchers, *allowance.commands)
    if _begins_with_any(beginnings, command, allowance, working_dir, files):
        return ""
    allowed = ", ".join(f"`{beginning}`" for beginning in beginnings) or "no launcher at all"
    by_path = (
        "A launcher outside of allow.roots must be allowed with its full path. " if "/" in command[0] else ""
    )
    return (
        f"This agent does not start `{' '.join(command[:4])}`: allow.launchers of its configuration allows {allowed}. "
        f"{by_path}Its operator can add a launcher there, or with --allow-launcher."
    )


def _refuse_code(allowance: Allowance, command: Command, working_dir: Path, files: Files) -> str:
    """Refuse a command whose code cannot be shown to lie within the roots."""
    words, launch = command.words, command.launch
    if allowance.is_everywhere or _begins_with_any(allowance.commands, words, allowance, working_dir, files):
        return ""
    if launch is None:
        return _refuse_unseen(allowance, f"`{' '.join(words[:4])}`")
    if option := next((word for word in launch.python_options if _loads_code(word)), ""):
        return _refuse_unseen(allowance, f"python's option {option}")
    if launch.script_path is not None:
        return _refuse_place(allowance, "script", working_dir / launch.script_path, files)
    module = launch.script[1]
    if any(fnmatchcase(module, pattern) for pattern in allowance.modules):
        return ""
    return (
        f"{_describe_roots(allowance)}, and the agent cannot tell where Python finds the module {module}. "
        "Give the path of a script there, or ask the agent's operator to add the module to "
        "allow.modules (--allow-module)."
    )


def _loads_code(option: str) -> bool:
    """-W imports the category that it names, and -X may name a folder of compiled modules; both may be in a cluster."""
    return option.startswith("-") and not option.startswith("--") and any(x in option[1:] for x in "WX")


def _refuse_unseen(allowance: Allowance, what: str) -> str:
    return (
        f"{_describe_roots(allowance)}, and the agent cannot tell what code {what} starts. "
        "Give the command as torchrun … script.py or python script.py, or ask the agent's operator to add its "
        "beginning to allow.commands (--allow-command), which lets it start any code."
    )


def _describe_roots(allowance: Allowance) -> str:
    roots = ", ".join(map(str, allowance.roots))
    return f"This agent starts nothing outside of {roots} (allow.roots of its configuration)"


def _begins_with_any(
    beginnings: Sequence[str], command: Sequence[str], allowance: Allowance, working_dir: Path, files: Files
) -> bool:
    return any(
        _matches(beginning.split(), command, allowance, working_dir, files) for beginning in beginnings
    )


def _matches(
    template: Sequence[str], command: Sequence[str], allowance: Allowance, working_dir: Path, files: Files
) -> bool:
    if len(command) < len(template):
        return False
    first, launcher = template[0], command[0]
    if "/" in launcher and "/" not in first:
        # The same name elsewhere may be another program. A virtual environment's python is itself a link.
        if not _lies_in_roots(allowance, (working_dir / launcher).parent, files):
            return False
        launcher = Path(launcher).name
    words = [launcher, *command[1 : len(template)]]
    return all(fnmatchcase(word, pattern) for word, pattern in zip(words, template, strict=True))


def _refuse_place(allowance: Allowance, field: str, path: Path, files: Files) -> str:
    if _lies_in_roots(allowance, path, files):
        return ""
    return (
        f"{_describe_roots(allowance)}, but the job's {field} is {path}. Move it there, or ask the agent's operator to "
        "add a root (--allow-root)."
    )


def _lies_in_roots(allowance: Allowance, path: Path, files: Files) -> bool:
    """Whether the path, its links and dots followed, lies within a root."""
    if allowance.is_everywhere:
        return True
    resolved = files.resolve(path)
    return any(resolved.is_relative_to(root) for root in allowance.roots)


def _refuse_environment(allowance: Allowance, environment: Mapping[str, str]) -> str:
    for name in environment:
        if not any(fnmatchcase(name, pattern) for pattern in allowance.variables):
            allowed = ", ".join(allowance.variables) or "none"
            return (
                f"This agent does not let a workload set {name}: allow.environment of its configuration allows "
                f"{allowed}. Remove it from the job, or ask the agent's operator to add it."
            )
    return ""
