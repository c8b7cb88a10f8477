"""The agent's configuration file: TOML that its operator writes, read once at the start. It decides what may run here.

A key is an option of `advisor-agent run` with underscores; the options `--allow-…` are the table `[allow]`. What the
command line or an environment variable says wins.
"""

import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from advisor.protocol.base import Spec
from advisor.protocol.logs import LogFormat
from advisor.protocol.nodes.cluster import Labels
from agent.errors import BadConfiguration
from agent.trust.allowance import TRAINING_LAUNCHERS, Allowance

CONFIG_VARIABLE = "ADVISOR_AGENT_CONFIG"
"""The environment variable that names the file."""


class AllowTable(Spec):
    """`[allow]`: see `agent.trust.allowance.Allowance`."""

    launchers: tuple[str, ...] | None = None
    roots: tuple[Path, ...] | None = None
    modules: tuple[str, ...] | None = None
    commands: tuple[str, ...] | None = None
    environment: tuple[str, ...] | None = None

    def to_allowance(self) -> Allowance:
        """Return what it allows: what it does not say is as with `advisor-agent run`."""
        return Allowance(
            launchers=TRAINING_LAUNCHERS if self.launchers is None else self.launchers,
            roots=tuple(root.absolute() for root in self.roots or ()),
            modules=self.modules or (),
            commands=self.commands or (),
            environment=self.environment,
        )


class AgentConfig(Spec):
    """Everything the file may say; what it leaves out has the option's own default."""

    server: str | None = None
    name: str | None = None
    token_file: Path | None = None
    work_dir: Path | None = None
    advertise_address: str | None = None
    pool: str | None = None
    labels: Labels | None = None
    require_signed: Path | None = None
    run_as: str | None = None
    hide: tuple[Path, ...] | None = None
    isolate: bool | None = None
    startup_timeout: float | None = None
    telemetry_hz: float | None = None
    allow_busy_gpus: bool | None = None
    log_format: LogFormat | None = None
    allow: AllowTable = AllowTable()

    def list_options(self) -> dict[str, Any]:
        """Return what was said, by option."""
        said = self.model_dump(exclude={"allow", "labels"}, exclude_none=True)
        labels = None if self.labels is None else [f"{key}={value}" for key, value in self.labels.items()]
        table = {
            "label": labels,
            "allow_launcher": self.allow.launchers,
            "allow_root": self.allow.roots,
            "allow_module": self.allow.modules,
            "allow_command": self.allow.commands,
            "allow_environment": self.allow.environment,
        }
        return {**said, **{option: value for option, value in table.items() if value is not None}}


def read_config(path: Path) -> AgentConfig:
    """Return what the file says; raises BadConfiguration with the key at fault and what to do."""
    try:
        return AgentConfig.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise BadConfiguration(
            f"The configuration {path} cannot be read: {error.strerror}. Check --config."
        ) from error
    except ValueError as error:
        raise BadConfiguration(f"The configuration {path} is not valid: {describe_error(error)}") from error


def describe_error(error: ValueError) -> str:
    """Return what is wrong as a sentence that names the field."""
    if not isinstance(error, ValidationError):
        return f"{error}."
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"{field} is not one of its keys. Remove it, or look its name up in docs/operating.md."
    message = str(first["msg"]).removeprefix("Value error, ")
    return f"{field}: {message}" if field else message
