"""Changes against the baseline: clipped, completed and checked, so that every strategy tried is a sound one."""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.expressions import holds, list_names
from advisor.protocol.kinds import Place
from advisor.protocol.knobs.catalogue import Catalogue
from advisor.protocol.knobs.changes import INTERVALS, Changes
from advisor.protocol.knobs.knob import Knob
from advisor.protocol.knobs.strategy import COUPLING_RULES, Layout, collective_defaults

FIRST_INTERVALS: Mapping[str, int] = {"localsgd": 4, "adaptive_localsgd": 4, "gradient_merge": 2}
"""Intervals where none is given: the documents' table keeps local SGD's accuracy up to 4; a merged batch doubles."""

_MB = 2**20
_MOST_COMPLETIONS = 4096
"""Ways of completing a strategy that are looked through at most, some 10 µs each."""
COMPLETED = dict.fromkeys(
    (
        "sync_nccl_allreduce",
        "fuse_grad_size_in_MB",
        "last_comm_group_size_MB",
        "hierarchical_allreduce_inter_nranks",
        *INTERVALS.values(),
    )
)
"""Knobs that a wish for others may set as well."""


def list_own_values(job: Job) -> dict[str, Value]:
    """Return a value for every knob of the job: the script as it stands.

    A script may hold values that a Fleet strategy cannot (a bucket of 2000 MB): those are clipped into the knob's
    range; unknown knobs and values of another type keep the documented default.
    """
    values = collective_defaults().values()
    values |= {own.name: job.spec.catalogue[own.name].default for own in job.spec.workload.own}
    for name, value in job.baseline.items():
        knob = job.spec.catalogue.get(name)
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
    return values


@dataclass(frozen=True)
class Composer:
    """Turns wishes into changes that a session can measure."""

    catalogue: Catalogue
    own: Mapping[str, Value]
    """The script's own value of every knob."""
    layout: Layout
    local_world_size: int
    frozen: frozenset[str]
    """Knobs that must keep the baseline's value."""
    taken: frozenset[str]
    """Knobs that the program takes: what else would complete a strategy is the program's own affair."""
    only: Mapping[str, frozenset[Value]] = field(default_factory=dict)
    """The only values that the job lets some knobs have, beside the baseline's."""
    out_of_memory: tuple[Changes, ...] = ()
    """Strategies that ran out of memory: those further along the same own numbers would, too."""
    in_vain: tuple[Changes, ...] = ()
    """Values that were set together and on which nothing acted: no strategy takes them again."""
    require: tuple[str, ...] = ()
    """What has to hold of every strategy, as the job's owner wrote it."""
    constants: Mapping[str, Value] = field(default_factory=dict)
    """What requirements may name besides knobs and the layout's facts."""
    gradient_bytes: int = 0
    """Bytes of gradients reduced per step, per rank; 0 where that is unknown: then all bucket sizes differ."""

    def compose(self, wishes: Mapping[str, Value]) -> Changes | None:
        """Return the knobs that differ from the baseline once `wishes` are completed by what they need.

        None when they cannot be made into a sound strategy, or when nothing is left that differs. Of bucket sizes that
        come to the same buckets one stands for all. A value that was set in vain by itself is left out, and the rest
        goes on. Raises ValueError for unknown knobs and values out of range.
        """
        own = self.own
        if alone := {pair for vain in self.in_vain if len(vain) == 1 for pair in vain.items()}:
            wishes = {name: value for name, value in wishes.items() if (name, value) not in alone}
        values = {**own, **wishes}
        for name, value in wishes.items():
            if name not in self.catalogue or not _is_proper(self.catalogue[name], value):
                values |= self.catalogue.parse(wishes)
                break
        self._complete(values)
        if not self._meet_requirements(values, wishes):
            return None
        differ = [name for name in {**wishes, **COMPLETED, **self._tied} if values[name] != own[name]]
        differ.sort(key=self.catalogue.places.__getitem__)
        complete = {
            name: values[name] for name in differ if self.catalogue[name].inactive_because(values) is None
        }
        changes = Changes({name: value for name, value in complete.items() if name in self.taken})
        if not changes or not self.frozen.isdisjoint(changes):
            return None
        for name in self.only:
            if name in changes and changes[name] not in self.only[name]:
                return None
        if _broken({**own, **complete}, self.layout) - self._broken_already:
            return None
        if any(self._lies_beyond(changes, failed) for failed in self.out_of_memory):
            return None
        if any(vain.items() <= changes.items() for vain in self.in_vain):
            return None
        return changes

    @cached_property
    def _broken_already(self) -> set[str]:
        return _broken(self.own, self.layout)

    def _lies_beyond(self, changes: Mapping[str, Value], failed: Mapping[str, Value]) -> bool:
        """Whether a strategy goes at least as far as a failed one in every own number that this one moved, if any."""
        moved = [
            n for n in failed if self.catalogue[n].place is Place.OWN and self.catalogue[n].kind is not str
        ]
        if not moved or changes == failed:
            return False
        others = {**self.own, **changes}
        choices = (n for n in self.catalogue if self.catalogue[n].place is Place.OWN and n not in moved)
        same = all(others[n] == failed.get(n, self.own[n]) for n in choices)
        return same and all(
            (float(others[n]) - float(failed[n])) * (float(failed[n]) - float(self.own[n])) >= 0
            for n in moved
        )

    @cached_property
    def _tied(self) -> dict[str, None]:
        """Own knobs that a requirement names: a wish for one may set the others."""
        names = self._named
        return dict.fromkeys(
            name for name in names if name in self.catalogue and self.catalogue[name].place is Place.OWN
        )

    def _meet_requirements(self, values: dict[str, Value], wishes: Mapping[str, Value]) -> bool:
        """Set own knobs that are not wished for so that every requirement holds; False where nothing makes them hold.

        Of several ways the one that changes the fewest knobs is taken, then the one nearest to the script's own values.
        """
        if not self.require or self._all_hold(values):
            return True
        named = tuple((name, values.get(name), name in wishes) for name in self._named)
        if named not in self._completions:
            self._completions[named] = self._complete_own(values, wishes)
        chosen = self._completions[named]
        values.update(chosen or {})
        return chosen is not None

    @cached_property
    def _completions(self) -> dict[object, dict[str, Value] | None]:
        """What was found for values that were asked about: a search asks for the same few again and again."""
        return {}

    @cached_property
    def _named(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for text in self.require for name in list_names(text)))

    def _complete_own(
        self, values: Mapping[str, Value], wishes: Mapping[str, Value]
    ) -> dict[str, Value] | None:
        free = [name for name in self._tied if name not in wishes and name not in self.frozen]
        grids = [self._list_near(name) for name in free]
        if not free or math.prod(map(len, grids)) > _MOST_COMPLETIONS:
            return None
        ways = sorted(itertools.product(*(enumerate(grid) for grid in grids)), key=_rate_way)
        for way in ways:
            chosen = {name: value for name, (_, value) in zip(free, way, strict=True)}
            if self._all_hold({**values, **chosen}):
                return chosen
        return None

    def _all_hold(self, values: Mapping[str, Value]) -> bool:
        known = {**self.constants, **list_facts(self.layout), **values}
        return all(holds(text, known) for text in self.require)

    def _list_near(self, name: str) -> list[Value]:
        """The values of an own knob, the script's first and then those nearest to it."""
        knob, own = self.catalogue[name], self.own[name]
        grid = knob.own_values
        only = self.only.get(name)
        kept = [value for value in grid if value != own and (only is None or value in only)]
        if knob.kind is not str:
            kept.sort(key=lambda value: abs(math.log(max(float(value), 1e-9) / max(float(own), 1e-9))))
        return [own, *kept]

    def _complete(self, values: dict[str, Value]) -> None:
        if int(values["nccl_comm_num"]) > 1:
            values["sync_nccl_allreduce"] = False
        if values["fuse_all_reduce_ops"]:
            size, last = float(values["fuse_grad_size_in_MB"]), float(values["last_comm_group_size_MB"])
            values["last_comm_group_size_MB"] = min(last, size)
            self._merge_sizes(values)
        if values["use_hierarchical_allreduce"]:
            inner, world = int(values["hierarchical_allreduce_inter_nranks"]), self.layout.world_size
            if not (2 <= inner < world and world % inner == 0):
                values["hierarchical_allreduce_inter_nranks"] = max(1, min(64, self.local_world_size))
        for switch, interval in INTERVALS.items():
            if values[switch] and int(values[interval]) < 2:
                values[interval] = FIRST_INTERVALS[switch]

    def _merge_sizes(self, values: dict[str, Value]) -> None:
        """Put one pair of bucket sizes for all pairs that make the same buckets of these gradients.

        A bucket closes once it holds its size. So all sizes of the first one that hold every gradient are one, and of
        the others all those that hold what the first leaves (all gradients, where layers close buckets as well).
        """
        if not self.gradient_bytes:
            return
        total = self.gradient_bytes / _MB
        last = float(values["last_comm_group_size_MB"])
        by_layers = values["fuse_grad_size_in_TFLOPS"] != self.own["fuse_grad_size_in_TFLOPS"]
        enough = total if by_layers else max(min(last, total), total - last)
        size = self._stand_in("fuse_grad_size_in_MB", float(values["fuse_grad_size_in_MB"]), enough)
        if last >= total:
            values["last_comm_group_size_MB"] = min(
                size, self._stand_in("last_comm_group_size_MB", last, total)
            )
        values["fuse_grad_size_in_MB"] = size

    def _stand_in(self, name: str, value: float, enough: float) -> float:
        """Return the size that stands for all that are `enough`: the baseline's, else the least that holds all."""
        if value < enough:
            return value
        own = float(self.own[name])
        if own >= enough:
            return own
        if name in self.only:
            return min((float(v) for v in self.only[name] if float(v) >= enough), default=value)
        return whole_size_mb(self.gradient_bytes)


def list_facts(layout: Layout) -> dict[str, Value]:
    """Return what requirements may name of the nodes."""
    per_node = max(1, layout.world_size // max(1, layout.nodes))
    return {"world_size": layout.world_size, "nodes": layout.nodes, "gpus_per_node": per_node}


def _rate_way(way: tuple[tuple[int, Value], ...]) -> tuple[int, int]:
    """How far a way of meeting requirements is from the script: knobs changed, then places away."""
    places = [place for place, _ in way]
    return sum(place > 0 for place in places), sum(places)


def whole_size_mb(gradient_bytes: int) -> float:
    """Return the bucket size that stands for all gradients in one bucket, in MB."""
    return min(1024.0, float(math.ceil(gradient_bytes / _MB) + 1))


def _is_proper(knob: Knob, value: Value) -> bool:
    """Whether a value is of the knob's own type and in its range, so that nothing needs to be converted or refused."""
    if type(value) is not knob.kind:
        return False
    if isinstance(value, str):
        return knob.takes_text(value)
    return (knob.low is None or value >= knob.low) and (knob.high is None or value <= knob.high)


def _broken(values: Mapping[str, Value], layout: Layout) -> set[str]:
    """Names of the coupling rules that a strategy breaks; a script may break some itself."""
    return {rule.name for rule in COUPLING_RULES if rule.broken_because(values, layout)}


def join_names(names: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    items = list(names)
    return " and ".join((", ".join(items[:-1]), items[-1])) if len(items) > 1 else "".join(items)
