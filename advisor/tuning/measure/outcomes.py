"""How a block's result ends its trial."""

from advisor.protocol.measured.trials import BlockResult, Outcome, Purpose, Trial
from advisor.tuning.measure.statistics import is_cut_short, summarise_block


def judge_block(trial: Trial, result: BlockResult) -> tuple[Outcome, str] | None:
    """Return the trial's outcome after this block with a sentence, or None while it has to go on.

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
            f"The same in force as another strategy of its race (block {result.same_as}): one of them was raced.",
        )
    if result.diverged:
        return (
            Outcome.DIVERGED,
            "A loss was not finite under this strategy. It is never advised; try it by hand with a smaller "
            "learning rate if its speed matters.",
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
    return Outcome.FINISHED, f"Measured over {summary.steady_steps} steps."


def _with_stop(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
