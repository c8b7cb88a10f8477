"""Telemetry: samples placed in their session's time, what they say of the blocks they fall into, and of the nodes."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import groupby

from advisor.protocol.answers.energy import Window
from advisor.protocol.asked.jobs import Job
from advisor.protocol.measured.telemetry import FlagKind, NodeFlag, SessionTelemetry, TelemetrySample
from advisor.protocol.measured.trials import Block, Session
from advisor.protocol.views import EventFacts, EventKind, Straggler
from advisor.services.jobs import get_job
from advisor.storage import UnitOfWork
from advisor.tuning.measure.stragglers import find_straggler, flag_devices
from advisor.tuning.measure.utilisation import (
    MOST_STRETCHES,
    make_series,
    measure_utilisation,
    summarise_nodes,
)

_LATE_S = 30.0
"""Samples may arrive this long after the block they belong to."""
_JUDGED_BLOCKS = 5
"""A node is judged by the latest blocks: one alone may be chance."""
_LEAST_BLOCKS = 3
_JUDGED_S = 600.0
_JUDGED_BASELINES = 4
"""A straggler is looked for in the baseline's latest blocks, over all sessions: a strategy may slow one rank down."""
_LEAST_BASELINES = 3
_SAMPLES_A_STRETCH = 4


def keep_samples(
    work: UnitOfWork, session: Session, agent_id: str, samples: Sequence[TelemetrySample], now: datetime
) -> None:
    """Store an agent's samples, and bring what is known of the blocks they fall into up to date."""
    if not samples:
        return
    arrival_s = _offset_s(session.created_at, now)
    points = [(max(0.0, min(arrival_s, arrival_s - sample.age_s)), sample) for sample in samples]
    if not work.telemetry.add(session.id, agent_id, points):
        return
    first_s = min(offset_s for offset_s, _ in points)
    recent = work.blocks.ended_since(session.id, now - timedelta(seconds=_LATE_S))
    touched = [b for b in recent if b.finished_at and _offset_s(session.created_at, b.finished_at) >= first_s]
    observe_blocks(work, session.created_at, touched)
    if touched:
        _flag_agents(work, session, any(_is_baseline(block) for block in touched), now)


def observe_blocks(work: UnitOfWork, created_at: datetime, blocks: Sequence[Block]) -> None:
    """Sum up the samples that measured blocks of a session have so far; it was created then.

    The arms of a race are measured over the same time, so that each race's samples are read once.
    """
    for (start, end), group in groupby(blocks, lambda block: (block.issued_at, block.finished_at)):
        if end is None:
            continue
        arms = [*group]
        start_s, end_s = _offset_s(created_at, start), _offset_s(created_at, end)
        if points := work.telemetry.between(blocks[0].session_id, start_s, end_s):
            ids = [arm.id for arm in arms]
            timed = _find_timed(arms, end_s)
            work.blocks.set_telemetry(ids, measure_utilisation(points), summarise_nodes(points, timed))


def _find_timed(arms: Sequence[Block], end_s: float) -> Window | None:
    """When a strategy was timed that had its race, which then ended, to itself.

    Arms of one race change faster than samples come, and after a calibration the steps were not timed last.
    """
    [block, *others] = arms
    if others or block.summary is None or block.plan.rules.calibrate or block.plan.rules.ceiling:
        return None
    return end_s - block.summary.steady_steps * block.summary.median_step_time_s, end_s


def read_series(work: UnitOfWork, job_id: str) -> SessionTelemetry:
    """Return the telemetry of a job's latest session, thinned to what a page can show. Raises JobNotFound."""
    get_job(work, job_id)
    sessions = work.sessions.of_job(job_id)
    if not sessions:
        return SessionTelemetry()
    session = sessions[-1]
    limit = MOST_STRETCHES * _SAMPLES_A_STRETCH * max(1, len(session.agents))
    return make_series(session.id, work.telemetry.of_session(session.id, limit))


def _flag_agents(work: UnitOfWork, session: Session, has_baseline: bool, now: datetime) -> None:
    """Note what speaks against the session's nodes, and tell the job's story when it is new.

    What the devices say is told when its kind changes; a straggler, which is looked for after blocks of the baseline,
    is told once per job and rank.
    """
    job = get_job(work, session.job_id)
    recent = work.blocks.finished_since(session.id, now - timedelta(seconds=_JUDGED_S))
    measured = sorted((block for block in recent if block.summary), key=lambda block: block.ordinal)
    judged = measured[-_JUDGED_BLOCKS:]
    flags: dict[str, NodeFlag] = {}
    if len(judged) >= _LEAST_BLOCKS:
        for flag in flag_devices(judged, (session,), job.cluster):
            flags.setdefault(flag.agent, flag)
    straggler = _find_straggler(work, job) if has_baseline else None
    for agent in session.agents:
        before, current = work.agents.flag_of(agent), flags.get(agent)
        if current is None and straggler is not None and straggler.agent == agent:
            current = straggler
        is_open = not has_baseline and before is not None and before.kind is FlagKind.STRAGGLER
        if current is None and is_open:
            continue
        work.agents.set_flag(agent, current)
        if current is None or (before is not None and before.kind is current.kind):
            continue
        facts = (
            None if current.rank is None else EventFacts(straggler=Straggler(agent=agent, rank=current.rank))
        )
        if facts is None or facts not in work.events.facts_of(job.id):
            kind, sentence = EventKind.SESSION, current.sentence
            work.events.append(job.id, kind, sentence, now, session_id=session.id, facts=facts)


def _find_straggler(work: UnitOfWork, job: Job) -> NodeFlag | None:
    blocks = [block for block in work.blocks.of_job(job.id) if block.summary and _is_baseline(block)]
    if len(blocks) < _LEAST_BASELINES:
        return None
    local_world_size = job.facts.local_world_size if job.facts else 1
    return find_straggler(blocks[-_JUDGED_BASELINES:], work.sessions.of_job(job.id), local_world_size)


def _is_baseline(block: Block) -> bool:
    return not block.plan.overrides


def _offset_s(created_at: datetime, moment: datetime) -> float:
    return max(0.0, (moment - created_at).total_seconds())
