"""Trials with what their blocks say: looked up once for every table and figure of a page."""

from collections import defaultdict
from dataclasses import dataclass

from advisor.dashboard import formats
from advisor.protocol.kinds import Allow
from advisor.protocol.measured.estimates import Estimate, estimate_blocks
from advisor.protocol.measured.so_far import gain_of
from advisor.protocol.measured.trials import Block, BlockState, JobHistory, Outcome, Trial
from advisor.protocol.standing import SoFar

QUIET = frozenset({Outcome.FINISHED, Outcome.PRUNED, Outcome.CANCELLED, Outcome.INEFFECTIVE})
"""Outcomes that are no failure."""


@dataclass(frozen=True)
class MeasuredTrial:
    """One trial, and its blocks in a few numbers."""

    trial: Trial
    blocks: tuple[Block, ...]
    """Its finished blocks."""
    estimate: Estimate | None
    """None before its first block."""
    gain: SoFar | None
    """Its throughput over the baseline's; None for the baseline itself and where nothing was measured."""
    is_measuring: bool
    """Whether one of its blocks is being measured now."""

    @property
    def ratio(self) -> float | None:
        """The likeliest gain."""
        return self.gain.ratio if self.gain else None

    @property
    def gain_words(self) -> str:
        """The gain as far as it is known; a dash where there is none."""
        return self.gain.likely if self.gain else formats.NO_VALUE

    @property
    def has_failed(self) -> bool:
        """Whether it ended in a failure."""
        return self.trial.outcome is not None and self.trial.outcome not in QUIET

    @property
    def tells_speed(self) -> bool:
        """Whether its speed is that of its changes: measured, not failed, and not without effect."""
        is_idle = self.trial.outcome is Outcome.INEFFECTIVE
        return self.estimate is not None and not self.has_failed and not is_idle

    def counts(self, allow: Allow) -> bool:
        """Whether it may lead: its speed is known, and its rung is one that the job allows."""
        return self.tells_speed and self.trial.effect.rank <= allow.rank

    @property
    def throughput(self) -> str:
        """Its throughput with the 95 % interval; a dash where nothing was measured."""
        if self.estimate is None:
            return formats.NO_VALUE
        return formats.rate(self.estimate.samples_per_s, self.estimate.half_width)


def measure_trials(history: JobHistory) -> tuple[MeasuredTrial, ...]:
    """Return every trial with its estimate, by number."""
    done: defaultdict[int, list[Block]] = defaultdict(list)
    issued = set()
    for block in history.blocks:
        if block.state is BlockState.DONE:
            done[block.trial_number].append(block)
        elif block.state is BlockState.ISSUED:
            issued.add(block.trial_number)
    estimates = {trial.number: estimate_blocks(done[trial.number]) for trial in history.trials}
    return tuple(
        MeasuredTrial(
            trial=trial,
            blocks=tuple(done[trial.number]),
            estimate=estimates[trial.number],
            gain=gain_of(trial, done[trial.number], lambda: estimates.get(0)),
            is_measuring=trial.number in issued,
        )
        for trial in sorted(history.trials, key=lambda trial: trial.number)
    )
