"""The guard: what the losses of a numeric or convergence strategy say about its price.

A convergence strategy wins only if its loss is shown not to be worse than the baseline's. A numeric one, which only
rounds otherwise, is refused when its loss is shown to be worse; a short job that can show neither leaves it
unverified, and the advice says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from advisor.protocol.knobs import Effect
from advisor.protocol.trials import Block
from advisor.tuning.allowance import look_level
from advisor.tuning.record import Record
from advisor.tuning.rounds import Pair
from advisor.tuning.student import t_quantile

_FEWEST = 4


@dataclass(frozen=True)
class GuardFinding:
    """What the losses show, in a sentence."""

    passed: bool
    """The loss was shown not to be worse."""
    sentence: str
    harmed: bool = False
    """The loss was shown to be worse."""

    def admits(self, effect: Effect) -> bool:
        """Whether a strategy of this rung may be advised."""
        return self.passed or (effect is Effect.NUMERIC and not self.harmed)


def check_losses(record: Record, effect: Effect, pairs: Sequence[Pair]) -> GuardFinding:
    """Return the paired non-inferiority test of the losses in these rounds.

    Each round gives d = mean loss of the strategy's block - mean loss of the baseline's, both of whole blocks; of
    equally many steps where both come from launches of their own, which train from the same start. It
    passes when the upper end of d's one-sided interval, at the level of one look among many, stays below
    `loss_tolerance` times the baseline's loss drop from the first loss seen in the job to the last of these rounds,
    and shows harm when the lower end lies above that.
    The rounds' alternating order cancels the loss's own fall. Exact strategies pass: they compute the same numbers.
    """
    if effect is Effect.EXACT:
        return GuardFinding(True, "Its knobs do not change what is computed.")
    differences = [
        _subtract_losses(pair.strategy.result.losses, pair.baseline.result.losses, record.switches_at_launch)
        for pair in pairs
        if pair.strategy.result
        and pair.baseline.result
        and _has_losses(pair.strategy)
        and _has_losses(pair.baseline)
    ]
    drop = _measure_drop(record, pairs)
    if len(differences) < _FEWEST or drop is None:
        return GuardFinding(
            False, "Its loss could not be compared with the baseline's: too few losses were seen."
        )
    error = stdev(differences) / sqrt(len(differences))
    margin = t_quantile(1.0 - look_level(record.job.spec), len(differences) - 1) * error
    worst = fmean(differences) + margin
    allowed = record.job.spec.loss_tolerance * max(drop, 0.0)
    harmed = fmean(differences) - margin > allowed
    if drop <= 0 and not harmed:
        return GuardFinding(
            False, "Its loss could not be judged: the baseline's own loss did not fall meanwhile."
        )
    figures = (
        f"its loss differs by {fmean(differences):+.4g} from the baseline's over {len(differences)} rounds (at most "
        f"{worst:+.4g} with 95 % confidence; {allowed:.4g} is tolerated)"
    )
    if worst < allowed:
        return GuardFinding(True, f"The loss guard passed: {figures}.")
    if harmed:
        return GuardFinding(False, f"The loss guard refuses it: {figures}.", harmed=True)
    return GuardFinding(False, f"The loss guard could not decide: {figures}.")


def _subtract_losses(strategy: Sequence[float], baseline: Sequence[float], from_one_start: bool) -> float:
    steps = min(len(strategy), len(baseline)) if from_one_start else None
    return fmean(strategy[:steps]) - fmean(baseline[:steps])


def _has_losses(block: Block) -> bool:
    return bool(block.result and block.result.losses and not block.result.diverged)


def _measure_drop(record: Record, pairs: Sequence[Pair]) -> float | None:
    """The baseline's loss at the job's start minus its loss in the last of these rounds."""
    first = next((b for b in record.baseline_blocks if _has_losses(b)), None)
    last = next((pair.baseline for pair in reversed(pairs) if _has_losses(pair.baseline)), None)
    if first is None or last is None or not first.result or not last.result:
        return None
    start = first.result.losses[: max(1, len(first.result.losses) // 4)]
    return fmean(start) - fmean(last.result.losses)
