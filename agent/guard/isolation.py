"""Decides what a trial may not really change and what it may not see, and whether this machine can keep that promise.

Covered: the working directory, the script's directory, the workload's `protect` list, and every directory that a
path-like argument names or lies in, and the caches of libraries; of these, what the user that scripts run as may enter:
an overlay must not open to that user what its own rights do not. Not covered: other paths that the script takes from
elsewhere (its own constants, a configuration file), and files on another machine.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent.files import DIRECT, Directory, Files
from agent.guard.account import Account
from agent.guard.caches import Cache, list_downloads
from agent.guard.mounts import MountPlan, Overlay

_TOO_BROAD = tuple(Path(name) for name in ("/", "/tmp", "/dev", "/proc", "/sys", "/run"))  # noqa: S108
_NEVER_BELOW = tuple(Path(name) for name in ("/dev", "/proc", "/sys"))


@dataclass(frozen=True)
class Isolation:
    """What this machine allows, found out once per agent."""

    works: bool
    user_namespace: bool
    because: str
    """A sentence: how files are protected, or why they are not and what would help."""
    scratch_roots: tuple[Path, ...] = ()
    """Directories in which an overlay's scratch may lie, best first."""


@dataclass(frozen=True)
class Protection:
    """The mounts for one session, where its scratch lies, and what could not be protected."""

    plan: MountPlan
    scratch: Path | None
    warnings: tuple[str, ...] = ()
    caches: tuple[Cache, ...] = ()
    """Those that belong to the job, whether an overlay can be mounted over them or not."""

    @classmethod
    def none(cls, *warnings: str, caches: Sequence[Cache] = ()) -> "Protection":
        """Return a protection that mounts nothing."""
        return cls(MountPlan(), None, warnings, tuple(caches))

    def remove_scratch(self) -> None:
        """Delete what the trial wrote instead of the real files."""
        if self.scratch is not None:
            _remove(self.scratch)


class JobLayers:
    """Folders for what one job's launches write to caches, as long as the agent has no other job."""

    def __init__(self) -> None:
        self._job_id = ""
        self._folders: dict[Path, Path] = {}

    def begin(self, job_id: str) -> None:
        """Delete what another job left."""
        if job_id != self._job_id:
            self.remove()
            self._job_id = job_id

    def provide(self, root: Path, prefix: str, owner: Account | None = None) -> Path:
        """Return the job's folder in `root`, which becomes the owner's."""
        if root not in self._folders:
            self._folders[root] = Path(tempfile.mkdtemp(dir=root, prefix=prefix))
            if owner is not None:
                owner.give(str(self._folders[root]))
        return self._folders[root]

    def remove(self) -> None:
        """Delete all folders."""
        for folder in self._folders.values():
            _remove(folder)
        self._folders.clear()


def list_scratch_roots(work_dir: Path) -> tuple[Path, ...]:
    """Return where scratch could lie, best first. A container's own disk may be an overlay, which cannot hold it."""
    return (work_dir.resolve() / "scratch", Path(tempfile.gettempdir()).resolve(), Path("/dev/shm"))  # noqa: S108


def detect_isolation(scratch_roots: Sequence[Path]) -> Isolation:
    """Try a private overlay with its scratch in each of the roots: as root first, then inside a user namespace."""
    failures: list[str] = []
    for user_namespace in (False, True):
        found = {root: _try_overlay(root, user_namespace) for root in scratch_roots}
        usable = tuple(root for root, failure in found.items() if not failure)
        if usable:
            way = "a private overlay in a user namespace" if user_namespace else "a private overlay"
            because = f"Trials write into {way}; the real files stay as they are."
            return Isolation(True, user_namespace, because, usable)
        failures += found.values()
    way = "Give the container the capability SYS_ADMIN" if os.geteuid() == 0 else "Run the agent as root"
    return Isolation(
        False,
        False,
        f"Trials can change real files and read the agent's: no private overlay can be mounted here ({failures[-1]}). "
        f"{way}, or allow unprivileged user namespaces; or give trials an output directory of their own and scripts a "
        "user of their own (run_as).",
    )


def remove_leftover_scratch(scratch_roots: Sequence[Path], owner: str) -> None:
    """Delete the scratch that sessions of an agent which was killed left behind."""
    for root in scratch_roots:
        for folder in root.glob(f"{name_scratch(owner)}*"):
            _remove(folder)


def _remove(folder: Path) -> None:
    """Delete a folder with the upper and work directories of overlays."""
    # What the kernel makes for an overlay is closed to its owner, unless that is root.
    for closed in folder.glob("work*/*"):
        closed.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def name_scratch(owner: str) -> str:
    return f"fleet-advisor-{re.sub(r'[^A-Za-z0-9]', '-', owner)}-"


def _try_overlay(scratch_root: Path, user_namespace: bool) -> str:
    """Return "" when an overlay can be mounted with its scratch below `scratch_root`, else what failed."""
    if not os.access(scratch_root, os.W_OK):
        return f"{scratch_root} is not writable"
    with tempfile.TemporaryDirectory(dir=scratch_root, prefix="probe-", ignore_cleanup_errors=True) as folder:
        lower = Path(folder) / "lower"
        lower.mkdir()
        (lower / "file").write_text("real")
        facts = DIRECT.find_directory(lower)
        assert facts is not None  # made above
        overlay = _make_overlay(lower, facts, Path(folder), "0")
        plan = MountPlan((overlay,), user_namespace=user_namespace)
        # A process of its own: unshare must not touch the agent, and no copy of its memory is made. It needs nothing
        # that is installed, so that it need not look for it (-S).
        probe = subprocess.run(
            [
                sys.executable,
                "-S",
                "-m",
                "agent.guard.mounts",
                json.dumps(plan.to_json()),
                str(lower / "file"),
            ],
            env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": os.environ.get("PATH", os.defpath)},
            cwd="/",
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        failure = (probe.stderr.strip().splitlines() or ["the probe failed"])[-1] if probe.returncode else ""
        return failure or (
            "" if (lower / "file").read_text() == "real" else "the overlay let a write through"
        )


def plan_protection(
    isolation: Isolation,
    directories: Iterable[Path],
    keep: Sequence[Path],
    owner: str,
    *,
    hide: Iterable[Path] = (),
    needed: Iterable[Path] = (),
    account: Account | None = None,
    files: Files = DIRECT,
    caches: Sequence[Cache] = (),
    provide: Callable[[Path], Path] | None = None,
) -> Protection:
    """Plan overlays over `directories` (outermost only) that leave the `keep` directories real, and hide `hide`.

    What is written to `caches` goes to the folder that `provide` gives below a scratch root, and stays there.

    An overlay's scratch must not lie inside what it covers, so the first root that lies outside of all of them is
    used. `owner` names the agent in the scratch's name. A directory of `hide` with something of `needed` inside stays
    visible, with a warning. `account` is the user that the script runs as.
    """
    targets, refused = choose_targets(directories, files)
    hidden, exposed = choose_hidden(hide, needed, files)
    warnings = [
        f"{directory} is too broad to protect: trials can change files directly in it. Start the job in a directory "
        "of its own."
        for directory in refused
    ]
    warnings += [
        f"{directory} holds the agent's files, and the Python that trains as well: the script can read both. Give the "
        "agent a directory of its own (--work-dir, ADVISOR_DATA_DIR)."
        for directory in exposed
    ]
    if not isolation.works:
        return Protection.none(isolation.because, caches=caches)
    cached = _choose_caches(caches, targets, files) if provide is not None else []
    if not targets and not hidden and not cached:
        return Protection.none(*warnings, caches=caches)
    root = next(
        (
            root
            for root in isolation.scratch_roots
            if not any(root.resolve().is_relative_to(t) for t in (*targets, *cached))
        ),
        None,
    )
    if root is None:
        names = ", ".join(str(target) for target in targets)
        warnings.append(
            f"Trials can change real files: every scratch directory lies inside {names}. Set --work-dir."
        )
        return Protection.none(*warnings, caches=caches)
    scratch = Path(tempfile.mkdtemp(dir=root, prefix=name_scratch(owner)))
    everything = [
        (target, files.find_directory(target)) for target in (*targets, *_list_mounts_below(targets))
    ]
    overlays = [
        _make_overlay(target, facts, scratch, str(number), account)
        for number, (target, facts) in enumerate(everything)
        if facts is not None and facts.is_searchable
    ]
    for place in cached:
        facts, digest = files.find_directory(place), hashlib.sha256(os.fsencode(place)).hexdigest()[:16]
        if facts is not None and provide is not None:
            overlay = _make_overlay(place, facts, provide(root), digest, account)
            overlays.append(replace(overlay, is_needed=False))
    overlays.sort(key=lambda overlay: len(Path(overlay.target).parts))
    covered = [Path(overlay.target) for overlay in overlays]
    kept = tuple(
        str(directory)
        for directory in (*keep, *list_downloads(caches, files))
        if any(directory.resolve().is_relative_to(target) for target in covered)
    )
    empty = scratch / "empty"
    empty.mkdir(mode=0o555)
    plan = MountPlan(tuple(overlays), tuple(map(str, hidden)), str(empty), kept, isolation.user_namespace)
    return Protection(plan, scratch, tuple(warnings), tuple(caches))


def _choose_caches(caches: Iterable[Cache], targets: Collection[Path], files: Files) -> list[Path]:
    """Return the places of caches over which overlays of their own can lie."""
    places = dict.fromkeys(Path(cache.place) for cache in caches)
    return [place for place in places if place not in targets and choose_targets([place], files)[0]]


def choose_hidden(
    paths: Iterable[Path], needed: Iterable[Path], files: Files = DIRECT
) -> tuple[list[Path], list[Path]]:
    """Return the outermost of the existing `paths`, and those directories that hold something that is needed.

    `paths` are the agent's own; of what is needed the job may have named some.
    """
    places = [files.resolve(need) for need in needed]
    existing = {path.resolve() for path in paths if os.path.exists(path)}
    exposed = {
        path for path in existing if path.is_dir() and any(place.is_relative_to(path) for place in places)
    }
    return _keep_outermost(existing - exposed), sorted(exposed)


def choose_targets(directories: Iterable[Path], files: Files = DIRECT) -> tuple[list[Path], list[Path]]:
    """Return the outermost of the directories that can be entered, and those that are too broad to cover."""
    resolved = {files.resolve(directory) for directory in directories if _may_enter(directory, files)}
    refused = sorted(directory for directory in resolved if directory in _TOO_BROAD)
    usable = [
        directory
        for directory in resolved
        if directory not in _TOO_BROAD and not any(directory.is_relative_to(top) for top in _NEVER_BELOW)
    ]
    return _keep_outermost(usable), refused


def _may_enter(path: Path, files: Files) -> bool:
    found = files.find_directory(path)
    return found is not None and found.is_searchable


def _keep_outermost(paths: Collection[Path]) -> list[Path]:
    return sorted(path for path in paths if not any(path != o and path.is_relative_to(o) for o in paths))


def list_argument_directories(
    arguments: Sequence[str], working_dir: Path, home: Path, files: Files = DIRECT
) -> list[Path]:
    """Return the directories that path-like arguments lie in, so that the named directory itself can be removed too.

    `--out=runs/a` and `--out runs/a` count alike. Where the parent is home or broader, the directory itself is
    returned if it exists: a new one right in home cannot damage anything that was there.
    """
    found = []
    for argument in arguments:
        value = argument.partition("=")[2] if argument.startswith("-") else argument
        if "://" in value or not value:
            continue
        path = working_dir / Path(value.replace("~", str(home), 1) if value.startswith("~/") else value)
        if "/" not in value and not files.exists(path):
            continue
        for candidate in (path.parent, path):
            existing = _find_existing(candidate, files)
            if existing != files.resolve(home) and existing not in _TOO_BROAD:
                found.append(existing)
                break
    return found


def _find_existing(path: Path, files: Files) -> Path:
    """Return the nearest directory that exists, from `path` upwards."""
    while files.find_directory(path) is None and path != path.parent:
        path = path.parent
    return files.resolve(path)


def _make_overlay(
    target: Path, facts: Directory, scratch: Path, name: str, account: Account | None = None
) -> Overlay:
    upper, work = scratch / f"upper{name}", scratch / f"work{name}"
    upper.mkdir(exist_ok=True)
    work.mkdir(exist_ok=True)
    # The merged directory shows the upper one's mode and owner.
    upper.chmod(facts.mode)
    if os.geteuid() == 0:
        os.chown(upper, facts.user_id, facts.group_id)
    if account is not None and facts.is_readable:
        account.give(str(upper))  # what it writes vanishes, so it may write where only root can
    elif account is not None:
        # Its names stay closed to a user who may only pass through.
        os.chown(upper, 0, 0)
        upper.chmod(0o733 if facts.is_writable else 0o711)
    return Overlay(str(target), str(upper), str(work), facts.is_readable)


def _list_mounts_below(targets: Sequence[Path]) -> list[Path]:
    """Return mount points inside the targets, outermost first: an overlay does not show what is mounted below it."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        points = {Path(_unescape(line.split()[4])) for line in file}
    below = [point for point in points if any(point != t and point.is_relative_to(t) for t in targets)]
    return sorted(below, key=lambda point: len(point.parts))


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
