"""What every lever offers, and how it states whether a knob was consumed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ..observe.precision import ScriptPrecision
from .events import StepListener


@dataclass(frozen=True)
class Training:
    """What levers act on: this rank's live models and optimizers."""

    replicas: List[Any]
    """The DistributedDataParallel models that train now, the same list on every rank."""
    optimizers: List[Any]
    """Every optimizer that has stepped and still lives."""
    precision: ScriptPrecision = field(default_factory=ScriptPrecision)
    """What the script itself does about number formats."""
    loss: Optional[Any] = None
    """This rank's last loss, a number or a tensor of one on a device, while a lever `needs_loss`."""
    sharded: List[Any] = field(default_factory=list)
    """The outermost modules sharded by fully_shard or FullyShardedDataParallel; empty where DDP models train."""
    awaited: Dict[int, List[Any]] = field(default_factory=dict)
    """By identity, models whose backward may still come: outputs of the last forward, None for one that is gone."""
    known: List[Any] = field(default_factory=list)
    """Every wrapped or sharded model that lives, also those that train now and then only."""
    repeats_backward: bool = False
    """Whether a backward pass was seen that no training forward had come before since the last one."""
    entered: Optional[Any] = None
    """The model whose training forward begins at this moment."""
    waiting: List[Any] = field(default_factory=list)
    """Optimizers of these models that the script has made and has not let step yet."""
    plain: List[Any] = field(default_factory=list)
    """The models that nothing wraps or shards, of a job of one rank; empty where there are others."""
    exchanges: int = 0
    """Exchanges of gradients in one of the ranks' common steps; 0 before they agree on them."""
    reads_between: bool = False
    """Whether gradients were clipped or unscaled before the last exchange of a step."""

    @property
    def all_optimizers(self) -> List[Any]:
        """Whatever may step."""
        return [*self.optimizers, *self.waiting]

    @property
    def whole(self) -> List[Any]:
        """The models that are not sharded, as the script calls them."""
        return [*self.replicas, *self.plain]

    @property
    def inner(self) -> List[Any]:
        """The script's own module of each of these: what DistributedDataParallel wraps, or the model itself."""
        return [*(ddp.module for ddp in self.replicas), *self.plain]

    def list_modules(self) -> List[Any]:
        """Every module of the models that train."""
        tops = [*self.inner, *self.sharded]
        return [module for top in tops for module in top.modules()]


class RelaunchNeeded(RuntimeError):
    """This strategy cannot be switched to in a live process; start a new session with it."""

    knobs: Tuple[str, ...] = ()
    """Those of the lever that says so."""


@dataclass
class Evidence:
    """For every knob a strategy set: a sentence why it was in force, or why it was not."""

    consumed: Dict[str, str] = field(default_factory=dict)
    not_consumed: Dict[str, str] = field(default_factory=dict)
    no_effect: Dict[str, str] = field(default_factory=dict)
    """Knobs in force that leave the job exactly as the baseline (the same buckets, for example)."""

    def add(self, other: "Evidence") -> None:
        self.consumed.update(other.consumed)
        self.not_consumed.update(other.not_consumed)
        self.no_effect.update(other.no_effect)

    def doubt(self, reason: str) -> None:
        """Nothing was proved."""
        self.not_consumed.update(dict.fromkeys([*self.consumed, *self.no_effect], reason))
        self.consumed, self.no_effect = {}, {}


class Lever(StepListener, ABC):
    """Base of all levers. A strategy is always the baseline plus its overrides, so `switch({})` means the baseline.

    The arms of a race take turns hundreds of times: a switch must be cheap, and leave nothing behind.

    A lever that works in every step answers `is_on` with True while it does, and hears the step's events; the others
    cost nothing between two switches.
    """

    knobs: Tuple[str, ...] = ()
    changes_training: Tuple[str, ...] = ()
    """Those of its knobs that change what is computed: the model is saved before a race with one of them."""

    serves_sharded: bool = False
    """Whether it also works on models sharded by fully_shard, which have no DistributedDataParallel."""
    serves_engines: bool = False
    """Whether it also works on DeepSpeed's engine, which reduces gradients by itself."""
    serves_replicas: bool = True
    """Whether it works on DistributedDataParallel models."""
    serves_plain: bool = False
    """Whether it works on models that nothing wraps, of a job of one rank."""

    is_on: bool = False
    """Whether the strategy in force needs the step's events."""
    replaces_reduction: bool = False
    """Whether DDP reduces nothing in most steps, so that its own record of communication means nothing."""
    averages_at_boundaries: bool = False
    """Whether what it exchanges instead all happens in `end_step`; else its communication stays unknown."""
    decides_steps: bool = False
    """Whether optimizer steps ask `may_step`, while `is_on`."""
    needs_loss: bool = False
    """Whether it reads `Training.loss`."""
    period: int = 1
    """Steps after which the pattern of the strategy in force repeats: timed steps are a multiple of it."""
    batches_per_step: int = 1
    """The script's batches that one forward has under the strategy in force."""
    least_warm_up: int = 0
    """Steps before that pattern has begun to repeat, when it is switched to for the first time in a race."""
    lead_in: int = 1
    """Untimed steps after each later switch, before its usual pace is reached."""
    proves_state: bool = False
    """Whether `prove` looks at what is set now, whenever it is asked, and not at what was counted since then."""
    least_segment: int = 0
    """Steps that show what it costs: where that falls due now and then only, or where switching to it takes long."""
    starts_slowly: bool = False
    """Whether the first steps after a switch say nothing of its pace (a compilation, workers that start)."""

    def watch(self, training: Training) -> None:
        """At the first boundary: what may be held later against what the script has changed by then."""

    def list_refusals(self, training: Training) -> Dict[str, str]:
        """Knobs that cannot work in this job, each with its sentence. Every rank calls it at the same boundary."""
        return {}

    def observe(self, training: Training) -> Dict[str, Any]:
        """This lever's knobs as the script itself has set them, read once, before anything is switched."""
        return {}

    @abstractmethod
    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        """Goes from whatever is in force to baseline + `values` (only this lever's knobs) on the live objects."""

    def may_step(self, optimizer: Any) -> bool:
        """Whether an optimizer's step is made, while `is_on` and `decides_steps`."""
        return True

    def end_step(self, training: Training) -> None:
        """At every step boundary after the leader's optimizer step, while `is_on`."""

    def end_segment(self, training: Training) -> None:
        """Another arm takes over, while `is_on`: no rank may be left with a state of its own."""

    def begin_race(self) -> None:
        """A race begins: nothing that was learnt in the one before may carry over."""

    def describe_in_force(self, chosen: Mapping[str, Any]) -> Any:
        """Plain JSON: two strategies for which it is the same are the same as far as this lever goes.

        `chosen` is the baseline's value of each knob, or the strategy's own.
        """
        return dict(chosen)

    def begin_timing(self) -> None:
        """The timed steps start: counters used as evidence start again."""

    def list_faults(self) -> Dict[str, str]:
        """Knobs in force of which what was proved holds no longer, each with its sentence: asked now and then in a real
        training, of every rank at one place."""
        return self.prove().not_consumed if self.proves_state else {}

    @abstractmethod
    def prove(self) -> Evidence:
        """Whether the last `switch` was consumed by the steps timed since."""


def read_count(value: Any, least: int) -> int:
    """A whole number of at least `least`, or ValueError with a sentence."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or int(value) != value or value < least:
        raise ValueError(f"{value!r} is not a whole number of at least {least}")
    return int(value)


def read_switch(value: Any) -> bool:
    """True or False (0 and 1 are taken), or ValueError with a sentence."""
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise ValueError(f"{value!r} is neither true nor false")
