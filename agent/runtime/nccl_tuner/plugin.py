"""NCCL's tuner plugin of our own: built in a rank whose environment asks for a choice, and asked what it has chosen.

NCCL looks for a plugin once, when a process makes its first communicator; so it stands there from the launch on, and a
choice is a knob of the launch. A rank whose plugin cannot be built trains without it, and its proof is missing.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import pkgutil
import shutil
import subprocess
import tempfile
from typing import Dict, List, Mapping, MutableMapping, Optional, Tuple

from ..link.environment import read_variable
from ..link.rank_output import say

VARIABLES = {
    "nccl_tuner_allreduce": "FLEET_NCCL_ALLREDUCE",
    "nccl_tuner_all_gather": "FLEET_NCCL_ALLGATHER",
    "nccl_tuner_reduce_scatter": "FLEET_NCCL_REDUCESCATTER",
    "nccl_tuner_channels": "FLEET_NCCL_CHANNELS",
}
"""Knob -> the variable that the plugin reads."""
COLLECTIVES = {"nccl_tuner_all_gather": 2, "nccl_tuner_reduce_scatter": 3, "nccl_tuner_allreduce": 4}
"""Knob -> NCCL's number for the collective (ncclFunc_t)."""
PLUGIN = "NCCL_TUNER_PLUGIN"
FILE = "libnccl-tuner-fleet.so"
SOURCE = "tuner.c"
SPOKEN_FROM = (2, 22)
"""The first NCCL that hands a plugin its table of costs."""
COMPILERS = ("cc", "gcc", "clang")
COMPILE_TIMEOUT_S = 60
VENDOR = "FLEET_NCCL_VENDOR"
"""Libraries that may hold a tuner of the network's maker, one a line: our plugin asks the first that it can open."""


class Unbuildable(RuntimeError):
    """The plugin cannot be built here; the text says why."""


def load_where_asked(variables: MutableMapping[str, str], folder: Optional[str]) -> None:
    """Before NCCL starts: builds the plugin and names it to NCCL, where the environment asks for a choice.

    It lies in a folder of its own in `folder`, the session's (None: where temporary files lie), and goes with the rank.
    """
    if is_ours(variables.get(PLUGIN)) or not any(variables.get(name) for name in VARIABLES.values()):
        return
    place = tempfile.mkdtemp(prefix="nccl-tuner-", dir=folder)
    atexit.register(_remove, place, os.getpid())
    try:
        path = build(place)
        variables[VENDOR] = "\n".join(list_vendors(variables))
        variables[PLUGIN] = path
    except Unbuildable as reason:
        say(f"NCCL chooses by itself: {reason}")


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked child of the script comes through here as well
        shutil.rmtree(folder, ignore_errors=True)


def build(folder: str) -> str:
    """Compiles the plugin into a folder; its path. Raises Unbuildable."""
    compiler = find_compiler()
    if compiler is None:
        raise Unbuildable(_NO_COMPILER)
    source, path = os.path.join(folder, SOURCE), os.path.join(folder, FILE)
    words = [compiler, "-std=c11", "-O2", "-fPIC", "-shared", "-o", path, source, "-ldl", "-lpthread"]
    try:
        with open(source, "wb") as file:  # the package may lie in an archive
            file.write(pkgutil.get_data(__name__, SOURCE) or b"")
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMPILE_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unbuildable(f"{compiler} did not compile NCCL's tuner plugin: {error}.") from error
    if done.returncode:
        said = done.stdout.decode(errors="replace").strip()[-300:]
        raise Unbuildable(f"{compiler} did not compile NCCL's tuner plugin: {said}")
    return path


_NO_COMPILER = (
    f"No C compiler ({', '.join(COMPILERS)}) was found on this node, to build NCCL's tuner plugin with."
)


def find_compiler() -> Optional[str]:
    return next(filter(None, map(shutil.which, COMPILERS)), None)


def explain_no_choice(version: Optional[Tuple[int, ...]]) -> Optional[str]:
    """Why NCCL's choices cannot be made by our plugin on this node, or None. `version` is NCCL's, None without it."""
    own = read_variable(PLUGIN)
    if is_ours(own):
        return None
    if own is not None and PLUGIN not in os.environ:
        # NCCL reads its file when it starts, which is after our plugin has to know whom it asks.
        return f"nccl.conf sets {PLUGIN}={own}; set it in the environment, where our plugin finds and asks that one."
    if version is None:
        return "This torch was built without NCCL."
    if tuple(version[:2]) < SPOKEN_FROM:
        found = ".".join(map(str, version))
        return f"NCCL {found} hands a tuner plugin no table of costs: use a torch with NCCL 2.22 or later."
    return None if find_compiler() else _NO_COMPILER


def is_ours(path: Optional[str]) -> bool:
    return path is not None and os.path.basename(path) == FILE


def list_vendors(variables: Mapping[str, str]) -> List[str]:
    """The libraries in which NCCL would look for a tuner without us, in its order."""
    own, net = variables.get(PLUGIN, ""), variables.get("NCCL_NET_PLUGIN", "")
    if own.lower() == "none":
        return []
    tuners = [own, f"libnccl-tuner-{own}.so"] if own else ["libnccl-tuner.so"]
    networks = [name for name in net.split(",") if name and name.lower() != "none"]
    named = [file for name in networks for file in (name, f"libnccl-net-{name}.so")]
    return [*tuners, *(named if net else ["libnccl-net.so"])]


COUNTS = ("chosen", "impossible", "narrowed", "delegated")


def count_choices(path: str) -> Optional[Dict[str, List[int]]]:
    """COUNTS by collective; None where NCCL has not loaded it."""
    try:
        # The one that NCCL has loaded, or none: a plugin that NCCL never asks proves nothing.
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None
    kind = ctypes.c_long * 5
    return {name: list(kind.in_dll(library, f"fleet_{name}")) for name in COUNTS}


def describe_vendor(path: str) -> Tuple[bool, str]:
    """Whether our plugin asks the network's tuner where there is one, and a sentence about it, "" for none."""
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return True, ""
    version = ctypes.c_int.in_dll(library, "fleet_vendor_version").value
    name = (ctypes.c_char * 128).in_dll(library, "fleet_vendor_name").value.decode(errors="replace")
    asked = sum((ctypes.c_long * 5).in_dll(library, "fleet_delegated"))
    if version < 0:
        return False, " The network's own tuner speaks no version of NCCL's interface that ours speaks."
    told = f" The network's own tuner ({name}, version {version}) was asked {asked} times before."
    return True, told if version else ""


def prove_choice(knob: str, value: object) -> Tuple[bool, str]:
    """Whether NCCL took this choice in this rank, with the sentence that says so."""
    path = os.environ.get(PLUGIN, "")
    counts = count_choices(path) if is_ours(path) else None
    if counts is None:
        return False, "NCCL has not loaded the advisor's tuner plugin: the ranks' output says why."
    asks, vendor = describe_vendor(path)
    if knob not in COLLECTIVES:
        narrowed = sum(counts["narrowed"])
        sentence = f"NCCL's tuner plugin gave {narrowed} collectives {value} channels."
        return asks and narrowed > 0, sentence + vendor
    number = COLLECTIVES[knob]
    chosen, impossible = counts["chosen"][number], counts["impossible"][number]
    sentence = (
        f"NCCL's tuner plugin chose {value} {chosen} times, and {impossible} times NCCL said that it cannot."
    )
    return asks and chosen > 0, sentence + vendor
