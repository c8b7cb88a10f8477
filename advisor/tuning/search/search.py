"""The search: which strategies race next, and when there is no use in another race."""

import math
from collections.abc import Mapping, Sequence

from advisor.protocol.base import Value
from advisor.protocol.gains import spell_share
from advisor.protocol.kinds import Switch
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Outcome, Purpose
from advisor.tuning.decisions import Candidate, Over
from advisor.tuning.history.budget import limit_new_s
from advisor.tuning.history.record import Record
from advisor.tuning.search.acquisition import LEAST_IMPROVEMENT
from advisor.tuning.search.asking import suggest
from advisor.tuning.search.named import next_named
from advisor.tuning.search.planned import (
    is_tried,
    keep_activations_beside,
    list_costly,
    list_first,
    propose_costly,
    propose_higher,
)
from advisor.tuning.search.sampler import Suggestion
from advisor.tuning.search.state import SearchState, choose_winner
from advisor.tuning.space.rules_of_thumb import keep_searched
from advisor.tuning.space.rungs import missing_schedules, share_trials

_FEWEST = 8
"""Strategies that are measured before the search believes that there is little left to find."""
_OF_LEAD = 0.005
"""Share of the lead, in ln(throughput), below which what another race may add is not worth it: after +200 % the time is
better spent on proving it. A knowledge gradient is much smaller than the gain that a lucky race would bring."""
_SAME_JOB = 0.97
"""Likeness from which an earlier job is one of the same workload on the same machine: what it confirmed is only
proved anew."""
_FAR = math.log(1.03)
"""How far above those of the first race the cost model has to see a strategy, in ln(throughput), for a seat in it."""
_SHORTEST_RACE = 20
"""Steps of the shortest race that is still worth starting: four timed ones of two arms, and their entering."""
_SURELY = 2.0
"""Standard errors above a worthwhile gain at which a strategy of such a job is taken up without further search."""


def next_strategies(state: SearchState, seats: int) -> list[Candidate] | Over:
    """Return the strategies of the next race, at most `seats`, or why the search is over.

    In order: suspects of a fatal race, strategies that still lack their race, those that somebody wants measured
    again, what the user named, the first strategies, the sampler's, the costly knobs on top of the best where the
    sampler did not find them worth it, and the share of the rungs above the allowed one. All share a launch; where one
    of them is not exact, all start from one state of the training.
    """
    record, space = state.record, state.space
    if record.suspects:
        trial = record.suspects[0]
        return [Candidate(Purpose.SEARCH, trial.changes, trial.because)]
    trials = record.trials_for(Purpose.SEARCH)
    lacking = [
        Candidate(Purpose.SEARCH, t.changes, t.because)
        for t in trials
        if not record.has_failed(t)
        and t.number not in record.usable_by_trial
        and t.outcome is not Outcome.FINISHED
    ]
    if lacking:
        return _alike(record, lacking)[:seats]
    named = next_named(record, space)
    left_s = limit_new_s(record) - record.spent_s
    if (
        not named
        and left_s < record.job.spec.measurement.block_s
        and (_is_last_call(record) or choose_winner(state) is not None)
    ):
        return Over("The search's share of the time budget is spent: what is left belongs to the verdict.")
    again = [
        Candidate(Purpose.SEARCH, t.changes, f"Measured again, because somebody asked for it: {t.because}")
        for t in record.asked_again
    ]
    if again:
        return _alike(record, again)[:seats]
    if named:
        return keep_activations_beside(state, _alike(record, named)[:seats], seats)
    if (one := _find_launched_for(state)) is not None:
        return [one]
    if len(record.tried) >= record.job.spec.budget.max_trials:
        return Over(f"All {len(record.tried)} search trials of the budget are spent.")
    shares = share_trials(record.job, space)
    costly = [group for _, group in list_costly(space) if not is_tried(group, trials)]
    schedules = missing_schedules(space, [t.changes for t in trials], {})
    kept_back = sum(shares.values()) + len(costly) + len(schedules)
    quota = record.job.spec.budget.max_trials - kept_back - len(state.allowed)
    found = _next_allowed(state, seats, quota)
    if isinstance(found, list):
        return _alike(record, found)
    best = state.best_changes(hot_only=True) if schedules else {}
    for prior in missing_schedules(space, [t.changes for t in trials], best)[:1]:
        return [Candidate(Purpose.SEARCH, prior.changes, prior.because)]
    if (one := propose_costly(state)) is not None:
        return [one]
    higher = propose_higher(state, shares)
    return _alike(record, higher)[:seats] if higher else found


def _find_launched_for(state: SearchState) -> Candidate | None:
    """The costly strategy that the live session was launched for, before its first race.

    To the sampler other costly strategies look cheaper once such a session runs; it would be launched again and again.
    """
    if not (cold := state.record.cold_of_new_launch):
        return None
    one = propose_costly(state)
    return one if one is not None and state.record.required_cold(one.changes) == cold else None


def _is_last_call(record: Record) -> bool:
    """Whether no other race fits: before that, a search that has found nothing to confirm uses the verdict's time."""
    return record.remaining_s < 2.0 * record.trip_s + _SHORTEST_RACE * record.step_s


def _next_allowed(state: SearchState, seats: int, quota: int) -> list[Candidate] | Over:
    record, space = state.record, state.space
    if space.is_empty or not space.dimensions:
        return Over("No knob of the allowed rung is left that every strategy could vary.")
    if (known := _take_earlier(state)) is not None:
        return known
    tried = set(record.tried)
    planned = [
        Candidate(Purpose.SEARCH, p.changes, p.because) for p in list_first(state) if p.changes not in tried
    ]
    if planned and quota > 0:
        return _fill(state, planned, min(seats, quota))
    # Those were surely too slow.
    barred = [t.changes for t in record.trials_for(Purpose.SEARCH) if t.outcome is Outcome.PRUNED]
    found = _suggest(state, barred, seats)
    if not found:
        return Over("Every strategy of the space is measured or cannot run.")
    measured = len(state.scores.throughput)
    least = max(LEAST_IMPROVEMENT, _OF_LEAD * max(0.0, state.belief.incumbent))
    improvement = found[0].improvement
    if improvement is not None and improvement < least and (measured >= _FEWEST or found[0].repeat):
        return Over(
            f"After {measured} strategies another race is expected to add {spell_share(improvement, 2)}: "
            "what is left is better spent on the verdict."
        )
    chosen: list[Candidate] = []
    for suggestion in found:
        fresh = suggestion.changes not in tried
        if fresh and sum(c.changes not in tried for c in chosen) >= quota:
            continue
        chosen.append(Candidate(Purpose.SEARCH, suggestion.changes, suggestion.because))
    return chosen or Over("The search trials that are left belong to costly knobs and the other rungs.")


def _suggest(state: SearchState, barred: Sequence[Changes], count: int) -> list[Suggestion]:
    record = state.record
    return suggest(
        state.focused,
        state.observations,
        barred,
        seed=record.job.spec.seed,
        number=record.next_race,
        count=count,
        model=state.model,
        price_s=lambda changes: estimate_price_s(record, changes),
        quick=record.quick,
        belief=state.believe,
        sampler=record.job.spec.sampler,
    )


def _fill(state: SearchState, planned: Sequence[Candidate], seats: int) -> list[Candidate]:
    """The first strategies, and what the search itself would race, in the seats that they leave.

    Before any was measured, the last seat is for what the cost model predicts above all that would race: one of the
    first strategies, or what the search would race itself.
    """
    record, race = state.record, _alike(state.record, planned)[:seats]
    barred = [*record.tried, *(candidate.changes for candidate in planned)]
    if record.quick or record.job.spec.sampler or (len(race) == seats and record.tried):
        return race
    found = _suggest(state, barred, seats)
    own = [Candidate(Purpose.SEARCH, s.changes, s.because) for s in found if s.gain is not None]
    if record.tried:
        return _alike(record, [*race, *own])[:seats]
    gains = state.belief.predict([candidate.changes for candidate in planned])[0].tolist()
    ahead, best = planned[gains.index(max(gains))], max(gains)
    if own and (found[0].gain or 0.0) > best + _FAR:
        ahead, best = own[0], found[0].gain or 0.0
    if best > max(gains[planned.index(candidate)] for candidate in race) + _FAR:
        return [*_alike(record, [ahead, *race])[1:seats], ahead]
    return race


def _take_earlier(state: SearchState) -> Over | None:
    """Why the search is over where an earlier job on the same workload and machine is confirmed by the first race."""
    least = math.log1p(state.record.job.spec.min_gain)
    for earlier in state.record.history.earlier:
        if earlier.likeness < _SAME_JOB:
            continue
        changes = state.space.composer.compose(keep_searched(state.space, earlier.changes))
        trial = state.record.find_trial(Purpose.SEARCH, changes) if changes is not None else None
        score = state.scores.of(trial) if trial is not None else None
        if score is not None and score.mean - _SURELY * score.error > least:
            return Over(
                f"Job {earlier.job_id} searched this workload on this machine before, and what it confirmed still "
                "brings its gain: only that is proved anew. Continue the job to search on."
            )
    return None


def estimate_price_s(record: Record, changes: Mapping[str, Value]) -> float:
    """Return what measuring these changes costs now, in seconds: its part of a race, and a launch or a compilation.

    A launch when the live session was launched with other cold knobs; so cold strategies come in groups.
    """
    arm_s = record.job.spec.measurement.block_s
    if record.switches_at_launch:
        return arm_s + record.startup_s
    live = record.history.live_session()
    launched = live.cold if live else Changes()
    price_s = arm_s
    if record.required_cold(changes) != launched:
        price_s += record.startup_s
    if any(record.catalogue[name].switch is Switch.SLOW for name in changes):
        price_s += record.startup_s
    return price_s


def _alike(record: Record, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that can race together with the first one: in the same launch."""
    if record.switches_at_launch:
        return list(candidates[:1])
    cold, slow = record.required_cold(candidates[0].changes), _is_slow(record, candidates[0].changes)
    return [
        c
        for c in candidates
        if record.required_cold(c.changes) == cold and _is_slow(record, c.changes) == slow
    ]


def _is_slow(record: Record, changes: Mapping[str, Value]) -> bool:
    return any(record.catalogue[name].switch is Switch.SLOW for name in changes)
