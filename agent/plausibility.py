"""What cannot be true about a measured block: numbers that contradict the agent's own clock or the question asked.

The runtime that measures lives in the script's own process, so a script can lie within these bounds; it cannot make a
block longer than the time that passed, answer another question than the one asked, or report steps of no length.
"""

import math

from advisor.protocol.trials import BlockPlan, BlockResult

_SHORTEST_STEP_S = 1e-6
_CLOCK_TOLERANCE = 1.05
"""Device clocks and the node's clock disagree by much less than this."""
_REPLY_SLACK_S = 0.5
"""The agent's own clock starts a little after the runtime may have had its instruction."""


def find_implausible(block_id: str, result: BlockResult, plan: BlockPlan | None, elapsed_s: float) -> str:
    """Return a sentence that says what cannot be true, "" for a result that can.

    `plan` is the block that was asked for, None when none was; `elapsed_s` is the time since then by the agent's clock.
    """
    why = _contradiction(block_id, result, plan, elapsed_s)
    if not why:
        return ""
    return (
        f"The result of block {block_id} cannot be true: {why}. It is not used. Only the runtime may speak to the "
        "agent's control socket; see docs/operating.md."
    )


def _contradiction(block_id: str, result: BlockResult, plan: BlockPlan | None, elapsed_s: float) -> str:
    if plan is None:
        return "no block was asked for"
    if plan.block_id != block_id:
        return f"block {plan.block_id} was asked for"
    if result.steps != len(result.step_time_s):
        return f"it names {result.steps} steps and the times of {len(result.step_time_s)}"
    times = result.step_time_s
    numbers = (*times, result.wall_s, result.samples_per_step, result.samples, result.switch_s)
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        return "a number in it is negative or not finite"
    if times and min(times) < _SHORTEST_STEP_S:
        return f"a step took {min(times):g} s"
    longest_s = elapsed_s * _CLOCK_TOLERANCE + _REPLY_SLACK_S
    spent_s = max(result.wall_s, max(times, default=0.0))
    if spent_s > longest_s:
        return f"its steps took {spent_s:.3g} s, but only {elapsed_s:.3g} s passed since it was asked for"
    return ""
