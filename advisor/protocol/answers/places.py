"""Where a script does what takes its time: the line in which a rank was seen most often, for each finding."""

from collections.abc import Sequence

from advisor.protocol.gains import spell_share
from advisor.protocol.measured.results import LateRank, Place

_PARTS = {
    "input": ("data_wait_s",),
    "accumulation": ("backward_s",),
    "own_code": ("own_code_s", "logging"),
    "evaluation": ("evaluation", "saving"),
    "compiling": ("compiling_s",),
    "stalls": ("forward_s", "backward_s", "optimizer_s"),
}
"""The samples that belong to each finding."""
_CLEAR = 0.3
"""Share of them from which on a line stands for the finding."""
_KINDS = {"evaluation": "evaluation", "saving": "checkpoints", "logging": "logging"}
_WORTH_TELLING = 0.01


def find_place(name: str, late: LateRank | None, places: Sequence[Place]) -> str:
    """Return `train.py:88` for a finding of that name; "" where no line stands out, or none was looked for."""
    parts = (late.part,) if name == "late_rank" and late is not None else _PARTS.get(name, ())
    shares: dict[str, float] = {}
    for place in places:
        if place.part in parts:
            shares[place.site] = shares.get(place.site, 0.0) + place.share
    site = max(shares, key=lambda one: shares[one], default="")
    return site if site and shares[site] >= _CLEAR * sum(shares.values()) else ""


def say_kinds(name: str, places: Sequence[Place]) -> str:
    """Return what evaluation and checkpoints, or logging, take of all time; "" where none takes any worth telling."""
    told = []
    for part in _PARTS.get(name, ()):
        share = sum(place.share for place in places if place.part == part)
        if part in _KINDS and share >= _WORTH_TELLING:
            told.append(f"{_KINDS[part]} {spell_share(share)}")
    return ", ".join(told)
