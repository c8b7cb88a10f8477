"""What the planner can decide. Every decision carries its stage and its reason as a sentence."""

from dataclasses import dataclass

from advisor.protocol.asked.jobs import Stage
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import RaceRules
from advisor.protocol.measured.trials import Purpose
from advisor.protocol.standing import Standing
from advisor.protocol.views import NamedCombinations


@dataclass(frozen=True)
class Candidate:
    """A strategy that could be measured next, what for and why; its trial may not exist yet."""

    purpose: Purpose
    changes: Changes
    """Knobs that differ from the baseline; empty for the baseline itself."""
    because: str


BASELINE = Candidate(
    Purpose.BASELINE, Changes(), "The script as it stands: every gain is against it, and it shows the noise."
)


@dataclass(frozen=True)
class Race:
    """Race these arms in the running session; the first one is what the others are held against."""

    stage: Stage
    because: str
    arms: tuple[Candidate, ...]
    rules: RaceRules
    number: int
    """Counted through the job. Arms that need launches of their own share the number of their race."""
    smallest_gain: float | None = None
    """The smallest gain that the budget can find, as a fraction of the throughput: told with this race. None: nothing
    is told."""
    named: NamedCombinations | None = None
    """What there is to measure of what the user named: told with this race. None: nothing is told."""
    standing: Standing | None = None
    """The strategy that is best so far; None where none is expected to be faster than the baseline."""


@dataclass(frozen=True)
class Over:
    """A stage has nothing more to measure."""

    because: str


@dataclass(frozen=True)
class EndSession:
    """The live session has nothing more to measure, or has to be launched anew."""

    stage: Stage
    because: str


@dataclass(frozen=True)
class Launch:
    """No session is live: start one."""

    stage: Stage
    because: str
    cold: Changes = Changes()
    """Cold changes to launch with."""


@dataclass(frozen=True)
class Wait:
    """The live session is assembling or ending: there is nothing to decide until it is running or gone."""

    stage: Stage
    because: str


@dataclass(frozen=True)
class Finish:
    """No session is live and nothing more is to be measured: build the advice."""

    because: str
    stage: Stage = Stage.DONE


@dataclass(frozen=True)
class Fail:
    """No session is live and nothing can be advised; `because` says why and what to do."""

    because: str
    stage: Stage = Stage.DONE


Decision = Race | EndSession | Launch | Wait | Finish | Fail
