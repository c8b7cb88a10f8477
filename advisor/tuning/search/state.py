"""What the search knows at one moment of a job: scores, the cost model, the posterior, and what it recommends."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect, Place
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Outcome, Purpose, Trial
from advisor.tuning.decisions import Candidate
from advisor.tuning.history.comparisons import list_comparisons
from advisor.tuning.history.launches import believe_luck
from advisor.tuning.history.record import Record
from advisor.tuning.history.scores import RACE_LUCK, Score, Scoreboard, score_trials
from advisor.tuning.measure.slow_steps import settle
from advisor.tuning.model.bucket_plan import propose_list
from advisor.tuning.model.communication_schedule import LISTED
from advisor.tuning.model.cost_model import CostModel, TimedStrategy, calibrate
from advisor.tuning.model.step_model import read_probe
from advisor.tuning.search.belief import Belief, Observation, learn
from advisor.tuning.search.recommendation import Recommendation, recommend
from advisor.tuning.space.composition import list_own_values
from advisor.tuning.space.space import Space, build_space, measure_shares


def fit_model(scores: Scoreboard, space: Space) -> CostModel | None:
    """Return the cost model of the baseline and of every search trial with a score; None where too little is known."""
    record = scores.record
    probe = read_probe(record.baseline_blocks, has_loader=False)
    if probe is None:
        return None
    own = space.context.baseline
    observations = [
        TimedStrategy(
            {**own, **record.trial[number].changes}, probe.step_s * math.exp(-found.mean), found.error
        )
        for number, found in scores.throughput.items()
    ]
    searched = [b for b in record.usable if b.trial_number in scores.throughput]
    return calibrate(space.context, [*record.baseline_blocks, *searched], observations)


_BEST = 2
"""Best strategies whose steps show where the time goes that is left to win."""
SURELY = 2.0
"""Standard errors, a launch's luck among them, by which the search rules a worthwhile gain out. The best of several
looks better than it is, so that this errs towards a confirmation."""


@dataclass(frozen=True)
class SearchState:
    """What the search knows at one moment: computed once for each decision, and only as far as it is asked for."""

    record: Record
    space: Space

    @cached_property
    def scores(self) -> Scoreboard:
        """Every trial's score."""
        return score_trials(self.record)

    @cached_property
    def model(self) -> CostModel | None:
        """The cost model; None where too little is known."""
        return fit_model(self.scores, self.space)

    @cached_property
    def allowed(self) -> tuple[Trial, ...]:
        """Search trials on the rungs that the job allows."""
        most = self.record.job.spec.allow.rank
        return tuple(t for t in self.record.trials_for(Purpose.SEARCH) if t.effect.rank <= most)

    @cached_property
    def belief(self) -> Belief:
        """What all measurements of the allowed rungs say together."""
        return learn(self.focused, self.observations, self.model)

    def believe(self, told: Sequence[Observation]) -> Belief:
        """Return what these observations say; for its own the state has thought already."""
        return self.belief if told == self.observations else learn(self.focused, told, self.model)

    @cached_property
    def recommendation(self) -> Recommendation:
        """The strategy of least expected loss."""
        return recommend(self.belief)

    @cached_property
    def focused(self) -> Space:
        """The space with shares that also count where the time of the best strategies' steps goes.

        Once one part of a step is tuned away, another one is what there is to win: a loader that was fast enough.
        """
        ranked = sorted(self.scores.progress, key=lambda n: -self.scores.progress[n].mean)
        blocks = [b for n in ranked[:_BEST] for b in self.record.usable_by_trial.get(n, ())[:1]]
        shares = measure_shares(self.space.context, [*self.record.probe_blocks, *blocks])
        return replace(self.space, shares=shares)

    @cached_property
    def observations(self) -> list[Observation]:
        """What the sampler learns: scores, and strategies that failed by their own fault; never lost ones."""
        told = [Observation(changes, None) for changes in self.record.killers]
        for trial in self.allowed:
            score = self.scores.of(trial)
            at_fault = trial.outcome is not None and (
                trial.outcome.is_configurations_fault or trial.outcome is Outcome.INEFFECTIVE
            )
            if at_fault and trial.outcome is not Outcome.PRUNED:
                told.append(Observation(trial.changes, None))
            elif score is not None:
                given_up = trial.outcome is Outcome.PRUNED
                told.append(Observation(trial.changes, score.mean, score.error, given_up=given_up))
        return told

    def best_changes(self, effect: Effect | None = None, hot_only: bool = False) -> dict[str, Value]:
        """Return the changes of the best search trial above the baseline (of one rung, or of the allowed ones)."""
        trial = self.best_of(effect, hot_only)
        return trial.changes if trial else Changes()

    def best_of(self, effect: Effect | None = None, hot_only: bool = False) -> Trial | None:
        """Return the best search trial above the baseline by its own score; None when none is."""
        trials = (
            self.allowed
            if effect is None
            else [t for t in self.record.trials_for(Purpose.SEARCH) if t.effect is effect]
        )
        ranked = [
            (score.mean, -trial.number, trial)
            for trial in trials
            if (score := self.scores.of(trial)) is not None
            and score.mean > 0
            and not self.record.has_died_anywhere(trial.changes)
            and not (hot_only and self.record.has_launch_of_its_own(trial.changes))
        ]
        return max(ranked)[2] if ranked else None


def look(record: Record) -> SearchState | None:
    """Return the search's state; None before the script's baseline was measured."""
    facts = record.job.facts
    if facts is None or record.probe is None:
        return None
    computed = {LISTED: propose_list(facts, list_own_values(record.job), record.probe_blocks)}
    space = build_space(record.job, facts, record.probe_blocks, computed)
    failed = tuple(t.changes for t in record.history.trials if t.outcome is Outcome.OUT_OF_MEMORY)
    # A launch that dies before its first race has no trial.
    failed += tuple(s.cold for s in record.sessions if s.cold and s.outcome is Outcome.OUT_OF_MEMORY)
    if failed or record.set_in_vain:
        composer = replace(space.composer, out_of_memory=failed, in_vain=record.set_in_vain)
        space = replace(space, composer=composer)
    return SearchState(record, space)


def choose_winner(state: SearchState) -> Candidate | None:
    """Return the strategy that the search sends into the verdict; None when no strategy of an allowed rung ran.

    The one of least expected loss. Where nothing is expected to beat the baseline, the one that comes nearest: its
    races then show that nothing is gained. None too where the search itself has shown that.
    """
    ran = _list_raced(state)
    if not ran or find_nearest_below(state) is not None:
        return None
    known = {t.changes: t for t in ran}
    leaders = (state.recommendation.chosen, *state.recommendation.leaders)
    changes = next((leader.changes for leader in leaders if leader.changes in known), None)
    if changes is None:
        changes = max(ran, key=lambda t: state.scores.progress[t.number].mean).changes
    changes = _leave_unshown(state, changes)
    because = f"The search's choice ({changes.describe()}), measured afresh."
    return Candidate(Purpose.CONFIRM, changes, because)


def _leave_unshown(state: SearchState, changes: Changes) -> Changes:
    """Return a strategy of what the user named without settings of ours that were not shown to help beside it.

    Only where that needs a launch of its own: the trimming, which takes settings back elsewhere, cannot race it.
    """
    named = state.record.required_cold(changes)
    is_named = all(state.record.catalogue[name].place is Place.OWN for name in named)
    if state.record.switches_at_launch or not named or not is_named or named == changes:
        return changes
    if state.record.find_trial(Purpose.SEARCH, named) is None:
        return changes
    found = [
        settle(c.contrast)
        for c in list_comparisons(state.record, Purpose.SEARCH, changes, against=named)
        if c.strategy.session_id == c.reference.session_id
    ]
    shown = any(mean > SURELY * math.hypot(error, RACE_LUCK) for mean, error in found)
    return changes if shown else named


def find_nearest_below(state: SearchState) -> tuple[Trial, Score] | None:
    """Return the best of the strategies that ran, where all of them are surely below a gain that is worth a change.

    Its error holds the luck of a launch.
    """
    luck = believe_luck(state.record, {}).spread
    scores = [(t, state.scores.progress[t.number]) for t in _list_raced(state)]
    found = [(t, Score(score.mean, math.hypot(score.error, luck))) for t, score in scores]
    least = math.log1p(state.record.job.spec.min_gain)
    if not found or any(score.mean + SURELY * score.error >= least for _, score in found):
        return None
    return max(found, key=lambda one: one[1].mean)


def _list_raced(state: SearchState) -> list[Trial]:
    """Search trials of the allowed rungs that ran to the end of a race."""
    return [
        t
        for t in state.allowed
        if state.scores.of(t) is not None
        and t.outcome is not Outcome.PRUNED
        and not state.record.has_failed_anywhere(t.changes)
    ]
