"""Telemetry: samples placed in their session's time, and the utilisation of the blocks they fall into."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from statistics import fmean

from advisor.protocol.telemetry import TelemetrySample
from advisor.protocol.trials import Session
from advisor.storage import UnitOfWork

_LATE_S = 30.0
"""Samples may arrive this long after the block they belong to."""


def keep_samples(
    work: UnitOfWork, session: Session, agent_id: str, samples: Sequence[TelemetrySample], now: datetime
) -> None:
    """Store an agent's samples, and bring the utilisation of the blocks that just ended up to date."""
    if not samples:
        return
    arrival_s = _offset_s(session, now)
    points = [(max(0.0, min(arrival_s, arrival_s - sample.age_s)), sample) for sample in samples]
    if work.telemetry.add(session.id, agent_id, points):
        update_utilisation(work, session, now)


def update_utilisation(work: UnitOfWork, session: Session, now: datetime) -> None:
    """Set the utilisation of the blocks that ended lately: the mean of the samples in their window."""
    for block in work.blocks.finished_since(session.id, now - timedelta(seconds=_LATE_S)):
        if block.finished_at is None:
            continue
        start_s, end_s = _offset_s(session, block.issued_at), _offset_s(session, block.finished_at)
        if points := work.telemetry.between(session.id, start_s, end_s):
            work.blocks.set_utilisation(block.id, fmean(_busy_share(point.sample) for point in points))


def _busy_share(sample: TelemetrySample) -> float:
    """Mean device busy share, or the CPU share of the session where there are no devices; 0 to 1."""
    shares = [device.busy for device in sample.devices] or [sample.session_cpu or sample.cpu]
    return max(0.0, min(1.0, fmean(shares)))


def _offset_s(session: Session, moment: datetime) -> float:
    return max(0.0, (moment - session.created_at).total_seconds())
