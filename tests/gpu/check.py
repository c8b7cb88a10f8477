"""A check of a GPU: its name, what it expects, and what came of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tests.gpu.bench import Bench


class Status(StrEnum):
    """How a check came out."""

    PASSED = "passed"
    FAILED = "failed"
    IMPOSSIBLE = "not possible here"


class NotPossible(Exception):
    """This machine cannot show it; the text says why in a sentence."""


@dataclass
class Judgement:
    """What one check measured, and which of its expectations did not hold."""

    measured: list[str] = field(default_factory=list)
    """Figures, each with its unit."""
    faults: list[str] = field(default_factory=list)
    """A sentence for every expectation that did not hold."""
    left_out: list[str] = field(default_factory=list)
    """A sentence for every part that this machine cannot show."""

    def note(self, figure: str) -> None:
        """Keep a figure that nothing is expected of."""
        self.measured.append(figure)

    def expect(self, holds: bool, figure: str, fault: str) -> None:
        """Keep a figure, and the fault where what is expected of it does not hold."""
        if figure:
            self.measured.append(figure)
        if not holds:
            self.faults.append(fault)


@dataclass(frozen=True)
class Check:
    """Something to find out on a card."""

    name: str
    """One word: what `--checks` takes."""
    expects: str
    """A sentence."""
    run: Callable[[Bench], Judgement]
    """Raises NotPossible where this machine cannot show it."""


@dataclass(frozen=True)
class Outcome:
    """What came of one check."""

    check: Check
    status: Status
    judgement: Judgement
    seconds: float
    because: str = ""
    """Why it was not possible, in a sentence."""


def choose_checks(checks: Sequence[Check], names: str) -> list[Check]:
    """Return the checks that a comma-separated list names, in their own order; all of them for "".

    Raises ValueError, which names the word and what there is.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    known = [check.name for check in checks]
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(f"--checks {unknown[0]}: there is no such check. There are: {', '.join(known)}.")
    return [check for check in checks if not wanted or check.name in wanted]
