"""The baseline alone, up to the step at which a launch broke off: whether the script gets past it by itself."""

import math
from dataclasses import replace

from advisor.tuning.decisions import BASELINE, Race
from advisor.tuning.history.breakoffs import list_break_offs, may_end_there
from advisor.tuning.history.budget import UNTIMED
from advisor.tuning.history.record import Record
from advisor.tuning.stages.turns import MOST_STEPS, Turn, probe_rules

_BEYOND, _BEYOND_STEPS = 1.15, 15
"""How much further than the launch that broke off this one has to get."""


def next_control(record: Record) -> Turn | None:
    """Return a race of the baseline alone where only that tells whether a strategy broke the last launch off."""
    found = list_break_offs(record)
    last = found[-1] if found else None
    if last is None or not last.in_force or last.session.cold or record.probe is None:
        return None
    if (
        record.switches_at_launch
        or record.job.spec.gangs > 1
        or not may_end_there(record.history, last.session)
    ):
        return None
    later = [s for s in record.sessions if s.created_at > last.session.created_at and s.state.is_final]
    steps = math.ceil(_BEYOND * last.steps) + _BEYOND_STEPS
    needs_s = record.startup_s + UNTIMED * steps * record.step_s
    if any(not session.was_lost for session in later) or steps > MOST_STEPS or needs_s > record.remaining_s:
        return None
    rules = replace(probe_rules(record), calibrate=False, min_steps=steps, max_steps=steps)
    because = (
        f"The last launch broke off after {last.steps} steps, further than any other got: the script alone, to see "
        "whether it gets past them without a change."
    )
    return Turn(Race(record.job.stage, because, (BASELINE,), rules, record.next_race))
