"""What a command's output says: lines -> steps of all its ranks, and what it says about itself. Nothing here does I/O.

A JSON line may hold, all optional: `step_time_s` (or `samples_per_s`), `samples`, `loss`, `rank`; and about the
program: `facts`, `baseline`, `consumed`, `not_consumed`, `no_effect`, `bucket_bytes`. What else it holds is ignored.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from advisor.protocol.base import Value
from advisor.protocol.patterns import compile_pattern
from advisor.protocol.plain_text import clean_text

RESULTS_FILE = "results.jsonl"
"""In the ranks' folder, where a program may write its lines instead of to its output."""
LONGEST_LINE = 100_000
"""Characters; a longer line is no result."""
_LONGEST_TEXT = 1_000
_SEARCHED = 2_000
"""Characters of a line that a pattern is searched in: what tells a step stands at a line's beginning."""
_MOST_RANKS = 65_536
_MOST_STEPS = 1_000_000
"""Kept of each launch: a program that floods its output costs no more memory than that."""
_ABOUT = ("facts", "baseline", "consumed", "not_consumed", "no_effect", "bucket_bytes")


@dataclass(frozen=True)
class Step:
    """One line about a step: one rank's, or all ranks' where the program names none."""

    time_s: float
    samples: float | None = None
    loss: float | None = None
    """Not finite where the program's own was not."""
    rank: int = 0
    heard_s: float = 0.0
    """When its line was read, by the reader's clock."""


@dataclass
class About:
    """What the program says about itself; a later line adds to the earlier ones."""

    facts: dict[str, Any] = field(default_factory=dict)
    baseline: dict[str, Value] = field(default_factory=dict)
    consumed: dict[str, str] = field(default_factory=dict)
    not_consumed: dict[str, str] = field(default_factory=dict)
    no_effect: dict[str, str] = field(default_factory=dict)
    bucket_bytes: tuple[int, ...] = ()

    def add(self, line: Mapping[str, Any]) -> None:
        """Take what a JSON line says about the program; what is not of the right form is left out."""
        if isinstance(line.get("facts"), dict):
            self.facts |= line["facts"]
        if isinstance(line.get("baseline"), dict):
            self.baseline |= {
                str(k): v for k, v in line["baseline"].items() if isinstance(v, bool | int | float | str)
            }
        for name in ("consumed", "not_consumed", "no_effect"):
            getattr(self, name).update(_read_words(line.get(name)))
        if isinstance(line.get("bucket_bytes"), list):
            self.bucket_bytes = tuple(
                size for size in line["bucket_bytes"] if type(size) is int and size >= 0
            )


class Results:
    """Everything that the lines of a launch said so far."""

    def __init__(self, pattern: str) -> None:
        """`pattern` finds a step in a line, by the names of its groups; empty: steps are JSON lines."""
        self._pattern = compile_pattern(pattern) if pattern else None
        self._steps: dict[int, list[Step]] = {}
        self._kept = 0
        self.about = About()

    def read_line(self, text: str, heard_s: float = 0.0) -> bool:
        """Take a line that was read at that time; return whether it told a step."""
        if len(text) > LONGEST_LINE:
            return False
        line = _parse_object(text)
        if line is not None and any(name in line for name in _ABOUT):
            self.about.add(line)
        step = None
        if self._pattern is None:
            step = _read_step(line) if line is not None else None
        elif (found := self._pattern.search(text[:_SEARCHED])) is not None:
            step = _read_step(found.groupdict())
        if step is None:
            return False
        if self._kept < _MOST_STEPS:
            self._kept += 1
            self._steps.setdefault(step.rank, []).append(replace(step, heard_s=heard_s))
        return True

    @property
    def ranks(self) -> int:
        """Ranks that told a step."""
        return len(self._steps)

    def count_steps(self) -> int:
        """Return the steps that every rank heard so far has told."""
        return min((len(steps) for steps in self._steps.values()), default=0)

    def list_steps(self, first: int, last: int) -> list[tuple[Step, ...]]:
        """Return what all ranks told of the steps from `first` up to, not with, `last`, as far as every rank is."""
        last = min(last, self.count_steps())
        ranks = [self._steps[rank] for rank in sorted(self._steps)]
        return list(zip(*(islice(steps, first, last) for steps in ranks), strict=True))


def _parse_object(text: str) -> dict[str, Any] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


def _read_step(line: Mapping[str, Any]) -> Step | None:
    samples, rate = _read_positive(line.get("samples")), _read_positive(line.get("samples_per_s"))
    time_s = _read_positive(line.get("step_time_s"))
    if time_s is None and (milliseconds := _read_positive(line.get("step_time_ms"))) is not None:
        time_s = milliseconds / 1e3
    if time_s is None and rate is not None:
        samples = samples or 1.0
        time_s = samples / rate
    rank = _read_number(line.get("rank"))
    if time_s is None or (rank is not None and not 0 <= rank < _MOST_RANKS):
        return None
    return Step(time_s, samples, _read_number(line.get("loss")), int(rank or 0))


def _read_number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _read_positive(value: object) -> float | None:
    number = _read_number(value)
    return number if number is not None and math.isfinite(number) and number > 0 else None


def _read_words(value: object) -> dict[str, str]:
    """Return knob -> sentence, cleaned; a list of knobs has the program's word for a sentence."""
    if isinstance(value, list):
        value = dict.fromkeys((name for name in value if isinstance(name, str)), "The program says so.")
    if not isinstance(value, dict):
        return {}
    return {
        clean_text(str(name))[:100]: clean_text(str(words))[:_LONGEST_TEXT]
        for name, words in islice(value.items(), 200)
    }
