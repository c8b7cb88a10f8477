"""NCCL's channels and cluster size, switched between two steps: gradients go over communicators made with them.

What the job set for all its communicators stays in force for the others. Where that cannot be done, or a variable in
the environment beats it, the knob is one of the launch.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

import torch
import torch.distributed as dist

from ...backends import find_backend
from ...link.environment import read_variable
from ..lever import Evidence, Lever, RelaunchNeeded, Training
from .communicators import agree_on_most, explain_no_order
from .gradient_reduction import GradientReduction
from .nccl_options import FIELDS, explain_no_options, read_configuration, read_fields

CLUSTER = "NCCL_CGA_CLUSTER_SIZE"
CLUSTERS_FROM = (9, 0)
"""The first compute capability with clusters of thread blocks; before it NCCL ignores their size (its enqueue.cc)."""
UNSET, UNLIKE = -1, -2
"""A variable that stands in no rank's environment, and one that is not the same in all of them."""


class NcclConfiguration(Lever):
    """Comes before the lever of the reducer, which makes the communicators that this one asks for."""

    knobs = tuple(FIELDS)
    serves_sharded = serves_engines = True
    """A sharded model has its own communicators: there, too, each value takes a launch."""

    def __init__(self, reduction: GradientReduction, device: torch.device) -> None:
        self._reduction, self._device = reduction, device
        self._reason: Optional[str] = "The job's communicators were not looked at."
        self._standing: Dict[str, int] = {}
        self._values: Mapping[str, Any] = {}
        self._rejected: Dict[str, str] = {}
        self._made: List[Dict[str, int]] = []

    def list_refusals(self, training: Training) -> Dict[str, str]:
        """Collective over all ranks where the backend is NCCL: one of them alone must not ask for a launch."""
        self._reason = self._explain_no_switch(training)
        backend = find_backend(dist.group.WORLD, self._device)
        if backend != "nccl":
            return dict.fromkeys(
                FIELDS, f"The job communicates over {backend}, which does not read NCCL's settings."
            )
        own = [_read_number(knob) for knob in FIELDS]
        flags = [*own, *(-number for number in own), int(self._reason is not None)]
        *numbers, is_impossible = agree_on_most(flags, self._device)
        most, least = numbers[: len(own)], [-number for number in numbers[len(own) :]]
        for knob, low, high in zip(FIELDS, least, most):
            self._standing[knob] = high if low == high else UNLIKE
        if is_impossible and self._reason is None:
            self._reason = "Another rank cannot make communicators with a configuration of their own."
        if self._device.type == "cuda" and torch.cuda.get_device_capability(self._device) < CLUSTERS_FROM:
            return {
                CLUSTER: "Clusters of thread blocks exist from compute capability 9.0 on; NCCL leaves them out here."
            }
        return {}

    def observe(self, training: Training) -> Dict[str, Any]:
        """What the script itself made its process group with, where no variable beats it."""
        if self._reason is not None:
            return {}
        [own] = read_fields([dist.group.WORLD], self._device)
        free = (knob for knob in FIELDS if self._standing.get(knob, UNSET) == UNSET)
        return {knob: own[FIELDS[knob]] for knob in free if own[FIELDS[knob]] >= 0}

    def _explain_no_switch(self, training: Training) -> Optional[str]:
        if not training.replicas:
            return (
                "The model is sharded: it reduces over communicators of its own, made before its first step."
            )
        for ddp in training.replicas:
            backend = find_backend(ddp.process_group, self._device)
            if backend != "nccl":
                return f"The model communicates over {backend}."
            if dist.get_world_size(ddp.process_group) != dist.get_world_size():
                return "The model reduces over a part of the ranks only."
            reason = self._reduction.explain_no_exchange(ddp)
            if reason is not None:
                return reason
        return explain_no_options(dist.group.WORLD, self._device) or explain_no_order("nccl")

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._values, self._rejected = values, {}
        self._reduction.configure(())
        free: Dict[str, Any] = {}
        for knob, value in values.items():
            try:
                [(_, number)] = read_configuration({knob: value})
            except ValueError as error:
                self._rejected[knob] = f"{knob} was not set: {error}."
                continue
            standing = self._standing.get(knob, _read_number(knob))
            if standing == UNSET:
                free[knob] = number
            elif standing != number:
                raise RelaunchNeeded(_explain_standing(knob, standing))
        if free and self._reason is not None:
            raise RelaunchNeeded(f"{self._reason} {', '.join(free)} can be set at launch only.")
        self._reduction.configure(read_configuration(free))

    def begin_timing(self) -> None:
        """Reads back what is about to be timed; when it is proved, the script may have ended its process groups."""
        self._made = self._reduction.read_made() if self._values else []

    def prove(self) -> Evidence:
        evidence = Evidence(not_consumed=dict(self._rejected))
        for knob, value in self._values.items():
            if knob in self._rejected:
                continue
            if self._standing.get(knob, _read_number(knob)) == value:
                evidence.consumed[knob] = (
                    f"{knob}={value} in the ranks' environment, which NCCL puts above every communicator's own."
                )
                continue
            found = _list_values(self._made, FIELDS[knob])
            if found == [value]:
                evidence.consumed[knob] = (
                    f"Gradients went over {len(self._made)} communicator(s) of their own, "
                    f"made with {FIELDS[knob]} {value}."
                )
            else:
                evidence.not_consumed[knob] = (
                    f"The communicators of the gradients were made with {FIELDS[knob]} {found or 'of the job'}."
                )
        return evidence


def _list_values(made: List[Dict[str, int]], field: str) -> List[int]:
    return sorted({fields[field] for fields in made})


def _read_number(knob: str) -> int:
    text = read_variable(knob)
    if not text:  # NCCL, too, takes an empty one for none
        return UNSET
    return int(text) if text.strip().isdigit() else UNLIKE


def _explain_standing(knob: str, standing: int) -> str:
    if standing == UNLIKE:
        return f"{knob} is not the same number in every rank's environment, which NCCL puts above a communicator's own."
    return (
        f"{knob}={standing} stands in the ranks' environment, which NCCL puts above a communicator's own: another "
        "value takes a launch."
    )
