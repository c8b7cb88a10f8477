"""Changes against the baseline: clipped, completed and checked, so that every strategy tried is a sound one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from advisor.protocol.base import Value
from advisor.protocol.jobs import Job
from advisor.protocol.knob_entries import CATALOGUE
from advisor.protocol.strategy import COUPLING_RULES, INTERVALS, DistributedStrategy, Layout, Strategy

ACTIVATORS: Mapping[str, str] = {name: knob.needs for name, knob in CATALOGUE.items() if knob.needs}
"""Knobs that mean nothing unless another one is on."""

FIRST_INTERVALS: Mapping[str, int] = {"localsgd": 4, "adaptive_localsgd": 4, "gradient_merge": 2}
"""Intervals where none is given: the documents' table keeps local SGD's accuracy up to 4; a merged batch doubles."""


def baseline_strategy(job: Job) -> Strategy:
    """Return the script as it stands as a strategy.

    A script may hold values that a Fleet strategy cannot (a bucket of 2000 MB): those are clipped into the knob's
    range; unknown knobs and values of another type keep the documented default.
    """
    values: dict[str, Value] = {}
    for name, value in job.baseline.items():
        knob = CATALOGUE.get(name)
        if knob is None:
            continue
        if isinstance(value, int | float) and not isinstance(value, bool) and knob.kind in (int, float):
            if knob.low is not None:
                value = max(value, knob.low)
            if knob.high is not None:
                value = min(value, knob.high)
        try:
            values[name] = knob.parse(value)
        except ValueError:
            continue
    return DistributedStrategy.from_changes(values)


@dataclass(frozen=True)
class Composer:
    """Turns wishes into changes that a session can measure."""

    baseline: Strategy
    layout: Layout
    local_world_size: int
    frozen: frozenset[str]
    """Knobs that must keep the baseline's value."""
    taken: frozenset[str] = frozenset(CATALOGUE)
    """Knobs that the program takes: what else would complete a strategy is the program's own affair."""
    only: Mapping[str, frozenset[Value]] = field(default_factory=dict)
    """The only values that the job lets some knobs have, beside the baseline's."""

    def compose(self, wishes: Mapping[str, Value]) -> dict[str, Value] | None:
        """Return the knobs that differ from the baseline once `wishes` are completed by what they need.

        None when they cannot be made into a sound strategy, or when nothing is left that differs.
        """
        values = {**self.baseline.values(), **wishes}
        self._complete(values)
        strategy = DistributedStrategy.model_validate(values)
        complete = strategy.changes_from(self.baseline)
        changes = {name: value for name, value in complete.items() if name in self.taken}
        if not changes or self.frozen & changes.keys():
            return None
        if any(value not in self.only.get(name, {value}) for name, value in changes.items()):
            return None
        effective = DistributedStrategy.from_changes(complete, base=self.baseline)
        if _broken(effective, self.layout) - _broken(self.baseline, self.layout):
            return None
        return changes

    def _complete(self, values: dict[str, Value]) -> None:
        if int(values["nccl_comm_num"]) > 1:
            values["sync_nccl_allreduce"] = False
        if values["fuse_all_reduce_ops"]:
            size, last = float(values["fuse_grad_size_in_MB"]), float(values["last_comm_group_size_MB"])
            values["last_comm_group_size_MB"] = min(last, size)
        if values["use_hierarchical_allreduce"]:
            inner, world = int(values["hierarchical_allreduce_inter_nranks"]), self.layout.world_size
            if not (2 <= inner < world and world % inner == 0):
                values["hierarchical_allreduce_inter_nranks"] = max(1, min(64, self.local_world_size))
        for switch, interval in INTERVALS.items():
            if values[switch] and int(values[interval]) < 2:
                values[interval] = FIRST_INTERVALS[switch]


def _broken(strategy: Strategy, layout: Layout) -> set[str]:
    """Names of the coupling rules that `strategy` breaks; a script may break some itself."""
    values = strategy.values()
    return {
        rule.name for rule in COUPLING_RULES if not rule.paddle_only and rule.broken_because(values, layout)
    }


def key_of(changes: Mapping[str, Value]) -> tuple[tuple[str, Value], ...]:
    """Return a hashable, order-free identity of changes."""
    return tuple(sorted(changes.items()))


def describe_changes(changes: Mapping[str, Value]) -> str:
    """`fuse_grad_size_in_MB 4, num_threads 2`; `the baseline` without changes."""
    return ", ".join(f"{name} {spell(value)}" for name, value in changes.items()) or "the baseline"


def spell(value: Value) -> str:
    """A knob's value for people: on and off, short numbers."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def join_names(names: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    items = list(names)
    return " and ".join((", ".join(items[:-1]), items[-1])) if len(items) > 1 else "".join(items)
