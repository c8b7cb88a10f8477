"""Where this machine's server keeps its data. By itself, because whoever only asks for it should not load settings."""

from collections.abc import Mapping
from pathlib import Path


def default_data_dir() -> Path:
    """Return the data directory of a user who names none."""
    return Path.home() / ".local" / "share" / "fleet-advisor"


def data_dir_of(environment: Mapping[str, str]) -> Path:
    """Return the data directory of this machine's server."""
    return Path(environment.get("ADVISOR_DATA_DIR") or default_data_dir()).expanduser().resolve()
