"""History -> advice: the verdict with its interval, the reasons, the ladder, the cost and the next steps.

Only numbers of the confirmation are reported as gains; what the search saw decides only where all of it was slower.
"""

import math
from collections.abc import Sequence
from datetime import datetime

from advisor.protocol.answers.advice import Advice, Cost, Diagnosis, Interval, RungAdvice, Verdict
from advisor.protocol.asked.jobs import Job, JobState
from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.spending import count_devices, measure_device_hours
from advisor.protocol.measured.trials import Block, JobHistory, Outcome, Purpose, Trial
from advisor.tuning.decisions import Over
from advisor.tuning.explain.beyond_knobs import list_uneven_parts, list_warnings, say_apart
from advisor.tuning.explain.cases import (
    Case,
    find_told,
    find_trial,
    judge,
    list_compared,
    list_launches,
    make_case,
    measure_total,
    prove,
)
from advisor.tuning.explain.diagnosis import diagnose, measure_host_cores, say_reach
from advisor.tuning.explain.forecast import list_forecasts
from advisor.tuning.explain.headline import Grounds, say_headline
from advisor.tuning.explain.knob_effects import list_evidence, list_left
from advisor.tuning.explain.moods import tell_moods
from advisor.tuning.explain.next_steps import list_next_steps
from advisor.tuning.explain.pareto import build_pareto
from advisor.tuning.explain.reasons import explain_changes, list_buckets, trace_provenance
from advisor.tuning.history.budget import limit_new_s, plan_verdict
from advisor.tuning.history.ended_search import judge_others, search_as_it_ended
from advisor.tuning.history.record import Record
from advisor.tuning.history.scores import Score
from advisor.tuning.measure.contrast import mean_rate
from advisor.tuning.measure.phases import pool_phases
from advisor.tuning.measure.stragglers import flag_nodes
from advisor.tuning.measure.utilisation import measure_joules, say_taken
from advisor.tuning.search.search import next_strategies
from advisor.tuning.search.state import SURELY, SearchState, find_nearest_below, look
from advisor.tuning.space.composition import list_own_values
from advisor.tuning.space.rungs import CAVEATS, caveat_of
from advisor.tuning.space.space import Space, build_space, say_unrepeated
from advisor.tuning.stages.ladder import list_ladder
from advisor.tuning.stages.leftover import NOTICEABLE
from advisor.tuning.stages.undecided import find_reason, measure_launch_noise

_MOST_TOLD = 1.0
"""Smallest gain that is still worth telling, as a fraction: a user does not need to hear that +100 % could be found."""
_MOST_MORE_S = 3600.0
"""Longest continuation that is proposed, in seconds."""
_ENDED_BY = {
    JobState.CANCELLING: "the job was cancelled",
    JobState.CANCELLED: "the job was cancelled",
    JobState.FAILED: "the job failed",
}
"""A clause; every other job goes on until its budget holds nothing more."""


def build_advice(job: Job, history: JobHistory, now: datetime) -> Advice:
    """Return the answer to the job from what was measured; never fails for want of measurements."""
    record = Record(job, history, now)
    state = look(record)
    space = state.space if state else build_space(job, job.facts, ()) if job.facts else None
    winner, told = find_told(record, state)
    first = prove(record, make_case(record, told) if told else None)
    rungs = [find_trial(record, trial) or trial for trial in list_ladder(state, winner)] if state else []
    fallbacks = [make_case(record, trial) for trial in rungs if record.is_allowed(trial)]
    chosen = next((case for case in [first, *reversed(fallbacks)] if case and case.wins), None)
    shown = chosen or first
    changes = chosen.trial.changes if chosen else Changes()
    before, after = list_compared(record, shown)
    phases = pool_phases(before), pool_phases(after if chosen else before)
    moods = tell_moods(record, shown)
    rate = moods.samples_per_s if moods else mean_rate(before)
    cost = _add_up(record, chosen)
    base = list_own_values(job)
    own = {**base, **{k: v for k, v in job.baseline.items() if k in base}}
    diagnosis = _diagnose(record, space, before, after if chosen else [])
    grounds = _find_grounds(record, space, state, shown)
    answer = say_headline(grounds)
    ladder = _climb(record, state, [*([first.trial] if first else []), *rungs], shown)
    return Advice(
        job_id=job.id,
        verdict=grounds.verdict,
        headline=answer.headline,
        first=say_apart(job.facts),
        moods=moods,
        action=answer.action,
        what_to_do=answer.what_to_do,
        continue_s=answer.continue_s,
        launch_noise=measure_launch_noise(record),
        watch=(
            *list_warnings(record, is_told=grounds.verdict is Verdict.UNDECIDED),
            *list_uneven_parts(job.facts),
        ),
        smallest_gain=grounds.smallest_gain,
        allowed=job.spec.allow,
        certificate=_say_certificate(chosen),
        strategy={**base, **changes},
        baseline=own,
        changes=changes,
        own=job.spec.workload.own,
        rounds_sums=job.facts is not None and job.facts.rounds_sums,
        keeps_buckets=job.facts is not None and job.facts.keeps_buckets,
        provenance=trace_provenance(_varied(record), job.spec),
        gain=shown.gain if shown else None,
        total_ratio=measure_total(shown),
        launches=list_launches(shown),
        candidate=shown.trial.changes if shown else Changes(),
        baseline_samples_per_s=rate,
        strategy_samples_per_s=rate * chosen.gain.ratio if chosen and chosen.gain else rate,
        rate_unit=job.rate_unit,
        price_per_hour=job.spec.price_per_hour,
        joules_before=measure_joules(before, job.spec.nodes),
        joules_after=measure_joules(after if chosen else (), job.spec.nodes),
        reasons=explain_changes(
            changes,
            job.catalogue,
            space.context if space else None,
            own,
            before,
            after,
            phases,
            list_evidence(record, chosen),
        ),
        left=list_left(state, changes),
        ladder=ladder,
        diagnosis=diagnosis,
        phases_before=phases[0],
        phases_after=phases[1],
        buckets_before=list_buckets(before),
        buckets_after=list_buckets(after) if chosen else list_buckets(before),
        cost=cost,
        dropped=space.dropped if space else (),
        pareto=build_pareto(record),
        forecasts=list_forecasts(state, changes, before),
        search_ended_because=_say_why_search_ended(record),
        next_steps=(
            *_list_doubts(chosen),
            *list_next_steps(
                record,
                chosen.trial if chosen else None,
                diagnosis,
                phases,
                has_ladder=any(rung.gain for rung in ladder),
                host_cores=measure_host_cores(after if chosen else before, space),
            ),
        ),
        cluster=job.cluster.describe(),
        software=_list_software(job),
    )


def _say_why_search_ended(record: Record) -> str:
    """Ask the search again as it stood when the next stage began; empty where nothing was searched."""
    if not record.trials_for(Purpose.SEARCH):
        return ""
    state = look(search_as_it_ended(record))
    found = next_strategies(state, 1) if state is not None else []
    if isinstance(found, Over) or state is None:
        return found.because if isinstance(found, Over) else ""
    is_spent = limit_new_s(state.record) - state.record.spent_s < record.job.spec.measurement.block_s
    return "The budget ended before the search did." if is_spent else ""


def _diagnose(
    record: Record, space: Space | None, before: Sequence[Block], after: Sequence[Block]
) -> Diagnosis:
    job = record.job
    ranks_a_node = job.facts.local_world_size if job.facts else 1
    flags = flag_nodes([*before, *after], record.sessions, ranks_a_node, job.cluster)
    told = {"flags": flags, "limits": say_reach(record.baseline_blocks, job.facts)}
    return diagnose(before, space, after).model_copy(update=told)


def _say_certificate(chosen: Case | None) -> str:
    if chosen is None or not chosen.certificate:
        return ""
    return f"Parameters, buffers and optimizer states were {chosen.certificate}."


def _find_grounds(
    record: Record, space: Space | None, state: SearchState | None, case: Case | None
) -> Grounds:
    """What the answer stands on: the verdict, and everything that its headline tells."""
    job, searched = record.job, record.trials_for(Purpose.SEARCH)
    tried = record.trials_for(Purpose.CONFIRM) if job.spec.verify else searched
    given_up = sum(trial.outcome is Outcome.PRUNED for trial in searched)
    fallen = [t for t in record.trials_for(Purpose.CONFIRM) if t.changes and record.has_failed(t)]
    dead = _say_dead(record) if job.spec.verify and not any(t.changes for t in tried) else ()
    no_knob = case is None and space is not None and space.is_empty
    all_slower = case is None and bool(searched) and given_up == len(searched)
    nearest = find_nearest_below(state) if state is not None and case is None else None
    verdict = Verdict.KEEP if no_knob or all_slower or nearest else Verdict.UNDECIDED
    reason = find_reason(record)
    return Grounds(
        job_id=job.id,
        verdict=judge(case) if case else verdict,
        min_gain=job.spec.min_gain,
        changes=case.trial.changes if case else job.spec.verify,
        effect=case.trial.effect if case else Effect.EXACT,
        interval=case.gain if case else None,
        unproven=case.say_unproven() if case else "",
        guard=case.say_price() if case and case.trial.effect is not Effect.EXACT else "",
        is_verified=case.guard.passed and case.gains_progress if case else True,
        is_harmful=(case.guard.harmed or case.loses_progress) if case else False,
        is_check=bool(job.spec.verify),
        no_knob=no_knob,
        unrepeated=say_unrepeated(record.baseline_blocks) or "",
        tried=len(dead or tried),
        searched=_spread(nearest[1]) if nearest else None,
        nearest=nearest[0].changes if nearest else Changes(),
        given_up=given_up,
        failed=dead
        or tuple(t.outcome.words for t in tried if t.outcome and t.outcome.is_configurations_fault),
        others=judge_others(record, case.trial.changes) if case and not job.spec.verify else None,
        ended_by=_ENDED_BY.get(job.state) or _say_what_ended(record),
        fallen=f"{fallen[0].changes.describe()} {fallen[0].outcome.words}"
        if fallen and fallen[0].outcome
        else "",
        none_promised=case is None and bool(searched) and _has_time_left(record),
        reason=reason.sentence,
        is_scripts=reason.why.is_scripts,
        smallest_gain=_find_smallest_gain(record),
        more_s=_estimate_more_s(record, case) if case else None,
        load=say_taken(block.telemetry for block in record.baseline_blocks),
        where=job.spec.testbed.describe() if job.spec.testbed else "",
    )


def _say_dead(record: Record) -> tuple[str, ...]:
    """What became of the strategy to verify whose launches died before their race, so that no trial tells of it."""
    if not record.has_killed_a_launch(record.job.spec.verify):
        return ()
    cold = record.required_cold(record.job.spec.verify)
    died = [s for s in record.sessions if s.cold == cold and s.outcome is not None]
    words = died[-1].outcome.words if died[-1].outcome else ""
    return (f"{words} at its launch: {died[-1].reason}".removesuffix(".").removesuffix(": "),)


def _spread(score: Score) -> Interval:
    """What the search says of a strategy, as an interval; on how many rounds it rests is not told."""
    low, high = score.mean - SURELY * score.error, score.mean + SURELY * score.error
    return Interval(ratio=math.exp(score.mean), low=math.exp(low), high=math.exp(high), rounds=0, sessions=0)


def _has_time_left(record: Record) -> bool:
    return record.remaining_s > NOTICEABLE * record.budget_s


def _say_what_ended(record: Record) -> str:
    """A clause: that the budget ended, what was left of it, and what another launch would have needed."""
    launch_s, apart = plan_verdict(record).launch_s, record.switches_at_launch
    told = []
    if is_left := _has_time_left(record):
        told.append(f"{record.remaining_s:.0f} of {record.budget_s:.0f} s were left")
    if launch_s > max(record.remaining_s, NOTICEABLE * record.budget_s):
        each = "" if apart else f": {record.startup_s:.0f} s until it trains, and then its race"
        told.append(f"another {'pair of launches' if apart else 'launch'} takes {launch_s:.0f} s{each}")
    whole = "the budget ended" if is_left else f"the budget of {record.budget_s:.0f} s ended"
    return f"{whole} ({', and '.join(told)})" if told else whole


def _find_smallest_gain(record: Record) -> float | None:
    """The smallest gain that the budget could find; None before the probe, or where it can find none."""
    found = plan_verdict(record).plan.smallest_gain if record.probe else math.inf
    return found if 0.0 < found < _MOST_TOLD else None


def _estimate_more_s(record: Record, case: Case) -> float | None:
    """Seconds of further launches after which the interval would be narrow enough, were its centre to stay."""
    found = case.confirmation.look
    if found is None or not case.confirmation.launches:
        return None
    least = math.log1p(record.job.spec.min_gain)
    apart = max(abs(found.mean - (0.0 if found.mean > least else least)), least)
    if apart == 0.0:  # No time tells what is exactly alike from what brings anything at all.
        return None
    times = ((found.high - found.low) / 2.0 / apart) ** 2
    launches = max(2.0, math.ceil(len(case.confirmation.launches) * (times - 1.0)))
    return min(_MOST_MORE_S, launches * plan_verdict(record).launch_s)


def _list_doubts(chosen: Case | None) -> tuple[str, ...]:
    if chosen is None or chosen.trial.effect is Effect.EXACT:
        return ()
    return (f"Compare the accuracy of one full training before you rely on it. {chosen.guard.sentence}",)


def _varied(record: Record) -> set[str]:
    """Knobs that some timed strategy changed to an effect."""
    timed = {block.trial_number for block in record.usable}
    return {
        name
        for t in record.history.trials
        if t.number in timed and not record.has_failed(t)
        for name in t.changes
    }


def _climb(
    record: Record, state: SearchState | None, trials: Sequence[Trial], shown: Case | None
) -> tuple[RungAdvice, ...]:
    """The ladder: every rung other than the verdict's that was measured, or could have been, with its price."""
    rungs: dict[Effect, RungAdvice] = {}
    for effect in {d.knob.effect for d in state.space.higher} if state else set():
        rungs[effect] = _describe_unconfirmed(record, effect)
    for trial in trials:
        if shown is None or trial.changes != shown.trial.changes:
            rungs[trial.effect] = _describe_rung(make_case(record, trial))
    return tuple(rungs[effect] for effect in Effect if effect in rungs)


def _describe_unconfirmed(record: Record, effect: Effect) -> RungAdvice:
    seen = sum(t.effect is effect for t in record.trials_for(Purpose.SEARCH))
    sentence = (
        f"{seen} {'strategy was' if seen == 1 else 'strategies were'} tried on the {effect.value} rung; "
        "none looked faster than the baseline."
        if seen
        else f"The {effect.value} rung was not measured: the budget ended before."
    )
    return RungAdvice(effect=effect, changes={}, gain=None, sentence=sentence, caveat=CAVEATS[effect])


def _describe_rung(case: Case) -> RungAdvice:
    effect, what = case.trial.effect, case.trial.changes.describe()
    gain = case.gain
    sentence = (
        f"The {effect.value} rung: {gain.describe()} with {what}. {case.say_price()}"
        if gain
        else f"The best seen on the {effect.value} rung ({what}) was not raced for the verdict."
    )
    return RungAdvice(
        effect=effect,
        changes=case.trial.changes,
        gain=gain,
        sentence=sentence,
        caveat=caveat_of(case.trial.changes, case.trial.effect),
        efficiency=case.efficiency.value if case.efficiency else None,
        goodput=case.goodput,
        admitted=case.guard.admits(effect) and case.gains_progress,
    )


def _add_up(record: Record, chosen: Case | None) -> Cost:
    hours = measure_device_hours(record.job, record.sessions, record.now)
    pays_back = None
    if chosen is not None and chosen.gain is not None and chosen.gain.ratio > 1.0:
        pays_back = 3600.0 * hours / count_devices(record.job) / (chosen.gain.ratio - 1.0)
    return Cost(
        wall_s=record.spent_s,
        device_hours=hours,
        trials=len(record.trials_for(Purpose.SEARCH)),
        sessions=len(record.sessions),
        pays_back_after_s=pays_back,
    )


def _list_software(job: Job) -> dict[str, str]:
    if job.facts is None:
        return {}
    versions: dict[str, Value] = {
        "torch": job.facts.torch_version,
        "python": job.facts.python_version,
        "backend": job.facts.backend,
        "device": job.facts.device_name or job.facts.device.value,
        **job.facts.software,
    }
    return {name: str(version) for name, version in versions.items() if version}
