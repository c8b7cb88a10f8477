"""The strategies that an advice may stand on, each with what its verdict's races say for and against it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from advisor.protocol.answers.advice import Interval, LaunchTold, Verdict
from advisor.protocol.asked.jobs import JobState
from advisor.protocol.gains import spell_share
from advisor.protocol.kinds import Allow, Effect
from advisor.protocol.measured.trials import Block, Purpose, Trial
from advisor.tuning.decisions import Candidate
from advisor.tuning.history.goodput import Efficiency, combine, efficiency_of
from advisor.tuning.history.record import Record
from advisor.tuning.measure.contrast import mean_rate
from advisor.tuning.measure.levels import FIRST_LOOK
from advisor.tuning.measure.slow_steps import read_slow_steps, settle
from advisor.tuning.search.state import SearchState, choose_winner
from advisor.tuning.stages.confirmation import Confirmation, confirm, find_confirmed, find_raced
from advisor.tuning.stages.loss_guard import GuardFinding, check_losses
from advisor.tuning.stages.parts import compare, find_parts
from advisor.tuning.stages.trimming import choose_trimmed

_UNSETTLED = 0.03
"""Probability, from which on it matters to the interval, that an arm has slow steps of its own."""


@dataclass(frozen=True)
class Case:
    """A strategy that the verdict may stand on, with everything that speaks for or against it."""

    trial: Trial
    confirmation: Confirmation
    gain: Interval | None
    guard: GuardFinding
    efficiency: Efficiency | None = None
    """What a sample still teaches under it; None where nothing tells."""
    goodput: Interval | None = None
    """The gain times that."""
    certificate: str | None = ""
    """Over how many steps it left every bit, as a clause; None where the job wants that and it is not shown."""

    @property
    def is_proved(self) -> bool:
        """Whether the races have shown a gain worth recommending."""
        return self.confirmation.look is not None and self.confirmation.look.decision == "change"

    @property
    def wins(self) -> bool:
        """Whether the advice is to change to it: faster, its loss not in doubt, and faster in progress too."""
        admitted = self.guard.admits(self.trial.effect) and self.certificate is not None
        return self.is_proved and admitted and self.gains_progress

    @property
    def gains_progress(self) -> bool:
        """Whether a convergence strategy is shown to be faster in progress too; the others are what they are."""
        if self.trial.effect is not Effect.CONVERGENCE:
            return True
        return self.goodput is not None and self.goodput.low > 1.0

    @property
    def loses_progress(self) -> bool:
        """Whether what a sample teaches less eats up a convergence strategy's gain."""
        convergence = self.trial.effect is Effect.CONVERGENCE
        return convergence and self.goodput is not None and self.goodput.low <= 1.0

    def say_unproven(self) -> str:
        """Why races whose interval lies above no gain do not prove it, as a clause; empty without such a doubt."""
        look = self.confirmation.look
        if look is None or look.decision is not None:
            return ""
        if look.low > 0.0 and look.launches < FIRST_LOOK:
            return f"one launch raced it, and a verdict needs {FIRST_LOOK}, because launches differ by luck"
        if look.moods > 1 or look.doubt:
            return "your settings have several moods, and it is not shown to be faster in each of them"
        return self._say_slow_steps()

    def _say_slow_steps(self) -> str:
        """That slow steps stand in the way, where the error of the total is mostly theirs; else nothing."""
        told = self.confirmation.told
        own = read_slow_steps(told)[-1] if told else None
        if own is None or own.chance < _UNSETTLED or fmean(own.errors) < 2.0 * fmean(c.error for c in told):
            return ""
        theirs, its = (spell_share(fmean(side)) for side in zip(*(c.slow_shares for c in told), strict=True))
        return (
            f"slow steps take {theirs} of the baseline's time and {its} of the strategy's, and whether they are the "
            "machine's or the strategy's own is not settled"
        )

    def say_price(self) -> str:
        """What the losses say about it, in sentences."""
        if self.goodput is None or self.efficiency is None or self.trial.effect is not Effect.CONVERGENCE:
            return self.guard.sentence
        progress = f"Goodput, throughput times what a sample teaches: {self.goodput.describe()}."
        return f"{self.guard.sentence} {progress} {self.efficiency.because}"


def find_told(record: Record, state: SearchState | None) -> tuple[Candidate | None, Trial | None]:
    """Return the strategy that the answer tells of, with its trial: the verdict's, else what would go into it."""
    winner = find_confirmed(record) or find_raced(record) or (choose_trimmed(state) if state else None)
    told = find_trial(record, winner) if winner else None
    if winner is not None and told is None and state is not None:
        # What is left of it was never raced as such.
        winner = choose_winner(state)
        told = find_trial(record, winner) if winner else None
    return winner, told


def find_trial(record: Record, wanted: Candidate | Trial) -> Trial | None:
    """Return the trial that the verdict's races of a strategy belong to; without any the one it was searched as."""
    changes = wanted.changes
    for purpose in (Purpose.CONFIRM, Purpose.REVERT, Purpose.SEARCH):
        if (trial := record.find_trial(purpose, changes)) is not None:
            return trial
    return None


def ends_by_time(record: Record) -> bool:
    """Whether what was measured ends where the budget does; a person who cancels may have seen the figures first."""
    return record.job.state not in {JobState.CANCELLING, JobState.CANCELLED}


def make_case(record: Record, trial: Trial) -> Case:
    """Return what is known of a strategy."""
    confirmation = confirm(record, trial.changes, forced=ends_by_time(record))
    gain = _interval_of(confirmation)
    blocks = [c.strategy for c in confirmation.comparisons]
    guard = check_losses(record, trial.effect, blocks, confirmation.guard_level)
    efficiency = efficiency_of(record, trial)
    goodput = combine(gain, efficiency, trial.effect)
    return Case(trial, confirmation, gain, guard, efficiency, goodput, certify(record, blocks))


def certify(record: Record, blocks: Sequence[Block]) -> str | None:
    """Return on how much it stands that the strategy of these blocks leaves every bit, None where it does not stand.

    "" where the job does not ask. Every launch has to show it, because each begins from another state.
    """
    if record.job.spec.allow is not Allow.BITWISE:
        return ""
    steps = [block.result.bit_steps if block.result else 0 for block in blocks]
    if not steps or not all(steps) or record.job.facts is None:
        return None
    races = "" if len(steps) == 1 else f", in each of {len(steps)} races"
    return f"bit for bit equal over {min(steps)} steps on {record.job.facts.world_size} ranks{races}"


def make_told_case(state: SearchState) -> Case | None:
    """Return the case that the answer tells of; None where there is no strategy to tell of."""
    told = find_told(state.record, state)[1]
    return make_case(state.record, told) if told else None


def prove(record: Record, first: Case | None) -> Case | None:
    """Return the case of what is shown to help of a strategy whose gain is shown: the burden lies on each setting.

    The search's whole winner only where it is shown to be faster than its core; the core without the setting that is
    missed least, where that is shown to bring nothing or was seen to bring less than the job's `min_gain`. None stands
    on a verdict that it does not have itself.
    """
    if first is None or not first.wins:
        return first
    core, forced = first.trial.changes, ends_by_time(record)
    looks = [(compare(record, core, part, forced=forced), part) for part in find_parts(record, core)]
    told = [(look, part) for look, part in looks if look is not None]
    better = [part for look, part in told if len(part) > len(core) and look.decision == "change"]
    least = math.log1p(record.job.spec.min_gain)
    equal = [
        (look.mean, part)
        for look, part in told
        if len(part) < len(core)
        and (look.decision == "keep" or (look.decision is None and look.mean < least))
    ]
    others = [*better, *(part for _, part in sorted(equal, key=lambda one: one[0]))]
    trials = (record.find_trial(Purpose.CONFIRM, part) for part in others)
    cases = (make_case(record, trial) for trial in trials if trial is not None)
    return next((case for case in cases if case.wins), first)


def list_compared(record: Record, case: Case | None) -> tuple[list[Block], list[Block]]:
    """Return the confirmation's blocks of baseline and strategy; the probe's where there was no confirmation."""
    if case is not None and case.confirmation.comparisons:
        found = case.confirmation.comparisons
        return [c.reference for c in found], [c.strategy for c in found]
    return list(record.baseline_blocks), []


def judge(case: Case) -> Verdict:
    """Return the answer that the strategy allows."""
    if case.wins:
        return Verdict.CHANGE
    excluded = case.confirmation.look is not None and case.confirmation.look.decision == "keep"
    harmful = case.is_proved and (case.guard.harmed or case.loses_progress)
    return Verdict.KEEP if excluded or harmful else Verdict.UNDECIDED


def list_launches(case: Case | None) -> tuple[LaunchTold, ...]:
    """Return what each launch measured that the verdict stands on."""
    if case is None:
        return ()
    found = case.confirmation.comparisons
    order = list(dict.fromkeys(comparison.launch for comparison in found))
    told = []
    for launch, contrast in zip(order, case.confirmation.told, strict=False):
        sides = [(c.reference, c.strategy) for c in found if c.launch == launch]
        mean, error = settle(contrast)
        told.append(
            LaunchTold(
                baseline_samples_per_s=mean_rate([reference for reference, _ in sides]),
                strategy_samples_per_s=mean_rate([strategy for _, strategy in sides]),
                log_ratio=mean,
                error=error,
            )
        )
    return tuple(told)


def measure_total(case: Case | None) -> float | None:
    """Return the throughput ratio over the total wall time of the verdict's races, stalls included."""
    if case is None or not case.confirmation.launches:
        return None
    return math.exp(fmean(launch.total for launch in case.confirmation.told))


def _interval_of(confirmation: Confirmation) -> Interval | None:
    found = confirmation.look
    if found is None:
        return None
    return Interval(
        ratio=math.exp(found.mean),
        low=math.exp(max(-700.0, found.low)),
        high=math.exp(min(700.0, found.high)),
        rounds=sum(launch.cycles for launch in confirmation.told),
        sessions=confirmation.sessions,
    )
