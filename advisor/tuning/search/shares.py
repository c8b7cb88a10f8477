"""What all races of a job say of the settings of one strategy: which of them carry its gain."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev

from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Block
from advisor.tuning.history.comparisons import compare_blocks
from advisor.tuning.history.mood_causes import find_calming
from advisor.tuning.history.moods import find_mood_border
from advisor.tuning.history.scores import RACE_LUCK, SURELY_SLOW_ERROR
from advisor.tuning.measure.carriers import Arm, Carriers, weigh_settings
from advisor.tuning.measure.slow_steps import settle
from advisor.tuning.search.state import SearchState
from advisor.tuning.space.reversion import Unit, list_units, take_back

_ROOT_TWO = math.sqrt(2.0)
_LIKELY = 0.5
"""Chance from which settings are taken to bring something: the median model's (Barbieri and Berger 2004)."""
_FOREIGN = 0.2
"""Standard deviation of what a setting brings, in ln(rate), of which nothing is asked: an arm with it tells of large
gains of the others alone."""
_SAME = 5e-4
"""Standard error of the ln ratio of two strategies whose plan in force is the same."""


@dataclass(frozen=True)
class Shares:
    """A strategy, its settings, and what is believed of them."""

    state: SearchState
    whole: Changes

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Its settings in groups that can go back to the baseline's value on their own."""
        return tuple(list_units(self.state.space.composer, self.whole))

    @cached_property
    def carriers(self) -> Carriers:
        """What is believed of each unit beside what units are known to do only together."""
        return weigh_settings(self._list_arms(), len(self.units), RACE_LUCK)

    @property
    def least(self) -> float:
        """What a gain has to be to be worth a change, in ln(rate)."""
        return math.log1p(self.state.record.job.spec.min_gain)

    def find_places(self, changes: Mapping[str, Value]) -> frozenset[int]:
        """Return the places of the units that a part of the strategy holds."""
        return frozenset(
            place
            for place, unit in enumerate(self.units)
            if all(name in changes and changes[name] == self.whole[name] for name in unit)
        )

    def expect(self, part: Mapping[str, Value]) -> float:
        """Return what a part of the strategy is expected to bring, in ln(rate)."""
        places = self.find_places(part)
        expected = self.carriers.expected
        return float(sum(expected[place] for place in places)) + self._say_together(places)

    def find_core(self) -> Changes:
        """Return the smallest part that is expected to hold all of the gain but `min_gain`, or that probably does.

        Settings go back, the one that is missed least first, as long as no more is missed in all, or more is less
        likely than not: noise leaves each of them a little to expect. Where every strategy costs a launch, only what
        the search saw run can take the whole's place.
        """
        record = self.state.record
        if record.switches_at_launch or record.has_launch_of_its_own(self.whole):
            seen = [t.changes for t in self.state.allowed if self.state.scores.of(t) is not None]
            parts = [part for part in seen if part and part.items() < self.whole.items()]
            good = [p for p in parts if not record.has_failed_anywhere(p) and not self._is_missed(p)]
            return min(good, key=lambda part: (len(part), -self.expect(part)), default=self.whole)
        core = self.whole
        while smaller := next((p for p in self.leave_one_out(core) if not self._is_missed(p)), None):
            core = smaller
        return core

    def _is_missed(self, part: Mapping[str, Value]) -> bool:
        """Whether what the strategy has beyond a part is expected to bring `min_gain`, and probably does."""
        if self.expect(part) >= self.expect(self.whole) - self.least:
            return False
        held = self.find_places(part)
        every = frozenset(range(len(self.units)))
        together = self._say_together(every) - self._say_together(held)
        return self.carriers.chance_to_bring(every - held, self.least - together) >= _LIKELY

    def leave_one_out(self, part: Changes) -> list[Changes]:
        """Return a part without each of its units, what is expected to bring most first; none that failed."""
        found = (take_back(self.state.space.composer, part, unit) for unit in self.units)
        alive = {p: None for p in found if p and not self.state.record.has_failed_anywhere(p)}
        return sorted(alive, key=lambda p: (-self.expect(p), len(p)))

    def _say_together(self, places: frozenset[int]) -> float:
        """What units bring together beyond what each brings alone, in ln(rate).

        0 without a cost model, and where that is within the model's own error: a prediction shows nothing by itself.
        """
        if len(places) < 2 or self.state.model is None:
            return 0.0
        if places not in self._together:
            own = self.state.space.context.baseline
            sets = [places, *(frozenset((place,)) for place in places)]
            values = [{**own, **{n: self.whole[n] for p in held for n in self.units[p]}} for held in sets]
            base_s = self.state.model.predict_baseline_s()
            whole, *alone = [math.log(base_s / s) for s in self.state.model.predict_many(values)]
            found = whole - math.fsum(alone)
            self._together[places] = found if abs(found) > self.state.model.residual else 0.0
        return self._together[places]

    @cached_property
    def _together(self) -> dict[frozenset[int], float]:
        return {}

    def _list_arms(self) -> list[Arm]:
        """What races say of the baseline, of the strategy and of its parts, and of arms that hold others beside them.

        A part that raced beside none of them counts by its score, as a race of its own.
        """
        record = self.state.record
        arms: list[Arm] = []
        raced = set()
        for number, blocks in record.races.items():
            known = [b for b in blocks if self._tells(record.trial[b.trial_number].changes)]
            if len(known) > 1 and len({b.session_id for b in known}) == 1:
                arms += self._read_race(number, known)
                raced |= {block.trial_number for block in known}
        for trial in self.state.allowed:
            score = self.state.scores.of(trial)
            if trial.changes and trial.number not in raced and score and self._is_part(trial.changes):
                arms += self._pair(-len(arms) - 1, {}, trial.changes, score.mean, score.error)
        held = {b.id: record.trial[b.trial_number].changes for b in record.history.blocks}
        for block in record.history.blocks:
            # One plan in force under two names.
            twin = held.get(block.result.same_as) if block.result and block.result.same_as else None
            if twin is not None and self._is_part(twin) and self._is_part(held[block.id]):
                arms += self._pair(-len(arms) - 1, twin, held[block.id], 0.0, _SAME)
        return arms

    @cached_property
    def _mood_spread(self) -> float:
        """By how much what is told of an arm with moods differs from race to race: a standard deviation of ln(rate).

        Where the baseline has moods, from its comparisons with arms that have none; else 0.
        """
        record = self.state.record
        if find_mood_border(record.spells) is None:
            return 0.0
        beside = []
        for first, *others in record.races.values():
            calm = [b for b in others if self._is_calm(record.trial[b.trial_number].changes)]
            told = [compare_blocks(b, first) for b in calm if not record.trial[first.trial_number].changes]
            means = [settle(contrast)[0] for contrast in told if contrast is not None]
            beside += [fmean(means)] if means else []
        return stdev(beside) if len(beside) > 1 else 0.0

    @cached_property
    def _calming(self) -> tuple[str, Value] | None:
        return find_calming(self.state.record)

    def _spread_of(self, changes: Mapping[str, Value]) -> float:
        """Standard deviation of an arm's ln(step time) by its mood.

        What ends a mood is in some arms and not in others: how far they are apart is then another race by race, and
        says nothing of what else they hold. Where no race and no fact tells what ends the mood, the
        baseline alone is taken to have it.
        """
        return 0.0 if self._is_calm(changes) else self._mood_spread

    def _is_calm(self, changes: Mapping[str, Value]) -> bool:
        name, value = self._calming or ("", None)
        return changes.get(name) == value if name else bool(changes)

    def _read_race(self, number: int, blocks: Sequence[Block]) -> list[Arm]:
        """Each arm against the first; the error of a comparison is that of its two sides."""
        held = [self.state.record.trial[block.trial_number].changes for block in blocks]
        told = [(0.0, math.inf)]
        for block in blocks[1:]:
            contrast = compare_blocks(block, blocks[0])
            mean, error = settle(contrast) if contrast is not None else (0.0, math.inf)
            given_up = block.result is not None and block.result.given_up
            told.append((mean, max(error, SURELY_SLOW_ERROR if given_up else 0.0)))
        told[0] = (0.0, min(error for _, error in told))
        return [
            # Of its mood an arm has all, and not one of two sides.
            self._make_arm(
                number,
                changes,
                block.session_id,
                mean,
                math.hypot(error, _ROOT_TWO * self._spread_of(changes)),
            )
            for block, changes, (mean, error) in zip(blocks, held, told, strict=True)
            if math.isfinite(error)
        ]

    def _pair(
        self, number: int, one: Mapping[str, Value], other: Mapping[str, Value], mean: float, error: float
    ) -> list[Arm]:
        return [self._make_arm(number, what, "", rate, error) for what, rate in ((one, 0.0), (other, mean))]

    def _make_arm(
        self, number: int, changes: Mapping[str, Value], launch: str, rate: float, error: float
    ) -> Arm:
        places = self.find_places(changes)
        luck = RACE_LUCK if launch else 0.0
        foreign = _ROOT_TWO * _FOREIGN * math.sqrt(len(changes.keys() - self._name_held(changes)))
        alone = rate - self._say_together(places)
        return Arm(number, places, launch, alone, math.hypot(error, luck, foreign) / _ROOT_TWO)

    def _name_held(self, changes: Mapping[str, Value]) -> set[str]:
        """The names of the units that a strategy holds."""
        return {name for place in self.find_places(changes) for name in self.units[place]}

    def _is_part(self, changes: Mapping[str, Value]) -> bool:
        return changes.items() <= self.whole.items() and self._name_held(changes) == changes.keys()

    def _tells(self, changes: Mapping[str, Value]) -> bool:
        """Whether it is a part, or holds one beside exact settings that are not asked of."""
        record = self.state.record
        return self._is_part(changes) or (bool(self._name_held(changes)) and record.is_exact(changes))
