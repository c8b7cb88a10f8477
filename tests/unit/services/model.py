"""A model of the server in a few dictionaries: who renewed when, which report counts, who is drained.

Against it the server is held after every step: its jobs, gangs, leases and results have to fit together.
"""

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis.stateful import RuleBasedStateMachine, invariant

from advisor.errors import AdvisorError, StaleSession, Unavailable
from advisor.protocol.asked.jobs import Job, JobState
from advisor.protocol.measured.messages import Assignment, MemberState
from advisor.protocol.measured.trials import (
    BlockState,
    JobHistory,
    RacePlan,
    Session,
    SessionState,
    TrialState,
)
from advisor.services.measuring.races import Accepted, Quarantined
from advisor.storage.fault_points import FaultPoint, Side
from tests.unit.services.scripted_tuning import ScriptedTuning, make_result
from tests.unit.services.world import START, World, count_ids

AGENTS = ("one", "two", "three")
_SILENT = "No sign of life from "


class Measured(NamedTuple):
    """A race, with who was told to run it and in which place."""

    who: str
    place: Assignment
    race: RacePlan


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


class ModelOfServer(RuleBasedStateMachine):
    """Agents that remember every place they ever held, a server, and what has to hold of it whatever they do."""

    def __init__(self, make_database: Callable[[], str]) -> None:
        super().__init__()
        self.url = make_database()
        self.ids = count_ids()
        self.armed: Side | None = None
        self.renewed: dict[tuple[str, str], float] = {}
        """Session and agent -> the last second at which a beat of it was taken."""
        self.ready: set[tuple[str, str]] = set()
        """Session and agent that has said that it can launch, or more."""
        self.served_since_s = 0.0
        self.of_before: set[tuple[str, str]] = set()
        """Session and agent whose latest beat another server took."""
        self.judged: set[str] = set()
        """Lost sessions of which it was asked whether they had to be."""
        self.counts: dict[str, tuple[str, float]] = {}
        """Race -> its session and the step time of the report that counts."""
        self.drained: dict[str, int] = {}
        """Agent -> sessions that it had when it was drained."""
        self.beside = 0
        self.world = self.open()
        self.seen: dict[str, JobHistory] = {}
        self.places: dict[str, list[Assignment]] = {name: [] for name in AGENTS}
        self.races: list[Measured] = []
        self.reported: list[tuple[RacePlan, Accepted | Quarantined]] = []
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

    def start_server_again(self) -> None:
        """Stop the server and start another one: of before it knows only what is in the database."""
        self.nobody_who_renews_is_given_up()
        before = self.world.inner
        before.database.close()
        self.world = self.open()
        self.world.inner.now, self.world.inner.elapsed_s = before.now, before.elapsed_s
        self.served_since_s = before.elapsed_s
        for session in self.sessions():
            assembled = session.state is not SessionState.ASSEMBLING
            keys = {(session.id, who) for who in session.agents}
            self.of_before |= {key for key in keys if assembled or key in self.renewed}
        self.world.restart()

    def place(self, who: str, old: int) -> Assignment | None:
        """A place the agent holds or held: 0 is the latest."""
        places = self.places[who]
        return places[-1 - old] if len(places) > old else None

    def place_in(self, who: str, session_id: str) -> Assignment | None:
        return next((place for place in self.places[who] if place.session_id == session_id), None)

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

    def send_beat(self, who: str, place: Assignment, state: MemberState = MemberState.RUNNING) -> Any:
        """Renew a lease, and remember when. Whoever has said that its ranks are gone has none left to renew."""
        is_over = state is not MemberState.GONE and self.is_gone(self.session_of(place), who)
        reply = self.world.beat(place, self.agents[who], state)
        assert not is_over
        if state is not MemberState.PREPARING:
            self.ready.add((place.session_id, who))
        self.renewed[place.session_id, who] = self.world.elapsed_s
        self.of_before.discard((place.session_id, who))
        return reply

    def send_report(self, one: Measured, step_s: float = 0.1, **other: Any) -> bool:
        """Report a race twice over; return whether it counts. `other`: words of the report that are wrong."""
        expected = not other and self.expect(one, step_s)
        who, place, race = one._replace(**other)
        before = self.picture()
        answer = self.world.report(place, self.agents[who], race, make_result(step_s))
        assert isinstance(answer, Accepted) == expected, answer
        if expected:
            self.counts[race.race_id] = place.session_id, step_s
        else:
            assert self.picture() == before
        after = self.picture()
        assert self.world.report(place, self.agents[who], race, make_result(step_s)) == answer
        assert self.picture() == after
        self.reported.append((race, answer))
        return expected

    def expect(self, one: Measured, step_s: float) -> bool:
        """Whether a report is to be accepted: the first one while its race is in hand, and that one again."""
        if one.race.race_id in self.counts:
            return self.counts[one.race.race_id] == (one.place.session_id, step_s)
        cancelled = self.world.job(one.place.job_id).state is JobState.CANCELLING
        return not cancelled and not self.session_of(one.place).state.is_final

    def in_hand(self) -> list[Measured]:
        """Races that are being measured in sessions that run."""
        return [
            one
            for one in self.races
            if one.race.race_id not in self.counts
            and self.session_of(one.place).state is SessionState.RUNNING
        ]

    def session_of(self, place: Assignment) -> Session:
        sessions = self.world.history(place.job_id).sessions
        return next(session for session in sessions if session.id == place.session_id)

    def sessions(self) -> list[Session]:
        return [session for job_id in self.jobs for session in self.world.history(job_id).sessions]

    def count_sessions(self, who: str) -> int:
        return sum(who in session.agents for session in self.sessions())

    def picture(self) -> dict[str, tuple[Job, JobHistory]]:
        """Everything that counts: what was refused has changed nothing of it."""
        return {job_id: (self.world.job(job_id), self.world.history(job_id)) for job_id in self.jobs}

    @invariant()
    def invariants_hold(self) -> None:
        """All of them look at one picture of every job: reading it is what takes the time."""
        self.seen = {job_id: self.world.history(job_id) for job_id in self.jobs}
        self.sessions_and_gangs_are_single()
        self.gangs_start_when_they_are_complete()
        self.results_are_accepted_once_and_never_lost()
        self.blocks_are_measured_only_in_live_sessions()
        self.arms_of_a_race_share_their_fate()
        self.nothing_is_left_open_when_a_job_has_ended()
        self.nobody_who_renews_is_given_up()
        self.drained_agents_get_no_session()

    def sessions_and_gangs_are_single(self) -> None:
        """I1: one live session per job. I2: one live gang per agent. I3: generations grow."""
        held: Counter[str] = Counter()
        for job_id in self.jobs:
            sessions = self.seen[job_id].sessions
            live = [session for session in sessions if not session.state.is_final]
            assert len(live) <= 1
            held.update(agent for session in live for agent in session.agents)
            generations = [session.generation for session in sessions]
            assert generations == list(range(1, len(generations) + 1))
            final = self.world.job(job_id).state.is_final
            assert not (final and live)
        assert all(count == 1 for count in held.values())

    def gangs_start_when_they_are_complete(self) -> None:
        """No session runs before each of its agents can launch: the others would wait for it in vain."""
        for history in self.seen.values():
            for session in history.sessions:
                if session.state is SessionState.RUNNING:
                    assert {(session.id, who) for who in session.agents} <= self.ready

    def results_are_accepted_once_and_never_lost(self) -> None:
        """I4: a result counts for the generation it was measured in. I5: it is accepted or in quarantine."""
        accepted = {
            arm.block_id: self.counts[race.race_id]
            for race, answer in self.reported
            if isinstance(answer, Accepted)
            for arm in race.arms
        }
        blocks = {block.id: block for job_id in self.jobs for block in self.seen[job_id].blocks}
        counted = {
            block.id: (block.session_id, block.result.step_time_s[0] if block.result else None)
            for block in blocks.values()
            if block.state is BlockState.DONE
        }
        assert counted == accepted
        refused = [race for race, answer in self.reported if isinstance(answer, Quarantined)]
        with self.world.database.read() as work:
            assert all(work.blocks.quarantined(arm.block_id) for race in refused for arm in race.arms)

    def blocks_are_measured_only_in_live_sessions(self) -> None:
        for history in self.seen.values():
            live = {session.id for session in history.sessions if not session.state.is_final}
            assert {block.session_id for block in history.blocks if block.state is BlockState.ISSUED} <= live

    def arms_of_a_race_share_their_fate(self) -> None:
        """I6: all arms of a race are measured, accepted and given up together."""
        for history in self.seen.values():
            fates: dict[tuple[str, int | None], set[BlockState]] = {}
            for block in history.blocks:
                fates.setdefault((block.session_id, block.race), set()).add(block.state)
            assert all(len(fate) == 1 for fate in fates.values())

    def nothing_is_left_open_when_a_job_has_ended(self) -> None:
        for job_id, history in self.seen.items():
            if self.world.job(job_id).state.is_final:
                assert all(trial.state is TrialState.CLOSED for trial in history.trials)
                assert all(block.state is not BlockState.ISSUED for block in history.blocks)

    def nobody_who_renews_is_given_up(self) -> None:
        """Who is given up for silence was silent for a lease and its grace, or for all that a start allows."""
        for session in self.sessions():
            if session.id in self.judged or not session.reason.startswith(_SILENT):
                continue
            self.judged.add(session.id)
            silent = session.reason.removeprefix(_SILENT).split(".")[0].split(", ")
            assert all(self.silence_s(session, who) > self.longest_s(session, who) for who in silent)

    def nobody_is_waited_for_too_long(self) -> None:
        """No agent that took up its place keeps it for longer than that, in time for which a server ran."""
        for session in self.sessions():
            for who in () if session.state.is_final else session.agents:
                if (session.id, who) in self.renewed and not self.is_gone(session, who):
                    assert self.silence_s(session, who) <= self.longest_s(session, who)

    def is_gone(self, session: Session, who: str) -> bool:
        with self.world.database.read() as work:
            member = work.members.get(session.id, self.agents[who])
        return member is None or member.state is MemberState.GONE

    def longest_s(self, session: Session, who: str) -> float:
        """How long an agent may be silent while this server runs."""
        timers = self.world.timers
        is_of_before = (session.id, who) in self.of_before
        return max(timers.restart_s, 2 * timers.lease_s) if is_of_before else timers.lease_s + timers.grace_s

    def silence_s(self, session: Session, who: str) -> float:
        """Seconds for which the server that runs has heard nothing of an agent in its place."""
        return self.world.elapsed_s - max(self.served_since_s, self.heard_s(session, who))

    def heard_s(self, session: Session, who: str) -> float:
        began_s = (session.created_at - START).total_seconds()
        return float(max(began_s, self.renewed.get((session.id, who), 0.0)))

    def drained_agents_get_no_session(self) -> None:
        for who, count in self.drained.items():
            assert self.count_sessions(who) == count

    def teardown(self) -> None:
        told: dict[str, set[str]] = {"accepted": set(), "quarantined": set()}
        for race, answer in self.reported:
            told["accepted" if isinstance(answer, Accepted) else "quarantined"] |= {
                arm.block_id for arm in race.arms
            }
        with self.world.inner.database.read() as work:
            wrong = work.upkeep.find_damage() + work.upkeep.find_lost(**told)
        self.world.inner.database.close()
        assert wrong == []
