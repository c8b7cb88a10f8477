"""The guard: what the losses of a numeric or convergence strategy say about its price.

A convergence strategy wins only if its loss is shown not to be worse than the baseline's, from a state in the middle of
a training: at its start a large interval looks harmless. A numeric one, which only rounds otherwise, is refused when
its loss is shown to be worse; a short job that can show neither leaves it unverified, and the advice says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from advisor.protocol.gains import spell_share
from advisor.protocol.kinds import Effect
from advisor.protocol.measured.trials import Block
from advisor.tuning.history.losses import LossContrast, contrast_losses, has_losses
from advisor.tuning.history.record import Record
from advisor.tuning.measure.student_t import t_quantile

_FEWEST = 2
"""Matched pairs without which nothing is said."""
_LARGEST_SHARE = 0.25
"""Of what the baseline learned in the time of a pair, a strategy may never lose more: this is what makes a test of few
steps mean something. Without it a strategy that learns nothing would pass wherever little is learned meanwhile."""
_MOST_STEPS = 300
"""Steps of a launch in which losses are compared, at most."""
_OF_REST = 0.6
"""Share of what is left that launches with compared losses are planned with: they may take half as long again."""
_POWER = 0.8
"""Probability with which the difference that the sentence names would have been seen."""


@dataclass(frozen=True)
class GuardFinding:
    """What the losses show, in a sentence."""

    passed: bool
    """The loss was shown not to be worse."""
    sentence: str
    harmed: bool = False
    """The loss was shown to be worse."""
    is_open: bool = True
    """Whether more comparisons could still show that the loss is not worse."""

    def admits(self, effect: Effect) -> bool:
        """Whether a strategy of this rung may be advised."""
        return self.passed or (effect is Effect.NUMERIC and not self.harmed)


def count_guarded_steps(record: Record, step_s: float, done: int) -> int:
    """Return the timed steps of each launch in which losses are compared, where a strategy is a launch of its own.

    As many as leave time for the fewest pairs, of which so many are done: further ones repeat the same batches.
    `step_s` is the mean of both sides. A few steps would be enough for the speed.
    """
    each_s = _OF_REST * record.remaining_s / (2.0 * max(1, _FEWEST - done)) - record.startup_s - record.trip_s
    steps = int(each_s / max(step_s, 1e-6)) - record.job.spec.measurement.warmup_steps
    return min(_MOST_STEPS, steps)


def check_losses(record: Record, effect: Effect, blocks: Sequence[Block], level: float) -> GuardFinding:
    """Return the paired non-inferiority test of the losses in these blocks of a strategy, at this two-sided level.

    The losses are read again after each launch. The readings spend 5 %, half of it on harm, as the looks at the
    strategy's speed spend theirs (`Confirmation.guard_level`): nothing passes by being asked often.

    Each matched pair (`losses.py`: the same state before, the same number of samples since) gives d = the strategy's
    loss - the baseline's. With δ the tolerated difference and one-sided t bounds of mean d, the test passes when
    the upper bound stays below δ, shows harm when the lower one lies above δ, and is undecided otherwise. δ is
    `loss_tolerance` times the baseline's loss drop from the first loss of the job to these pairs', but at most a
    quarter of what the baseline learned in the time of a pair, whose own error counts; where the baseline learned
    nothing measurable in that time, only harm can be shown. Exact strategies pass: they compute the same numbers.
    """
    if effect is Effect.EXACT:
        return GuardFinding(True, "Its knobs do not change what is computed.")
    contrast = contrast_losses(record, blocks)
    if contrast is None or len(contrast.pairs) < _FEWEST:
        seen = len(contrast.pairs) if contrast else 0
        return GuardFinding(
            False,
            "Its loss could not be compared with the baseline's: too few losses were seen "
            f"({seen} {'comparison' if seen == 1 else 'comparisons'} from the same state of the training; {_FEWEST} "
            "are needed).",
            is_open=seen > 0 or not blocks,
        )
    if level <= 0.0:
        return GuardFinding(False, "Its loss is judged from the second launch on.")
    tolerance = record.job.spec.loss_tolerance
    finding = judge_contrast(contrast, tolerance, _measure_drop(record, contrast), level)
    if effect is not Effect.CONVERGENCE or record.job.spec.from_checkpoint:
        return finding
    if finding.passed:
        return GuardFinding(
            False,
            f"{finding.sentence} That was at the start of a training, where a longer interval does no harm yet: the "
            "accuracy is not verified. Give the command a checkpoint from the middle of a training, by its own resume "
            "option, and say --from-checkpoint.",
            is_open=False,
        )
    return replace(finding, is_open=False)


def judge_contrast(contrast: LossContrast, tolerance: float, drop: float, level: float) -> GuardFinding:
    """Return what matched pairs show at a two-sided level: `tolerance` of the baseline's loss drop may be lost."""
    count, sure = len(contrast.pairs), 1.0 - level / 2.0
    margin = t_quantile(sure, contrast.freedom) * contrast.error
    limits = [
        (tolerance * max(drop, 0.0), margin, f"{spell_share(tolerance)} of the drop since the job began")
    ]
    if contrast.learned:
        error, freedom = contrast.error_beyond(_LARGEST_SHARE)
        margin, what = t_quantile(sure, freedom) * error, "a quarter of what the baseline learned meanwhile"
        limits.append((_LARGEST_SHARE * contrast.fall, margin, what))
    # Both have to be kept: the one that is harder to keep speaks.
    allowed, margin, what = min(limits, key=lambda limit: limit[0] - limit[1])
    worst = contrast.difference + margin
    harmed = contrast.difference - margin > allowed
    if not contrast.learned and not harmed:
        return GuardFinding(
            False,
            "Its loss could not be judged: the baseline's own loss did not fall measurably in the time of a comparison "
            f"(by {contrast.fall:.4g} ± {contrast.fall_error:.2g}), so that learning nothing would look no worse.",
        )
    figures = (
        f"after {contrast.steps} steps from the same state its loss differs by {contrast.difference:+.4g} from the "
        f"baseline's over {count} comparisons (at most {worst:+.4g} with 97.5 % confidence, however often it is read; "
        f"{allowed:.4g} is tolerated, {what})"
    )
    if worst < allowed:
        return GuardFinding(
            True,
            f"The loss guard passed: {figures}. That holds on these batches, from this state and over so many steps; "
            "of a whole training it says nothing.",
        )
    if harmed:
        return GuardFinding(False, f"The loss guard refuses it: {figures}.", harmed=True)
    smallest = margin + t_quantile(_POWER, contrast.freedom) * contrast.error
    blind = f"a difference below {smallest:.2g} could hardly have been seen in {count} comparisons"
    return GuardFinding(False, f"The loss guard could not decide: {figures}; {blind}.")


def _measure_drop(record: Record, contrast: LossContrast) -> float:
    """The baseline's loss at the job's start minus its loss in the last of these pairs; 0 where it was not seen."""
    first = next((b.result.losses for b in record.baseline_blocks if has_losses(b) and b.result), ())
    if not first:
        return 0.0
    return fmean(first[: max(1, len(first) // 4)]) - contrast.pairs[-1].level
