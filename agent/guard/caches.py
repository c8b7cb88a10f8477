"""What libraries keep below the home folder: trials see what the real caches hold, and write to the job's own layer.

An extension's build is locked by a file that stays when the process is killed, and that everybody then waits for
without end; so no lock of a trial's may lie in the user's cache. What one launch of a job has built the next one finds.
Standard library only: `settle_caches` runs in the child that becomes the launcher, as the script's own user.
"""

import getpass
import glob
import os
import re
import shutil
from collections.abc import Collection, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # It needs what is installed; the child that becomes the launcher does not.
    from agent.files import Files

_USUAL = {
    "XDG_CACHE_HOME": "~/.cache",
    "TRITON_CACHE_DIR": "~/.triton/cache",
    "TORCHINDUCTOR_CACHE_DIR": "{tmp}/torchinductor_{user}",
    "CUDA_CACHE_PATH": "~/.nv/ComputeCache",
    "CLEARML_CACHE_DIR": "~/.clearml/cache",
    "HF_HOME": "",
    "TORCH_EXTENSIONS_DIR": "",
}
"""The variable that moves each cache, and where it is without; empty: inside the first one."""
_LOCKS = {"XDG_CACHE_HOME": "torch_extensions/*/*/lock", "TORCH_EXTENSIONS_DIR": "*/lock"}
"""Where the locks of builds lie in a cache (torch.utils.file_baton)."""
_BUILDS = "torch_extensions"
_DOWNLOADS = ("huggingface/hub", "torch/hub", "hub")
"""What is downloaded stays in the real cache: it is what the user's own training fetches, and may not fit elsewhere."""


@dataclass(frozen=True)
class Cache:
    """A folder in which a library keeps what it has made."""

    variable: str
    """Of the environment, which moves it."""
    place: str
    """The real folder, its links followed; it need not exist."""
    own: str
    """The job's own, where no overlay lies over the real one; it need not exist."""


def list_caches(
    variables: Mapping[str, str], home: str, user: str, own: Path, files: "Files"
) -> tuple[Cache, ...]:
    """Return the caches of a launch with these variables; `own` is the job's own folder for what takes their place."""
    places = {"user": re.sub(r'[\\/:*?"<>|]', "_", user), "tmp": variables.get("TMPDIR", "/tmp")}  # noqa: S108
    found = []
    for variable, usual in _USUAL.items():
        text = variables.get(variable) or usual.format(**places)
        path = Path(home + text[1:] if text.startswith("~/") else text)
        if text and path.is_absolute():
            found.append(Cache(variable, str(files.resolve(path)), str(own / variable)))
    return tuple(found)


def list_downloads(caches: Sequence[Cache], files: "Files") -> list[Path]:
    """Return the folders of caches that stay real."""
    folders = [Path(cache.place, name) for cache in caches for name in _DOWNLOADS]
    return [folder for folder in folders if files.find_directory(folder) is not None]


def find_locks(caches: Sequence[Cache], files: "Files") -> list[str]:
    """Return the locks of builds that lie in the real caches."""
    patterns = [
        os.path.join(cache.place, _LOCKS[cache.variable]) for cache in caches if cache.variable in _LOCKS
    ]
    return [path for pattern in patterns for path in glob.glob(pattern) if files.exists(Path(path))]


def settle_caches(
    caches: Sequence[Cache], covered: Collection[str], environment: MutableMapping[str, str]
) -> None:
    """Move what no overlay covers to the job's own folder, and take away the locks: nobody of this launch builds yet.

    A cache that is there and has no locks stays where it is.
    """
    for cache in caches:
        place = cache.place
        with suppress(OSError):
            if place not in covered:
                if os.path.isdir(place) and cache.variable not in _LOCKS:
                    continue
                _mirror(cache)
                place = environment[cache.variable] = cache.own
            for lock in glob.glob(os.path.join(place, _LOCKS.get(cache.variable, "lock"))):
                os.unlink(lock)


def _mirror(cache: Cache) -> None:
    """Make the job's own folder, with copies of the real one's builds and links to all else."""
    os.makedirs(cache.own, exist_ok=True)
    for entry in os.scandir(cache.place) if os.path.isdir(cache.place) else ():
        target = os.path.join(cache.own, entry.name)
        if os.path.lexists(target):
            continue
        if entry.is_dir() and (entry.name == _BUILDS or cache.variable == "TORCH_EXTENSIONS_DIR"):
            shutil.copytree(entry.path, target, symlinks=True)
        else:
            os.symlink(entry.path, target)


def name_user(variables: Mapping[str, str]) -> str:
    """Return the user's name as Python finds it with these variables; empty where nobody knows it."""
    told = next(filter(None, (variables.get(name) for name in ("LOGNAME", "USER", "LNAME", "USERNAME"))), "")
    with suppress(KeyError, OSError):
        return told or getpass.getuser()
    return ""
