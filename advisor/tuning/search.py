"""The search: which strategy is measured next, and when there is no use in another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advisor.protocol.base import Value
from advisor.protocol.knobs import Effect, Switch
from advisor.protocol.trials import Outcome, Purpose, Trial
from advisor.tuning.allowance import limit_search_s
from advisor.tuning.composition import describe_changes, key_of
from advisor.tuning.contender import Contender
from advisor.tuning.ladder import rung_strategies, share_trials
from advisor.tuning.priors import first_strategies, rules_of
from advisor.tuning.record import Record
from advisor.tuning.sampler import Told, suggest
from advisor.tuning.space import Dimension, Space

_PATIENCE_FROM = 15
_PATIENCE = 6
_IMPROVEMENT = 0.005
_ALLOWED_PER_OTHER = 4
"""When time is short, strategies that the verdict may stand on for each one of a rung above: a fifth for the ladder."""


@dataclass(frozen=True)
class SearchOver:
    """The search has nothing more to measure."""

    because: str


def next_strategy(record: Record, space: Space) -> Contender | SearchOver:
    """Return the strategy whose block comes next, or why the search is over.

    In order: a strategy that still lacks its block, the first strategies, the sampler's, the cold knobs on top of
    the best, and the share of the rungs above the allowed one.
    """
    trials = record.trials_for(Purpose.SEARCH)
    for trial in trials:
        if not record.has_failed(trial) and record.settled(trial) is None:
            return Contender(Purpose.SEARCH, trial.changes, trial.because)
    limit = limit_search_s(record)
    if record.spent_s >= limit:
        return SearchOver("The search's share of the time budget is spent.")
    if len(record.tried) >= record.job.spec.budget.max_trials:
        return SearchOver(f"All {len(record.tried)} search trials of the budget are spent.")
    shares = share_trials(record.job, space)
    kept_back = sum(shares.values()) + len(_list_costly(space))
    in_time = record.spent_s + kept_back * record.strategy_s < limit
    over = SearchOver("The time left in the search belongs to costly knobs and the other rungs.")
    allowed = len(allowed_trials(record))
    if in_time or allowed < _ALLOWED_PER_OTHER * (len(trials) - allowed + 1):
        found = _next_allowed(record, space, record.job.spec.budget.max_trials - kept_back)
        if isinstance(found, Contender):
            return found
        over = found
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
    """Return search trials with their scores, best first; strategies that failed anywhere are left out."""
    if effect is None:
        trials = allowed_trials(record)
    else:
        trials = [t for t in record.trials_for(Purpose.SEARCH) if t.effect is effect]
    scored = [
        (score, trial)
        for trial in trials
        if not record.has_failed_anywhere(trial.changes) and (score := record.score(trial)) is not None
    ]
    return sorted(scored, key=lambda pair: (-pair[0], pair[1].number))


def _next_allowed(record: Record, space: Space, quota: int) -> Contender | SearchOver:
    trials = [t for t in allowed_trials(record) if not _has_costly(space.costly, t.changes)]
    if not space.dimensions:
        return SearchOver("No knob of the allowed rung is left that every strategy could vary.")
    if len(trials) >= quota:
        return SearchOver(f"The {quota} strategies that the budget grants the allowed rung are measured.")
    if _has_stalled(record, trials):
        return SearchOver(
            f"The last {_PATIENCE} strategies improved the best by less than {_IMPROVEMENT:.1%}: "
            "the rest of the budget is better spent on confirming."
        )
    tried = set(map(key_of, record.tried))
    priors = first_strategies(space)
    for prior in priors:
        if key_of(prior.changes) not in tried:
            return Contender(Purpose.SEARCH, prior.changes, prior.because)
    suggestion = suggest(
        space,
        told=_told(record, trials),
        tried=record.tried,
        startup=len(priors),
        seed=record.job.spec.seed,
        number=len(record.history.trials),
    )
    if suggestion is None:
        return SearchOver("Every strategy of the space is measured.")
    return Contender(Purpose.SEARCH, suggestion.changes, suggestion.because)


def _told(record: Record, trials: list[Trial]) -> list[Told]:
    """What the sampler learns: scores, and strategies that failed by their own fault; never lost ones."""
    told = [Told(changes, None) for changes in record.killers if record.switches_at_launch]
    for trial in trials:
        score = record.score(trial)
        at_fault = trial.outcome is not None and (
            trial.outcome.is_configurations_fault or trial.outcome is Outcome.INEFFECTIVE
        )
        if score is not None or at_fault:
            told.append(Told(trial.changes, score))
    return told


def _has_stalled(record: Record, trials: list[Trial]) -> bool:
    if len(trials) < _PATIENCE_FROM:
        return False
    best, since = 0.0, 0
    for trial in trials:
        score = record.score(trial)
        if score is not None and score > best + _IMPROVEMENT:
            best, since = score, 0
        else:
            since += 1
    return since >= _PATIENCE


def _list_costly(space: Space) -> list[tuple[str, tuple[Dimension, ...]]]:
    """Knobs whose values cost a launch or a compilation each, in groups that are tried together."""
    groups = {
        "launch settings": tuple(d for d in space.costly if d.knob.switch is Switch.COLD),
        "compiled kernels": tuple(d for d in space.costly if d.knob.switch is Switch.SLOW),
    }
    return [(name, group) for name, group in groups.items() if group]


def _has_costly(group: Sequence[Dimension], changes: Mapping[str, Value]) -> bool:
    return any(d.knob.name in changes for d in group)


def _next_costly(record: Record, space: Space) -> Contender | None:
    """Each group of costly knobs once, at its rules of thumb, on top of the best: one trial tells whether it helps."""
    trials = record.trials_for(Purpose.SEARCH)
    best = best_changes(record)
    for name, group in _list_costly(space):
        if any(_has_costly(group, t.changes) for t in trials):
            continue
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
