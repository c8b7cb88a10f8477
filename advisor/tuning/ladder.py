"""The rungs above the allowed one: what to try on them, so that users see what is left on the table."""

from collections.abc import Mapping

from advisor.protocol.base import Value
from advisor.protocol.jobs import Job
from advisor.protocol.knobs import Effect
from advisor.protocol.strategy import effect_of
from advisor.tuning.composition import describe_changes, key_of
from advisor.tuning.priors import Prior
from advisor.tuning.space import Space

_INTERVALS = (4, 2, 8)
_ALONE: Mapping[str, str] = {
    "amp": "mixed precision",
    "adaptive_localsgd": "adaptive local SGD",
    "gradient_merge": "merged gradients",
    "dgc": "gradient compression",
}
"""Switches of the higher rungs that need no value of their own."""
CAVEATS: Mapping[Effect, str] = {
    Effect.EXACT: "",
    Effect.NUMERIC: "Numbers are rounded otherwise. A short trial cannot see a loss of accuracy that appears at the "
    "end of training: compare one full run before you rely on it.",
    Effect.CONVERGENCE: "The optimisation itself changes. A short trial cannot see a loss of accuracy that appears "
    "at the end of training; published ResNet-50 results lose up to 1.5 points at large intervals.",
}


def higher_rungs(job: Job) -> tuple[Effect, ...]:
    """Rungs above the one the job allows, nearest first."""
    return tuple(effect for effect in Effect if effect.rank > job.spec.allow.rank)


def share_trials(job: Job, space: Space) -> dict[Effect, int]:
    """Return how many search trials each higher rung gets: at most a fifth, at least two, half in all."""
    most = job.spec.budget.max_trials
    shares = {
        effect: min(len(rung_strategies(space, effect, {})), max(2, most // 5))
        for effect in (Effect.NUMERIC, Effect.CONVERGENCE)
        if any(d.knob.effect is effect for d in space.higher)
    }
    while sum(shares.values()) > most // 2:
        largest = max(shares, key=lambda effect: (shares[effect], effect.rank))
        shares[largest] -= 1
    return shares


def rung_strategies(space: Space, effect: Effect, best: Mapping[str, Value]) -> tuple[Prior, ...]:
    """Return what to try on a higher rung, on top of the best strategy of the allowed one, best first."""
    names = {d.knob.name for d in space.higher if d.knob.effect is effect}
    wishes: list[tuple[dict[str, Value], str]] = []
    if effect is Effect.NUMERIC and "fp16_allreduce" in names:
        for half in ("fp16", "bf16") if "fp16_allreduce_dtype" in names else ("fp16",):
            wishes.append(
                ({**best, "fp16_allreduce": True, "fp16_allreduce_dtype": half}, f"{half} gradients")
            )
        wishes.append(({"fp16_allreduce": True}, "16-bit gradients alone"))
    if effect is Effect.CONVERGENCE and "localsgd" in names:
        for interval in _INTERVALS:
            wishes.append(
                ({**best, "localsgd": True, "localsgd_k_steps": interval}, f"local SGD with k = {interval}")
            )
    for name, what in _ALONE.items():
        if name in names:
            wishes.append(({**best, name: True}, what))
    priors: list[Prior] = []
    seen: set[object] = set()
    for wish, what in wishes:
        changes = space.composer.compose(wish)
        if changes is None or effect_of(changes) is not effect or key_of(changes) in seen:
            continue
        seen.add(key_of(changes))
        top = f" on top of the best so far ({describe_changes(best)})" if best else ""
        priors.append(Prior(changes, f"The {effect.value} rung: what {what} would bring{top}."))
    return tuple(priors)
