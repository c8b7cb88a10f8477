"""Scheduling: jobs that lack a session get the next one, finish or fail; a gang is allocated in one transaction."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from advisor.errors import LostRace, UnreadableRecord
from advisor.protocol.asked.jobs import Job, JobState, Stage
from advisor.protocol.measured.spending import measure_time_left_s
from advisor.protocol.measured.trials import Session, SessionState
from advisor.protocol.nodes.cluster import Cluster
from advisor.protocol.views import EventKind
from advisor.services.agents import is_silent
from advisor.services.allocation.allotment import Allotment
from advisor.services.allocation.demand import Asked, Demand, Supply, find_kind
from advisor.services.ending import close_trials, end_session, finish_trials
from advisor.services.planning.decided import VersionedDecision
from advisor.services.planning.planner_queue import PlannerQueue
from advisor.services.timers import Timers
from advisor.storage import Database, UnitOfWork
from advisor.storage.fault_points import FaultPoint
from advisor.storage.repositories.accounts import Agent
from advisor.tuning.decisions import Fail, Finish, Launch

_ACTIVE = (JobState.QUEUED, JobState.RUNNING)


class Scheduler:
    """Moves on every job that holds no session, by priority and age, with agents out of an `Allotment`.

    A job whose gang could be formed once busy agents are free keeps later jobs from taking those that are idle:
    a large job is not starved by small ones. A job that asks for more agents than there are does not. Agents that
    were not heard of after `served_since` are taken for gone.

    It looks without holding anything, and writes only what has to change. It never thinks: a job whose version was
    not thought about yet keeps its place until the stock has a thought.
    """

    def __init__(
        self,
        database: Database,
        planner_queue: PlannerQueue,
        timers: Timers,
        served_since: datetime | None = None,
    ) -> None:
        self._database, self._planner_queue, self._timers = database, planner_queue, timers
        self._served_since = served_since

    def look(self, now: datetime) -> int:
        """Do what can be done now; return how many gangs were formed."""
        with self._database.read() as work:
            leaving = work.agents.leaving(now + timedelta(seconds=self._timers.leave_s))
            waiting = work.jobs.without_session()
            known = work.agents.all() if waiting else []
        for session_id, name in leaving.items():
            self._ask_to_end(session_id, f"The allocation of {name} ends.", now)
        agents = {
            agent.id: agent
            for agent in known
            if agent.revoked_at is None and not is_silent(agent, now, self._timers, self._served_since)
        }
        allotment = Allotment([_supply(agent, self._timers, now) for agent in agents.values()])
        formed = 0
        changed: list[tuple[VersionedDecision, str]] = []
        for job, decided in self._line_up(waiting, now):
            place = allotment.place(_demand(job, decided, self._timers, now))
            if decided is None:
                continue
            gang = [agents[agent_id] for agent_id in place.gang]
            formed += bool(gang) and self._apply(decided, gang, now)
            if not gang and place.waits != job.state_reason:
                changed.append((decided, place.waits))
        if changed:
            self._say_waiting(changed)
        return formed

    def _line_up(self, jobs: Sequence[Job], now: datetime) -> list[tuple[Job, VersionedDecision | None]]:
        """Finish and fail the jobs that are to, the oldest first; return the others by priority and then by age."""
        lacking: list[tuple[Job, VersionedDecision | None]] = []
        for job, decided in self._list_decided(jobs):
            if decided is None or isinstance(decided.decision, Launch):
                lacking.append((job, decided))
            else:
                self._apply(decided, (), now)
        return sorted(lacking, key=lambda one: -one[0].spec.priority.rank)

    def _list_decided(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, VersionedDecision | None]]:
        """What was thought about the jobs; those that cannot be read are left out, and say so."""
        for job in jobs:
            try:
                decided = self._planner_queue.find(job.id, job.version)
            except UnreadableRecord as error:
                with self._database.begin() as work:
                    work.jobs.set_waiting(job.id, job.version, f"{error.sentence} {error.hint}")
            else:
                yield job, decided

    def _apply(self, decided: VersionedDecision, gang: Sequence[Agent], now: datetime) -> bool:
        """Do what was decided, unless something has changed since; return whether a gang was formed."""
        try:
            with self._database.begin() as work:
                return apply_decided(work, decided, gang, now)
        except LostRace:
            return False

    def _ask_to_end(self, session_id: str, because: str, now: datetime) -> None:
        """Ask a session to end whose agents leave; what it is measuring is measured again."""
        # A session that cannot be asked now is asked at the next look.
        with suppress(LostRace, UnreadableRecord), self._database.begin() as work:
            session = work.sessions.get(session_id)
            if session is None or work.jobs.lock(session.job_id) is None:
                return
            if (session := work.sessions.get(session_id)) and not session.state.is_final:
                end_session(work, session, because, now)

    def _say_waiting(self, changed: list[tuple[VersionedDecision, str]]) -> None:
        """Say what jobs wait for, all at once: a cluster that grows by a node changes every sentence."""
        with self._database.begin() as work:
            versions = [
                work.jobs.set_waiting(decided.job_id, decided.version, sentence)
                for decided, sentence in changed
            ]
        for (decided, _), version in zip(changed, versions, strict=True):
            if version is not None:
                # What a job waits for is nothing that a decision rests on.
                self._planner_queue.renew(replace(decided, version=version))


def _supply(agent: Agent, timers: Timers, now: datetime) -> Supply:
    stays_s = math.inf if agent.ends_at is None else (agent.ends_at - now).total_seconds() - timers.leave_s
    return Supply(
        id=agent.id,
        name=agent.name,
        node=agent.node,
        is_idle=agent.session_id is None,
        stays_s=stays_s,
        objection=f"{agent.name} is set aside: {agent.flag.sentence}" if agent.flag else "",
        away="" if agent.drained_because is None else f"{agent.name} is drained: {agent.drained_because}",
    )


def _demand(job: Job, decided: VersionedDecision | None, timers: Timers, now: datetime) -> Demand:
    sessions = decided.sessions if decided else ()
    return Demand(
        job_id=job.id,
        asked=Asked.of(job.spec),
        lasts_s=timers.assemble_s + _limit_s(job, sessions, now),
        before=sessions[-1].agents if sessions else (),
        kinds=frozenset(find_kind(node) for node in job.cluster.nodes),
        is_ready=decided is not None,
    )


def _limit_s(job: Job, sessions: Sequence[Session], now: datetime) -> float:
    """How long the job's next session may last, once its gang is complete."""
    return max(0.0, min(job.spec.session_timeout_s, measure_time_left_s(job, sessions, now)))


def apply_decided(work: UnitOfWork, decided: VersionedDecision, gang: Sequence[Agent], now: datetime) -> bool:
    """Do what was decided for a job that lacks a session, if the job is still the one that was looked at.

    Returns whether a session was given to `gang`.
    """
    job = work.jobs.lock(decided.job_id)
    if job is None or job.version != decided.version or work.sessions.live_of(job.id) is not None:
        return False
    if isinstance(decided.decision, Launch):
        return _launch(work, job, decided, gang, now)
    _tell_late(work, decided, now)
    if isinstance(decided.decision, Finish) and decided.advice is not None:
        _finish(work, decided, now)
    elif isinstance(decided.decision, Fail):
        _fail(work, job, decided.decision.because, now)
    return False


def _tell_late(work: UnitOfWork, decided: VersionedDecision, now: datetime) -> None:
    if decided.late:
        work.events.append(decided.job_id, EventKind.JOB, decided.late, now)


def _launch(
    work: UnitOfWork,
    job: Job,
    decided: VersionedDecision,
    gang: Sequence[Agent],
    now: datetime,
) -> bool:
    launch = decided.decision
    if not isinstance(launch, Launch) or len(gang) != job.spec.nodes:
        return False
    # They were seen before anything was locked: each has to be idle still, on the node and for the time looked at.
    locked = {agent.id: agent for agent in work.agents.lock([agent.id for agent in gang])}
    if any(
        (found := locked.get(agent.id)) is None
        or (found.session_id, found.node, found.ends_at) != (None, agent.node, agent.ends_at)
        for agent in gang
    ):
        return False
    generation = work.jobs.start(job.id, Cluster(nodes=tuple(agent.node for agent in gang)), now)
    if generation is None:
        return False
    _tell_late(work, decided, now)
    session = Session(
        id=work.new_id(),
        job_id=job.id,
        generation=generation,
        state=SessionState.ASSEMBLING,
        because=launch.because,
        cold=launch.cold,
        created_at=now,
        limit_s=_limit_s(job, decided.sessions, now),
    )
    work.sessions.add(session)
    work.reach(FaultPoint.LEASE_GIVEN)
    for node_rank, agent in enumerate(gang):
        work.members.add(session.id, agent.id, node_rank)
    work.jobs.set_stage(job.id, launch.stage)
    names = ", ".join(agent.name for agent in gang)
    sentence = f"Session {generation} is assembling on {names}: {launch.because}"
    work.events.append(job.id, EventKind.SESSION, sentence, now, session_id=session.id)
    return True


def _finish(work: UnitOfWork, decided: VersionedDecision, now: datetime) -> None:
    if decided.advice is None:
        return
    job_id = decided.job_id
    work.reach(FaultPoint.JOB_ENDED)
    work.advice.put(decided.advice, now)
    finish_trials(work, job_id, now)
    work.jobs.move(
        job_id, JobState.FINISHED, decided.advice.headline, since=_ACTIVE, now=now, stage=Stage.DONE
    )
    work.events.append(job_id, EventKind.JOB, f"The job has finished: {decided.advice.headline}", now)


def _fail(work: UnitOfWork, job: Job, because: str, now: datetime) -> None:
    work.reach(FaultPoint.JOB_ENDED)
    close_trials(work, job.id, now)
    work.jobs.move(job.id, JobState.FAILED, because, since=_ACTIVE, now=now)
    work.events.append(job.id, EventKind.JOB, f"The job has failed: {because}", now)
