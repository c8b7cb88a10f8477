"""What the node's agent told this process through environment variables, and C's own copy of them."""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Mapping, Optional

BASE = "ADVISOR_BASE"
"""Set in a trial whose strategies are held against another one, which it holds as JSON, not against the script."""
LOOKS_ONLY = "ADVISOR_LOOKS_ONLY"
"""Set where nothing will be switched: a diagnosis."""
OWN = "ADVISOR_OWN"
"""Set where the script has knobs of its own: by name, how each is put there, its value, whether it is hot and exact."""
RUN = "ADVISOR_RUN"
"""Set where a real training runs under a strategy, which it holds as JSON."""
RANK_PROCESS = "ADVISOR_RANK_PROCESS"
"""The process that is the rank; in the environment of everything it starts."""
COMPILED = "TORCHINDUCTOR_CACHE_DIR"
"""Where torch keeps what it compiled."""


@dataclass(frozen=True)
class Environment:
    """The runtime's settings, parsed once; every other file gets them as an argument."""

    rank: int
    """Global rank of this process."""
    world_size: int
    local_rank: int
    local_world_size: int
    session_dir: Optional[str]
    """Folder of this node's session: progress beats and logs."""
    control: Optional[str]
    """Path of the agent's unix socket. None: observe only, switch nothing."""
    session: str
    """Marker of the session, used as a prefix in the process group's store."""
    attempt: int
    """How often torchrun has restarted the ranks."""
    samples_per_forward: Optional[int]
    """Overrides the batch size found in the model's input."""
    cold: Mapping[str, Any] = field(default_factory=dict)
    """Knob values that the ranks were launched with."""
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The script's own knobs: how each is put there, its value, whether it is hot and exact."""
    base: Mapping[str, Any] = field(default_factory=dict)
    """Knob values that stand beside the script's own in every strategy of a trial that does not set them."""
    strategy: Optional[Mapping[str, Any]] = None
    """What a real training is to run under (`changes`, and what they hold for); None in a trial."""
    scratch: Optional[str] = None
    """Folder for what trials compile, that goes with the session; None leaves it where the job or torch keeps it."""
    is_rank: bool = True
    """Whether this process is a rank for certain: one below a launcher that tells nothing may yet be a helper."""
    looks_only: bool = False
    """Whether nothing will be switched, so that a training that no lever reaches is timed, too."""
    stay_s: float = 0.0
    """How long a rank that is done waits for its agent to end it: the user's command may go on after its ranks
    (evaluate, upload), which no trial may do."""


def read_environment(variables: Optional[Mapping[str, str]] = None) -> Environment:
    """Parses the variables; a malformed one raises ValueError with a sentence that names it."""
    values = os.environ if variables is None else variables
    return Environment(
        rank=_read_count(values, "RANK", 0),
        world_size=_read_count(values, "WORLD_SIZE", 1),
        local_rank=_read_count(values, "LOCAL_RANK", 0),
        local_world_size=_read_count(values, "LOCAL_WORLD_SIZE", 1),
        session_dir=values.get("ADVISOR_SESSION_DIR") or None,
        control=values.get("ADVISOR_CONTROL") or None,
        session=values.get("ADVISOR_SESSION") or "session",
        attempt=_read_count(values, "TORCHELASTIC_RESTART_COUNT", 0),
        samples_per_forward=_read_count(values, "ADVISOR_SAMPLES_PER_STEP", 0) or None,
        cold=_read_object(values, "ADVISOR_COLD") or {},
        own=_read_object(values, OWN) or {},
        base=_read_object(values, BASE) or {},
        strategy=_read_object(values, RUN),
        # Asked before torch is there, which sets the variable by itself.
        scratch=None if COMPILED in values else values.get("ADVISOR_SESSION_DIR") or None,
        looks_only=bool(values.get(LOOKS_ONLY)),
        stay_s=float(_read_count(values, "ADVISOR_STAY_S", 0)),
    )


def read_joined_environment(
    rank: int, world_size: int, variables: Optional[Mapping[str, str]] = None
) -> Environment:
    """As `read_environment`, for a rank that is known from its process group: not every launcher sets the variables.

    Without LOCAL_WORLD_SIZE the nodes are taken to hold equally many ranks, in the order of their numbers.
    """
    values = os.environ if variables is None else variables
    nodes = max(1, _read_count(values, "ADVISOR_NODES", 1))
    local_world_size = _read_count(values, "LOCAL_WORLD_SIZE", max(1, world_size // nodes))
    return replace(
        read_environment(values),
        rank=rank,
        world_size=world_size,
        local_world_size=local_world_size,
        local_rank=_read_count(values, "LOCAL_RANK", rank % local_world_size),
    )


def _read_object(values: Mapping[str, str], name: str) -> Optional[Dict[str, Any]]:
    """A JSON object, None where the variable is not set."""
    if not values.get(name):
        return None
    try:
        found = json.loads(values[name])
    except ValueError as error:
        raise ValueError(f"{name} is not JSON ({error}); it holds knob values.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{name} must be a JSON object.")
    return found


def _read_count(values: Mapping[str, str], name: str, otherwise: int) -> int:
    text = values.get(name)
    if not text:
        return otherwise
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"{name} must be a whole number, not {text!r}.") from error


def read_variable(name: str) -> Optional[str]:
    """NCCL, for one, puts the lines of its own file (nccl.conf) there."""
    get = ctypes.CDLL(None).getenv
    get.argtypes, get.restype = [ctypes.c_char_p], ctypes.c_char_p
    found: Optional[bytes] = get(name.encode())
    return None if found is None else found.decode(errors="replace")
