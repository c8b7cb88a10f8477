"""The verdict over launches: when their contrasts decide, whether they still can, and how many to plan.

Every fresh launch gives one contrast of the same two strategies. Design, sources and simulations: docs/decisions/0011.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

from advisor.protocol.measured.trials import Contrast
from advisor.tuning.measure.levels import ALPHA, FIRST_LOOK, FIRST_SHARE, find_level
from advisor.tuning.measure.pooling import UNKNOWN_LUCK, Luck, Pooled, mix, pool_launches
from advisor.tuning.measure.slow_steps import read_slow_steps

Decision = Literal["change", "keep"]

REPORTED = 0.05
"""Two-sided level of the reported interval, the same at every look."""
_MOST_LAUNCHES = 8
"""Launches of a plan: more gain less than their starts cost."""
_SHORTEST_RACE_S, _LONGEST_RACE_S = 3.0, 60.0
"""Seconds of a planned race. A shorter one tells less than its launch costs; after a longer one the luck of the launch
is most of what is left."""
_RACE_RATIO = 1.25
"""Ratio of neighbouring race lengths that a plan weighs."""
_POWER = 0.8
"""Probability with which the smallest gain is found."""
_GOOD_ENOUGH = 0.015
"""Gain whose finding is enough, where equal strategies can be told as well: no more of a budget is planned for less."""
_PER_MIN_GAIN = 1.5
"""The same in units of `min_gain`, where that is more: at most half of jobs find a gain of just `min_gain`."""
_OF_LEAD = 0.1
"""Share of a large lead that the verdict's interval should resolve: +200 % is told as 2.7x to 3.3x."""
_ERROR_GRID = 50.0
"""Points per unit of ln(error) on which smallest gains are worked out: steps of 2 %."""
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Look:
    """What the launches so far say together, in ln(throughput of the winner / of the baseline)."""

    mean: float
    low: float
    """Lower end of the reported interval, nominally 95 %; wider where repeated looks leave the question open."""
    high: float
    """Upper end."""
    decision: Decision | None
    """None while the question is open."""
    launches: int
    level: float
    """Two-sided level at which this look could advise a change: what it spent, and what earlier looks' overlap lets it
    use again; 0 before the first look."""
    moods: int = 1
    """Moods in each of which it was judged by itself."""
    doubt: float = 0.0
    """By how much a mood in which it was not measured may lower the ln ratio."""


@dataclass(frozen=True)
class InMood:
    """What launches say of the time that one mood took."""

    launches: tuple[Contrast, ...]
    """One for each launch that shows the mood, of its cycles in it alone."""
    weight: float
    """Samples of the baseline in the mood's time, on any one scale: its share of the time, times its rate."""
    is_earlier: bool = False
    """Whether these launches are of the search: no launch of the verdict has met the mood."""
    is_bound: bool = False
    """Whether no race met the mood: these are the least that the strategy's own rates leave of its gain in it."""


@dataclass(frozen=True)
class ConfirmationPlan:
    """How a verdict's budget is best spent."""

    launches: int
    """Fresh launches, 2 to 8; 0 where not even two short races fit."""
    race_s: float
    """Timed seconds of the race in each launch, both arms together."""
    smallest_gain: float
    """Gain that is found with 80 % probability (0.02 is 2 %); infinite where nothing fits."""


def look_at(
    launches: Sequence[Contrast],
    *,
    planned: int,
    min_gain: float,
    forced: bool,
    ended: Sequence[int] = (),
    share: float = FIRST_SHARE,
    luck: Luck = UNKNOWN_LUCK,
    alpha: float = ALPHA,
    moods: Sequence[InMood] = (),
    doubt: float = 0.0,
) -> Look | None:
    """Return what the launches say together and whether that decides; None without a launch. A single one never does.

    Where the baseline or the winner has several moods, `moods` say it of each. A change then has to be one in each of
    them: what is a gain in all is one in every mixture, whatever time each takes (the gain of a mixture lies between
    those of its moods). Where all launches together decide, each mood has to show a gain by the reported interval only.
    How much it brings is told for the time that each took, by its weight, and the interval is the range over the moods,
    from the lowest lower end to the highest upper one. A keep may be about all of the time as well, and tells of that.

    `planned`, `forced` (the budget's time ends with this look), `ended`, `share` and `alpha` fix what the look may
    spend: `find_level`. `luck` is what is believed of how much launches differ, `doubt` by how much a mood
    that was seen and in which the winner was not measured may lower the ln ratio: a change has to stand above it.

    The ratio is that of the user's clock: slow steps count as what they are likely to be (`slow_steps`). *Change*: the
    gain is above 0 at the look's level, and its estimate is `min_gain` or more. *Keep*: the reported interval lies
    below `min_gain`; it is the same at every look, because a keep that misses a gain of `min_gain` costs no more than
    that. No interval contradicts a decision: a change is decided at a stricter level than is reported, and a gain that
    is shown at the reported one only is reported at the stricter.
    """
    if not launches:
        return None
    count, worthwhile = len(launches), math.log1p(min_gain)
    whole = _pool(launches, luck)
    parts = [_pool(mood.launches, luck) for mood in moods] or [whole]
    mean = _mix_ratios(moods, parts)
    low, high = _span(parts, REPORTED)
    if count < FIRST_LOOK:
        return Look(mean, low, high, None, count, 0.0, len(parts), doubt)
    level = min(REPORTED, find_level(count, planned, forced=forced, ended=ended, share=share, alpha=alpha))
    is_worth = all(part.mean >= worthwhile + doubt for part in parts)

    def is_shown(pooled: Pooled) -> bool:
        return pooled.probability_below(doubt) < level / 2.0

    decision: Decision | None = None
    if doubt < worthwhile and high < worthwhile:
        decision = "keep"
    elif doubt < worthwhile and not is_worth and whole.interval(REPORTED)[1] < worthwhile:
        decision, mean, (low, high) = "keep", whole.mean, whole.interval(REPORTED)
    elif is_worth and (all(map(is_shown, parts)) or (low > doubt and is_shown(whole))):
        decision = "change"
    elif low > 0.0 and is_worth:
        low, high = _span(parts, level)
    return Look(mean, low, high, decision, count, level, len(parts), doubt)


def read_moods(moods: Sequence[InMood], luck: Luck) -> tuple[float, float, float]:
    """Return the ln ratio over these moods' time, and the ends of its range over them; one mood at least."""
    parts = [_pool(mood.launches, luck) for mood in moods]
    return (_mix_ratios(moods, parts), *_span(parts, REPORTED))


def _span(parts: Sequence[Pooled], level: float) -> tuple[float, float]:
    ends = [part.interval(level) for part in parts]
    return min(low for low, _ in ends), max(high for _, high in ends)


def _mix_ratios(moods: Sequence[InMood], parts: Sequence[Pooled]) -> float:
    """The ln ratio of what both train in all of the moods' time."""
    if not moods:
        return parts[0].mean
    whole = math.fsum(mood.weight for mood in moods)
    return math.log(
        math.fsum(mood.weight / whole * math.exp(part.mean) for mood, part in zip(moods, parts, strict=True))
    )


def chance_to_decide(
    launches: Sequence[Contrast],
    planned: int,
    min_gain: float,
    *,
    ended: Sequence[int] = (),
    share: float = FIRST_SHARE,
    luck: Luck = UNKNOWN_LUCK,
    alpha: float = ALPHA,
) -> float:
    """Return the probability that the last planned look decides; 0 where no launch is to come, 1 before the first.

    Conditional power, averaged over what the launches so far leave open (Spiegelhalter, Freedman and Blackburn 1986):
    k launches whose interval has the half-width h will after m more have one of about h √(k / (k + m)), around a mean
    that lies s √(m / (k + m)) from today's, s being today's standard error.
    """
    count, worthwhile = len(launches), math.log1p(min_gain)
    if planned <= count:
        return 0.0
    if not launches:
        return 1.0
    pooled = _pool(launches, luck)
    level = min(REPORTED, find_level(planned, planned, forced=True, ended=ended, share=share, alpha=alpha))
    narrowing = math.sqrt(count / planned)
    bound = (pooled.mean - pooled.interval(level)[0]) * narrowing
    margin = (pooled.interval(REPORTED)[1] - pooled.mean) * narrowing
    spread = pooled.spread * math.sqrt((planned - count) / planned)
    change = 1.0 - _NORMAL.cdf((max(worthwhile, bound) - pooled.mean) / spread)
    keep = _NORMAL.cdf((worthwhile - margin - pooled.mean) / spread)
    return min(1.0, change + keep)


def plan_confirmation(
    error_of: Callable[[float], float],
    startup_s: float,
    available_s: float,
    min_gain: float,
    lead: float = 0.0,
    luck: Luck = UNKNOWN_LUCK,
    alpha: float = ALPHA,
) -> ConfirmationPlan:
    """Return how many launches of how long a race find the smallest gain within `available_s` seconds.

    `error_of` gives the standard error within a race of that many timed seconds (`forecast_errors`); `startup_s` is
    what a launch costs besides. Where gains of 1.5 % (1.5 × `min_gain`, if that is more) can be found, and equal
    strategies can be kept, each with 80 % probability, the cheapest such plan is taken. `lead` is the gain, in
    ln(throughput), that the winner surely seems to have: a tenth of it is then enough to find.
    """
    enough = max(_GOOD_ENOUGH, _PER_MIN_GAIN * min_gain)
    wide = math.expm1(_OF_LEAD * max(0.0, lead))
    best, cheapest, least_s = ConfirmationPlan(0, 0.0, math.inf), None, math.inf
    for count in range(FIRST_LOOK, _MOST_LAUNCHES + 1):
        race_s = min(_LONGEST_RACE_S, available_s / count - startup_s)
        while race_s >= _SHORTEST_RACE_S:
            found, keeps = _foresee(error_of(race_s), count, min_gain, luck, alpha)
            plan = ConfirmationPlan(count, race_s, found)
            best = min(best, plan, key=lambda p: p.smallest_gain)
            if found > max(enough, wide) or not (keeps or wide > enough):
                break
            if count * (race_s + startup_s) < least_s:
                cheapest, least_s = plan, count * (race_s + startup_s)
            race_s /= _RACE_RATIO
    return cheapest or best


def _foresee(error: float, launches: int, min_gain: float, luck: Luck, alpha: float) -> tuple[float, bool]:
    """The gain that the last look of so many launches finds, and whether it keeps equal ones, with 80 % probability."""
    place = math.ceil(_ERROR_GRID * math.log(max(error, 1e-6)))
    return _foresee_on_grid(place, launches, min_gain, luck, alpha)


@lru_cache(maxsize=4096)
def _foresee_on_grid(
    place: int, launches: int, min_gain: float, luck: Luck, alpha: float
) -> tuple[float, bool]:
    """The same for a place on the grid of errors, where the launches happen to differ as much as is expected.

    A gain is found when the mean exceeds `min_gain` and the half-width of what the look decides by.
    """
    error, worthwhile = math.exp(place / _ERROR_GRID), math.log1p(min_gain)
    spread = math.hypot(error, luck.spread)
    signs = [1.0 if i % 2 else -1.0 for i in range(launches)]
    centre = sum(signs) / launches
    scale = spread * math.sqrt((launches - 1) / sum((s - centre) ** 2 for s in signs))
    means = [scale * (s - centre) for s in signs]
    pooled = pool_launches(means, [error] * launches, [30.0] * launches, [30] * launches, luck)
    low, high = pooled.interval(find_level(launches, launches, forced=True, alpha=alpha))
    chance = _NORMAL.inv_cdf(_POWER) * spread / math.sqrt(launches)
    found = math.expm1(max((high - low) / 2.0, worthwhile) + chance)
    return found, pooled.interval(REPORTED)[1] + chance < worthwhile


def _pool(launches: Sequence[Contrast], luck: Luck) -> Pooled:
    """What the launches leave to believe, by how likely each kind of slow steps is."""
    freedoms, cycles = [c.freedom for c in launches], [c.cycles for c in launches]
    return mix(
        [
            (r.chance, pool_launches(r.means, r.errors, freedoms, cycles, luck))
            for r in read_slow_steps(launches)
        ]
    )
