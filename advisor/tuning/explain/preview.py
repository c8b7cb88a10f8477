"""What a job would do, told from its specification alone: nothing has been measured yet, and nothing is guessed."""

from datetime import datetime

from advisor.protocol.answers.advice import DroppedKnob
from advisor.protocol.answers.previews import PlannedKnob, PlanPreview
from advisor.protocol.asked.jobs import Job, JobSpec
from advisor.protocol.base import Value
from advisor.protocol.kinds import Place
from advisor.protocol.knobs.combinations import say_too_many
from advisor.protocol.knobs.knob import Knob
from advisor.protocol.knobs.reach import fit_values, list_taken, out_of_reach_because
from advisor.protocol.measured.trials import JobHistory
from advisor.tuning.history.budget import UNTIMED, limit_new_s, plan_verdict
from advisor.tuning.history.record import Record
from advisor.tuning.space.space import FROZEN, NOT_ASKED_FOR

_ARMS_A_BASELINE = 3
"""Strategies that share the time of one arm of the baseline."""


def preview_plan(job: Job, now: datetime) -> PlanPreview:
    """Return what would be searched, within which limits, and what cannot be said yet."""
    spec, record = job.spec, Record(job, JobHistory(), now)
    knobs: list[PlannedKnob] = []
    dropped: list[DroppedKnob] = []
    taken = list_taken(spec.workload)
    for knob in spec.catalogue.values():
        reason = out_of_reach_because(spec.workload, knob, taken) or _left_out_because(spec, knob)
        if reason is None:
            knobs.append(_plan_knob(spec, knob))
        else:
            dropped.append(DroppedKnob(knob=knob.name, reason=reason))
    most = 0 if spec.verify else spec.budget.max_trials
    smallest = plan_verdict(record).plan.smallest_gain if record.switches_at_launch else None
    return PlanPreview(
        knobs=tuple(knobs),
        dropped=tuple(dropped),
        most_trials=most,
        likely_trials=min(most, _count_that_fit(record)),
        most_seconds=spec.budget.max_seconds,
        most_device_hours=spec.budget.max_device_hours,
        smallest_gain=smallest,
        unknown=_list_unknown(spec, knobs, smallest),
    )


def _left_out_because(spec: JobSpec, knob: Knob) -> str | None:
    if spec.verify:
        return "The job holds one strategy against the script, and searches nothing."
    if knob.name in spec.freeze:
        return FROZEN
    if spec.knobs and knob.name not in spec.knobs and knob.place is not Place.OWN:
        return NOT_ASKED_FOR
    return None


def _plan_knob(spec: JobSpec, knob: Knob) -> PlannedKnob:
    values = _known_values(spec, knob)
    return PlannedKnob(
        knob=knob.name,
        effect=knob.effect,
        for_verdict=knob.effect.rank <= spec.allow.rank,
        values=fit_values(spec.workload, knob, values) if values else (),
        low=None if values else knob.low,
        high=None if values else knob.high,
        unit=knob.unit,
    )


def _known_values(spec: JobSpec, knob: Knob) -> tuple[Value, ...]:
    if knob.name in spec.values:
        return spec.values[knob.name]
    if knob.own_values or knob.grid is not None:
        return knob.own_values
    return (False, True) if knob.kind is bool else knob.choices


def _count_that_fit(record: Record) -> int:
    spec = record.job.spec
    arm_s = UNTIMED * spec.measurement.block_s
    each_s = arm_s + record.startup_s if record.switches_at_launch else arm_s * (1 + 1 / _ARMS_A_BASELINE)
    left_s = limit_new_s(record) - record.startup_s
    return max(0, int(left_s / each_s))


def _list_unknown(spec: JobSpec, knobs: list[PlannedKnob], smallest: float | None) -> tuple[str, ...]:
    budget = spec.budget
    too_many = say_too_many(spec.workload, budget.max_seconds, budget.max_trials, spec.freeze)
    found = [too_many] if too_many else []
    if knobs:
        found.append("Which of these knobs can matter for the script is known after its first launch.")
    if open_knobs := [planned.knob for planned in knobs if not planned.values]:
        names = ", ".join(open_knobs)
        found.append(f"Values that depend on the script and its nodes are chosen after that launch: {names}.")
    if smallest is None:
        found.append(
            "The smallest gain that the budget can find depends on how noisy the script's steps are: the first launch "
            "measures that, and an event of the job says it before the search begins."
        )
    if spec.budget.max_device_hours is None:
        hours = spec.budget.max_seconds / 3600.0
        found.append(
            f"Device-hours are known once the nodes are: each device of a gang is held for at most {hours:.2g} hours."
        )
    return tuple(found)
