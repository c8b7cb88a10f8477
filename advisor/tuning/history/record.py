"""What a job's history says, in the words that decisions need."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from statistics import median

from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.catalogue import Catalogue
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.spending import measure_time_left_s, measure_wall_s
from advisor.protocol.measured.trials import (
    Block,
    BlockState,
    JobHistory,
    Outcome,
    Purpose,
    Session,
    Trial,
    TrialState,
)
from advisor.tuning.history.moods import Spell, list_spells
from advisor.tuning.measure.statistics import is_cut_short

USUAL_STARTUP_S = 10.0
"""Seconds from a session's start to its first race, before any was seen."""
_MOST_VOIDS = 3
"""Races without a result after which a strategy is given up."""


@dataclass(frozen=True)
class Record:
    """A read-only view of one job's history at one moment; every figure is computed once."""

    job: Job
    history: JobHistory
    now: datetime
    quick: bool = False
    """The planner took too long before: the search makes do with a suggestion that costs next to nothing."""

    # --- sessions and time ---------------------------------------------------------------------------

    @property
    def sessions(self) -> tuple[Session, ...]:
        """Sessions in the order they were launched."""
        return self.history.sessions

    @cached_property
    def session(self) -> Mapping[str, Session]:
        """Session's id -> session."""
        return {session.id: session for session in self.sessions}

    @cached_property
    def spent_s(self) -> float:
        """Wall time so far, waiting for agents not counted, in seconds."""
        return measure_wall_s(self.sessions, self.now)

    @cached_property
    def startup_s(self) -> float:
        """Median time from a session's start to its first race, in seconds."""
        delays = []
        for session in self.sessions:
            first = next(iter(self.blocks_in(session.id)), None)
            if first and session.started_at:
                delays.append(max(0.0, (first.issued_at - session.started_at).total_seconds()))
        if not delays and (live := self.history.live_session()) and live.started_at:
            # The first race is decided on now.
            delays.append((self.now - live.started_at).total_seconds())
        return median(delays) if delays else USUAL_STARTUP_S

    @property
    def remaining_s(self) -> float:
        """Wall time that the budget of seconds and of device-hours still grants, in seconds."""
        return measure_time_left_s(self.job, self.sessions, self.now)

    @property
    def budget_s(self) -> float:
        """Wall time that the budget grants in all, spent or left, in seconds."""
        return self.spent_s + self.remaining_s

    @cached_property
    def step_s(self) -> float:
        """Typical step of the script as it stands, in seconds; 0 before it was measured."""
        steps = [b.summary.median_step_time_s for b in self.baseline_blocks if b.summary]
        return median(steps) if steps else 0.0

    @cached_property
    def trip_s(self) -> float:
        """What a race takes besides its arms' own steps, in seconds: the word with the server, the switches."""
        spare = []
        for arms in self.races.values():
            end = arms[0].finished_at
            if end is None or len({arm.session_id for arm in arms}) > 1:
                continue
            own = sum(self.measure_steps_s(arm) for arm in arms)
            spare.append(max(0.0, (end - arms[0].issued_at).total_seconds() - own))
        return median(spare) if spare else 0.5

    def measure_steps_s(self, block: Block) -> float:
        """Return what the block's own steps took, in seconds: untimed, timed and profiled."""
        if block.result is None or block.summary is None:
            return 0.0
        untimed = block.result.warmup_steps + block.result.excluded_steps + len(block.result.segments)
        untimed += 0 if block.result.given_up else block.plan.rules.profile_steps
        return block.result.wall_s + untimed * block.summary.median_step_time_s

    @cached_property
    def capacity_steps(self) -> int | None:
        """Most steps that a session made before the script ended by itself; None while none has."""
        ended = [s.total_steps for s in self.sessions if s.outcome is Outcome.FINISHED and s.total_steps > 0]
        return max(ended) if ended else None

    @property
    def catalogue(self) -> Catalogue:
        """The knobs that the job knows."""
        return self.job.catalogue

    @property
    def switches_at_launch(self) -> bool:
        """Whether every strategy needs a launch of its own, so that a session measures one of them only."""
        return self.job.spec.workload.switches_at_launch

    def began_at(self) -> datetime | None:
        """Return when the job was continued last; None for a job on its first budget."""
        return self.job.continued_at[-1] if self.job.continued_at else None

    # --- blocks and races ----------------------------------------------------------------------------

    def is_usable(self, block: Block) -> bool:
        """Whether the block's figures may be compared: measured, switched in place, not cut short."""
        result, summary = block.result, block.summary
        if block.state is not BlockState.DONE or result is None or summary is None:
            return False
        if result.relaunch_needed or result.drifted or result.same_as or summary.steady_steps == 0:
            return False
        return result.given_up or bool(result.segments) or not is_cut_short(result)

    @cached_property
    def usable(self) -> tuple[Block, ...]:
        """Usable blocks in the order they were issued."""
        return tuple(block for block in self.history.blocks if self.is_usable(block))

    @cached_property
    def races(self) -> Mapping[int, tuple[Block, ...]]:
        """Race's number -> its usable blocks, the first arm first."""
        found: dict[int, list[Block]] = {}
        for block in self.usable:
            found.setdefault(block.race, []).append(block)
        return {number: tuple(sorted(arms, key=lambda b: b.arm)) for number, arms in found.items()}

    @property
    def next_race(self) -> int:
        """The number of a race that has not begun."""
        return 1 + max((block.race for block in self.history.blocks), default=0)

    @cached_property
    def _by_session(self) -> Mapping[str, list[Block]]:
        found: dict[str, list[Block]] = {}
        for block in self.history.blocks:
            found.setdefault(block.session_id, []).append(block)
        return found

    def blocks_in(self, session_id: str) -> Sequence[Block]:
        """Return all blocks of one session, in order."""
        return self._by_session.get(session_id, [])

    def usable_in(self, session_id: str) -> list[Block]:
        """Return the usable blocks of one session, in order."""
        return [block for block in self.blocks_in(session_id) if self.is_usable(block)]

    @cached_property
    def usable_by_trial(self) -> Mapping[int, list[Block]]:
        """Trial's number -> its usable blocks."""
        found: dict[int, list[Block]] = {}
        for block in self.usable:
            found.setdefault(block.trial_number, []).append(block)
        return found

    @cached_property
    def baseline_blocks(self) -> tuple[Block, ...]:
        """Usable blocks of the baseline."""
        return tuple(self.usable_by_trial.get(self.baseline_number, ()))

    @cached_property
    def spells(self) -> tuple[Spell, ...]:
        """When the baseline was how fast, launch by launch."""
        return list_spells(self.baseline_blocks, self.races)

    @property
    def probe(self) -> Block | None:
        """The first usable block of the baseline, which also measured links and gradients."""
        return self.baseline_blocks[0] if self.baseline_blocks else None

    @property
    def probe_blocks(self) -> tuple[Block, ...]:
        """The probe, once it was measured."""
        return self.baseline_blocks[:1]

    @cached_property
    def baseline_number(self) -> int:
        """The baseline's trial number; -1 before it exists."""
        return next((t.number for t in self.history.trials if t.purpose is Purpose.BASELINE), -1)

    # --- trials --------------------------------------------------------------------------------------

    @cached_property
    def trial(self) -> Mapping[int, Trial]:
        """Trial's number -> trial."""
        return {trial.number: trial for trial in self.history.trials}

    @cached_property
    def _by_purpose(self) -> Mapping[Purpose, dict[Changes, Trial]]:
        found: dict[Purpose, dict[Changes, Trial]] = {purpose: {} for purpose in Purpose}
        for trial in self.history.trials:
            found[trial.purpose].setdefault(trial.changes, trial)
        return found

    def trials_for(self, purpose: Purpose) -> tuple[Trial, ...]:
        """Return the trials of one purpose, in order."""
        return tuple(self._by_purpose[purpose].values())

    def find_trial(self, purpose: Purpose, changes: Mapping[str, Value]) -> Trial | None:
        """Return the trial with that purpose and those changes."""
        return self._by_purpose[purpose].get(Changes(changes))

    @cached_property
    def _failed(self) -> frozenset[int]:
        return frozenset(trial.number for trial in self.history.trials if self._has_failed(trial))

    def has_failed(self, trial: Trial) -> bool:
        """Whether nothing more will come of the trial."""
        return trial.number in self._failed

    def _has_failed(self, trial: Trial) -> bool:
        if trial.state is TrialState.CLOSED and trial.outcome is not Outcome.CANCELLED:
            return trial.outcome is not Outcome.FINISHED
        if not trial.changes:
            return False
        blocks = self._blocks_of.get(trial.number, [])
        if any(b.result and b.result.relaunch_needed and self._was_launched_for(b, trial) for b in blocks):
            return True
        lost = {session.id for session in self.sessions if session.was_lost}
        voids = sum(b.state is BlockState.VOID and b.session_id not in lost for b in blocks)
        if voids >= _MOST_VOIDS and not any(map(self.is_usable, blocks)):
            return True
        return self.has_killed_a_launch(trial.changes)

    @cached_property
    def _blocks_of(self) -> Mapping[int, list[Block]]:
        found: dict[int, list[Block]] = {}
        for block in self.history.blocks:
            found.setdefault(block.trial_number, []).append(block)
        return found

    def has_failed_anywhere(self, changes: Mapping[str, Value]) -> bool:
        """Whether any trial of these changes, or a launch for them, has failed."""
        return Changes(changes) in self._failed_strategies or self.has_killed_a_launch(changes)

    def has_died_anywhere(self, changes: Mapping[str, Value]) -> bool:
        """The same, but for those given up as slow: beside a strategy of a higher rung a gain may look so."""
        died = self._failed_strategies - {
            t.changes for t in self.history.trials if t.outcome is Outcome.PRUNED
        }
        return Changes(changes) in died or self.has_killed_a_launch(changes)

    @cached_property
    def _failed_strategies(self) -> frozenset[Changes]:
        # A part of a winner that came to the same as another arm of the trimming is no failure of that strategy.
        failed = (self.trial[number] for number in self._failed)
        is_twin = {(Purpose.REVERT, Outcome.INEFFECTIVE)}
        return frozenset(t.changes for t in failed if (t.purpose, t.outcome) not in is_twin)

    def _was_launched_for(self, block: Block, trial: Trial) -> bool:
        session = self.session.get(block.session_id)
        return session is not None and session.cold == trial.changes

    @cached_property
    def asked_again(self) -> tuple[Trial, ...]:
        """Search trials that somebody wants raced once more."""
        trials = self.trials_for(Purpose.SEARCH)
        return tuple(t for t in trials if self.history.awaits_repeat(t) and not self.has_failed(t))

    @cached_property
    def suspects(self) -> tuple[Trial, ...]:
        """Search trials that were in a race whose session died of a strategy: which one it was is not known yet.

        Each of them races the baseline alone next, so that only the culprit is given up.
        """
        fatal: set[int] = set()
        for block in self.history.blocks:
            session = self.session.get(block.session_id)
            died = (
                session is not None
                and session.outcome is not None
                and (session.outcome.is_configurations_fault)
            )
            if block.state is BlockState.VOID and died and block.plan.overrides:
                fatal.add(block.trial_number)
        measured_since = {block.trial_number for block in self.usable}
        return tuple(
            trial
            for trial in self.trials_for(Purpose.SEARCH)
            if trial.number in fatal and trial.number not in measured_since and not self.has_failed(trial)
        )

    def has_killed_a_launch(self, changes: Mapping[str, Value]) -> bool:
        """Whether a session launched with the cold part of these changes died of it before its first race."""
        if not self.killers:
            return False
        cold = self.required_cold(changes)
        return bool(cold) and cold in self.killers

    @cached_property
    def killers(self) -> tuple[Changes, ...]:
        """Cold changes whose launch died of them before its first race, so that no trial tells of it."""
        return tuple(
            s.cold
            for s in self.sessions
            if s.cold
            and not self.blocks_in(s.id)
            and s.state.is_final
            and s.outcome is not None
            and s.outcome.is_configurations_fault
        )

    @cached_property
    def set_in_vain(self) -> tuple[Changes, ...]:
        """Values of one strategy that no other is to set, too: nothing acted on them (memory was short, say), and they
        never were in force; or they left other bits in a job that advises none of that. Beside values of the user's
        own, they are told together: with others the script may be one that has something to act on."""
        told = [
            (block.plan.overrides, block.result)
            for block in self.history.blocks
            if block.result is not None and not block.result.relaunch_needed and not block.result.drifted
        ]
        own = {knob.name for knob in self.job.spec.workload.own}
        in_force = [
            {n: v for n, v in changes.items() if n in result.consumed or n in own} for changes, result in told
        ]
        vain = [
            Changes({n: v for n, v in changes.items() if n in result.not_consumed or n in own})
            for changes, result in told
            if changes.keys() & result.not_consumed.keys()
        ]
        vain = [v for v in vain if not any(v.items() <= held.items() for held in in_force)]
        other_bits = [changes for changes, result in told if result.bits_differ]
        return tuple({v: None for v in (*vain, *other_bits) if v})

    @property
    def tried(self) -> tuple[Changes, ...]:
        """Changes that the search has tried; those included that did not survive their launch."""
        return (*(t.changes for t in self.trials_for(Purpose.SEARCH)), *self.killers)

    @cached_property
    def cold_of_new_launch(self) -> Changes:
        """Cold changes that the live session was launched with for a race that it has not run yet; else none."""
        live = self.history.live_session()
        return Changes() if live is None or self.blocks_in(live.id) else live.cold

    def required_cold(self, changes: Mapping[str, Value]) -> Changes:
        """Return the cold changes that a session must be launched with to measure these changes."""
        if self.switches_at_launch or Changes(changes) in self._relaunches:
            return Changes(changes)
        return self.catalogue.keep_cold(changes)

    def effect_of(self, changes: Iterable[str]) -> Effect:
        """Return the rung that these changes stand on."""
        return self.catalogue.effect_of(changes)

    def is_allowed(self, trial: Trial) -> bool:
        """Whether the advice may be this strategy: its rung is allowed, or the job names it to be verified."""
        spec = self.job.spec
        return bool(spec.verify) or trial.effect.rank <= spec.allow.rank

    def is_exact(self, changes: Iterable[str]) -> bool:
        """Whether these changes keep the mathematics."""
        return self.catalogue.effect_of(changes) is Effect.EXACT

    def has_launch_of_its_own(self, changes: Mapping[str, Value]) -> bool:
        """Whether measuring these changes takes a launch that other strategies of the job do not need."""
        return not self.switches_at_launch and bool(self.required_cold(changes))

    @cached_property
    def _relaunches(self) -> frozenset[Changes]:
        asked = {b.trial_number for b in self.history.blocks if b.result and b.result.relaunch_needed}
        return frozenset(t.changes for t in self.history.trials if t.number in asked)
