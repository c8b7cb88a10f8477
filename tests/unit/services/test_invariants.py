"""Whatever order messages, faults and time come in, on both databases: jobs, gangs, leases and results fit together.

Against it stands a model of a few dictionaries: who renewed when, which report counts, who is drained. `make model`
(MODEL_EXAMPLES) plays more examples, each time others; without it they are few, always the same.
"""

import itertools
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from advisor.errors import AdvisorError, JobIsFinal, StaleSession, Unavailable
from advisor.protocol.jobs import JobState
from advisor.protocol.messages import Assignment, MemberState
from advisor.protocol.races import RacePlan
from advisor.protocol.trials import BlockState, JobHistory, Outcome, Session, SessionState, TrialState
from advisor.protocol.views import RaceAccepted
from advisor.services.races import Quarantined
from advisor.storage.fault_points import FaultPoint, Side
from tests.unit.services.scripted_tuning import ScriptedTuning, make_result
from tests.unit.services.world import START, World, count_ids

AGENTS = ("one", "two", "three")
WHO = st.sampled_from(AGENTS)
WANTED = os.environ.get("MODEL_EXAMPLES")
FEW = 12


class Patient:
    """A world whose database fails now and then; whoever asked asks again, as agents, clients and keepers do."""

    def __init__(self, world: World) -> None:
        self.inner = world

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return found

        def ask(*words: Any, **named: Any) -> Any:
            try:
                return found(*words, **named)
            except Unavailable:
                return found(*words, **named)

        return ask


class ServerUnderFaults(RuleBasedStateMachine):
    """Agents that remember every place they ever held, and speak about old ones as readily as about new ones."""

    def __init__(self, make_database: Callable[[], str]) -> None:
        super().__init__()
        self.url = make_database()
        self.ids = count_ids()
        self.armed: Side | None = None
        self.renewed: dict[tuple[str, str], float] = {}
        """Session and agent -> the last second at which a beat of it was taken."""
        self.served_since_s = 0.0
        self.counts: dict[str, tuple[str, float]] = {}
        """Race -> its session and the step time of the report that counts."""
        self.drained: dict[str, int] = {}
        """Agent -> sessions that it had when it was drained."""
        self.beside = 0
        self.world = self.open()
        self.seen: dict[str, JobHistory] = {}
        self.places: dict[str, list[Assignment]] = {name: [] for name in AGENTS}
        self.races: list[tuple[str, Assignment, RacePlan]] = []
        self.reported: list[tuple[RacePlan, RaceAccepted | Quarantined]] = []
        self.times = itertools.count(1)
        self.jobs: list[str] = []
        self.agents: dict[str, str] = {}

    def open(self) -> Patient:
        """Open the server's database, as a start does."""
        strategies = [{"fuse_grad_size_in_MB": float(size)} for size in (2, 4, 8)]
        tuning = ScriptedTuning(strategies, self.beside)
        return Patient(World(self.url, tuning, self.ids, self.strike))

    def strike(self, point: FaultPoint, side: Side) -> None:
        """Let the database fail once: before a commit, or after it, so that the answer is lost."""
        if self.armed is side:
            self.armed = None
            raise Unavailable(f"{point}: {side} its commit the database went away.")

    @initialize(beside=st.integers(0, 2))
    def register_all(self, beside: int) -> None:
        self.beside = beside
        self.world.inner.tuning = ScriptedTuning(self.world.tuning.strategies, beside)
        for name in AGENTS:
            self.agents[name] = self.world.register(name)
        self.submit(1, 2)
        self.submit(2, 1)

    @rule(nodes=st.integers(1, 2), gangs=st.integers(1, 2))
    @precondition(lambda self: len(self.jobs) < 3)
    def submit(self, nodes: int, gangs: int) -> None:
        self.armed = None  # without a key, whoever asks again submits another job
        self.jobs.append(self.world.submit(nodes=nodes, gangs=gangs).id)

    @rule(data=st.data())
    @precondition(lambda self: self.jobs)
    def cancel(self, data: st.DataObject) -> None:
        try:
            self.world.cancel(data.draw(st.sampled_from(self.jobs)))
        except JobIsFinal:
            return

    @rule(data=st.data(), pauses=st.booleans())
    @precondition(lambda self: self.jobs)
    def pause_or_resume(self, data: st.DataObject, pauses: bool) -> None:
        job_id = data.draw(st.sampled_from(self.jobs))
        before = len(self.world.history(job_id).sessions)
        try:
            if pauses:
                self.world.pause(job_id)
                self.world.keep_up()
                assert len(self.world.history(job_id).sessions) == before
            else:
                self.world.resume(job_id)
        except JobIsFinal:
            return

    @rule(who=WHO)
    def poll(self, who: str) -> None:
        place = self.world.poll(self.agents[who])
        if place is not None and place not in self.places[who]:
            self.places[who].append(place)

    @rule(side=st.sampled_from(Side))
    def let_database_fail(self, side: Side) -> None:
        """At the next fault point, whatever that will be."""
        self.armed = side

    @rule(who=WHO, drains=st.booleans())
    def drain_or_resume(self, who: str, drains: bool) -> None:
        self.world.drain(self.agents[who], "It is repaired." if drains else None)
        if drains:
            self.drained.setdefault(who, self.count_sessions(who))
        else:
            self.drained.pop(who, None)

    @rule(rounds=st.integers(2, 5), reports=st.lists(st.booleans(), min_size=6, max_size=12))
    def obey(self, rounds: int, reports: list[bool]) -> None:
        """Let every agent do what a good agent does, a few times over; not every answer is measured."""
        whether = iter(reports)
        for _ in range(rounds):
            self.world.keep_up()
            for who in AGENTS:
                self.poll(who)
                place = self.place(who, 0)
                reply = self.say(lambda who=who, place=place: self.beat_as(who, place)) if place else None
                if reply is None or place is None:
                    continue
                if reply.state is SessionState.ENDING:
                    self.say(lambda who=who, place=place: self.world.end(place, self.agents[who]))
                elif reply.state is SessionState.RUNNING and place.node_rank == 0:
                    self.next(who, 0)
                    if self.races and self.races[-1][0] == who and next(whether, True):
                        self.report(0, differs=False)

    @rule(who=WHO, state=st.sampled_from(MemberState), old=st.integers(0, 2))
    def beat(self, who: str, state: MemberState, old: int) -> None:
        if place := self.place(who, old):
            self.say(lambda: self.beat_as(who, place, state))

    def beat_as(self, who: str, place: Assignment, state: MemberState = MemberState.RUNNING) -> Any:
        reply = self.world.beat(place, self.agents[who], state)
        self.renewed[place.session_id, who] = self.world.elapsed_s
        return reply

    @rule(who=WHO, old=st.integers(0, 1))
    def next(self, who: str, old: int) -> None:
        place = self.place(who, old)
        answer = self.say(lambda: self.world.next(place, self.agents[who])) if place else None
        if answer is not None and answer.race is not None:
            assert self.world.next(place, self.agents[who]).race == answer.race
            self.races.append((who, place, answer.race))

    @rule(rounds=st.integers(2, 3))
    def obey_and_measure(self, rounds: int) -> None:
        """The same, and every answer is measured: so that a good part of the runs gets far."""
        self.obey(rounds, [])

    @precondition(lambda self: self.races)
    @rule(old=st.integers(0, 3), differs=st.booleans())
    def report(self, old: int, differs: bool) -> None:
        who, place, race = self.races[-1 - old % len(self.races)]
        step_s = 0.1 + (next(self.times) if differs else 0)
        result = make_result(step_s)
        expected = self.expect(place, race, step_s)
        answer = self.world.report(place, self.agents[who], race, result)
        assert isinstance(answer, RaceAccepted) == expected
        if expected:
            self.counts[race.race_id] = place.session_id, step_s
        assert self.world.report(place, self.agents[who], race, result) == answer
        self.reported.append((race, answer))

    def expect(self, place: Assignment, race: RacePlan, step_s: float) -> bool:
        """Whether a report is to be accepted: the first one while its race is in hand, and that one again."""
        if race.race_id in self.counts:
            return self.counts[race.race_id] == (place.session_id, step_s)
        blocks = self.world.history(place.job_id).blocks
        return any(block.id == race.race_id and block.state is BlockState.ISSUED for block in blocks)

    @rule(who=WHO, outcome=st.sampled_from(Outcome), old=st.integers(0, 1))
    def end(self, who: str, outcome: Outcome, old: int) -> None:
        if place := self.place(who, old):
            self.say(lambda: self.world.end(place, self.agents[who], outcome))

    @rule(
        fault=st.sampled_from(("end", "cancel", "start again", "silence")), outcome=st.sampled_from(Outcome)
    )
    def interrupt_a_measurement(self, fault: str, outcome: Outcome) -> None:
        """Something happens while a block is being measured, and its result comes afterwards all the same."""
        for who in AGENTS:
            place = self.place(who, 0)
            answer = (
                self.say(lambda who=who, place=place: self.world.next(place, self.agents[who]))
                if place
                else None
            )
            if place is None or answer is None or answer.race is None:
                continue
            self.races.append((who, place, answer.race))
            if fault == "end":
                self.say(lambda who=who, place=place: self.world.end(place, self.agents[who], outcome))
            elif fault == "cancel":
                self.world.cancel(place.job_id)
            elif fault == "start again":
                self.world.register(who)
            else:
                self.world.wait(40)
                self.world.keep_up()
            self.report(0, differs=False)
            return

    @rule(who=WHO)
    def start_agent_again(self, who: str) -> None:
        assert self.world.register(who) == self.agents[who]

    @rule(seconds=st.sampled_from([0.5, 6, 20, 40, 130]))
    def let_time_pass(self, seconds: float) -> None:
        self.world.wait(seconds)

    @rule()
    def keep_up(self) -> None:
        self.world.keep_up()
        assert self.world.inner.reaper.look(self.world.now) == 0
        self.nobody_is_waited_for_too_long()

    @rule()
    def restart_server(self) -> None:
        before = self.world.inner
        before.database.close()
        self.world = self.open()
        self.world.inner.now, self.world.inner.elapsed_s = before.now, before.elapsed_s
        self.served_since_s = before.elapsed_s
        self.world.restart()

    @invariant()
    def invariants_hold(self) -> None:
        """All of them look at one picture of every job: reading it is what takes the time."""
        self.seen = {job_id: self.world.history(job_id) for job_id in self.jobs}
        self.sessions_and_gangs_are_single()
        self.results_are_accepted_once_and_never_lost()
        self.blocks_are_measured_only_in_live_sessions()
        self.arms_of_a_race_share_their_fate()
        self.no_strategy_is_measured_by_two_gangs_at_once()
        self.nothing_is_left_open_when_a_job_has_ended()
        self.nobody_who_renews_is_given_up()
        self.drained_agents_get_no_session()

    def nobody_who_renews_is_given_up(self) -> None:
        """A session is lost for silence only where an agent was silent for longer than its lease."""
        for session in self.sessions():
            if session.state is SessionState.LOST and session.reason.startswith("No sign of life"):
                assert max(self.silence_s(session, who) for who in session.agents) > self.world.timers.lease_s

    def nobody_is_waited_for_too_long(self) -> None:
        """No agent that took up its place keeps it beyond its lease and grace, in time for which a server ran."""
        timers = self.world.timers
        longest_s = max(timers.lease_s + timers.grace_s, timers.restart_s, 2 * timers.lease_s)
        for session in self.sessions():
            silent = [
                min(self.silence_s(session, who), self.world.elapsed_s - self.served_since_s)
                for who in session.agents
                if (session.id, who) in self.renewed
            ]
            assert session.state.is_final or all(seconds <= longest_s for seconds in silent)

    def silence_s(self, session: Session, who: str) -> float:
        began_s = (session.created_at - START).total_seconds()
        return float(self.world.elapsed_s - max(began_s, self.renewed.get((session.id, who), 0.0)))

    def drained_agents_get_no_session(self) -> None:
        for who, count in self.drained.items():
            assert self.count_sessions(who) == count

    def count_sessions(self, who: str) -> int:
        return sum(who in session.agents for session in self.sessions())

    def sessions(self) -> list[Session]:
        return [session for job_id in self.jobs for session in self.world.history(job_id).sessions]

    def arms_of_a_race_share_their_fate(self) -> None:
        """I6: all arms of a race are measured, accepted and given up together."""
        for history in self.seen.values():
            fates: dict[tuple[str, int | None], set[BlockState]] = {}
            for block in history.blocks:
                fates.setdefault((block.session_id, block.race), set()).add(block.state)
            assert all(len(fate) == 1 for fate in fates.values())

    def sessions_and_gangs_are_single(self) -> None:
        """I1: one live session per gang of a job. I2: one live gang per agent. I3: generations grow."""
        held: Counter[str] = Counter()
        for job_id in self.jobs:
            sessions = self.seen[job_id].sessions
            live = [session for session in sessions if not session.state.is_final]
            gangs = [session.gang for session in live]
            assert len(set(gangs)) == len(gangs)
            assert set(gangs) <= set(range(self.world.job(job_id).spec.gangs))
            held.update(agent for session in live for agent in session.agents)
            generations = [session.generation for session in sessions]
            assert generations == list(range(1, len(generations) + 1))
            final = self.world.job(job_id).state.is_final
            assert not (final and live)
        assert all(count == 1 for count in held.values())

    def results_are_accepted_once_and_never_lost(self) -> None:
        """I4: a result counts for the generation it was measured in. I5: it is accepted or in quarantine."""
        accepted = Counter(
            arm.block_id
            for race, answer in self.reported
            if isinstance(answer, RaceAccepted)
            for arm in race.arms
        )
        blocks = {block.id: block for job_id in self.jobs for block in self.seen[job_id].blocks}
        for block_id in accepted:
            assert blocks[block_id].state is BlockState.DONE
            assert blocks[block_id].result is not None
        refused = [race for race, answer in self.reported if isinstance(answer, Quarantined)]
        with self.world.database.read() as work:
            assert all(work.blocks.quarantined(arm.block_id) for race in refused for arm in race.arms)
        done = [block for block in blocks.values() if block.state is BlockState.DONE]
        assert {block.id for block in done} == accepted.keys()

    def blocks_are_measured_only_in_live_sessions(self) -> None:
        for job_id in self.jobs:
            history = self.seen[job_id]
            live = {session.id for session in history.sessions if not session.state.is_final}
            assert {block.session_id for block in history.blocks if block.state is BlockState.ISSUED} <= live

    def no_strategy_is_measured_by_two_gangs_at_once(self) -> None:
        for job_id in self.jobs:
            issued = [
                block.trial_number
                for block in self.seen[job_id].blocks
                if block.state is BlockState.ISSUED and block.plan.overrides
            ]
            assert len(set(issued)) == len(issued)

    def nothing_is_left_open_when_a_job_has_ended(self) -> None:
        for job_id in self.jobs:
            if self.world.job(job_id).state in {JobState.FINISHED, JobState.CANCELLED, JobState.FAILED}:
                history = self.seen[job_id]
                assert all(trial.state is TrialState.CLOSED for trial in history.trials)
                assert all(block.state is not BlockState.ISSUED for block in history.blocks)

    def place(self, who: str, old: int) -> Assignment | None:
        """A place the agent holds or held: 0 is the latest."""
        places = self.places[who]
        return places[-1 - old] if len(places) > old else None

    def say(self, message):  # type: ignore[no-untyped-def]
        """Send a message; a refusal is an answer too."""
        try:
            return message()
        except StaleSession:
            return None
        except AdvisorError as error:
            if error.status not in {403, 425}:
                raise
            return None

    def teardown(self) -> None:
        told: dict[str, set[str]] = {"accepted": set(), "quarantined": set()}
        for race, answer in self.reported:
            told["accepted" if isinstance(answer, RaceAccepted) else "quarantined"] |= {
                arm.block_id for arm in race.arms
            }
        with self.world.inner.database.read() as work:
            wrong = work.upkeep.find_damage() + work.upkeep.find_lost(**told)
        self.world.inner.database.close()
        assert wrong == []


def test_server_under_faults(make_database: Callable[[], str]) -> None:
    run_state_machine_as_test(
        lambda: ServerUnderFaults(make_database),
        settings=settings(
            max_examples=int(WANTED or FEW),
            stateful_step_count=50 if WANTED else 20,
            deadline=None,
            derandomize=WANTED is None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
