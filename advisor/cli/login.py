"""The server that a person signed in to: a file of their own, read where the environment names none."""

import json
import os
import tomllib
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from advisor.cli.exits import CommandFailed, Exit

_NAMES = {"url": "ADVISOR_URL", "token": "ADVISOR_TOKEN"}


def config_path(environment: Mapping[str, str]) -> Path:
    """Return the file, as the XDG base directory specification places it."""
    base = environment.get("XDG_CONFIG_HOME") or str(
        Path(environment.get("HOME", "~")).expanduser() / ".config"
    )
    return Path(base) / "fleet-advisor" / "config.toml"


def keep_login(environment: Mapping[str, str], url: str, token: str) -> Path:
    """Write the file, readable by its owner only."""
    path = config_path(environment)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # A JSON string is a TOML string as well.
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in (("url", url), ("token", token)))
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    os.replace(new, path)
    return path


def forget_login(environment: Mapping[str, str]) -> bool:
    """Remove the file; return whether there was one."""
    path = config_path(environment)
    known = path.exists()
    path.unlink(missing_ok=True)
    return known


def apply_login(environment: MutableMapping[str, str]) -> None:
    """Name server and token in the environment as the file does, where it names no server itself, not even none.

    A token goes to the server that it was given for only. Raises `CommandFailed` for a file that cannot be read.
    """
    if "ADVISOR_URL" in environment:
        return
    path = config_path(environment)
    try:
        found = tomllib.loads(path.read_text())
        known = {variable: found[name] for name, variable in _NAMES.items()}
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError) as error:
        raise CommandFailed(
            Exit.USAGE,
            f"{path} cannot be read: {error!r}.",
            "`advisor login URL` writes it anew, `advisor logout` removes it.",
        ) from error
    if environment.get("ADVISOR_TOKEN") or environment.get("ADVISOR_TOKEN_FILE"):
        del known["ADVISOR_TOKEN"]
    environment.update(known)
