"""Holds a run under settings against the bare one: exit code, printed lines, files, and how far the ranks are apart."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from random_ledger import find_broken_promise

if TYPE_CHECKING:
    from random_cases import Case

_CLOSE, _CLOSE_BELOW = 1e-3, 1e-5
_MOST_LOCAL_STEPS = 17
"""The longest interval of adaptive local SGD, and one step."""
_BY_TURNS = ("toggle", "frozen_critic")
_UPDATES_OF_TURNS = 4
"""Most updates of a step where several optimizers take turns."""
_MARK = re.compile(r" (\w+:[0-9a-f]{16})$")
"""Ends a line that tells the bits of a rank's parameters: ranks of the same place hold the same ones."""


@dataclass
class Trained:
    """What one run left."""

    code: int
    log: str
    seconds: float
    told: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, np.ndarray] = field(default_factory=dict)
    """Of each rank at its end, by `place-rank`."""

    @property
    def has_hung(self) -> bool:
        """Whether it had to be ended."""
        return "[timed out]" in self.log

    def list_apart(self) -> list[bool]:
        """For each update, whether ranks of a place held other parameters than each other just before it."""
        marks = [[m[1] for line in lines if (m := _MARK.search(line))] for lines in self.told.values()]
        return [
            len(set(row)) > len({mark.split(":")[0] for mark in row}) for row in zip(*marks, strict=False)
        ]

    def measure_distance(self) -> float:
        """The largest difference of a parameter at the end between a rank and the first of its place; inf for nan."""
        firsts: dict[str, np.ndarray] = {}
        found = 0.0
        for name, values in sorted(self.parameters.items(), key=lambda item: int(item[0].split("-")[1])):
            first = firsts.setdefault(name.split("-")[0], values)
            if len(first) != len(values):
                return math.inf
            alike = (first == values) | (np.isnan(first) & np.isnan(values))
            if not alike.all():
                found = max(found, float(np.abs(first - values)[~alike].max()))
        return math.inf if math.isnan(found) else found


def find_fault(case: Case, bare: Trained, under: Trained) -> str:
    """What is not the same, in a few words; "" where all is."""
    if under.has_hung:
        return "hangs"
    if (bare.code == 0) != (under.code == 0):
        return f"exit code {bare.code} became {under.code}"
    if bare.code == 0 and "runtime failed, not the script" in under.log:
        return "a lever failed"
    if bare.code == 0 and (fault := _find_drift(case, bare, under)):
        return fault
    if bare.code == 0 and case.kind == "ledger" and (fault := find_broken_promise(case, bare, under)):
        return fault
    for rank in sorted(bare.told.keys() | under.told.keys()):
        fault = _compare(case, bare.told.get(rank, []), under.told.get(rank, []), whole=bare.code == 0)
        if fault:
            return f"rank {rank}: {fault}"
    if bare.code == 0 and bare.files.keys() != under.files.keys():
        return f"files {sorted(bare.files)} became {sorted(under.files)}"
    if bare.code == 0 and case.is_bitwise and bare.files != under.files:
        return "a file's content differs"
    return ""


def _find_drift(case: Case, bare: Trained, under: Trained) -> str:
    """Where the bare script's ranks are equal, they have to be; where not, no further apart."""
    was, now = bare.list_apart(), under.list_apart()
    if case.may_drift:
        knob = "localsgd_k_steps" if "localsgd" in case.settings else ""
        most = int(case.settings[knob]) if knob else _MOST_LOCAL_STEPS
        # Synchronised steps after a switch keep ranks apart, too, where each has a momentum of its own by then.
        most += int(case.settings.get("localsgd_begin_step", "1"))
        if case.kind in _BY_TURNS:
            most *= _UPDATES_OF_TURNS
        since = 0
        for step, (before, after) in enumerate(zip(was[:-1], now[:-1], strict=False)):
            since = since + 1 if after and not before else 0
            if since >= most:
                return f"ranks are apart for {since} updates before update {step}, averaged within {most}"
        return ""
    for step, (before, after) in enumerate(zip(was, now, strict=False)):
        if after and not before:
            return f"ranks come apart before update {step}, by {under.measure_distance():.3g} in the end"
    before, after = bare.measure_distance(), under.measure_distance()
    most = before * (1.0 + _CLOSE) if case.is_exact else 3.0 * before
    return f"ranks apart by {before:.3g} become apart by {after:.3g}" if after > most else ""


def _compare(case: Case, before: list[str], after: list[str], *, whole: bool) -> str:
    """Where a rank fails, torchrun ends the others wherever they are."""
    if whole and len(before) != len(after):
        return f"{len(before)} lines became {len(after)}"
    for first, second in zip(before, after, strict=False):
        if not _are_same(case, first.split(), second.split()):
            return f"{first!r} became {second!r}"
    return ""


def _are_same(case: Case, before: list[str], after: list[str]) -> bool:
    if before == after:
        return True
    if before[0] == "buffers" == after[0] and not case.is_bitwise:
        return True  # their bits follow the order of sums
    if before[0] == "asked" == after[0] and any(knob.startswith("loader_") for knob in case.settings):
        return True  # who reads ahead asks elsewhere
    if case.is_bitwise or len(before) != len(after) or before[0] != after[0]:
        return False
    try:
        was, now = float(before[1]), float(after[1])
    except (IndexError, ValueError):
        return False
    if not case.is_exact:
        return math.isfinite(now) or not math.isfinite(was)
    return math.isclose(was, now, rel_tol=_CLOSE, abs_tol=_CLOSE_BELOW) or (
        math.isnan(was) and math.isnan(now)
    )
