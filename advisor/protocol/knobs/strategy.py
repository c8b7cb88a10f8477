"""A DistributedStrategy: one value for every knob, and the rules that any strategy obeys."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, create_model

from advisor.protocol.base import Value
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.knob import Knob


class StrategyError(ValueError):
    """A strategy breaks rules; `sentences` has one for each, all of them at once."""

    def __init__(self, sentences: list[str]) -> None:
        super().__init__(" ".join(sentences))
        self.sentences = sentences


def _field_for(knob: Knob) -> Any:
    extra: dict[str, Any] = {
        "place": knob.place.value,
        "effect": knob.effect.value,
        "switch": knob.switch.value,
        "unit": knob.unit,
        "carried": knob.carried,
    }
    if knob.choices:
        extra["enum"] = list(knob.choices)
    if knob.form:
        extra["pattern"] = f"^{knob.form}$"
    bounds: dict[str, Any] = {}
    if knob.low is not None:
        bounds["ge"] = knob.low
    if knob.high is not None:
        bounds["le"] = knob.high
    return Field(default=knob.default, description=knob.meaning, json_schema_extra=extra, **bounds)


class _StrategyBase(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def from_changes(cls, changes: Mapping[str, Value], base: "_StrategyBase | None" = None) -> Self:
        """Return `base` (Fleet's documented defaults) with `changes`.

        Raises StrategyError with a sentence for every unknown knob and value out of range.
        """
        values: dict[str, Value] = dict(base.values()) if base else {}
        sentences: list[str] = []
        for name, value in changes.items():
            knob = CATALOGUE.get(name)
            if knob is None:
                sentences.append(f"{name} is no knob of a DistributedStrategy: see docs/knobs.md.")
                continue
            try:
                values[name] = knob.parse(value)
            except ValueError as error:
                sentences.append(f"{error}.")
        if sentences:
            raise StrategyError(sentences)
        return cls.model_validate(values)

    def values(self) -> dict[str, Value]:
        """Return every knob's value by name."""
        return self.model_dump()

    def changes_from(self, base: "_StrategyBase") -> dict[str, Value]:
        """Return the knobs whose value differs from `base`'s and that are active in this strategy.

        A knob that another one's value makes idle (the inner group without hierarchical allreduce) is left out.
        """
        mine, theirs = self.values(), base.values()
        return {
            name: value
            for name, value in mine.items()
            if value != theirs[name] and CATALOGUE[name].inactive_because(mine) is None
        }


_FIELDS: dict[str, Any] = {knob.name: (knob.kind, _field_for(knob)) for knob in CATALOGUE.values()}
DistributedStrategy: type[_StrategyBase] = create_model(
    "DistributedStrategy",
    __base__=_StrategyBase,
    __doc__="One value for every knob; the defaults are Fleet's documented ones.",
    **_FIELDS,
)
Strategy = _StrategyBase
"""The type to annotate with; `DistributedStrategy` is the model to construct."""


def collective_defaults() -> Strategy:
    """Return the documented defaults for collective training: the mode of parameter servers is a job's own knob."""
    return DistributedStrategy.from_changes({"a_sync": False})


@dataclass(frozen=True)
class Layout:
    """The facts about the cluster that coupling rules need."""

    world_size: int
    nodes: int


@dataclass(frozen=True)
class CouplingRule:
    """A rule between knobs; `broken_because` returns a sentence when a strategy breaks it."""

    name: str
    broken_because: Callable[[Mapping[str, Value], Layout | None], str | None]


def _communicators(values: Mapping[str, Value], _: Layout | None) -> str | None:
    if int(values["nccl_comm_num"]) > 1 and values["sync_nccl_allreduce"]:
        return (
            f"nccl_comm_num is {values['nccl_comm_num']} while sync_nccl_allreduce is on: the communicators would "
            "run one after another. Switch sync_nccl_allreduce off, or use one communicator."
        )
    return None


def _inner_group(values: Mapping[str, Value], layout: Layout | None) -> str | None:
    if not values["use_hierarchical_allreduce"]:
        return None
    inner = int(values["hierarchical_allreduce_inter_nranks"])
    if inner < 2:
        return (
            f"hierarchical_allreduce_inter_nranks is {inner} while use_hierarchical_allreduce is on: an inner "
            "group needs two ranks at least; normally the devices of one node."
        )
    if layout and (layout.world_size % inner or inner >= layout.world_size):
        return (
            f"hierarchical_allreduce_inter_nranks is {inner}, which does not split {layout.world_size} ranks "
            "into several equal groups: use a divisor, normally the devices of one node."
        )
    return None


def _last_group(values: Mapping[str, Value], _: Layout | None) -> str | None:
    last, size = float(values["last_comm_group_size_MB"]), float(values["fuse_grad_size_in_MB"])
    if values["fuse_all_reduce_ops"] and last > size:
        return (
            f"last_comm_group_size_MB is {last:g}, larger than fuse_grad_size_in_MB ({size:g}): this group "
            "is at most as large as the others."
        )
    return None


def _channels(values: Mapping[str, Value], _: Layout | None) -> str | None:
    least, most = int(values["NCCL_MIN_CTAS"]), int(values["NCCL_MAX_CTAS"])
    if least > most:
        return (
            f"NCCL_MIN_CTAS is {least}, more than NCCL_MAX_CTAS ({most}), and NCCL takes the smaller one for both: "
            "raise NCCL_MAX_CTAS, or lower NCCL_MIN_CTAS."
        )
    return None


def _broadcast(values: Mapping[str, Value], _: Layout | None) -> str | None:
    if values["fuse_broadcast_ops"]:
        return (
            "fuse_broadcast_ops works in Reduce mode only, and this strategy is for AllReduce: switch it off."
        )
    return None


UPDATE_RULES = ("localsgd", "adaptive_localsgd", "gradient_merge", "dgc")
"""Switches that each replace how gradients are communicated; the knobs that belong to one begin with its name."""


def _one_update_rule(values: Mapping[str, Value], _: Layout | None) -> str | None:
    on = [name for name in UPDATE_RULES if values[name]]
    if len(on) > 1:
        return (
            f"{' and '.join(on)} are on together, but each decides how gradients are communicated: keep one."
        )
    return None


def _whole_reduction(values: Mapping[str, Value], _: Layout | None) -> str | None:
    on = [name for name in ("use_hierarchical_allreduce", "fp16_allreduce") if values[name]]
    on += ["nccl_comm_num"] if int(values["nccl_comm_num"]) > 1 else []
    if values["dgc"] and on:
        return (
            f"dgc compresses gradients in a reduction of its own, which {' and '.join(on)} cannot change: leave them "
            "as they are, or switch dgc off."
        )
    if values["dgc"] and values["amp"] and values["amp_dtype"] == "fp16":
        return (
            "dgc feeds the error of its compression back, and with amp in fp16 gradients overflow now and then, which "
            "would be fed back for ever: set amp_dtype to bf16, or switch dgc off."
        )
    return None


def _sync_batch_norm(values: Mapping[str, Value], _: Layout | None) -> str | None:
    if values["sync_batch_norm"] and values["amp"]:
        return "sync_batch_norm does not work with amp: switch one of them off."
    return None


def _gloo_between(values: Mapping[str, Value], _: Layout | None) -> str | None:
    levels = values["use_hierarchical_allreduce"] and values["hierarchical_allreduce_gloo_between"]
    if levels and values["sync_batch_norm"]:
        return (
            "hierarchical_allreduce_gloo_between hands gradients over in a thread of its own while sync_batch_norm "
            "communicates as well, and NCCL needs one order on every rank: switch one of them off."
        )
    return None


COUPLING_RULES: tuple[CouplingRule, ...] = (
    CouplingRule("communicators overlap only asynchronously", _communicators),
    CouplingRule("the inner group divides the world", _inner_group),
    CouplingRule("the last group is the smaller one", _last_group),
    CouplingRule("NCCL's fewest channels are no more than its most", _channels),
    CouplingRule("broadcast fusion is for Reduce mode", _broadcast),
    CouplingRule("one rule of communication", _one_update_rule),
    CouplingRule("compression is a reduction of its own", _whole_reduction),
    CouplingRule("synchronised batch norm is for full precision", _sync_batch_norm),
    CouplingRule("gloo between groups leaves backward to the gradients", _gloo_between),
)


def broken_rules(strategy: Strategy, layout: Layout | None = None) -> list[str]:
    """Return a sentence for every coupling rule that `strategy` breaks; empty when it is sound.

    Without a `layout` the rules about the number of ranks and nodes are not judged.
    """
    values = strategy.values()
    sentences = (rule.broken_because(values, layout) for rule in COUPLING_RULES)
    return [sentence for sentence in sentences if sentence]
