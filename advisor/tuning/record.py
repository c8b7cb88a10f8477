"""What a job's history says, in the words that decisions need."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from advisor.protocol.base import Value
from advisor.protocol.jobs import Job
from advisor.protocol.knobs import Effect
from advisor.protocol.spending import measure_time_left_s, measure_wall_s
from advisor.protocol.strategy import cold_part
from advisor.protocol.trials import (
    Block,
    BlockState,
    JobHistory,
    Outcome,
    Purpose,
    Session,
    Trial,
    TrialState,
)
from advisor.tuning.composition import key_of
from advisor.tuning.goodput import Efficiency, efficiency_of
from advisor.tuning.scores import Noise, Score, estimate_noise, estimate_scores, log_rate, space_anchors
from advisor.tuning.statistics import is_cut_short

PROBE_BLOCKS = 2
_MOST_VOIDS = 3
_ROOMY = 3
"""Blocks a session must hold for a lead-in beside a pair."""


@dataclass(frozen=True)
class Record:
    """A read-only view of one job's history at one moment; every figure is computed once."""

    job: Job
    history: JobHistory
    now: datetime
    quick: bool = False
    """The planner took too long before: the search makes do with a suggestion that costs next to nothing."""

    @cached_property
    def memo(self) -> dict[object, Any]:
        """What decisions ask for several times and is dear to find, by who asks."""
        return {}

    # --- sessions and time ---------------------------------------------------------------------------

    @property
    def sessions(self) -> tuple[Session, ...]:
        """Sessions in the order they were launched."""
        return self.history.sessions

    @cached_property
    def spent_s(self) -> float:
        """Wall time so far, waiting for agents not counted, in seconds; gangs side by side spend a second once."""
        return measure_wall_s(self.sessions, self.now)

    @cached_property
    def startup_s(self) -> float:
        """Median time from a session's start to its first block, in seconds; 10 before the first."""
        delays = []
        for session in self.sessions:
            first = next((b for b in self.history.blocks if b.session_id == session.id), None)
            if first and session.started_at:
                delays.append(max(0.0, (first.issued_at - session.started_at).total_seconds()))
        return median(delays) if delays else 10.0

    @cached_property
    def block_s(self) -> float:
        """Median wall time of a block, switch, warm-up and hand-over included, in seconds."""
        times = [
            (b.finished_at - b.issued_at).total_seconds()
            for b in self.history.blocks
            if b.state is BlockState.DONE and b.finished_at
        ]
        return max(0.01, median(times)) if times else 1.5 * self.job.spec.measurement.block_s

    @property
    def remaining_s(self) -> float:
        """Wall time that the budget of seconds and of device-hours still grants, in seconds."""
        return measure_time_left_s(self.job, self.sessions, self.now)

    @property
    def budget_s(self) -> float:
        """Wall time that the budget grants in all, spent or left, in seconds."""
        return self.spent_s + self.remaining_s

    @cached_property
    def capacity(self) -> int | None:
        """Most blocks that a session held before the script ended by itself; None while none has."""
        held = [
            len(self.usable_in(session.id))
            for session in self.sessions
            if session.state.is_final and session.outcome is Outcome.FINISHED and session.total_steps > 0
        ]
        return max(held) if any(held) else None

    @property
    def switches_at_launch(self) -> bool:
        """Whether every strategy needs a launch of its own, so that a session measures one of them only."""
        return self.job.spec.workload.switches_at_launch

    @property
    def strategy_s(self) -> float:
        """What one more measured strategy costs, in seconds: a block, and a launch where each needs one."""
        return self.block_s + (self.startup_s if self.switches_at_launch else 0.0)

    @property
    def has_lead_in(self) -> bool:
        """Whether sessions are long enough to spend their first block on settling in."""
        return not self.switches_at_launch and (self.capacity is None or self.capacity >= _ROOMY)

    @property
    def pairs_within_a_session(self) -> bool:
        """Whether a session holds the two blocks of a pair."""
        return not self.switches_at_launch and (self.capacity is None or self.capacity >= 2)

    @property
    def seats(self) -> int:
        """Blocks of one round that fit, in a session beside its lead-in; unlimited where each has its own launch."""
        if self.capacity is None or self.switches_at_launch:
            return 1_000
        return self.capacity - (1 if self.has_lead_in else 0)

    # --- blocks --------------------------------------------------------------------------------------

    def is_usable(self, block: Block) -> bool:
        """Whether the block's figures may be compared: measured, switched in place, not cut short."""
        result, summary = block.result, block.summary
        if block.state is not BlockState.DONE or result is None or summary is None:
            return False
        return summary.steady_steps > 0 and not result.relaunch_needed and not is_cut_short(result)

    @cached_property
    def usable(self) -> tuple[Block, ...]:
        """Usable blocks in the order they were issued."""
        return tuple(block for block in self.history.blocks if self.is_usable(block))

    @cached_property
    def _usable_by_trial(self) -> dict[int, list[Block]]:
        found: dict[int, list[Block]] = {}
        for block in self.usable:
            found.setdefault(block.trial_number, []).append(block)
        return found

    def agents_of(self, session_id: str) -> tuple[str, ...]:
        """Return the agents that held the session: its gang; empty for an unknown session."""
        return self._agents.get(session_id, ())

    @cached_property
    def _agents(self) -> dict[str, tuple[str, ...]]:
        return {session.id: session.agents for session in self.sessions}

    def usable_in(self, session_id: str) -> list[Block]:
        """Usable blocks of one session, in order."""
        return [block for block in self.usable if block.session_id == session_id]

    @cached_property
    def baseline_blocks(self) -> tuple[Block, ...]:
        """Usable blocks of the baseline."""
        return tuple(b for b in self.usable if b.trial_number == self.baseline_number)

    @property
    def probe_blocks(self) -> tuple[Block, ...]:
        """The first two blocks of the baseline: the probe, once it has both."""
        return self.baseline_blocks[:PROBE_BLOCKS]

    @cached_property
    def baseline_number(self) -> int:
        """The baseline's trial number; -1 before it exists."""
        return next((t.number for t in self.history.trials if t.purpose is Purpose.BASELINE), -1)

    def settled(self, trial: Trial, round_: int | None = None, session_id: str | None = None) -> Block | None:
        """Return the block that stands for the trial there: the first steady one, else its extension.

        In rounds the first usable one stands: an unsteady block shows in the spread of the rounds, and another
        round tells more than a longer block.
        """
        found = [
            b
            for b in self._usable_by_trial.get(trial.number, ())
            if b.round == round_ and (session_id is None or b.session_id == session_id)
        ]
        if round_ is not None:
            return found[0] if found else None
        for block in found:
            if block.summary and block.summary.steady:
                return block
        enough = 1 if trial.state is TrialState.CLOSED or self.outlasts_the_script(trial) else 2
        return found[-1] if len(found) >= enough else None

    def outlasts_the_script(self, trial: Trial) -> bool:
        """Whether the script ended again and again in a block of the trial: a longer one will not fit either."""
        voids = [
            b
            for b in self.history.blocks
            if b.trial_number == trial.number and b.state is BlockState.VOID and self._ended_by_itself(b)
        ]
        return len(voids) >= _MOST_VOIDS - 1

    def _ended_by_itself(self, block: Block) -> bool:
        session = next((s for s in self.sessions if s.id == block.session_id), None)
        return session is not None and session.outcome is Outcome.FINISHED and session.total_steps > 0

    # --- trials --------------------------------------------------------------------------------------

    def trials_for(self, purpose: Purpose) -> tuple[Trial, ...]:
        """Trials of one purpose, in order."""
        return tuple(t for t in self.history.trials if t.purpose is purpose)

    def find_trial(self, purpose: Purpose, changes: Mapping[str, Value]) -> Trial | None:
        """Return the trial with that purpose and those changes."""
        wanted = key_of(changes)
        return next((t for t in self.trials_for(purpose) if key_of(t.changes) == wanted), None)

    def has_failed(self, trial: Trial) -> bool:
        """Whether nothing more will come of the trial."""
        if trial.state is TrialState.CLOSED:
            return trial.outcome is not Outcome.FINISHED
        if not trial.changes:
            return False
        blocks = [b for b in self.history.blocks if b.trial_number == trial.number]
        if any(b.result and b.result.relaunch_needed and self._was_launched_for(b, trial) for b in blocks):
            return True
        if sum(b.state is BlockState.VOID for b in blocks) >= _MOST_VOIDS and not any(
            map(self.is_usable, blocks)
        ):
            return True
        return self.has_killed_a_launch(trial.changes)

    def has_failed_anywhere(self, changes: Mapping[str, Value]) -> bool:
        """Whether any trial of these changes, or a launch for them, has failed."""
        wanted = key_of(changes)
        return self.has_killed_a_launch(changes) or any(
            key_of(t.changes) == wanted and self.has_failed(t) for t in self.history.trials
        )

    def _was_launched_for(self, block: Block, trial: Trial) -> bool:
        session = next((s for s in self.sessions if s.id == block.session_id), None)
        return session is not None and key_of(session.cold) == key_of(trial.changes)

    def has_killed_a_launch(self, changes: Mapping[str, Value]) -> bool:
        """Whether a session launched with the cold part of these changes died of it before its first block."""
        cold = self.required_cold(changes)
        return bool(cold) and key_of(cold) in {key_of(killer) for killer in self.killers}

    @cached_property
    def killers(self) -> tuple[dict[str, Value], ...]:
        """Cold changes whose launch died of them before its first block, so that no trial tells of it."""
        begun = {block.session_id for block in self.history.blocks}
        return tuple(
            s.cold
            for s in self.sessions
            if s.cold
            and s.id not in begun
            and s.state.is_final
            and s.outcome is not None
            and s.outcome.is_configurations_fault
        )

    @property
    def tried(self) -> tuple[Mapping[str, Value], ...]:
        """Changes that the search has tried; those included that did not survive their launch, or are launched now."""
        return (*(t.changes for t in self.trials_for(Purpose.SEARCH)), *self.killers, *self.launched)

    @cached_property
    def launched(self) -> tuple[dict[str, Value], ...]:
        """Strategies that gangs are being launched for, where each needs a launch and several search side by side."""
        if not self.switches_at_launch or self.job.spec.gangs == 1:
            return ()
        begun = {block.session_id for block in self.history.blocks}
        return tuple(s.cold for s in self.history.live_sessions() if s.cold and s.id not in begun)

    def required_cold(self, changes: Mapping[str, Value]) -> dict[str, Value]:
        """Return the cold changes that a session must be launched with to measure these changes."""
        if self.switches_at_launch or key_of(changes) in self._relaunches:
            return dict(changes)
        return cold_part(changes)

    def has_launch_of_its_own(self, changes: Mapping[str, Value]) -> bool:
        """Whether measuring these changes takes a launch that other strategies of the job do not need."""
        return not self.switches_at_launch and bool(self.required_cold(changes))

    @cached_property
    def _relaunches(self) -> set[object]:
        asked = {b.trial_number for b in self.history.blocks if b.result and b.result.relaunch_needed}
        return {key_of(t.changes) for t in self.history.trials if t.number in asked}

    # --- scores --------------------------------------------------------------------------------------

    def score(self, trial: Trial) -> float | None:
        """Return ln(throughput / baseline's) of a search trial (`scores.py`); None before it has one.

        A trial that was given up has one too: it is slow. A convergence strategy is scored by goodput: its throughput
        counts as much as a sample still teaches under it, as far as that is known.
        """
        found, efficiency = self.scores.get(trial.number), self.efficiencies.get(trial.number)
        if found is None:
            return None
        return found.mean + (efficiency.log if efficiency else 0.0)

    def score_error(self, trial: Trial) -> float | None:
        """Return the standard error of the trial's score; None where it has none."""
        found, efficiency = self.scores.get(trial.number), self.efficiencies.get(trial.number)
        if found is None:
            return None
        return math.hypot(found.error, efficiency.error / efficiency.value if efficiency else 0.0)

    @cached_property
    def scores(self) -> dict[int, Score]:
        """Search trial's number -> its score in throughput."""
        return estimate_scores(self)

    @cached_property
    def efficiencies(self) -> dict[int, Efficiency]:
        """Convergence strategy's trial number -> its statistical efficiency, where that is known."""
        trials = [t for t in self.history.trials if t.effect is Effect.CONVERGENCE]
        return {t.number: found for t in trials if (found := efficiency_of(self, t)) is not None}

    @cached_property
    def noise(self) -> Noise:
        """How much measurements of one strategy differ between blocks, launches and gangs, and how fast they drift."""
        return estimate_noise(self)

    @cached_property
    def anchor_every(self) -> int:
        """Strategies measured between two blocks of the baseline."""
        return space_anchors(self)

    @cached_property
    def run_noise(self) -> float | None:
        """Standard deviation of a block of the baseline around its neighbour, as a fraction; None below two."""
        return estimate_run_noise(self.baseline_blocks)


def log_throughput(block: Block) -> float:
    """Return ln(samples per second) over the total wall time of the steady part: what is reported."""
    if block.summary is None:
        raise ValueError(f"block {block.id} has no summary")
    return math.log(max(block.summary.samples_per_s, 1e-12))


def estimate_run_noise(blocks: Sequence[Block]) -> float | None:
    """Return the root mean square of neighbouring blocks' ln ratios over sqrt(2); None below two blocks."""
    rates = [log_rate(block) for block in blocks]
    steps = [b - a for a, b in pairwise(rates)]
    if not steps:
        return None
    return math.sqrt(fmean(step * step for step in steps) / 2.0)
