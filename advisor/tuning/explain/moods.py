"""The baseline's moods as the answer tells them: with what the strategy that it is about brings in each."""

import math
from collections.abc import Sequence

from advisor.protocol.answers.moods import MoodGain, Moods
from advisor.tuning.explain.cases import Case
from advisor.tuning.history.launches import believe_luck
from advisor.tuning.history.mood_causes import find_moods
from advisor.tuning.history.record import Record
from advisor.tuning.measure.pooling import Luck
from advisor.tuning.measure.sequential import InMood, read_moods


def tell_moods(record: Record, case: Case | None) -> Moods | None:
    """Return the moods with the strategy's gain in each; None where the baseline has one."""
    moods = find_moods(record)
    if moods is None or case is None:
        return moods
    luck, found = believe_luck(record, case.trial.changes), case.confirmation.moods
    gains = [_tell(found.slow, luck), _tell(found.fast, luck)]
    slow, fast = (
        mood.model_copy(update={"gain": gain})
        for mood, gain in zip((moods.slow, moods.fast), gains, strict=True)
    )
    return moods.model_copy(update={"slow": slow, "fast": fast})


def _tell(parts: Sequence[InMood], luck: Luck) -> MoodGain | None:
    if not parts or any(part.is_bound for part in parts):
        return None
    mean, low, high = (math.exp(value) for value in read_moods(parts, luck))
    return MoodGain(ratio=mean, low=low, high=high, is_confirmed=not any(part.is_earlier for part in parts))
