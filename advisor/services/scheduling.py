"""Scheduling: jobs that lack a session get the next one, finish or fail; a gang is allocated in one transaction."""

from collections import Counter, defaultdict
from datetime import datetime

from advisor.errors import LostRace
from advisor.protocol.cluster import Cluster, Node
from advisor.protocol.jobs import Job, JobSpec, JobState, Stage
from advisor.protocol.testbed import Testbed
from advisor.protocol.trials import Session, SessionState
from advisor.protocol.views import EventKind
from advisor.services.agents import is_silent
from advisor.services.ending import close_trials
from advisor.services.thinking import Thought, think
from advisor.services.tuning import Timers, Tuning
from advisor.storage import Database, UnitOfWork
from advisor.storage.accounts import Agent
from advisor.tuning.decisions import Fail, Finish, Launch

_ACTIVE = (JobState.QUEUED, JobState.RUNNING)


def schedule_jobs(
    database: Database, tuning: Tuning, now: datetime, timers: Timers, served_since: datetime | None = None
) -> int:
    """Move on every job that holds no session: running ones first, then by age. Return how many gangs were formed.

    A job whose gang could be formed once busy agents are free keeps later jobs from taking those that are idle:
    a large job is not starved by small ones. A job that asks for more agents than there are does not. Agents that
    no job is left to wait for may join a search as a further gang of its job. Agents that were not heard of after
    `served_since` are taken for gone.
    """
    with database.read() as work:
        waiting = work.jobs.short_of_gangs()
    formed = 0
    # Idle agents kept for jobs that came first: those of each testbed, and the real nodes (None).
    reserved: Counter[Testbed | None] = Counter()
    for job, held in waiting:
        if held and not _may_grow(database, job, now, timers, reserved[job.spec.testbed], served_since):
            continue
        thought = think(database, tuning, job.id, now, timers=timers)
        try:
            with database.begin() as work:
                launched, short = apply_thought(
                    work, thought, now, timers, reserved[job.spec.testbed], served_since
                )
        except LostRace:
            continue
        formed += launched
        reserved[job.spec.testbed] += short
    return formed


def apply_thought(
    work: UnitOfWork,
    thought: Thought,
    now: datetime,
    timers: Timers,
    reserved: int = 0,
    served_since: datetime | None = None,
) -> tuple[int, int]:
    """Do what was decided for a job that lacks a session, if the job is still the one that was looked at.

    `reserved` idle agents are kept for jobs that came first. Returns how many gangs were formed (0 or 1) and how
    many agents this job keeps reserved while it waits.
    """
    job = work.jobs.lock(thought.job.id)
    if job is None or job.version != thought.job.version:
        return 0, 0
    live = work.sessions.live_of(job.id)
    if len(live) != len(thought.history.live_sessions()):
        return 0, 0
    if thought.late:
        work.events.append(job.id, EventKind.JOB, thought.late, now)
    if isinstance(thought.decision, Launch):
        return _launch(work, job, thought.decision, now, timers, reserved, served_since)
    if live:
        return 0, 0
    if isinstance(thought.decision, Finish) and thought.advice is not None:
        _finish(work, thought, now)
    elif isinstance(thought.decision, Fail):
        _fail(work, job, thought.decision.because, now)
    return 0, 0


def _may_grow(
    database: Database,
    job: Job,
    now: datetime,
    timers: Timers,
    reserved: int,
    served_since: datetime | None,
) -> bool:
    """Whether a job that holds a session searches, and idle agents make up another gang like the one it has."""
    if job.stage is not Stage.SEARCH:
        return False
    with database.read() as work:
        connected = _list_connected(work.agents.all(), job, now, timers, served_since)
    return len(_list_idle(job, connected, True)) >= job.spec.nodes + reserved


def _list_connected(
    agents: list[Agent], job: Job, now: datetime, timers: Timers, served_since: datetime | None
) -> list[Agent]:
    heard = [agent for agent in agents if not is_silent(agent, now, timers, served_since)]
    return _choose_pool(job.spec.testbed, heard)


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
    launch: Launch,
    now: datetime,
    timers: Timers,
    reserved: int,
    served_since: datetime | None,
) -> tuple[int, int]:
    live = work.sessions.live_of(job.id)
    connected = _list_connected(work.agents.lock_all(), job, now, timers, served_since)
    idle = _list_idle(job, connected, bool(live))
    needed = job.spec.nodes
    if len(live) >= job.spec.gangs or (live and len(idle) - reserved < needed):
        return 0, 0
    if len(idle) - reserved < needed:
        work.jobs.set_waiting(job.id, _wait_sentence(job.spec, len(idle), len(connected), reserved))
        return 0, needed if len(connected) >= needed else 0
    number = min(set(range(job.spec.gangs)) - {session.gang for session in live})
    gang = _choose(work, job, idle, number)
    # What was learned about the script stays with the nodes it was learned on: further gangs are like the first.
    cluster = None if live else Cluster(nodes=tuple(agent.node for agent in gang))
    generation = work.jobs.start(job.id, cluster, now)
    if generation is None:
        return 0, 0
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
    for node_rank, agent in enumerate(gang):
        work.members.add(session.id, agent.id, node_rank)
    work.jobs.set_stage(job.id, launch.stage)
    names = ", ".join(agent.name for agent in gang)
    sentence = f"Session {generation} is assembling on {names}: {launch.because}"
    work.events.append(job.id, EventKind.SESSION, sentence, now, session_id=session.id)
    return 1, 0


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
    """The gang as it was before where it is idle, in the same order: blocks on other nodes compare badly."""
    sessions = [session for session in work.sessions.of_job(job.id) if session.gang == number]
    before = sessions[-1].agents if sessions else ()
    ranked = sorted(
        idle,
        key=lambda agent: (before.index(agent.name) if agent.name in before else len(before), agent.name),
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
    work.advice.put(thought.advice, now)
    close_trials(work, job_id, finished=True, now=now)
    work.jobs.move(
        job_id, JobState.FINISHED, thought.advice.headline, since=_ACTIVE, now=now, stage=Stage.DONE
    )
    work.events.append(job_id, EventKind.JOB, f"The job has finished: {thought.advice.headline}", now)


def _fail(work: UnitOfWork, job: Job, because: str, now: datetime) -> None:
    close_trials(work, job.id, finished=False, now=now)
    work.jobs.move(job.id, JobState.FAILED, because, since=_ACTIVE, now=now, stage=Stage.DONE)
    work.events.append(job.id, EventKind.JOB, f"The job has failed: {because}", now)
