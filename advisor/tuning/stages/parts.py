"""The verdict's burden of proof: what races beside its strategy, and which settings are shown to help.

The verdict's strategy is the core of the search's winner. Beside it race the whole winner, and, where the core has
several settings, the core without each of them. Which they are is decided before the verdict's first race; each races
until it is told, in two launches at most. In the answer the whole takes the core's place only where it is shown to be
faster, and a setting that is seen to bring nothing goes: every step stands on the one before, so that none spends error
of its own (docs/decisions/0050).
"""

import math
from collections.abc import Mapping

from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Purpose
from advisor.tuning.decisions import Candidate
from advisor.tuning.history.comparisons import list_comparisons
from advisor.tuning.history.launches import believe_luck, is_part
from advisor.tuning.history.record import Record
from advisor.tuning.measure.levels import FIRST_LOOK
from advisor.tuning.measure.sequential import Look, look_at
from advisor.tuning.search.shares import Shares
from advisor.tuning.search.state import SearchState, choose_winner
from advisor.tuning.space.composition import join_names
from advisor.tuning.stages.confirmation import count_planned, put_together

_MOST_LAUNCHES = 2
"""Launches of one part: what they do not tell is told of the group, as soon."""
_MOST_PARTS = 4
"""Parts of one race: more would make each one's turn rare."""


def list_parts(state: SearchState, core: Candidate) -> tuple[Candidate, ...]:
    """Return what the verdict's next launch races beside its strategy: parts that are not told yet.

    Those of the first race, and only while they look as if they would be shown; the least raced first.
    """
    record = state.record
    if record.job.spec.verify or record.switches_at_launch or record.required_cold(core.changes):
        return ()
    alive = [p for p in _plan_parts(state, core.changes) if not record.has_failed_anywhere(p)]
    looks = [
        (compare(record, core.changes, p, forced=False), p) for p in alive if not record.required_cold(p)
    ]
    looks.sort(key=lambda one: one[0].launches if one[0] else 0)
    begun = bool(list_comparisons(record, Purpose.CONFIRM, core.changes))
    least = math.log1p(record.job.spec.min_gain)
    found = []
    for look, part in looks:
        # The trimming saw the whole beside the core already: one launch that shows no more of it is enough.
        fewest = 0 if begun and len(part) > len(core.changes) else FIRST_LOOK
        seen = look.launches if look else 0
        is_promising = look is None or (look.decision is None and look.mean >= least)
        if seen < fewest or (is_promising and seen < _MOST_LAUNCHES):
            found.append(Candidate(Purpose.CONFIRM, part, _say_why(core.changes, part)))
    return tuple(found[:_MOST_PARTS])


def find_parts(record: Record, core: Mapping[str, Value]) -> list[Changes]:
    """Return the parts of a strategy, and what it is a part of, that raced beside it in the verdict."""
    found = [t.changes for t in record.trials_for(Purpose.CONFIRM) if is_part(t.changes, core)]
    return [c for c in found if c and list_comparisons(record, Purpose.CONFIRM, c, against=core)]


def compare(
    record: Record, core: Mapping[str, Value], part: Mapping[str, Value], *, forced: bool
) -> Look | None:
    """Return what the verdict's races say of the larger of two sets of settings against the smaller one.

    *Change*: what it has more is shown to help. None without a race of both. What the trimming saw of the whole beside
    its core counts as a launch more: it was not shown to help there.
    """
    smaller, larger = sorted((core, part), key=len)
    found = tuple(list_comparisons(record, Purpose.CONFIRM, larger, against=smaller))
    if found and len(part) > len(core):
        found += tuple(list_comparisons(record, Purpose.REVERT, larger, against=smaller))
    launches, ended = put_together(record, found)
    planned = max(count_planned(record, ended), FIRST_LOOK)
    look: Look | None = None
    for count in range(1, len(launches) + 1):
        look = look_at(
            launches[:count],
            planned=next((e for e in ended if e >= count), planned),
            min_gain=record.job.spec.min_gain,
            forced=count in ended or (forced and count == len(launches)),
            ended=[e for e in ended if e < count],
            luck=believe_luck(record, core),
        )
        if look is not None and look.decision is not None:
            break
    return look


def _plan_parts(state: SearchState, core: Changes) -> list[Changes]:
    winner = choose_winner(state)
    whole = [winner.changes] if winner is not None and core.items() < winner.changes.items() else []
    return whole + Shares(state, core).leave_one_out(core) if len(core) > 1 else whole


def _say_why(core: Changes, part: Changes) -> str:
    if len(part) > len(core):
        return "The search's winner as a whole, to see whether what it has more helps."
    return f"Without {join_names(n for n in core if n not in part)}, to see whether that is missed."
