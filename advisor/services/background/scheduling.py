"""Scheduling: jobs that lack a session get the next one, finish or fail; a gang is allocated in one transaction."""

from collections import Counter, defaultdict
from dataclasses import replace
from datetime import datetime

from advisor.errors import LostRace, UnreadableRecord
from advisor.protocol.cluster import Cluster, Node
from advisor.protocol.jobs import Job, JobSpec, JobState, Stage
from advisor.protocol.testbed import Testbed
from advisor.protocol.trials import Session, SessionState
from advisor.protocol.views import EventKind
from advisor.services.agents import is_silent
from advisor.services.background.stock import Stock
from advisor.services.background.thinking import Thought
from advisor.services.ending import close_trials
from advisor.services.tuning import Timers
from advisor.services.webhooks.notices import NoticeEvent, tell_webhooks
from advisor.storage import Database, UnitOfWork
from advisor.storage.accounts import Agent
from advisor.storage.fault_points import FaultPoint
from advisor.tuning.decisions import Fail, Finish, Launch

_ACTIVE = (JobState.QUEUED, JobState.RUNNING)


class Scheduler:
    """Moves on every job that holds no session: running ones first, then by age.

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
            waiting = work.jobs.short_of_gangs()
            known = work.agents.all() if waiting else []
        connected = [
            agent
            for agent in known
            if agent.revoked_at is None and not is_silent(agent, now, self._timers, self._served_since)
        ]
        agents = [agent for agent in connected if agent.drained_because is None]
        drained = [agent for agent in connected if agent.drained_because is not None]
        formed = 0
        changed: list[tuple[Thought, str]] = []
        # Idle agents kept for jobs that came first: those of each testbed, and the real nodes (None).
        reserved: Counter[Testbed | None] = Counter()
        for job, held in waiting:
            pool = _choose_pool(job.spec.testbed, agents)
            idle = _list_idle(job, pool, bool(held))
            kept = reserved[job.spec.testbed]
            suffices = len(idle) - kept >= job.spec.nodes
            if held and not (job.stage is Stage.SEARCH and suffices):
                continue
            try:
                thought = self._stock.find(job.id, job.version)
            except UnreadableRecord as error:
                with self._database.begin() as work:
                    work.jobs.set_waiting(job.id, job.version, f"{error.sentence} {error.hint}")
                continue
            launches = thought is None or isinstance(thought.decision, Launch)
            if launches and not held and len(pool) >= job.spec.nodes and not (thought and suffices):
                reserved[job.spec.testbed] += job.spec.nodes
            if thought is None:
                continue
            if isinstance(thought.decision, Launch) and not suffices:
                sentence = _wait_sentence(job.spec, len(idle), len(pool), kept)
                sentence += "".join(f" {agent.name} is drained: {agent.drained_because}" for agent in drained)
                if sentence != job.state_reason:
                    changed.append((thought, sentence))
                continue
            try:
                with self._database.begin() as work:
                    taken = apply_thought(work, thought, idle, now)
            except LostRace:
                continue
            formed += bool(taken)
            agents = [agent for agent in agents if agent.id not in taken]
        if changed:
            self._say_waiting(changed)
        return formed

    def _say_waiting(self, changed: list[tuple[Thought, str]]) -> None:
        """Say what jobs wait for, all at once: a cluster that grows by a node changes every sentence."""
        with self._database.begin() as work:
            versions = [
                work.jobs.set_waiting(thought.job.id, thought.job.version, sentence)
                for thought, sentence in changed
            ]
        for (thought, sentence), version in zip(changed, versions, strict=True):
            if version is not None:
                # What a job waits for is nothing that a decision rests on.
                job = thought.job.model_copy(update={"version": version, "state_reason": sentence})
                self._stock.renew(replace(thought, job=job))


def apply_thought(work: UnitOfWork, thought: Thought, idle: list[Agent], now: datetime) -> frozenset[str]:
    """Do what was decided for a job that lacks a session, if the job is still the one that was looked at.

    `idle` are the agents that a gang may be formed of. Returns the ids of those that were taken.
    """
    nobody: frozenset[str] = frozenset()
    job = work.jobs.lock(thought.job.id)
    if job is None or job.version != thought.job.version:
        return nobody
    live = work.sessions.live_of(job.id)
    if len(live) != len(thought.history.live_sessions()):
        return nobody
    if isinstance(thought.decision, Launch):
        return _launch(work, job, thought, live, idle, now)
    if live:
        return nobody
    _tell_late(work, thought, now)
    if isinstance(thought.decision, Finish) and thought.advice is not None:
        _finish(work, thought, now)
    elif isinstance(thought.decision, Fail):
        _fail(work, job, thought.decision.because, now)
    return nobody


def _tell_late(work: UnitOfWork, thought: Thought, now: datetime) -> None:
    if thought.late:
        work.events.append(thought.job.id, EventKind.JOB, thought.late, now)


def _list_idle(job: Job, connected: list[Agent], further: bool) -> list[Agent]:
    """Agents without a session; for a further gang only on nodes like those that the job was looked at on."""
    idle = [agent for agent in connected if agent.session_id is None]
    known = {_describe_node(node) for node in job.cluster.nodes}
    return [agent for agent in idle if not further or _describe_node(agent.node) in known]


def _describe_node(node: Node) -> tuple[int, tuple[str, ...]]:
    return node.cpu_count, tuple(device.name for device in node.devices)


def _launch(
    work: UnitOfWork,
    job: Job,
    thought: Thought,
    live: tuple[Session, ...],
    idle: list[Agent],
    now: datetime,
) -> frozenset[str]:
    launch = thought.decision
    if not isinstance(launch, Launch) or len(live) >= job.spec.gangs:
        return frozenset()
    number = min(set(range(job.spec.gangs)) - {session.gang for session in live})
    gang = _choose(work, job, idle, number)
    # They were seen before anything was locked: each has to be idle still, and on the node that was looked at.
    locked = {agent.id: agent for agent in work.agents.lock([agent.id for agent in gang])}
    if any(
        (found := locked.get(agent.id)) is None or found.session_id is not None or found.node != agent.node
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
        gang=number,
        state=SessionState.ASSEMBLING,
        because=launch.because,
        cold=launch.cold,
        created_at=now,
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


def _choose_pool(wanted: Testbed | None, connected: list[Agent]) -> list[Agent]:
    """The agents that a gang can be taken from: real nodes, or those of the wanted testbed with the most idle ones.

    Nodes of one testbed reach neither those of another one nor real ones.
    """
    if wanted is None:
        return [agent for agent in connected if agent.node.testbed is None]
    pools: defaultdict[Testbed, list[Agent]] = defaultdict(list)
    for agent in connected:
        if agent.node.testbed is not None and agent.node.testbed.serves(wanted):
            pools[agent.node.testbed].append(agent)
    return max(pools.values(), key=lambda pool: sum(agent.session_id is None for agent in pool), default=[])


def _choose(work: UnitOfWork, job: Job, idle: list[Agent], number: int) -> list[Agent]:
    """The gang as it was before where it is idle, in the same order: blocks on other nodes compare badly.

    Nodes against which their latest blocks speak (throttled, slower than the others) come last.
    """
    sessions = [session for session in work.sessions.of_job(job.id) if session.gang == number]
    before = sessions[-1].agents if sessions else ()
    ranked = sorted(
        idle,
        key=lambda agent: (
            before.index(agent.name) if agent.name in before else len(before),
            agent.flag is not None,
            agent.name,
        ),
    )
    return ranked[: job.spec.nodes]


def _wait_sentence(spec: JobSpec, idle: int, connected: int, reserved: int) -> str:
    needed = spec.nodes
    where = f" of the testbed {spec.testbed}" if spec.testbed else ""
    sentence = f"Waiting for {needed} idle agent{'s' if needed != 1 else ''}{where}: {connected} connected, {idle} idle"
    sentence += ", kept for jobs that came first." if reserved and idle >= needed else "."
    if connected < needed:
        sentence += (
            f" Start `advisor testbed {spec.testbed}` on the server's machine."
            if spec.testbed
            else " Start `advisor-agent run` on more nodes."
        )
    return sentence


def _finish(work: UnitOfWork, thought: Thought, now: datetime) -> None:
    if thought.advice is None:
        return
    job_id = thought.job.id
    work.reach(FaultPoint.JOB_ENDED)
    work.advice.put(thought.advice, now)
    close_trials(work, job_id, finished=True, now=now)
    work.jobs.move(
        job_id, JobState.FINISHED, thought.advice.headline, since=_ACTIVE, now=now, stage=Stage.DONE
    )
    work.events.append(job_id, EventKind.JOB, f"The job has finished: {thought.advice.headline}", now)
    headline, verdict = thought.advice.headline, thought.advice.verdict.value
    tell_webhooks(work, job_id, NoticeEvent.FINISHED, headline, now, verdict=verdict)


def _fail(work: UnitOfWork, job: Job, because: str, now: datetime) -> None:
    work.reach(FaultPoint.JOB_ENDED)
    close_trials(work, job.id, finished=False, now=now)
    work.jobs.move(job.id, JobState.FAILED, because, since=_ACTIVE, now=now, stage=Stage.DONE)
    work.events.append(job.id, EventKind.JOB, f"The job has failed: {because}", now)
    tell_webhooks(work, job.id, NoticeEvent.FAILED, because, now)
