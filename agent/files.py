"""The questions that are asked about paths which a job names, and their answers here and now."""

import json
import os
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tomli_w

from advisor.protocol.training.key_files import read_tree, set_keys
from advisor.protocol.training.yaml_keys import spell_tree

if TYPE_CHECKING:
    from advisor.protocol.base import Value  # which would load pydantic in the child that answers

_LARGEST = 10 * 2**20
"""Bytes of a configuration file that is read at most."""


@dataclass(frozen=True)
class Directory:
    """A directory as the caller may use it."""

    mode: int
    user_id: int
    group_id: int
    is_readable: bool
    is_writable: bool
    is_searchable: bool


class Files:
    """The questions, answered right here: for the caller's own command."""

    def exists(self, path: Path) -> bool:
        """Whether there is anything; also False where the name is too long, or not to be looked up."""
        return os.path.exists(path)

    def is_file(self, path: Path) -> bool:
        """Whether it is a regular file, its links followed."""
        return os.path.isfile(path)

    def resolve(self, path: Path) -> Path:
        """Return the path with its links and dots followed, as far as they can be."""
        return Path(os.path.realpath(path))

    def find_program(self, name: str, path: str) -> str | None:
        """Return where a program is, None where none is found on `path`."""
        return shutil.which(name, path=path)

    def read_beginning(self, path: Path, most: int) -> str:
        """Return the beginning of a regular file; "" for anything else, and for what cannot be read."""
        with suppress(OSError, ValueError):
            opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            with open(opened, "rb", buffering=0) as file:
                facts = os.fstat(opened)
                # Files of /proc and /sys have no size, and reading them may wait or act.
                if stat.S_ISREG(facts.st_mode) and facts.st_size:
                    return (file.read(most) or b"").decode("utf-8", "replace")
        return ""

    def find_directory(self, path: Path) -> Directory | None:
        """Return a directory, None where there is none that can be seen."""
        with suppress(OSError, ValueError):
            facts = os.stat(path)
            if stat.S_ISDIR(facts.st_mode):
                may = [os.access(path, right) for right in (os.R_OK, os.W_OK, os.X_OK)]
                return Directory(facts.st_mode & 0o7777, facts.st_uid, facts.st_gid, *may)
        return None

    def change_keys(self, path: Path, values: "Mapping[str, Value]") -> tuple[str, str]:
        """Return a configuration file's text with other values at dotted keys, and why there is none: one is empty."""
        if not self.is_file(path):
            return "", "the file of the job's own knobs does not exist on this node"
        suffix = os.path.splitext(path)[1]
        try:
            tree = set_keys(read_tree(self.read_beginning(path, _LARGEST), suffix), values)
            if suffix == ".toml" and isinstance(tree, dict):
                return tomli_w.dumps(tree), ""
            return json.dumps(tree, indent=2) if suffix == ".json" else spell_tree(tree), ""
        except RecursionError:
            return "", "it is nested too deeply to be changed"
        except MemoryError:
            return "", "it is too large to be changed"
        except (ValueError, KeyError, TypeError) as error:
            return "", str(error)


DIRECT = Files()
