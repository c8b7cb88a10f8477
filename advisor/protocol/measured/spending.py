"""What a job has spent so far: wall time and device-hours, from its sessions alone."""

from collections.abc import Sequence
from datetime import datetime

from advisor.protocol.asked.jobs import Job
from advisor.protocol.measured.trials import Session

_HOUR_S = 3600.0


def measure_wall_s(sessions: Sequence[Session], now: datetime) -> float:
    """Return the wall time that sessions held their gang, in seconds: from the moment that a gang was complete."""
    return sum(
        max(0.0, ((session.ended_at or now) - session.started_at).total_seconds())
        for session in sessions
        if session.started_at is not None
    )


def count_devices(job: Job) -> int:
    """Return what one gang holds: the accelerators of its nodes, or its ranks where nodes have none.

    As many as the job's nodes before the script has said how many ranks it has.
    """
    devices = sum(len(node.devices) for node in job.cluster.nodes)
    return devices or (job.facts.world_size if job.facts else job.spec.nodes)


def measure_device_hours(job: Job, sessions: Sequence[Session], now: datetime) -> float:
    """Return devices (ranks on CPU nodes) times the hours that the sessions have held them."""
    return count_devices(job) * measure_wall_s(sessions, now) / _HOUR_S


def measure_time_left_s(job: Job, sessions: Sequence[Session], now: datetime) -> float:
    """Return the wall time that the budget still grants, in seconds; negative when it is overdrawn.

    The narrower of `budget.max_seconds` and `budget.max_device_hours`.
    """
    budget = job.spec.budget
    left_s = budget.max_seconds - measure_wall_s(sessions, now)
    if budget.max_device_hours is None:
        return left_s
    hours = budget.max_device_hours - measure_device_hours(job, sessions, now)
    return min(left_s, hours * _HOUR_S / count_devices(job))


def describe_budget(job: Job, sessions: Sequence[Session], now: datetime) -> str:
    """Return the limit that is reached first, as a sentence begins: `The budget of 1800 s`."""
    budget = job.spec.budget
    by_hours = measure_time_left_s(job, sessions, now) < budget.max_seconds - measure_wall_s(sessions, now)
    if by_hours and budget.max_device_hours is not None:
        return f"The budget of {budget.max_device_hours:g} device-hours"
    return f"The budget of {budget.max_seconds:g} s"
