"""What a job would do, as lines of text."""

from advisor.answers.wording import spell_duration, spell_value
from advisor.protocol.answers.previews import PlannedKnob, PlanPreview
from advisor.protocol.gains import spell_fraction


def describe_plan(plan: PlanPreview) -> str:
    """Return the plan: what is searched, within which limits, and what is not known yet."""
    lines = [
        f"tries     {plan.likely_trials} strategies or so, {plan.most_trials} at most",
        f"takes     {spell_duration(plan.most_seconds)} at most"
        + (f", {plan.most_device_hours:g} device-hours" if plan.most_device_hours is not None else ""),
    ]
    if plan.smallest_gain is not None:
        lines.append(f"can find  gains from {spell_fraction(plan.smallest_gain)} on")
    searched = [planned for planned in plan.knobs if planned.for_verdict]
    above = [planned.knob for planned in plan.knobs if not planned.for_verdict]
    lines += ["searches"] + [f"  {planned.knob} {_spell_values(planned)}".rstrip() for planned in searched]
    if above:
        lines.append(f"shows what these would bring, and advises none of them: {', '.join(above)}")
    return "\n".join([*lines, *plan.unknown])


def _spell_values(planned: PlannedKnob) -> str:
    if planned.values:
        return ", ".join(spell_value(planned.knob, value) or "–" for value in planned.values)
    if planned.low is None or planned.high is None:
        return ""
    return f"{spell_value(planned.knob, planned.low)} … {spell_value(planned.knob, planned.high)}"
