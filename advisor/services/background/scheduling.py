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
from advisor.services.thinking.stock import Stock
from advisor.services.thinking.thought import Thought
from advisor.services.timers import Timers
from advisor.services.webhooks.notices import NoticeEvent, tell_webhooks
from advisor.storage import Database, UnitOfWork
from advisor.storage.fault_points import FaultPoint
from advisor.storage.repositories.accounts import Agent
from advisor.tuning.decisions import Fail, Finish, Launch

_ACTIVE = (JobState.QUEUED, JobState.RUNNING)


class Scheduler:
    """Moves on every job that holds no session, by priority and age, with agents out of an `Allotment`.

    A job whose gang could be formed once busy agents are free keeps later jobs from taking those that are idle:
    a large job is not starved by small ones. A job that asks for more agents than there are does not. Agents that
    no job is left to wait for may join a search as a further gang of its job. Agents that were not heard of after
    `served_since` are taken for gone.

    It looks without holding anything, and writes only what has to change. It never thinks: a job whose version was
    not thought about yet keeps its place until the stock has a thought.
    """

    def __init__(
        self, database: Database, stock: Stock, timers: Timers, served_since: datetime | None = None
    ) -> None:
        self._database, self._stock, self._timers = database, stock, timers
        self._served_since = served_since

    def look(self, now: datetime) -> int:
        """Do what can be done now; return how many gangs were formed."""
        with self._database.read() as work:
            leaving = work.agents.leaving(now + timedelta(seconds=self._timers.leave_s))
            waiting = work.jobs.short_of_gangs()
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
        changed: list[tuple[Thought, str]] = []
        for job, thought in self._line_up([job for job, held in waiting if not held], now):
            place = allotment.place(_demand(job, thought, self._timers, now))
            if thought is None:
                continue
            gang = [agents[agent_id] for agent_id in place.gang]
            formed += bool(gang) and self._apply(thought, gang, now)
            if not gang and place.waits != job.state_reason:
                changed.append((thought, place.waits))
        for job in [job for job, held in waiting if held and job.stage is Stage.SEARCH]:
            # The planner is asked only where there are agents for what it may say.
            if not allotment.find_further(_demand(job, None, self._timers, now)):
                continue
            for _, thought in self._list_thoughts([job]):
                if thought is None or not isinstance(thought.decision, Launch):
                    continue
                demand = _demand(job, thought, self._timers, now)
                found = allotment.find_further(demand)
                if self._apply(thought, [agents[agent_id] for agent_id in found], now):
                    allotment.give(found)
                    formed += 1
        if changed:
            self._say_waiting(changed)
        return formed

    def _line_up(self, jobs: Sequence[Job], now: datetime) -> list[tuple[Job, Thought | None]]:
        """Finish and fail the jobs that are to, the oldest first; return the others by priority and then by age."""
        lacking: list[tuple[Job, Thought | None]] = []
        for job, thought in self._list_thoughts(jobs):
            if thought is None or isinstance(thought.decision, Launch):
                lacking.append((job, thought))
            else:
                self._apply(thought, (), now)
        return sorted(lacking, key=lambda one: -one[0].spec.priority.rank)

    def _list_thoughts(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Thought | None]]:
        """What was thought about the jobs; those that cannot be read are left out, and say so."""
        for job in jobs:
            try:
                thought = self._stock.find(job.id, job.version)
            except UnreadableRecord as error:
                with self._database.begin() as work:
                    work.jobs.set_waiting(job.id, job.version, f"{error.sentence} {error.hint}")
            else:
                yield job, thought

    def _apply(self, thought: Thought, gang: Sequence[Agent], now: datetime) -> bool:
        """Do what was decided, unless something has changed since; return whether a gang was formed."""
        try:
            with self._database.begin() as work:
                return bool(apply_thought(work, thought, gang, now))
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

    def _say_waiting(self, changed: list[tuple[Thought, str]]) -> None:
        """Say what jobs wait for, all at once: a cluster that grows by a node changes every sentence."""
        with self._database.begin() as work:
            versions = [
                work.jobs.set_waiting(thought.job_id, thought.version, sentence)
                for thought, sentence in changed
            ]
        for (thought, _), version in zip(changed, versions, strict=True):
            if version is not None:
                # What a job waits for is nothing that a decision rests on.
                self._stock.renew(replace(thought, version=version))


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


def _demand(job: Job, thought: Thought | None, timers: Timers, now: datetime) -> Demand:
    sessions = thought.sessions if thought else ()
    gang = _next_gang(job, [session for session in sessions if not session.state.is_final])
    before = [session.agents for session in sessions if session.gang == gang]
    return Demand(
        job_id=job.id,
        asked=Asked.of(job.spec),
        lasts_s=timers.assemble_s + _limit_s(job, sessions, now),
        before=before[-1] if before else (),
        kinds=frozenset(find_kind(node) for node in job.cluster.nodes),
        is_ready=thought is not None,
    )


def _next_gang(job: Job, live: Sequence[Session]) -> int:
    return min(set(range(job.spec.gangs)) - {session.gang for session in live}, default=0)


def _limit_s(job: Job, sessions: Sequence[Session], now: datetime) -> float:
    """How long the job's next session may last, once its gang is complete."""
    return max(0.0, min(job.spec.session_timeout_s, measure_time_left_s(job, sessions, now)))


def apply_thought(work: UnitOfWork, thought: Thought, gang: Sequence[Agent], now: datetime) -> frozenset[str]:
    """Do what was decided for a job that lacks a session, if the job is still the one that was looked at.

    A session is given to `gang`. Returns the ids of the agents that it took.
    """
    no_agents: frozenset[str] = frozenset()
    job = work.jobs.lock(thought.job_id)
    if job is None or job.version != thought.version:
        return no_agents
    live = work.sessions.live_of(job.id)
    if len(live) != sum(not session.state.is_final for session in thought.sessions):
        return no_agents
    if isinstance(thought.decision, Launch):
        return _launch(work, job, thought, live, gang, now)
    if live:
        return no_agents
    _tell_late(work, thought, now)
    if isinstance(thought.decision, Finish) and thought.advice is not None:
        _finish(work, thought, now)
    elif isinstance(thought.decision, Fail):
        _fail(work, job, thought.decision.because, now)
    return no_agents


def _tell_late(work: UnitOfWork, thought: Thought, now: datetime) -> None:
    if thought.late:
        work.events.append(thought.job_id, EventKind.JOB, thought.late, now)


def _launch(
    work: UnitOfWork,
    job: Job,
    thought: Thought,
    live: tuple[Session, ...],
    gang: Sequence[Agent],
    now: datetime,
) -> frozenset[str]:
    launch = thought.decision
    if not isinstance(launch, Launch) or len(live) >= job.spec.gangs or len(gang) != job.spec.nodes:
        return frozenset()
    # They were seen before anything was locked: each has to be idle still, on the node and for the time looked at.
    locked = {agent.id: agent for agent in work.agents.lock([agent.id for agent in gang])}
    if any(
        (found := locked.get(agent.id)) is None
        or (found.session_id, found.node, found.ends_at) != (None, agent.node, agent.ends_at)
        for agent in gang
    ):
        return frozenset()
    # What was learned about the script stays with the nodes it was learned on: further gangs are like the first.
    cluster = None if live else Cluster(nodes=tuple(agent.node for agent in gang))
    generation = work.jobs.start(job.id, cluster, now)
    if generation is None:
        return frozenset()
    _tell_late(work, thought, now)
    session = Session(
        id=work.new_id(),
        job_id=job.id,
        generation=generation,
        gang=_next_gang(job, live),
        state=SessionState.ASSEMBLING,
        because=launch.because,
        cold=launch.cold,
        created_at=now,
        limit_s=_limit_s(job, thought.sessions, now),
    )
    work.sessions.add(session)
    work.reach(FaultPoint.LEASE_GIVEN)
    for node_rank, agent in enumerate(gang):
        work.members.add(session.id, agent.id, node_rank)
    work.jobs.set_stage(job.id, launch.stage)
    names = ", ".join(agent.name for agent in gang)
    sentence = f"Session {generation} is assembling on {names}: {launch.because}"
    work.events.append(job.id, EventKind.SESSION, sentence, now, session_id=session.id)
    return frozenset(locked)


def _finish(work: UnitOfWork, thought: Thought, now: datetime) -> None:
    if thought.advice is None:
        return
    job_id = thought.job_id
    work.reach(FaultPoint.JOB_ENDED)
    work.advice.put(thought.advice, now)
    finish_trials(work, job_id, now)
    work.jobs.move(
        job_id, JobState.FINISHED, thought.advice.headline, since=_ACTIVE, now=now, stage=Stage.DONE
    )
    work.events.append(job_id, EventKind.JOB, f"The job has finished: {thought.advice.headline}", now)
    headline, verdict = thought.advice.headline, thought.advice.verdict.value
    tell_webhooks(work, job_id, NoticeEvent.FINISHED, headline, now, verdict=verdict)


def _fail(work: UnitOfWork, job: Job, because: str, now: datetime) -> None:
    work.reach(FaultPoint.JOB_ENDED)
    close_trials(work, job.id, now)
    work.jobs.move(job.id, JobState.FAILED, because, since=_ACTIVE, now=now, stage=Stage.DONE)
    work.events.append(job.id, EventKind.JOB, f"The job has failed: {because}", now)
    tell_webhooks(work, job.id, NoticeEvent.FAILED, because, now)
