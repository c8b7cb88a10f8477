"""The knob catalogue: every tunable field of a strategy, declared once.

The strategy model and its JSON schema, the search distributions, the pages, the documentation and each
exporter's field list are derived from `CATALOGUE`. The entries themselves stand in `catalogue.py`.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect, Part, Place, Scale, Switch
from advisor.protocol.nodes.cluster import Cluster
from advisor.protocol.training.workload import WorkloadFacts


@dataclass(frozen=True)
class KnobContext:
    """What is known when a knob is asked whether it matters and what its rule of thumb says."""

    facts: WorkloadFacts
    cluster: Cluster
    baseline: Mapping[str, Value]
    """Observed value of every knob the runtime saw; documented default for the rest."""
    catalogue: Mapping[str, "Knob"]
    """The knobs that the job knows."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Knobs that the runtime says it cannot serve for this script, each with its sentence."""
    computed: Mapping[str, "Rule | str"] = field(default_factory=dict)
    """Knobs whose value is computed from what the probe measured: that rule, or a sentence why there is none."""

    @property
    def several_nodes(self) -> bool:
        """Whether communication crosses a network."""
        return self.facts.nodes > 1


@dataclass(frozen=True)
class Rule:
    """A rule of thumb: a value and the sentence that justifies it."""

    value: Value
    because: str


def _always(_: KnobContext) -> str | None:
    return None


def _no_rule(_: KnobContext) -> tuple[Rule, ...]:
    return ()


@dataclass(frozen=True)
class Knob:
    """One tunable field of a strategy, and everything that is known about it."""

    name: str
    """Fleet's own name; fields of a nested configuration are flattened (`localsgd_k_steps`)."""
    place: Place
    default: Value
    """The documented default; that of the tool which has the setting, where the documents name none."""
    meaning: str
    """One line."""
    effect: Effect
    switch: Switch
    realised: str
    """What the runtime does for it in PyTorch; or, for a carried knob, why it is not varied."""
    low: int | float | None = None
    """Smallest value of a numeric knob."""
    high: int | float | None = None
    """Largest value of a numeric knob."""
    choices: tuple[str, ...] = ()
    """Values of a choice."""
    form: str = ""
    """What all of a text looks like, as a regular expression; empty where it may be any."""
    part: Part = Part.STEP
    """The part of a step that it acts on."""
    title: str = ""
    """What PyTorch's users call it, for screens that begin with their words; empty where the name is that."""
    needs: str = ""
    """The switch without which this knob means nothing (`localsgd` for `localsgd_k_steps`)."""
    timed_with: str = ""
    """The switch that was in force with it when it was timed, where it needs none: exports write both."""
    same_meaning: bool = False
    """Whether the lever does the very thing that Fleet's field means; else the knob is timed in translation."""
    grid: Callable[[KnobContext], tuple[Value, ...]] | None = None
    """The values worth trying, in order; None derives them from the type, the range and the scale."""
    own_values: tuple[Value, ...] = ()
    """Of a knob of the user's own: what may be tried, the script's value among it."""
    orders_sums: bool = False
    """Whether the ranks' gradients are added up in another order under another value."""
    minor: bool = False
    """It refines what other knobs do: it is expected to matter about a third as much."""
    scale: Scale = Scale.LINEAR
    unit: str = ""
    """Unit of a numeric knob."""
    variable: str = ""
    """The environment variable that carries it into a launch, where it has another name than the knob, or where
    a launch can set what is hot."""
    carried: bool = False
    """Exported, never varied: the runtime has no lever for it."""
    paddle_field: str | None = None
    """Path in Paddle's DistributedStrategy file, e.g. `localsgd_configs.k_steps`; None where it has none. What becomes
    of the field is in `knobs/paddle.py`."""
    unavailable_because: Callable[[KnobContext], str | None] = _always
    """A sentence when the knob cannot have an effect here, else None."""
    rule: Callable[[KnobContext], tuple[Rule, ...]] = _no_rule
    """The rules of thumb of the documents, best first."""
    inactive_because: Callable[[Mapping[str, Value]], str | None] = lambda _: None
    """A sentence when another knob's value makes this one idle in a strategy, else None."""

    @property
    def kind(self) -> type:
        """bool, int, float or str."""
        return type(self.default)

    @property
    def launch_variable(self) -> str | None:
        """The environment variable that carries this knob into the launched ranks; None where none does."""
        if self.carried:
            return None
        is_read = self.switch is Switch.COLD and self.place is Place.ENVIRONMENT
        return self.variable or (self.name if is_read else None)

    def explain_no_certificate(self) -> str | None:
        """Why no value of it can be certified to leave every bit of a training; None where that can be measured."""
        if self.effect is not Effect.EXACT:
            harm = "rounding" if self.effect is Effect.NUMERIC else "the optimisation itself"
            return f"The job advises only what leaves every bit as it is, and this changes {harm}."
        if self.switch is Switch.COLD:
            return (
                "Each value takes a launch of its own, where no state is one that the script's own settings went on "
                "from: its bits cannot be held against theirs."
            )
        if self.place is Place.DATA_READING:
            return "The check of all bits replays batches, so that it would not see what other workers draw for them."
        return None

    def takes_text(self, value: str) -> bool:
        """Whether a text is one of its values."""
        return (not self.choices or value in self.choices) and (
            not self.form or re.fullmatch(self.form, value) is not None
        )

    def parse(self, value: object) -> Value:
        """Return `value` in this knob's type.

        Raises ValueError with a sentence that names the knob, the value and what is allowed.
        """
        if self.kind is bool:
            if isinstance(value, bool):
                return value
            raise ValueError(f"{self.name} is {value!r}, but must be true or false")
        if self.kind is str:
            if isinstance(value, str) and self.takes_text(value):
                return value
            like = f" of the form {self.form}" if self.form else ""
            allowed = f"one of {', '.join(self.choices)}" if self.choices else f"text{like}"
            raise ValueError(f"{self.name} is {value!r}, but must be {allowed}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{self.name} is {value!r}, but must be a number")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{self.name} is {value!r}, but must be a number")
        if self.kind is int and value != int(value):
            raise ValueError(f"{self.name} is {value!r}, but must be a whole number")
        if (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
            unit = f" {self.unit}" if self.unit else ""
            raise ValueError(f"{self.name} is {value}, but must lie in {self.low} … {self.high}{unit}")
        return int(value) if self.kind is int else float(value)
