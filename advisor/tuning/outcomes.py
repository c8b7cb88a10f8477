"""How a block's result ends its trial."""

from advisor.protocol.trials import BlockResult, Outcome, Purpose, Trial
from advisor.tuning.statistics import is_cut_short, summarise_block


def judge_block(trial: Trial, result: BlockResult, extended: bool = False) -> tuple[Outcome, str] | None:
    """Return the trial's outcome after this block with a sentence, or None while it has to go on.

    A search trial ends with its first steady block, or with the one that extended an unsteady block
    (`extended`: the trial already had a usable block), or as pruned when the ranks stopped timing because it cannot
    win. The baseline never ends here; finalists and confirmed
    strategies end only when they fail.
    """
    if result.relaunch_needed or not trial.changes:
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
    if result.diverged:
        return (
            Outcome.DIVERGED,
            "A loss was not finite under this strategy. It is never advised; try it by hand with a smaller "
            "learning rate if its speed matters.",
        )
    if trial.purpose is not Purpose.SEARCH:
        return None
    summary = summarise_block(result)
    if summary.steady_steps == 0 or is_cut_short(result):
        return None
    if result.given_up:
        return (
            Outcome.PRUNED,
            f"Stopped after {result.steps} timed steps: a step took {summary.median_step_time_s:.4g} s, surely too "
            "slow to win (less than 90 % of the best strategy's throughput).",
        )
    if summary.steady:
        return Outcome.FINISHED, f"Measured over {summary.steady_steps} steady steps."
    if extended:
        return (
            Outcome.FINISHED,
            f"Measured over {summary.steady_steps} steps, though no steady state was found even in a block "
            "twice as long: its score is uncertain.",
        )
    return None


def _with_stop(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
