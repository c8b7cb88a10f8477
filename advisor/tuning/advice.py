"""History -> advice: the verdict with its interval, the reasons, the ladder, the cost and the next steps.

Only numbers of the confirmation are reported as gains; what the search saw decides nothing here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean

from advisor.protocol.advice import Advice, Cost, Diagnosis, Interval, RungAdvice, Verdict
from advisor.protocol.base import Value
from advisor.protocol.jobs import Job
from advisor.protocol.knob_entries import CATALOGUE
from advisor.protocol.knobs import Effect
from advisor.protocol.spending import count_devices, measure_device_hours
from advisor.protocol.strategy import DistributedStrategy
from advisor.protocol.trials import Block, JobHistory, Phases, Purpose, Trial
from advisor.tuning.allowance import FEWEST_ROUNDS
from advisor.tuning.composition import baseline_strategy, describe_changes
from advisor.tuning.confirmation import Confirmation, confirm, list_ladder
from advisor.tuning.diagnosis import diagnose, median_phases
from advisor.tuning.ended_search import search_as_it_ended
from advisor.tuning.forecast import list_forecasts
from advisor.tuning.goodput import Efficiency, combine, efficiency_of
from advisor.tuning.guard import GuardFinding, check_losses
from advisor.tuning.knob_effects import list_evidence, list_taken_back
from advisor.tuning.ladder import CAVEATS, caveat_of
from advisor.tuning.next_steps import list_next_steps
from advisor.tuning.pareto import build_pareto
from advisor.tuning.reasons import explain_changes, explain_taken_back, list_buckets, trace_provenance
from advisor.tuning.record import Record
from advisor.tuning.rounds import count_sessions
from advisor.tuning.search import SearchOver, next_strategy, rank_trials
from advisor.tuning.simplify import choose_winner
from advisor.tuning.space import Space, build_space
from advisor.tuning.stragglers import flag_nodes


@dataclass(frozen=True)
class Case:
    """A strategy that the verdict may stand on, with everything that speaks for or against it."""

    trial: Trial
    confirmation: Confirmation
    gain: Interval | None
    guard: GuardFinding
    is_proved: bool
    """Complete rounds, an interval above 1, a gain worth recommending."""
    efficiency: Efficiency | None = None
    """What a sample still teaches under it; None where nothing tells."""
    goodput: Interval | None = None
    """The gain times that."""

    @property
    def wins(self) -> bool:
        """Whether the advice is to change to it: faster, its loss not in doubt, and faster in progress too."""
        return self.is_proved and self.guard.admits(self.trial.effect) and not self.loses_progress

    @property
    def loses_progress(self) -> bool:
        """Whether what a sample teaches less may eat up a convergence strategy's gain."""
        convergence = self.trial.effect is Effect.CONVERGENCE
        return convergence and self.goodput is not None and self.goodput.low <= 1.0

    def say_price(self) -> str:
        """What the losses say about it, in sentences."""
        if self.goodput is None or self.efficiency is None or self.trial.effect is not Effect.CONVERGENCE:
            return self.guard.sentence
        progress = f"Goodput, throughput times what a sample teaches: {self.goodput.describe()}."
        return f"{self.guard.sentence} {progress} {self.efficiency.because}"


def build_advice(job: Job, history: JobHistory, now: datetime) -> Advice:
    """Return the answer to the job from what was measured; never fails for want of measurements."""
    record = Record(job, history, now)
    space = build_space(job, job.facts, record.probe_blocks) if job.facts else None
    winner = choose_winner(record)
    first = _make_case(record, winner) if winner else None
    fallbacks = [
        _make_case(record, trial) for trial in list_ladder(record, winner) if _is_allowed(job, trial)
    ]
    chosen = next((case for case in [first, *reversed(fallbacks)] if case and case.wins), None)
    shown = chosen or first
    changes = dict(chosen.trial.changes) if chosen else {}
    before, after = _compared_blocks(record, shown)
    phases = _typical_step(before), _typical_step(after if chosen else before)
    rate = _mean_rate(before)
    cost = _add_up(record, chosen)
    base = baseline_strategy(job)
    diagnosis = _diagnose(record, space, before, after if chosen else [])
    return Advice(
        job_id=job.id,
        verdict=Verdict.CHANGE if chosen else Verdict.KEEP,
        headline=_say_headline(record, space, shown) + _say_where(job),
        allowed=job.spec.allow,
        strategy=DistributedStrategy.from_changes(changes, base=base).values(),
        baseline={**base.values(), **{k: v for k, v in job.baseline.items() if k in CATALOGUE}},
        changes=changes,
        provenance=trace_provenance(_varied(record), job.spec.workload.kind),
        gain=shown.gain if shown else None,
        baseline_samples_per_s=rate,
        strategy_samples_per_s=rate * chosen.gain.ratio if chosen and chosen.gain else rate,
        reasons=explain_changes(
            changes,
            space.context if space else None,
            before,
            after,
            phases,
            list_evidence(record, changes, chosen.confirmation if chosen else None),
        ),
        taken_back=explain_taken_back(list_taken_back(record, changes), space.context if space else None),
        ladder=_climb(record, space, winner, shown),
        diagnosis=diagnosis,
        phases_before=phases[0],
        phases_after=phases[1],
        buckets_before=list_buckets(before),
        buckets_after=list_buckets(after) if chosen else list_buckets(before),
        cost=cost,
        dropped=space.dropped if space else (),
        pareto=build_pareto(record),
        forecasts=list_forecasts(record, space, changes),
        search_ended_because=_say_why_search_ended(record, space),
        next_steps=(
            *_list_doubts(chosen),
            *list_next_steps(
                record,
                chosen.trial if chosen else None,
                diagnosis,
                phases,
                has_ladder=bool(space and space.higher),
            ),
        ),
        cluster=job.cluster.describe(),
        software=_list_software(job),
    )


def _typical_step(blocks: Sequence[Block]) -> Phases:
    """The median phases, and what slow steps add to them: together the mean step, which the throughput is made of."""
    phases, rate = median_phases(blocks), _mean_rate(blocks)
    samples = [
        b.result.samples_per_step for b in blocks if b.result and b.summary and b.summary.samples_per_s > 0
    ]
    if rate <= 0 or phases.total_s() <= 0:
        return phases
    return phases.model_copy(update={"stalls_s": max(0.0, fmean(samples) / rate - phases.total_s())})


def _say_why_search_ended(record: Record, space: Space | None) -> str:
    """Ask the search again as it stood when the first round began; empty where nothing was searched."""
    if space is None or not record.trials_for(Purpose.SEARCH):
        return ""
    found = next_strategy(search_as_it_ended(record), space)
    return found.because if isinstance(found, SearchOver) else "The budget ended before the search did."


def _diagnose(
    record: Record, space: Space | None, before: Sequence[Block], after: Sequence[Block]
) -> Diagnosis:
    job = record.job
    ranks_a_node = job.facts.local_world_size if job.facts else 1
    flags = flag_nodes([*before, *after], record.sessions, ranks_a_node, job.cluster)
    return diagnose(before, space, after).model_copy(update={"flags": flags})


def _make_case(record: Record, trial: Trial) -> Case:
    confirmation = confirm(record, trial)
    gain = _interval_of(confirmation)
    proved = (
        gain is not None
        and confirmation.is_complete
        and gain.low > 1.0
        and gain.ratio >= 1.0 + record.job.spec.min_gain
    )
    guard = check_losses(record, trial.effect, confirmation.pairs)
    efficiency = efficiency_of(record, trial)
    goodput = combine(gain, efficiency, trial.effect)
    return Case(trial, confirmation, gain, guard, proved, efficiency, goodput)


def _interval_of(confirmation: Confirmation) -> Interval | None:
    found = confirmation.interval
    if found is None or found.rounds < FEWEST_ROUNDS:
        return None
    return Interval(
        ratio=math.exp(found.mean),
        low=math.exp(max(-700.0, found.low)),
        high=math.exp(min(700.0, found.high)),
        rounds=found.rounds,
        sessions=count_sessions(confirmation.pairs),
    )


def _is_allowed(job: Job, trial: Trial) -> bool:
    return trial.effect.rank <= job.spec.allow.rank


def _compared_blocks(record: Record, case: Case | None) -> tuple[list[Block], list[Block]]:
    """The confirmation's blocks of baseline and strategy; the probe's where there was no confirmation."""
    if case is not None and case.confirmation.pairs:
        pairs = case.confirmation.pairs
        return [pair.baseline for pair in pairs], [pair.strategy for pair in pairs]
    return list(record.baseline_blocks), []


def _mean_rate(blocks: Sequence[Block]) -> float:
    rates = [b.summary.samples_per_s for b in blocks if b.summary and b.summary.samples_per_s > 0]
    return math.exp(fmean(math.log(rate) for rate in rates)) if rates else 0.0


def _say_headline(record: Record, space: Space | None, case: Case | None) -> str:
    keep = "No reliable gain: keep your defaults."
    if case is None:
        if space is not None and space.is_empty:
            return f"{keep} No knob that the job allows can matter here; each was dropped with its reason."
        return f"{keep} No strategy of the search could be measured."
    what = describe_changes(case.trial.changes)
    if case.gain is None:
        return f"{keep} The best of the search ({what}) was not confirmed: the budget ended before."
    launches = "launch" if case.gain.sessions == 1 else "launches"
    figures = f"{case.gain.describe()} over {case.gain.rounds} rounds in {case.gain.sessions} {launches}"
    if case.wins:
        verified = (
            "" if case.guard.passed else " Rounding changes, and its effect on the accuracy is not verified."
        )
        if case.goodput is not None and case.trial.effect is Effect.CONVERGENCE:
            verified += f" In progress per second that is {case.goodput.describe()}."
        return f"{case.gain.describe().replace(' % (', ' % throughput (', 1)} with {what}.{verified}"
    if not case.confirmation.is_complete:
        return f"{keep} The best of the search ({what}) measured {figures}: too few to stand on; raise the budget."
    if case.is_proved:
        return f"Faster, but not advised: {what} measured {figures}. {case.say_price()} Keep your defaults."
    if case.gain.low > 1.0:
        least = f"{record.job.spec.min_gain:.1%}"
        return f"{keep} The best of the search ({what}) measured {figures}: less than the {least} worth a change."
    return f"{keep} The best of the search ({what}) measured {figures}."


def _say_where(job: Job) -> str:
    return f" Measured on {job.spec.testbed.describe()}." if job.spec.testbed else ""


def _list_doubts(chosen: Case | None) -> tuple[str, ...]:
    if chosen is None or chosen.guard.passed:
        return ()
    return (f"Compare the accuracy of one full run before you rely on it. {chosen.guard.sentence}",)


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
    record: Record, space: Space | None, winner: Trial | None, shown: Case | None
) -> tuple[RungAdvice, ...]:
    """The ladder: every rung other than the verdict's that was measured, or could have been, with its price."""
    rungs: dict[Effect, RungAdvice] = {}
    for effect in {d.knob.effect for d in space.higher} if space else set():
        rungs[effect] = _describe_unconfirmed(record, effect)
    for trial in [*([winner] if winner else []), *list_ladder(record, winner)]:
        if shown is None or trial.number != shown.trial.number:
            rungs[trial.effect] = _describe_rung(_make_case(record, trial))
    return tuple(rungs[effect] for effect in Effect if effect in rungs)


def _describe_unconfirmed(record: Record, effect: Effect) -> RungAdvice:
    seen = len(rank_trials(record, effect))
    sentence = (
        f"{seen} {'strategy was' if seen == 1 else 'strategies were'} tried on the {effect.value} rung; "
        "none looked faster than the baseline."
        if seen
        else f"The {effect.value} rung was not measured: the budget ended before."
    )
    return RungAdvice(effect=effect, changes={}, gain=None, sentence=sentence, caveat=CAVEATS[effect])


def _describe_rung(case: Case) -> RungAdvice:
    effect, what = case.trial.effect, describe_changes(case.trial.changes)
    gain = case.gain
    sentence = (
        f"The {effect.value} rung brings {gain.describe()} with {what}. {case.say_price()}"
        if gain
        else f"The best seen on the {effect.value} rung ({what}) was not confirmed in enough rounds."
    )
    return RungAdvice(
        effect=effect,
        changes=dict(case.trial.changes),
        gain=gain,
        sentence=sentence,
        caveat=caveat_of(case.trial.changes),
        efficiency=case.efficiency.value if case.efficiency else None,
        goodput=case.goodput,
        admitted=case.guard.admits(effect) and not case.loses_progress,
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
