"""Predicates that several knobs share: when a knob can have an effect, and when another one makes it idle."""

from collections.abc import Callable, Mapping

from advisor.protocol.base import Value
from advisor.protocol.kinds import Part
from advisor.protocol.knobs.knob import Knob, KnobContext
from advisor.protocol.nodes.cluster import DeviceKind

_COMMUNICATES = (Part.COMMUNICATION, Part.BUFFERS)
_ALONE = "There is one rank: nothing is communicated."


def refused(context: KnobContext, name: str) -> str | None:
    """What the runtime said of this knob in this job, if it refuses it."""
    return context.refusals.get(name)


def idle_because(context: KnobContext, knob: Knob) -> str | None:
    """Why the knob cannot have an effect in this job, if it cannot."""
    if context.facts.world_size < 2 and knob.part in _COMMUNICATES:
        return _ALONE
    return knob.unavailable_because(context)


def several_ranks_needed(context: KnobContext, name: str) -> str | None:
    """A sentence where nothing is communicated."""
    if context.facts.world_size < 2:
        return _ALONE
    return refused(context, name)


def cuda_needed(what: str, name: str) -> Callable[[KnobContext], str | None]:
    """Return the predicate of a knob that acts on GPUs only."""

    def unavailable_because(context: KnobContext) -> str | None:
        if context.facts.device is not DeviceKind.CUDA:
            return f"{what} is a matter of GPUs; this job computes on CPUs."
        return refused(context, name)

    return unavailable_because


def nccl_needed(context: KnobContext) -> str | None:
    """A sentence where the backend does not read NCCL's settings."""
    if context.facts.backend != "nccl":
        return f"The job communicates over {context.facts.backend}, which does not read NCCL's settings."
    return None


def nccl_sockets_needed(context: KnobContext) -> str | None:
    """A sentence where NCCL opens no sockets."""
    if sentence := nccl_needed(context):
        return sentence
    return None if context.several_nodes else "The job runs on one node: NCCL opens no sockets."


def idle_unless(name: str, sentence: str) -> Callable[[Mapping[str, Value]], str | None]:
    """Return the predicate of a knob that means nothing unless the switch `name` is on."""

    def inactive_because(values: Mapping[str, Value]) -> str | None:
        return None if values.get(name) else sentence

    return inactive_because


def idle_under_local_sgd(values: Mapping[str, Value]) -> str | None:
    """A sentence where parameters are averaged instead of gradients."""
    if values.get("localsgd") or values.get("adaptive_localsgd"):
        return "Local SGD reduces no gradients between averagings, so this has nothing to act on."
    return None
