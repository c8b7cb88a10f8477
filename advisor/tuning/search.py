"""The search: which strategy is measured next, and when there is no use in another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from advisor.protocol.base import Value
from advisor.protocol.knob_entries import CATALOGUE
from advisor.protocol.knobs import Effect, Switch
from advisor.protocol.trials import Outcome, Purpose, Trial
from advisor.tuning.acquisition import LEAST_IMPROVEMENT, Belief, Told, learn
from advisor.tuning.allowance import limit_search_s
from advisor.tuning.composition import describe_changes, key_of
from advisor.tuning.contender import Contender
from advisor.tuning.ended_search import search_as_it_ended
from advisor.tuning.gangs import is_measured_now, list_pending
from advisor.tuning.ladder import missing_schedules, rung_strategies, share_trials
from advisor.tuning.modelling import Measured, fit_model, identify
from advisor.tuning.priors import Prior, first_strategies, keep_searched, rules_of, rules_together
from advisor.tuning.record import Record
from advisor.tuning.sampler import suggest
from advisor.tuning.space import Dimension, Space, build_space, measure_shares

_LEAST_ERROR = 0.005
_BEST = 2
_FEWEST = 10
"""Strategies that are measured before the expected improvement is believed to be small."""
_KEPT = 16
"""Beliefs that are kept, as fits of the cost model are."""
_MOST_EARLIER = 2
_MOST_RULES = 2
_ALLOWED_PER_OTHER = 4
"""When time is short, strategies that the verdict may stand on for each one of a rung above: a fifth for the ladder."""


@dataclass(frozen=True)
class SearchOver:
    """The search has nothing more to measure."""

    because: str


def next_strategy(record: Record, space: Space) -> Contender | SearchOver:
    """Return the strategy whose block comes next, or why the search is over.

    In order: a strategy that still lacks its block, the first strategies, the sampler's, the costly knobs on top of
    the best where the sampler did not find them worth it, and the share of the rungs above the allowed one. Before
    the costly knobs, where the job allows them, schedules of local SGD that nothing has tried.
    """
    trials = record.trials_for(Purpose.SEARCH)
    for trial in trials:
        if (
            not record.has_failed(trial)
            and record.settled(trial) is None
            and not is_measured_now(record, trial)
        ):
            return Contender(Purpose.SEARCH, trial.changes, trial.because)
    limit = limit_search_s(record)
    if record.spent_s >= limit:
        return SearchOver("The search's share of the time budget is spent.")
    if len(record.tried) >= record.job.spec.budget.max_trials:
        return SearchOver(f"All {len(record.tried)} search trials of the budget are spent.")
    shares = share_trials(record.job, space)
    costly = [group for _, group in _list_costly(space) if not _is_tried(group, trials)]
    schedules = missing_schedules(space, [t.changes for t in trials], {})
    kept_back = sum(shares.values()) + len(costly) + len(schedules)
    if not space.dimensions and (first := _next_costly(record, space)) is not None:
        return first
    in_time = record.spent_s + kept_back * record.strategy_s < limit
    over = SearchOver("The time left in the search belongs to costly knobs and the other rungs.")
    allowed = len(allowed_trials(record))
    if in_time or allowed < _ALLOWED_PER_OTHER * (len(trials) - allowed + 1):
        found = _next_allowed(record, space, record.job.spec.budget.max_trials - kept_back)
        if isinstance(found, Contender):
            return found
        over = found
    if schedules:
        best = best_changes(record, hot_only=True)
        for prior in missing_schedules(space, [t.changes for t in trials], best)[:1]:
            return Contender(Purpose.SEARCH, prior.changes, prior.because)
    return _next_costly(record, space) or _next_higher(record, space, shares) or over


def allowed_trials(record: Record) -> list[Trial]:
    """Search trials on the rungs that the job allows."""
    allowed = record.job.spec.allow.rank
    return [t for t in record.trials_for(Purpose.SEARCH) if t.effect.rank <= allowed]


def best_changes(record: Record, effect: Effect | None = None, hot_only: bool = False) -> dict[str, Value]:
    """Return the changes of the best search trial above the baseline (of one rung, or of the allowed ones).

    Empty when none is.
    """
    ranked = rank_trials(record, effect)
    if hot_only:
        ranked = [
            (score, trial) for score, trial in ranked if not record.has_launch_of_its_own(trial.changes)
        ]
    return dict(ranked[0][1].changes) if ranked and ranked[0][0] > 0 else {}


def rank_trials(record: Record, effect: Effect | None = None) -> list[tuple[float, Trial]]:
    """Return search trials with their scores, best first; strategies that failed anywhere are left out.

    On the allowed rungs a score is what the surrogate makes of all measurements together: the best of many noisy
    numbers is a lucky one, and what similar strategies brought says how lucky. On a single other rung it is the
    trial's own.
    """
    if effect is None:
        trials = allowed_trials(record)
    else:
        trials = [t for t in record.trials_for(Purpose.SEARCH) if t.effect is effect]
    scored = [
        (score, trial)
        for trial in trials
        if not record.has_failed_anywhere(trial.changes) and (score := record.score(trial)) is not None
    ]
    if effect is None and record.job.facts is not None and scored:
        space = build_space(record.job, record.job.facts, record.probe_blocks)
        means, _ = _learn(search_as_it_ended(record), space, trials).predict(
            [trial.changes for _, trial in scored]
        )
        scored = [(float(mean), trial) for mean, (_, trial) in zip(means, scored, strict=True)]
    return sorted(scored, key=lambda pair: (-pair[0], pair[1].number))


def _next_allowed(record: Record, space: Space, quota: int) -> Contender | SearchOver:
    trials = allowed_trials(record)
    if space.is_empty:
        return SearchOver("No knob of the allowed rung is left that every strategy could vary.")
    if len(trials) >= quota:
        return SearchOver(f"The {quota} strategies that the budget grants the allowed rung are measured.")
    tried = set(map(key_of, record.tried))
    priors = _first(record, space)
    for prior in priors:
        if key_of(prior.changes) not in tried:
            return Contender(Purpose.SEARCH, prior.changes, prior.because)
    suggestion = suggest(
        _look_at_best(record, space),
        told=_told(record, trials),
        tried=record.tried,
        startup=len(priors),
        seed=record.job.spec.seed,
        number=len(record.history.trials),
        model=fit_model(record, space),
        price_s=lambda changes: estimate_price_s(record, changes),
        quick=record.quick,
    )
    if suggestion is None:
        return SearchOver("Every strategy of the space is measured or cannot run.")
    if (
        suggestion.improvement is not None
        and suggestion.improvement < LEAST_IMPROVEMENT
        and len(trials) >= _FEWEST
    ):
        return SearchOver(
            f"After {len(trials)} strategies the best untried one is expected to add {suggestion.improvement:.2%}: "
            "another trial does not pay, and what is left is better spent on confirming."
        )
    return Contender(Purpose.SEARCH, suggestion.changes, suggestion.because)


def _first(record: Record, space: Space) -> list[Prior]:
    """Return what is measured before anything is modelled: the rules of thumb together, and what similar jobs found."""
    priors = list(rules_together(space) or first_strategies(space)[:1])[:_MOST_RULES]
    for earlier in record.history.earlier[:_MOST_EARLIER]:
        changes = space.composer.compose(keep_searched(space, earlier.changes))
        if changes is not None and all(key_of(changes) != key_of(p.changes) for p in priors):
            because = (
                f"An earlier job ({earlier.because}) confirmed {earlier.ratio - 1.0:+.1%} with "
                f"{describe_changes(changes)}."
            )
            priors.insert(0, Prior(changes, because))
    return priors


def estimate_price_s(record: Record, changes: Mapping[str, Value]) -> float:
    """Return what measuring these changes costs now, in seconds: a block, and a launch or a compilation on top.

    A launch when the live session was launched with other cold knobs; so cold strategies come in groups.
    """
    if record.switches_at_launch:
        return record.strategy_s
    live = record.history.live_session()
    launched = key_of(live.cold) if live else ()
    price_s = record.block_s
    if key_of(record.required_cold(changes)) != launched:
        price_s += record.startup_s
    if any(CATALOGUE[name].switch is Switch.SLOW for name in changes):
        price_s += record.startup_s
    return price_s


def _learn(record: Record, space: Space, trials: Sequence[Trial]) -> Belief:
    return _believe(identify(record, space), tuple(trial.number for trial in trials))


@lru_cache(maxsize=_KEPT)
def _believe(measured: Measured, numbers: tuple[int, ...]) -> Belief:
    record, space = measured.record, measured.space
    trials = [record.history.trial(number) for number in numbers]
    return learn(_look_at_best(record, space), _told(record, trials), fit_model(record, space))


def _look_at_best(record: Record, space: Space) -> Space:
    """Return the space with shares that also count where the time of the best strategies' steps goes.

    Once one part of a step is tuned away, another one is what there is to win: a loader that was fast enough before.
    """
    scored = [
        (score, trial) for trial in allowed_trials(record) if (score := record.score(trial)) is not None
    ]
    best = [trial for _, trial in sorted(scored, key=lambda pair: (-pair[0], pair[1].number))[:_BEST]]
    blocks = [block for trial in best if (block := record.settled(trial)) is not None]
    return replace(space, shares=measure_shares(space.context, [*record.probe_blocks, *blocks]))


def _told(record: Record, trials: Sequence[Trial]) -> list[Told]:
    """What the sampler learns: scores, and strategies that failed by their own fault; never lost ones."""
    told = [Told(changes, None) for changes in record.killers]
    pending = {key_of(changes) for changes in list_pending(record)}
    for trial in trials:
        score = record.score(trial)
        at_fault = trial.outcome is not None and (
            trial.outcome.is_configurations_fault or trial.outcome is Outcome.INEFFECTIVE
        )
        if score is not None:
            told.append(Told(trial.changes, score, record.score_error(trial) or _LEAST_ERROR))
        elif at_fault:
            told.append(Told(trial.changes, None))
        elif key_of(trial.changes) in pending:
            told.append(Told(trial.changes, None, pending=True))
    return told


def _list_costly(space: Space) -> list[tuple[str, tuple[Dimension, ...]]]:
    """Knobs whose values cost a launch or a compilation each, in groups that are tried together."""
    groups = {
        "launch settings": tuple(d for d in space.costly if d.knob.switch is Switch.COLD),
        "compiled kernels": tuple(d for d in space.costly if d.knob.switch is Switch.SLOW),
    }
    return [(name, group) for name, group in groups.items() if group]


def _has_costly(group: Sequence[Dimension], changes: Mapping[str, Value]) -> bool:
    return any(d.knob.name in changes for d in group)


def _is_tried(group: Sequence[Dimension], trials: Sequence[Trial]) -> bool:
    return any(_has_costly(group, t.changes) for t in trials)


def _next_costly(record: Record, space: Space) -> Contender | None:
    """Each group of costly knobs once, at its rules of thumb, on top of the best: one trial tells whether it helps."""
    trials = record.trials_for(Purpose.SEARCH)
    groups = [(name, group) for name, group in _list_costly(space) if not _is_tried(group, trials)]
    best = best_changes(record) if groups else {}
    for name, group in groups:
        rules = {d.knob.name: rules[0].value for d in group if (rules := rules_of(d, space))}
        changes = space.composer.compose({**best, **rules})
        if changes is None or not _has_costly(group, changes) or record.has_killed_a_launch(changes):
            continue
        because = f"The rules of thumb for {name} together, on top of {describe_changes(best)}."
        return Contender(Purpose.SEARCH, changes, because)
    return None


def _next_higher(record: Record, space: Space, shares: Mapping[Effect, int]) -> Contender | None:
    tried = set(map(key_of, record.tried))
    for effect, share in shares.items():
        spent = sum(t.effect is effect for t in record.trials_for(Purpose.SEARCH))
        for prior in rung_strategies(space, effect, best_changes(record, hot_only=True)):
            if spent < share and key_of(prior.changes) not in tried:
                return Contender(Purpose.SEARCH, prior.changes, prior.because)
    return None
