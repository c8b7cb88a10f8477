"""What the planner can decide. Every decision carries its stage and its reason as a sentence."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from advisor.protocol.base import Value
from advisor.protocol.jobs import Stage
from advisor.protocol.knobs import Effect
from advisor.protocol.trials import Purpose


@dataclass(frozen=True)
class TrialDraft:
    """A trial that does not exist yet; the service gives it the next number."""

    purpose: Purpose
    changes: Mapping[str, Value]
    """Knobs that differ from the baseline; empty for the baseline itself."""
    effect: Effect
    because: str


@dataclass(frozen=True)
class Measure:
    """Measure one block in the running session."""

    stage: Stage
    because: str
    trial: int | TrialDraft
    """The trial's number, or a draft of a new one."""
    overrides: Mapping[str, Value]
    """Knobs to set against the script as it stands."""
    warmup_steps: int
    min_steps: int
    max_steps: int
    target_s: float
    profile_steps: int
    round: int | None = None
    """Round of finals, simplification or confirmation, counted through the job; None for anchors and search blocks."""
    give_up_s: float | None = None
    """Timing may stop early once steps are surely slower than this many seconds."""
    target_error: float | None = None
    """Timing may stop early once the standard error of ln(step time) is at most this."""
    calibrate: bool = False
    """Also measure links, gradients and the gradient's noise."""


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
    cold: Mapping[str, Value] = field(default_factory=dict)
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


Decision = Measure | EndSession | Launch | Wait | Finish | Fail
