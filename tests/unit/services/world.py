"""A server without HTTP: the services over a real database, a clock that tests turn, and agents that obey."""

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from advisor.protocol.asked.jobs import Continuation, Job, Priority
from advisor.protocol.base import Value
from advisor.protocol.measured.messages import (
    Assignment,
    Beat,
    BeatReply,
    MemberState,
    NextReply,
    RaceReport,
    RegisterAgent,
    SessionEnd,
)
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import JobHistory, Outcome, RacePlan
from advisor.protocol.nodes.cluster import Node
from advisor.protocol.views import Role
from advisor.services import agents, jobs
from advisor.services.background.reaper import AwakeClock, Reaper
from advisor.services.background.scheduling import Scheduler
from advisor.services.changing import continuing, pausing, repeating
from advisor.services.measuring import races, sessions
from advisor.services.measuring.leases import Leases
from advisor.services.planning.decided import Overdue, VersionedDecision, think
from advisor.services.planning.planner_queue import PlannerQueue
from advisor.services.timers import Timers
from advisor.services.tokens import Principal
from advisor.storage import Database, UnitOfWork
from advisor.storage.fault_points import Strike, pass_by
from advisor.tuning.asked import Tuning
from tests.unit.services.scripted_tuning import ScriptedTuning, make_node, make_result, make_spec

START = datetime(2026, 1, 1, tzinfo=UTC)
ADA = Principal("ada's token", Role.SUBMITTER, "ada")
"""Who submits this world's jobs."""
ENROLMENT = Principal("enrolment", Role.AGENT, "enrolment")
"""The token that this world's agents register with."""


def count_ids() -> Iterator[str]:
    """Ids that are easy to read in a failure."""
    return (f"id{number}" for number in itertools.count(1))


class World:
    """Everything that a test of the services needs."""

    def __init__(
        self,
        url: str,
        tuning: Tuning | None = None,
        ids: Iterator[str] | None = None,
        strike: Strike = pass_by,
    ) -> None:
        ids = ids or count_ids()
        self.now = START
        self.tuning: Tuning = tuning or ScriptedTuning()
        self.timers = Timers()
        self.database = Database(url, lambda: next(ids), strike=strike)
        self.leases = Leases(self.database)
        self.elapsed_s = 0.0
        """What a clock of seconds that nobody sets shows."""
        self.reaper = self.make_reaper()
        self.overdue: Overdue = {}
        self.planner_queue = PlannerQueue(self.think, lambda run: run())

    @contextmanager
    def work(self) -> Iterator[UnitOfWork]:
        """One transaction."""
        with self.database.begin() as work:
            yield work

    def wait(self, seconds: float) -> None:
        """Let time pass, of which the server sees every moment."""
        self.reaper.look(self.now)
        self.elapsed_s += seconds
        self.now += timedelta(seconds=seconds)

    def keep_up(self, served_since: datetime | None = None) -> None:
        """Do what the keepers do at their ticks."""
        self.reaper.look(self.now)
        Scheduler(self.database, self.planner_queue, self.timers, served_since).look(self.now)

    def restart(self) -> None:
        """Do what a server does when it starts."""
        self.leases = Leases(self.database)
        self.reaper = self.make_reaper()
        self.reaper.look(self.now)
        self.planner_queue = PlannerQueue(self.think, lambda run: run())

    def think(self, job_id: str) -> VersionedDecision:
        """Ask the planner, in the thread that wants to know."""
        return think(self.database, self.tuning, job_id, self.now, self.timers, self.overdue)

    def make_reaper(self) -> Reaper:
        """A reaper that counts all the time that tests let pass: it looks before any does."""
        return Reaper(self.database, self.timers, AwakeClock(lambda: self.elapsed_s, math.inf), self.leases)

    def register(
        self, name: str, node: Node | None = None, secret: str = "its own", ends_in_s: float | None = None
    ) -> str:
        """Register an agent with a token that any number may register with; return its id."""
        request = RegisterAgent(name=name, node=node or make_node(name), secret=secret, ends_in_s=ends_in_s)
        with self.work() as work:
            if work.tokens.secret_of(ENROLMENT.token_id) is None:
                work.tokens.add(ENROLMENT.token_id, Role.AGENT, "", "no secret's hash", self.now)
            return agents.register_agent(work, request, ENROLMENT, self.now, self.timers, 10, 2).agent_id

    def poll(self, agent_id: str) -> Assignment | None:
        """Ask for work once."""
        with self.work() as work:
            if agents.holds_ending(work, agent_id):
                agents.leave_ending(work, agent_id, self.now)
            work.agents.see_all({agent_id: self.now})
        with self.database.read() as work:
            return agents.find_assignment(work, agent_id)

    def submit(self, asker: Principal = ADA, **fields: object) -> Job:
        """Submit a job."""
        with self.work() as work:
            return jobs.submit_job(work, make_spec(**fields), asker, None, self.now)

    def job(self, job_id: str) -> Job:
        """Look at a job."""
        with self.database.read() as work:
            return jobs.get_job(work, job_id)

    def history(self, job_id: str) -> JobHistory:
        """Look at everything measured for a job."""
        with self.database.read() as work:
            return jobs.get_history(work, job_id)

    def cancel(self, job_id: str) -> Job:
        """Cancel a job."""
        with self.work() as work:
            return jobs.cancel_job(work, job_id, ADA, self.now)

    def pause(self, job_id: str) -> Job:
        """Let a job start nothing new."""
        with self.work() as work:
            return pausing.pause_job(work, job_id, ADA, self.now)

    def resume(self, job_id: str) -> Job:
        """Let a paused job go on."""
        with self.work() as work:
            return pausing.resume_job(work, job_id, ADA, self.now)

    def prioritise(self, job_id: str, priority: Priority, asker: Principal = ADA) -> Job:
        """Give a job another priority."""
        with self.work() as work:
            return pausing.prioritise_job(work, job_id, priority, asker, self.now)

    def repeat(self, job_id: str, number: int, asker: Principal = ADA) -> Job:
        """Let a trial race once more."""
        with self.work() as work:
            return repeating.repeat_trial(work, job_id, number, asker, self.now)

    def extend(self, job_id: str, key: str) -> Job:
        """Give a job that has ended a minute more."""
        with self.work() as work:
            return continuing.continue_job(work, job_id, Continuation(more_seconds=60), ADA, key, self.now)

    def drain(self, agent_id: str, because: str | None) -> None:
        """Give an agent no further session, or (None) sessions again."""
        with self.work() as work:
            agents.drain_agent(work, agent_id, because)

    def beat(self, place: Assignment, agent_id: str, state: MemberState = MemberState.RUNNING) -> BeatReply:
        """Renew a session."""
        rendezvous = "127.0.0.1:29500" if place.node_rank == 0 else None
        beat = Beat(generation=place.generation, state=state, rendezvous=rendezvous)
        with self.work() as work:
            work.agents.see_all({agent_id: self.now})
            pace = self.timers.pace(work.members.count_live())
        if (known := self.leases.renew(place.session_id, agent_id, beat, pace)) is not None:
            return known
        stamp = self.leases.stamp
        with self.work() as work:
            reply = sessions.renew_session(work, place.session_id, agent_id, beat, self.now, pace)
        self.leases.remember(place.session_id, agent_id, beat, reply, stamp)
        return reply

    def next(self, place: Assignment, agent_id: str) -> NextReply:
        """Ask what is to be measured."""
        return races.next_race(
            self.database, self.planner_queue, place.session_id, agent_id, place.generation, self.now
        )

    def report(
        self,
        place: Assignment,
        agent_id: str,
        race: RacePlan,
        result: BlockResult | Sequence[BlockResult] | None = None,
    ) -> races.Accepted | races.Quarantined:
        """Report a race: one result for all arms, or each arm's own."""
        each = result if isinstance(result, Sequence) else [result or make_result()] * len(race.arms)
        results = {arm.block_id: one for arm, one in zip(race.arms, each, strict=True)}
        report = RaceReport(generation=place.generation, results=results)
        return races.report_race(
            self.database, self.tuning, place.session_id, race.race_id, agent_id, report, self.now
        )

    def end(
        self, place: Assignment, agent_id: str, outcome: Outcome = Outcome.FINISHED, reason: str = "It ended."
    ) -> None:
        """Say that every rank of a node is gone."""
        end = SessionEnd(generation=place.generation, outcome=outcome, reason=reason)
        with self.work() as work:
            sessions.leave_session(work, place.session_id, agent_id, end, self.now)

    def start_session(self, *agent_ids: str) -> list[Assignment]:
        """Let agents take up their places until the session runs."""
        self.keep_up()
        places = []
        for agent_id in agent_ids:
            place = self.poll(agent_id)
            assert place is not None
            places.append(place)
        for _ in range(2):
            for place, agent_id in zip(places, agent_ids, strict=True):
                self.beat(place, agent_id, MemberState.READY)
        return places

    def begin(self, place: Assignment, agent_id: str) -> RacePlan:
        """Begin the next race: there has to be one."""
        race = self.next(place, agent_id).race
        assert race is not None
        return race

    def measure(self, place: Assignment, agent_id: str) -> list[dict[str, Value]]:
        """Run the next race; return what its arms changed."""
        race = self.begin(place, agent_id)
        assert isinstance(self.report(place, agent_id, race), races.Accepted)
        return [arm.overrides for arm in race.arms]
