"""The strategy that is best while a job runs, and what is known of its gain."""

from advisor.protocol.base import Message
from advisor.protocol.gains import Quality, judge_quality, spell_gain, spell_likely, spell_range


class SoFar(Message):
    """What races of one strategy against the baseline say up to now."""

    ratio: float
    low: float
    high: float
    races: int
    launches: int

    @property
    def likely(self) -> str:
        """Its likeliest value as far as it is known: `+12.0 %`, `3.1x`, `not known`."""
        return spell_likely(self.ratio, self.low, self.high)

    def describe(self) -> str:
        """`6 races in 2 launches · +12 % (+9 … +15 % so far)`."""
        races = f"{self.races} race{'s' if self.races != 1 else ''}"
        measured = f"{races} in {self.launches} launch{'es' if self.launches != 1 else ''}"
        quality = judge_quality(self.low, self.high)
        if quality is not Quality.KNOWN:
            return f"{measured} · {'gain not known yet' if quality is Quality.UNKNOWN else f'{self.likely} so far'}"
        return (
            f"{measured} · {spell_gain(self.ratio)} ({spell_range(self.ratio, self.low, self.high)} so far)"
        )


class Standing(Message):
    """The strategy that the planner held for best when it made the latest race: what every screen tells meanwhile."""

    trial_number: int
    gain: SoFar
    """Its throughput over the baseline's: the verdict's own interval once it is being confirmed, else what the search
    believes, the luck of a launch included."""
    chance: float | None = None
    """Probability that it is the best of the measured strategies; None once it is being confirmed."""
    moods: tuple[float, ...] = ()
    """The rates between which the script as it stands jumps, slow and fast, in samples per second; empty: one."""

    @property
    def is_confirmed(self) -> bool:
        """Whether the verdict's races are about it."""
        return self.chance is None

    def describe(self) -> str:
        """`about +110 %, unconfirmed`; where that is not known, as far as it is."""
        quality = judge_quality(self.gain.low, self.gain.high)
        if quality is Quality.UNKNOWN:
            return "gain not known yet"
        return f"{'about ' if quality is Quality.KNOWN else ''}{self.gain.likely}, unconfirmed"
