"""What knobs are in one script: sums that 16 bits round, and buckets that stay as its parameters are defined."""

from dataclasses import replace

from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.catalogue import Catalogue
from advisor.protocol.knobs.knob import Knob


def fit_to_script(catalogue: Catalogue, rounds_sums: bool, keeps_buckets: bool) -> Catalogue:
    """Return the knobs as they act in a script of which `WorkloadFacts` say these.

    Where gradients are added up in 16 bits, each addition rounds: what adds them up in another order is numeric there,
    not exact. Where DDP keeps its buckets as parameters are defined, the bucket that it fills first is reduced last.
    """
    if not rounds_sums and not keeps_buckets:
        return catalogue
    return Catalogue(_fit(knob, rounds_sums, keeps_buckets) for knob in catalogue.values())


def _fit(knob: Knob, rounds_sums: bool, keeps_buckets: bool) -> Knob:
    if rounds_sums and knob.orders_sums and knob.effect is Effect.EXACT:
        knob = replace(knob, effect=Effect.NUMERIC)
    if keeps_buckets and knob.name == "last_comm_group_size_MB":
        knob = replace(
            knob,
            title="last bucket's size",
            meaning="Size of the bucket that is reduced last (the first layers'): DDP searches for unused parameters, "
            "and its buckets stay in the order of definition.",
            realised="DDP's first bucket, which is reduced last here.",
        )
    return knob
