"""What this agent's operator lets a workload do here: which launchers, in which directories, with which environment.

The server is not asked. Patterns are the shell's (`*`, `?`), one for each word.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import field_validator

from advisor.protocol.base import Spec
from advisor.protocol.workload import Workload

TRAINING_LAUNCHERS = ("torchrun", "python*", "accelerate launch", "deepspeed")
"""What an agent runs whose operator said nothing."""


class Allowance(Spec):
    """The `[allow]` table of an agent's configuration."""

    launchers: tuple[str, ...] = ("*",)
    """Beginnings of launch commands, e.g. "torchrun" or "python* -m torch.distributed.run"; `*` allows every command.
    A first word without a slash stands for that program on PATH, or anywhere inside the roots."""
    roots: tuple[Path, ...] = ()
    """Directories that hold what may be started; empty allows every directory."""
    environment: tuple[str, ...] = ("*",)
    """Names of variables that a workload may set, e.g. "NCCL_*"."""

    @field_validator("launchers")
    @classmethod
    def _refuse_empty_launchers(cls, launchers: tuple[str, ...]) -> tuple[str, ...]:
        if not all(launcher.split() for launcher in launchers):
            raise ValueError(
                "allow.launchers holds an empty text: write a command's beginning, or remove it."
            )
        return launchers

    @field_validator("roots")
    @classmethod
    def _refuse_missing_roots(cls, roots: tuple[Path, ...]) -> tuple[Path, ...]:
        for root in roots:
            if not root.is_dir():
                raise ValueError(
                    f"allow.roots names {root}, which is no directory on this node. Create it, or remove it."
                )
        return tuple(root.resolve() for root in roots)


def find_refusal(allowance: Allowance, workload: Workload, working_dir: Path, script: Path | None) -> str:
    """Return a sentence that names the field and the value that are not allowed, "" when everything is.

    `working_dir` and `script` are where they really are on this node.
    """
    return (
        _refuse_launcher(allowance, workload.command, working_dir)
        or _refuse_place(allowance, "working_dir", working_dir)
        or (_refuse_place(allowance, "script", script) if script is not None else "")
        or _refuse_environment(allowance, workload.environment)
    )


def _refuse_launcher(allowance: Allowance, command: Sequence[str], working_dir: Path) -> str:
    if any(_matches(template.split(), command, allowance, working_dir) for template in allowance.launchers):
        return ""
    allowed = ", ".join(f"`{template}`" for template in allowance.launchers) or "no launcher at all"
    by_path = (
        "A launcher outside of allow.roots must be allowed with its full path. " if "/" in command[0] else ""
    )
    return (
        f"This agent does not start `{' '.join(command[:4])}`: allow.launchers of its configuration allows {allowed}. "
        f"{by_path}Its operator can add a launcher there, or with --allow-launcher."
    )


def _matches(
    template: Sequence[str], command: Sequence[str], allowance: Allowance, working_dir: Path
) -> bool:
    if list(template) == ["*"]:
        return True
    if len(command) < len(template):
        return False
    first, launcher = template[0], command[0]
    if "/" in launcher and "/" not in first:
        # The same name elsewhere may be another program. A virtual environment's python is itself a link.
        if not _lies_in_roots(allowance, (working_dir / launcher).parent):
            return False
        launcher = Path(launcher).name
    words = [launcher, *command[1 : len(template)]]
    return all(fnmatchcase(word, pattern) for word, pattern in zip(words, template, strict=True))


def _refuse_place(allowance: Allowance, field: str, path: Path) -> str:
    if _lies_in_roots(allowance, path):
        return ""
    return (
        f"This agent starts nothing outside of {', '.join(map(str, allowance.roots))} (allow.roots of its "
        f"configuration), but the job's {field} is {path}. Move it there, or ask the agent's operator to add a root."
    )


def _lies_in_roots(allowance: Allowance, path: Path) -> bool:
    return not allowance.roots or any(path.resolve().is_relative_to(root) for root in allowance.roots)


def _refuse_environment(allowance: Allowance, environment: Mapping[str, str]) -> str:
    for name in environment:
        if not any(fnmatchcase(name, pattern) for pattern in allowance.environment):
            allowed = ", ".join(allowance.environment) or "none"
            return (
                f"This agent does not let a workload set {name}: allow.environment of its configuration allows "
                f"{allowed}. Remove it from the job, or ask the agent's operator to add it."
            )
    return ""
