"""What a strategy measured against a reference: one comparison for each race that both took part in."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from advisor.protocol.base import Value
from advisor.protocol.measured.trials import Block, Contrast, Purpose
from advisor.tuning.history.record import Record
from advisor.tuning.measure.contrast import contrast_arms


@dataclass(frozen=True)
class Comparison:
    """One race's word on a strategy against its reference."""

    race: int
    launch: str
    """Session of the strategy's block: comparisons of one launch share its luck."""
    strategy: Block
    reference: Block
    contrast: Contrast
    """ln(throughput of the strategy / of the reference)."""


def list_comparisons(
    record: Record,
    purpose: Purpose,
    changes: Mapping[str, Value],
    against: Mapping[str, Value] | None = None,
) -> list[Comparison]:
    """Return the races of these changes, measured for that purpose, against the reference, in their order.

    `against` are the reference's changes (a strategy of the same purpose); None means the baseline. A race whose
    arms needed launches of their own compares blocks of two sessions.
    """
    trial = record.find_trial(purpose, changes)
    reference = (
        record.find_trial(Purpose.BASELINE, {}) if against is None else record.find_trial(purpose, against)
    )
    if trial is None or reference is None:
        return []
    found = []
    for block in record.usable_by_trial.get(trial.number, ()):
        arms = record.races.get(block.race, ())
        theirs = [arm for arm in arms if arm.trial_number == reference.number and arm.id != block.id]
        theirs.sort(key=lambda arm: arm.session_id != block.session_id)
        if not theirs:
            continue
        contrast = compare_blocks(block, theirs[0])
        if contrast is not None:
            found.append(Comparison(block.race, block.session_id, block, theirs[0], contrast))
    return found


def compare_blocks(block: Block, reference: Block) -> Contrast | None:
    """Return what two blocks say of their strategies; None where one of them has no timed step.

    Where the reference was the first arm of the block's race, that was worked out when the race was reported.
    """
    stored = block.summary.contrast if block.summary else None
    together = block.race == reference.race and not reference.arm
    if stored is not None and together and block.session_id == reference.session_id:
        return stored
    if block.result is None or reference.result is None:
        return None
    return contrast_arms(block.result, reference.result)


def log_rate(block: Block) -> float:
    """Return ln(samples per second) from the robust step time. Raises ValueError for a block without a summary."""
    if block.result is None or block.summary is None:
        raise ValueError(f"block {block.id} has no summary")
    return math.log(max(block.result.samples_per_step, 1e-12)) - block.summary.log_step_time
