"""The rungs above the allowed one: what to try on them, so that users see what is left on the table."""

from collections.abc import Collection, Iterable, Mapping

from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect, Place
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.nodes.cluster import DeviceKind
from advisor.tuning.space.rules_of_thumb import Prior
from advisor.tuning.space.space import Space

_SCHEDULES = ("adaptive_localsgd", "localsgd_begin_step")
_BEGIN_STEP = 16
"""Synchronised steps that a post-local schedule begins a block with: few enough to lie in its warm-up."""
CAVEATS: Mapping[Effect, str] = {
    Effect.EXACT: "",
    Effect.NUMERIC: "Numbers are rounded otherwise. A short trial cannot see a loss of accuracy that appears at the "
    "end of training: compare one full run before you rely on it.",
    Effect.CONVERGENCE: "The optimisation itself changes. A short trial cannot see a loss of accuracy that appears "
    "at the end of training; published ResNet-50 results lose up to 1.5 points at large intervals.",
}


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
    wishes = _own_wishes(space, effect, best)
    wishes += _numeric_wishes(space, names, best) if effect is Effect.NUMERIC else _schedules(names, best)
    top = f" on top of the best so far ({Changes(best).describe()})" if best else ""
    priors: list[Prior] = []
    seen: set[object] = set()
    for wish, what in wishes:
        changes = space.composer.compose(wish)
        if changes is None or space.composer.catalogue.effect_of(changes) is not effect or changes in seen:
            continue
        seen.add(changes)
        priors.append(Prior(changes, f"The {effect.value} rung: what {what} would bring{top}."))
    return tuple(priors)


def missing_schedules(
    space: Space, tried: Iterable[Mapping[str, Value]], best: Mapping[str, Value]
) -> tuple[Prior, ...]:
    """Return adaptive and post-local averaging, on an allowed rung, as far as no strategy has tried them yet.

    The sampler varies intervals and switches; a schedule that begins later is none of its values.
    """
    known = {name for changes in tried for name in changes}
    exact = {
        name: value
        for name, value in best.items()
        if space.composer.catalogue[name].effect is not Effect.CONVERGENCE
    }
    wishes = _schedules({d.knob.name for d in space.dimensions}, exact)
    priors: list[Prior] = []
    for schedule in _SCHEDULES:
        for wish, what in wishes:
            changes = space.composer.compose(wish) if schedule in wish and schedule not in known else None
            if changes is not None and schedule in changes:
                priors.append(Prior(changes, f"What {what} would bring: no strategy has tried it yet."))
    return tuple(priors)


_Wish = tuple[dict[str, Value], str]


def _own_wishes(space: Space, effect: Effect, best: Mapping[str, Value]) -> list[_Wish]:
    """Each value of the user's own knobs: they were named because somebody means to change them."""
    own = [d for d in space.higher if d.knob.effect is effect and d.knob.place is Place.OWN]
    return [
        ({**best, d.knob.name: value}, f"{d.knob.name} {value}")
        for d in own
        for value in d.values
        if value != space.context.baseline[d.knob.name]
    ]


def _numeric_wishes(space: Space, names: Collection[str], best: Mapping[str, Value]) -> list[_Wish]:
    """16-bit gradients, and mixed precision: first where there are tensor cores, last where there are none."""
    wishes: list[_Wish] = []
    if "fp16_allreduce" in names:
        for half in ("fp16", "bf16") if "fp16_allreduce_dtype" in names else ("fp16",):
            wishes.append(
                ({**best, "fp16_allreduce": True, "fp16_allreduce_dtype": half}, f"{half} gradients")
            )
        wishes.append(({"fp16_allreduce": True}, "16-bit gradients alone"))
    if "amp" in names:
        place = 0 if space.context.facts.device is DeviceKind.CUDA else len(wishes)
        wishes.insert(place, ({**best, "amp": True}, "mixed precision"))
    return wishes


def _schedules(names: Collection[str], best: Mapping[str, Value]) -> list[_Wish]:
    """One of every kind before other intervals of the first kind.

    Fixed, adaptive and post-local averaging, merged gradients, compression.
    """

    def local(interval: int) -> dict[str, Value]:
        return {**best, "localsgd": True, "localsgd_k_steps": interval}

    wishes: list[tuple[str, dict[str, Value], str]] = [
        ("localsgd", local(4), "local SGD with k = 4"),
        (
            "adaptive_localsgd",
            {**best, "adaptive_localsgd": True},
            "adaptive local SGD (the interval follows the loss)",
        ),
        (
            "localsgd",
            {**local(4), "localsgd_begin_step": _BEGIN_STEP},
            "post-local SGD with k = 4 (synchronised steps first; in a training until the first learning-rate drop)",
        ),
        ("gradient_merge", {**best, "gradient_merge": True}, "merged gradients"),
        ("batch_size_multiple", {**best, "batch_size_multiple": 2}, "a batch twice as large"),
        ("localsgd", local(2), "local SGD with k = 2"),
        ("dgc", {**best, "dgc": True}, "gradient compression"),
        ("localsgd", local(8), "local SGD with k = 8"),
    ]
    return [(wish, what) for name, wish, what in wishes if name in names]


def caveat_of(changes: Mapping[str, Value], effect: Effect) -> str:
    """Return what a short trial cannot see of this strategy."""
    caveat = CAVEATS[effect]
    if int(changes.get("localsgd_begin_step", 1)) > 1:
        caveat += (
            " Its speed is that of the local steps: set localsgd_begin_step to the step of the first learning-rate "
            "drop, and expect no gain before it."
        )
    if changes.get("adaptive_localsgd"):
        caveat += (
            " Its speed is that of the first interval: over a training the interval follows the loss, which a short "
            "trial does not see move."
        )
    if int(changes.get("batch_size_multiple", 1)) > 1:
        caveat += (
            " A larger batch makes fewer updates in an epoch: schedules that count steps see fewer of them, and the "
            "learning rate was left as the script sets it."
        )
    return caveat
