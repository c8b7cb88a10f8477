"""What cannot be true about a race: numbers that contradict the agent's own clock or the question asked.

The runtime that measures lives in the script's own process, so a script can lie within these bounds; it cannot make a
race longer than the time that passed, answer another question than the one asked, or report steps of no length.
"""

import math
from collections.abc import Mapping

from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import RacePlan

_SHORTEST_STEP_S = 1e-6
_CLOCK_TOLERANCE = 1.05
"""Device clocks and the node's clock disagree by much less than this."""
_REPLY_SLACK_S = 0.5
"""The agent's own clock starts a little after the runtime may have had its instruction."""


def find_implausible(
    race_id: str, results: Mapping[str, BlockResult], race: RacePlan | None, elapsed_s: float
) -> str:
    """Return a sentence that says what cannot be true, "" for results that can.

    `race` is what was asked for, None when nothing was; `elapsed_s` is the time since then by the agent's clock.
    """
    why = _contradiction(race_id, results, race, elapsed_s)
    if not why:
        return ""
    return (
        f"The result of race {race_id} cannot be true: {why}. It is not used. Only the runtime may speak to the "
        "agent's control socket; see docs/operating.md."
    )


def _contradiction(
    race_id: str, results: Mapping[str, BlockResult], race: RacePlan | None, elapsed_s: float
) -> str:
    if race is None:
        return "no race was asked for"
    if race.race_id != race_id:
        return f"race {race.race_id} was asked for"
    asked = {arm.block_id for arm in race.arms}
    if results.keys() != asked:
        return f"it names the arms {sorted(results)}, where {sorted(asked)} were asked for"
    for arm, result in results.items():
        if why := _contradict_arm(result, asked - {arm}):
            return f"in arm {arm} {why}"
    # The arms take turns: their times add up.
    spent_s = sum(max(r.wall_s, max(r.step_time_s, default=0.0)) for r in results.values())
    if spent_s > elapsed_s * _CLOCK_TOLERANCE + _REPLY_SLACK_S:
        return f"its steps took {spent_s:.3g} s, but only {elapsed_s:.3g} s passed since it was asked for"
    return ""


def _contradict_arm(result: BlockResult, others: set[str]) -> str:
    times = result.step_time_s
    if result.steps != len(times):
        return f"there are {result.steps} steps and the times of {len(times)}"
    if result.step_samples and len(result.step_samples) != result.steps:
        return f"there are {result.steps} steps and the samples of {len(result.step_samples)}"
    if result.segments and (min(result.segments) < 0 or sum(result.segments) != result.steps):
        return f"segments of {sum(result.segments)} steps together hold {result.steps}"
    if result.same_as and (result.same_as not in others or times):
        return "what is said to be the same is another race's, or was timed all the same"
    numbers = (
        *times,
        *result.step_samples,
        result.wall_s,
        result.samples_per_step,
        result.samples,
        result.switch_s,
    )
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        return "a number is negative or not finite"
    if times and min(times) < _SHORTEST_STEP_S:
        return f"a step took {min(times):g} s"
    return ""
