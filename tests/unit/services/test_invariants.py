"""Whatever order messages, faults and time come in, on both databases: jobs, gangs, leases and results fit together.

What has to hold is in `model`; here is what happens. `make model` (MODEL_EXAMPLES) plays more examples, each time
others; without it they are few, always the same.
"""

import itertools
import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from advisor.errors import JobIsFinal, JobIsLive, NothingToContinue, StaleSession
from advisor.protocol.asked.jobs import JobState
from advisor.protocol.measured.messages import MemberState
from advisor.protocol.measured.trials import Outcome, SessionState
from advisor.storage.fault_points import Side
from tests.unit.services.model import AGENTS, Measured, ModelOfServer
from tests.unit.services.scripted_tuning import ScriptedTuning

pytestmark = pytest.mark.thorough

WHO = st.sampled_from(AGENTS)
WANTED = os.environ.get("MODEL_EXAMPLES")
FEW = 4
MOST_JOBS = 6
OPENINGS = (((1, 2), 0), ((1, 2), 1), ((1,), 2))
"""Nodes of each job that there is at first, and how far they are: not at all, to a race, beyond it."""
FAULTS = ("end", "cancel", "start again", "pause", "pause and cancel", "extend", "restart")
LIES = ("older", "newer", "other place", "other agent", "an arm less")


class ServerUnderFaults(ModelOfServer):
    """Agents that speak about old places as readily as about new ones; those that work get far all the same."""

    @initialize(beside=st.integers(0, 2), opening=st.sampled_from(OPENINGS))
    def register_all(self, beside: int, opening: tuple[tuple[int, ...], int]) -> None:
        self.beside, (jobs, far) = beside, opening
        self.world.inner.tuning = ScriptedTuning(self.world.tuning.strategies, beside)
        for name in AGENTS:
            self.agents[name] = self.world.register(name)
        for nodes in jobs:
            self.submit(nodes)
        if far and (one := self.take_to_a_race()) and far > 1:
            self.send_report(one)
            self.obey(3, [False] * 9)

    @rule(nodes=st.integers(1, 2))
    @precondition(lambda self: self.may_submit())
    def submit(self, nodes: int) -> None:
        self.armed = None  # without a key, whoever asks again submits another job
        self.jobs.append(self.world.submit(nodes=nodes).id)

    def may_submit(self) -> bool:
        live = [job_id for job_id in self.jobs if not self.world.job(job_id).state.is_final]
        return len(self.jobs) < MOST_JOBS and len(live) < 3

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        try:
            self.world.cancel(data.draw(st.sampled_from(self.jobs)))
        except JobIsFinal:
            return

    @rule(data=st.data(), pauses=st.booleans())
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

    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(self.jobs))
        before, was_final = self.picture(), self.world.job(job_id).state.is_final
        try:
            self.world.extend(job_id, f"key {next(self.times)}")
        except (JobIsLive, NothingToContinue) as refusal:
            if was_final is isinstance(refusal, JobIsLive):
                raise
            assert self.picture() == before
        else:
            assert was_final

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
            self.obey_once(whether)

    @rule(rounds=st.integers(2, 3))
    def obey_and_measure(self, rounds: int) -> None:
        """The same, and every answer is measured: so that a good part of the runs gets far."""
        self.obey(rounds, [])

    def obey_once(self, whether: Iterator[bool]) -> None:
        self.world.keep_up()
        for who in AGENTS:
            self.poll(who)
            place = self.place(who, 0)
            reply = self.say(lambda who=who, place=place: self.send_beat(who, place)) if place else None
            if reply is None or place is None:
                continue
            if reply.state is SessionState.ENDING:
                self.say(lambda who=who, place=place: self.world.end(place, self.agents[who]))
            elif reply.state is SessionState.RUNNING and place.node_rank == 0:
                self.next(who, 0)
                if self.races and self.races[-1].who == who and next(whether, True):
                    self.report(0, differs=False)

    def take_to_a_race(self, which: int = 0) -> Measured | None:
        """A race in hand; where none is, whatever keeps the agents from one is put in order first."""
        for effort in range(5):
            if found := self.in_hand():
                return found[which % len(found)]
            if effort == 1:
                for who in list(self.drained):
                    self.drain_or_resume(who, drains=False)
                for job_id in self.jobs:
                    if self.world.job(job_id).state is JobState.PAUSED:
                        self.world.resume(job_id)
                if self.may_submit():
                    self.submit(1 + which % 2)
            elif effort > 1:
                self.world.wait(6)
            self.obey_once(itertools.repeat(False))
        return None

    @rule(who=WHO, state=st.sampled_from(MemberState), old=st.integers(0, 2))
    def beat(self, who: str, state: MemberState, old: int) -> None:
        if place := self.place(who, old):
            self.say(lambda: self.send_beat(who, place, state))

    @rule(who=WHO, old=st.integers(0, 1))
    def next(self, who: str, old: int) -> None:
        place = self.place(who, old)
        answer = self.say(lambda: self.world.next(place, self.agents[who])) if place else None
        if place is not None and answer is not None and answer.race is not None:
            assert self.world.next(place, self.agents[who]).race == answer.race
            self.races.append(Measured(who, place, answer.race))

    @precondition(lambda self: self.races)
    @rule(old=st.integers(0, 3), differs=st.booleans())
    def report(self, old: int, differs: bool) -> None:
        """Of a race in hand, of one reported before, or of one of a session that is long over."""
        one = self.races[-1 - old % len(self.races)]
        self.send_report(one, 0.1 + (next(self.times) if differs else 0))

    @rule(which=st.integers(0, 2))
    def report_a_race_in_hand(self, which: int) -> None:
        """A report that is wrong counts for nothing; the right one does, once, whatever else is said after it."""
        if (one := self.take_to_a_race(which)) is None:
            return
        step_s = 0.1 + next(self.times)
        lies = [wrong for lie in LIES if (wrong := self.lie_about(one, lie))]
        for wrong in lies:
            self.send_report(one, step_s, **wrong)
        assert self.send_report(one, step_s)
        assert not self.send_report(one, step_s + 1)
        for wrong in lies:
            self.send_report(one, step_s, **wrong)
        assert self.send_report(one, step_s)

    def lie_about(self, one: Measured, lie: str) -> dict[str, object]:
        """Words that make a report of a race wrong."""
        if lie in {"older", "newer"}:
            generation = one.place.generation + (1 if lie == "newer" else -1)
            return {"place": one.place.model_copy(update={"generation": generation})}
        if lie == "other agent":
            gang = self.session_of(one.place).agents
            return {"who": gang[1] if len(gang) > 1 else next(who for who in AGENTS if who != one.who)}
        if lie == "other place":
            others = [place for place in self.places[one.who] if place.session_id != one.place.session_id]
            return {"place": others[-1]} if others else {}
        fewer = one.race.arms[:-1]
        return {"race": one.race.model_copy(update={"arms": fewer})} if fewer else {}

    @rule(which=st.integers(0, 2), fault=st.sampled_from(FAULTS), outcome=st.sampled_from(Outcome))
    def interrupt_a_measurement(self, which: int, fault: str, outcome: Outcome) -> None:
        """Something happens while a race is being run, and its result comes afterwards all the same."""
        if (one := self.take_to_a_race(which)) is None:
            return
        who, place, _ = one
        counts = True
        if fault == "end":
            self.world.end(place, self.agents[who], outcome)
            counts = place.nnodes > 1
        elif fault == "start again":
            self.start_agent_again(who)
            counts = place.nnodes > 1
        elif fault == "restart":
            self.start_server_again()
        elif fault == "extend":
            with pytest.raises(JobIsLive):
                self.world.extend(place.job_id, f"key {next(self.times)}")
        if fault.startswith("pause"):
            self.world.pause(place.job_id)
            assert one in self.in_hand()
        if fault.endswith("cancel"):
            self.world.cancel(place.job_id)
            counts = False
        self.invariants_hold()
        assert self.send_report(one) == counts
        if fault == "pause":
            assert self.world.next(place, self.agents[who]).race is None

    @rule(which=st.integers(0, 2), restarts=st.booleans(), alone=st.booleans())
    def fall_silent(self, which: int, restarts: bool, alone: bool) -> None:
        """A session is kept to the last moment of its lease, and no longer; its race is given up with it."""
        if (one := self.take_to_a_race(which)) is None:
            return
        session = self.session_of(one.place)
        gang = {who: place for who in session.agents if (place := self.place_in(who, session.id))}
        for who, place in gang.items():
            self.send_beat(who, place)
        if restarts:
            self.start_server_again()
        self.world.wait(self.longest_s(session, one.who))
        self.world.keep_up()
        assert not self.session_of(one.place).state.is_final
        if alone:
            for who, place in gang.items():
                if who != one.who:
                    self.send_beat(who, place)
        self.world.wait(0.5)
        self.keep_up()
        assert self.session_of(one.place).state is SessionState.LOST
        self.invariants_hold()
        assert not self.send_report(one)

    @rule(which=st.integers(0, 2))
    def end_agent_by_agent(self, which: int) -> None:
        """A job that is cancelled has ended when its last agent has, and no sooner."""
        if (one := self.take_to_a_race(which)) is None:
            return
        job_id = one.place.job_id
        self.world.cancel(job_id)
        if (session := self.world.history(job_id).live_session()) is not None:
            assert self.world.job(job_id).state is JobState.CANCELLING
            for who in session.agents:
                if place := self.place_in(who, session.id):
                    self.say(lambda who=who, place=place: self.world.end(place, self.agents[who]))
                else:
                    self.world.poll(self.agents[who])
            self.invariants_hold()
        assert self.world.job(job_id).state is JobState.CANCELLED

    @rule(who=WHO, old=st.integers(0, 3), off=st.integers(-1, 1))
    def speak_as_a_zombie(self, who: str, old: int, off: int) -> None:
        """What names another generation, or a session that is over, changes nothing."""
        if (place := self.place(who, old)) is None:
            return
        if off == 0 and not self.session_of(place).state.is_final:
            return
        place = place.model_copy(update={"generation": place.generation + off})
        before, agent_id = self.picture(), self.agents[who]
        with pytest.raises(StaleSession):
            self.world.beat(place, agent_id)
        for message in (self.world.next, self.world.end):
            answer = self.say(lambda message=message: message(place, agent_id))
            assert answer is None or (off == 0 and answer.race is None)
        assert self.picture() == before

    @rule(who=WHO, outcome=st.sampled_from(Outcome), old=st.integers(0, 1))
    def end(self, who: str, outcome: Outcome, old: int) -> None:
        if place := self.place(who, old):
            self.say(lambda: self.world.end(place, self.agents[who], outcome))

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
        self.start_server_again()


Play = Callable[[ServerUnderFaults, int], None]
PLAYS: tuple[Play, ...] = (
    lambda server, which: server.report_a_race_in_hand(which),
    lambda server, which: server.end_agent_by_agent(which),
    *(
        lambda server, which, fault=fault: server.interrupt_a_measurement(which, fault, Outcome.CRASHED)
        for fault in FAULTS
    ),
    *(
        lambda server, which, restarts=restarts, alone=alone: server.fall_silent(which, restarts, alone)
        for restarts in (False, True)
        for alone in (False, True)
    ),
)


@pytest.mark.parametrize(
    ("make_database", "opening", "beside", "which"),
    [("sqlite", 2, 1, 0), ("postgresql", 1, 2, 0)],
    indirect=["make_database"],
)
def test_each_fault_meets_a_race(
    make_database: Callable[[], str], opening: int, beside: int, which: int
) -> None:
    """What examples come upon by chance: here no chance decides whether it is seen, and zombies speak after it."""
    for play in PLAYS:
        server = ServerUnderFaults(make_database)
        server.register_all(beside, OPENINGS[opening])
        play(server, which)
        server.invariants_hold()
        for who, off in zip(AGENTS, (-1, 0, 1), strict=True):
            server.speak_as_a_zombie(who, 0, off)
        server.obey_and_measure(2)
        server.invariants_hold()
        server.teardown()


def test_server_under_faults(make_database: Callable[[], str]) -> None:
    run_state_machine_as_test(
        lambda: ServerUnderFaults(make_database),
        settings=settings(
            max_examples=int(WANTED or FEW),
            stateful_step_count=50 if WANTED else 18,
            deadline=None,
            derandomize=WANTED is None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
