"""Which knobs an export speaks about: those that were timed, with the companions they make no sense without."""

from collections.abc import Mapping

from advisor.protocol.advice import Advice, Provenance
from advisor.protocol.base import Value
from advisor.protocol.knobs.catalogue import CATALOGUE

GROUPS: tuple[tuple[str, ...], ...] = (
    ("fuse_all_reduce_ops", "fuse_grad_size_in_MB", "last_comm_group_size_MB"),
    ("nccl_comm_num", "sync_nccl_allreduce"),
    (
        "use_hierarchical_allreduce",
        "hierarchical_allreduce_inter_nranks",
        "hierarchical_allreduce_gloo_between",
    ),
    ("fp16_allreduce", "fp16_allreduce_dtype"),
    ("localsgd", "localsgd_k_steps", "localsgd_begin_step"),
    ("adaptive_localsgd", "adaptive_localsgd_init_k_steps", "adaptive_localsgd_begin_step"),
    ("gradient_merge", "gradient_merge_k_steps", "gradient_merge_avg"),
    ("amp", "amp_dtype", "amp_dynamic_loss_scaling", "amp_init_loss_scaling"),
    ("dgc", "dgc_rank"),
)
"""Knobs that were in force together when one of them was timed: a switch and what it switches."""


def is_timed(advice: Advice, knob: str) -> bool:
    """Whether blocks were timed with this knob varied, so that its value is more than a default."""
    return knob in advice.changes or advice.provenance.get(knob, Provenance.CARRIED) is not Provenance.CARRIED


def select_knobs(advice: Advice) -> tuple[str, ...]:
    """Return the timed knobs and the members of their groups, in the catalogue's order."""
    meant = {knob for knob in CATALOGUE if is_timed(advice, knob)}
    for group in GROUPS:
        if meant.intersection(group):
            meant.update(group)
    return tuple(knob for knob in CATALOGUE if knob in meant)


def idle_because(knob: str, values: Mapping[str, Value]) -> str | None:
    """Return a sentence when another knob's value makes `knob` idle in a strategy, else None."""
    return CATALOGUE[knob].inactive_because(values)


def typed_values(advice: Advice) -> dict[str, Value]:
    """Return the advised value of every knob in the knob's own type; JSON turns 32.0 into 32 on its way.

    Ranges are not judged: a script may stand outside the range that a search would try.
    """
    return {name: knob.kind(advice.strategy.get(name, knob.default)) for name, knob in CATALOGUE.items()}
