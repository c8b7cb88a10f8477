"""Strategies that are tried by plan and not by the sampler: the first ones, costly knobs, the other rungs."""

from collections.abc import Mapping, Sequence

from advisor.protocol.base import Value
from advisor.protocol.gains import End, spell_gain
from advisor.protocol.kinds import Effect, Switch
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Purpose, Trial
from advisor.tuning.decisions import Candidate
from advisor.tuning.search.named import keep_named
from advisor.tuning.search.state import SURELY, SearchState
from advisor.tuning.space.rules_of_thumb import (
    Prior,
    computed_strategies,
    first_strategies,
    keep_searched,
    rules_of,
    rules_together,
)
from advisor.tuning.space.rungs import rung_strategies
from advisor.tuning.space.space import Dimension, Space

_MOST_EARLIER = 2
"""Strategies of similar earlier jobs in the first race."""
_RECOMPUTED = "activation_checkpointing"
_MOST_RULES = 3
"""Combinations of rules of thumb that are measured whatever else is: of two rungs, each with the lower one's."""


def list_first(state: SearchState) -> list[Prior]:
    """Return what comes before the sampler: what similar jobs found, what was computed from the probe's measurements,
    rules of thumb together, then alone for the first race.

    All go on top of the best combination of what the user named, where one surely helps.
    """
    space = state.space
    priors = [*computed_strategies(space), *rules_together(space)[:_MOST_RULES]]
    for earlier in state.record.history.earlier[:_MOST_EARLIER]:
        changes = space.composer.compose(keep_searched(space, earlier.changes))
        if changes is not None and all(changes != p.changes for p in priors):
            because = (
                f"An earlier job ({earlier.because}) confirmed at least {spell_gain(earlier.ratio, End.LOW)} with "
                f"{changes.describe()}."
            )
            priors.insert(0, Prior(changes, because))
    if not state.scores.throughput:
        known = {p.changes for p in priors}
        priors += [p for p in first_strategies(space) if p.changes not in known]
    named = _find_best_named(state)
    return [p for prior in priors if (p := _put_on(space, named, prior)) is not None] if named else priors


def _find_best_named(state: SearchState) -> Changes:
    """The own knobs of the best strategy, where it is surely faster than the script as it stands; else nothing."""
    best = state.best_of()
    score = state.scores.of(best) if best is not None else None
    if best is None or score is None or score.mean <= SURELY * score.error:
        return Changes()
    return keep_named(state.space, best.changes)


def _put_on(space: Space, named: Changes, prior: Prior) -> Prior | None:
    changes = space.composer.compose({**prior.changes, **named})
    return Prior(changes, f"{prior.because} On top of {named.describe()}.") if changes is not None else None


def keep_activations_beside(state: SearchState, race: Sequence[Candidate], seats: int) -> list[Candidate]:
    """Return a race of what the user named, its first combination beside the same one with its activations kept.

    Where the script computes them again, which micro-batch is best depends on that. It is switched in the launch that
    the combination costs anyway.
    """
    record, one = state.record, race[0]
    has_room = seats > 1 and len(record.tried) + 1 < record.job.spec.budget.max_trials
    if not has_room or all(d.knob.name != _RECOMPUTED for d in state.space.dimensions):
        return list(race)
    both = state.space.composer.compose({**one.changes, _RECOMPUTED: False})
    if both is None or both in record.tried or both == one.changes:
        return list(race)
    because = f"{one.changes.describe()}, and its activations kept in place of computed again."
    return [one, Candidate(Purpose.SEARCH, both, because), *race[1 : seats - 1]]


def list_costly(space: Space) -> list[tuple[str, tuple[Dimension, ...]]]:
    """Knobs whose values cost a launch or a compilation each, in groups that are tried together."""
    groups = {
        "launch settings": tuple(d for d in space.costly if d.knob.switch is Switch.COLD),
        "compiled kernels": tuple(d for d in space.costly if d.knob.switch is Switch.SLOW),
    }
    return [(name, group) for name, group in groups.items() if group]


def _has_costly(group: Sequence[Dimension], changes: Mapping[str, Value]) -> bool:
    return any(d.knob.name in changes for d in group)


def is_tried(group: Sequence[Dimension], trials: Sequence[Trial]) -> bool:
    return any(_has_costly(group, t.changes) for t in trials)


def propose_costly(state: SearchState) -> Candidate | None:
    """Each group of costly knobs once, at its rules of thumb, on top of the best: one trial tells whether it helps."""
    space = state.space
    trials = state.record.trials_for(Purpose.SEARCH)
    groups = [(name, group) for name, group in list_costly(space) if not is_tried(group, trials)]
    best = state.best_changes() if groups else {}
    for name, group in groups:
        rules = {d.knob.name: rules[0].value for d in group if (rules := rules_of(d, space))}
        changes = space.composer.compose({**best, **rules})
        if changes is None or not _has_costly(group, changes) or state.record.has_killed_a_launch(changes):
            continue
        because = f"The rules of thumb for {name} together, on top of {Changes(best).describe()}."
        return Candidate(Purpose.SEARCH, changes, because)
    return None


def propose_higher(state: SearchState, shares: Mapping[Effect, int]) -> list[Candidate]:
    tried = set(state.record.tried)
    found = []
    for effect, share in shares.items():
        spent = sum(t.effect is effect for t in state.record.trials_for(Purpose.SEARCH))
        priors = (
            rung_strategies(state.space, effect, state.best_changes(hot_only=True)) if spent < share else ()
        )
        new = [p for p in priors if p.changes not in tried]
        found += [Candidate(Purpose.SEARCH, p.changes, p.because) for p in new[: share - spent]]
    return found
