"""What a single NCCL communicator can be made with (`ProcessGroupNCCL.Options().config`), and what of it is in force.

NCCL looks at its environment after that configuration: a variable that stands there beats it in every communicator
(envConfigOverride in NCCL's src/init.cc, from 2.17 on; its documentation says the same of each variable).
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

import torch
import torch.distributed as dist

from ...private_torch import GET_BACKEND, NCCL_GROUP, TIMEOUT, explain_missing
from ..lever import read_count

Configuration = Tuple[Tuple[str, int], ...]
"""Fields of NCCL's configuration with their values, in the order of their names; empty leaves all to NCCL."""
FIELDS = {
    "NCCL_MIN_CTAS": "min_ctas",
    "NCCL_MAX_CTAS": "max_ctas",
    "NCCL_CGA_CLUSTER_SIZE": "cga_cluster_size",
}
"""Variables that NCCL reads for all communicators of a process, and torch's name for the same thing in one of them.

Not among them: split_share, which binds a communicator to the channels of the one it was split from, and
traffic_class, which means what the site's switches make of it.
"""
LEAST = {"NCCL_MIN_CTAS": 1, "NCCL_MAX_CTAS": 1, "NCCL_CGA_CLUSTER_SIZE": 0}
UNLIMITED = 1024
"""Blocks: more than NCCL makes of any communicator, for which it takes its own limit.

A configuration with the fewest and not the most is an invalid argument to it: it compares the two before it fills in
what is missing (parseCommConfig in its src/init.cc, up to 2.30 at least).
"""


def read_configuration(values: Mapping[str, Any]) -> Configuration:
    """The fields for those knobs; ValueError with a sentence for a value that is none."""
    return tuple(
        sorted((FIELDS[knob], read_count(values[knob], LEAST[knob])) for knob in FIELDS if knob in values)
    )


def explain_no_options(group: Any, device: torch.device) -> Optional[str]:
    """Why no communicator can be made with a configuration of its own beside this group's, or None."""
    if not NCCL_GROUP.is_in(dist):
        return "This torch was built without NCCL."
    missing = explain_missing(group, (GET_BACKEND,))
    if missing is not None:
        return missing
    kind = NCCL_GROUP.of(dist)
    config = getattr(kind.Options(), "config", None)
    for field in FIELDS.values():
        if not hasattr(config, field):
            return f"torch {torch.__version__} gives NCCL's communicators no {field} of their own."
    backend = GET_BACKEND.of(group)(device)
    # Under TORCH_DISTRIBUTED_DEBUG=DETAIL it is a wrapper, which in some torch has no options of the wrapped one's.
    if not hasattr(getattr(backend, "options", None), "config"):
        return f"torch {torch.__version__} does not tell what a {type(backend).__name__} was made with."
    return None


def build_options(configuration: Configuration, device: torch.device) -> Any:
    """As the job's own communicator was made, but for those fields."""
    own = _read_options(dist.group.WORLD, device)
    options = NCCL_GROUP.of(dist).Options()
    options.is_high_priority_stream = own.is_high_priority_stream
    TIMEOUT.set(options, TIMEOUT.of(own))
    chosen = dict(configuration)
    for field in FIELDS.values():
        setattr(options.config, field, chosen.get(field, getattr(own.config, field)))
    if options.config.min_ctas > 0 > options.config.max_ctas:
        options.config.max_ctas = UNLIMITED
    return options


def read_fields(groups: Iterable[Any], device: torch.device) -> List[Dict[str, int]]:
    """What each of these communicators was made with."""
    found = []
    for group in groups:
        config = _read_options(group, device).config
        found.append({field: int(getattr(config, field)) for field in FIELDS.values()})
    return found


def _read_options(group: Any, device: torch.device) -> Any:
    return GET_BACKEND.of(group)(device).options
