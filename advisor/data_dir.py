"""Where this machine's server keeps its data. By itself: a command that needs only the path loads no settings."""

import os
from collections.abc import Mapping
from pathlib import Path


def default_data_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the data directory of a user who names none."""
    base = Path(environment.get("XDG_DATA_HOME") or "")
    # A relative one is to be ignored: freedesktop's Base Directory Specification.
    return (base if base.is_absolute() else Path.home() / ".local" / "share") / "fleet-advisor"


def data_dir_of(environment: Mapping[str, str]) -> Path:
    """Return the data directory of this machine's server."""
    return Path(environment.get("ADVISOR_DATA_DIR") or default_data_dir(environment)).expanduser().resolve()
