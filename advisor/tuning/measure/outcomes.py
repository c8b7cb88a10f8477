"""How a block's result ends its trial."""

import math
from collections.abc import Sequence

from advisor.protocol.kinds import Effect
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import Outcome, Purpose, Trial
from advisor.tuning.measure.statistics import is_cut_short, summarise_block

_CHANCE, _CHANCE_EXACT = 0.01, 0.001
"""Chance below which more losses that are not finite than the baseline's are told as the strategy's. An exact strategy
computes what the baseline does, so more has to speak against it."""


def judge_block(
    trial: Trial, result: BlockResult, baseline: Sequence[BlockResult]
) -> tuple[Outcome, str] | None:
    """Return the trial's outcome after this block with a sentence, or None while it has to go on.

    `baseline` is what the script as it stands measured: in the same race, where it took part in it.

    A search trial ends with its first race; it may race again all the same. One that was given up has been measured:
    it is slow. The baseline never ends here; other trials end only when they fail.
    """
    if result.relaunch_needed or result.drifted or not trial.changes:
        return None
    if ignored := [name for name in trial.changes if name in result.not_consumed]:
        reasons = " ".join(f"{name}: {result.not_consumed[name]}" for name in ignored)
        return (
            Outcome.INEFFECTIVE,
            f"Set, but nothing acted on it, so its time would say nothing about it. {_with_stop(reasons)}",
        )
    if all(name in result.no_effect for name in trial.changes):
        reasons = " ".join(_with_stop(result.no_effect[name]) for name in trial.changes)
        return Outcome.INEFFECTIVE, f"In force, but the same as the script as it stands. {reasons}"
    if result.same_as:
        return (
            Outcome.INEFFECTIVE,
            "The same in force as another strategy of its race: one of them was raced for both.",
        )
    if result.bits_differ:
        return Outcome.UNCERTIFIED, result.bits_differ
    if has_diverged(trial, result, baseline):
        return (
            Outcome.DIVERGED,
            f"{say_share(count_nonfinite([result]))} of the losses under this strategy were not finite, "
            f"{say_share(count_nonfinite(baseline))} of the baseline's. It is never advised; try it by hand with a "
            "smaller learning rate if its speed matters.",
        )
    if trial.purpose is not Purpose.SEARCH:
        return None
    summary = summarise_block(result)
    if result.given_up:
        took = (
            f"a step took {summary.median_step_time_s:.4g} s" if summary.steady_steps else "no step counted"
        )
        return Outcome.PRUNED, f"Given up after {result.steps} steps: {took}, surely too slow to win."
    if summary.steady_steps == 0 or (not result.segments and is_cut_short(result)):
        return None
    same = f" Bit for bit as the script itself after {result.bit_steps} steps." if result.bit_steps else ""
    return Outcome.FINISHED, f"Measured over {summary.steady_steps} steps.{same}"


def has_diverged(trial: Trial, result: BlockResult, baseline: Sequence[BlockResult]) -> bool:
    """Whether more of its losses are not finite than the script's own are, beyond chance."""
    bad, total = count_nonfinite([result])
    own, own_total = count_nonfinite(baseline)
    limit = _CHANCE_EXACT if trial.effect is Effect.EXACT else _CHANCE
    return bad > 0 and (own_total == 0 or _find_chance(bad, total, own, own_total) < limit)


def count_nonfinite(results: Sequence[BlockResult]) -> tuple[int, int]:
    """Return how many losses were not finite, and of how many."""
    bad = sum(result.nonfinite_losses for result in results)
    return bad, max(bad, sum(r.steps + sum(map(len, r.loss_checks)) for r in results))


def say_share(counts: tuple[int, int]) -> str:
    """`4 %`; of so few that it would round to nothing, their number."""
    share = 100.0 * counts[0] / max(1, counts[1])
    return f"{share:.0f} %" if share >= 1.0 or not counts[0] else f"{counts[0]} of {counts[1]}"


def _find_chance(bad: int, total: int, own: int, own_total: int) -> float:
    """Fisher's exact test: the chance that so many of `bad` + `own` fall among `total`, were both alike."""
    drawn = bad + own
    whole = _log_choices(total + own_total, drawn)
    return math.fsum(
        math.exp(_log_choices(total, k) + _log_choices(own_total, drawn - k) - whole)
        for k in range(max(bad, drawn - own_total), min(total, drawn) + 1)
    )


def _log_choices(count: int, chosen: int) -> float:
    return math.lgamma(count + 1) - math.lgamma(chosen + 1) - math.lgamma(count - chosen + 1)


def _with_stop(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
