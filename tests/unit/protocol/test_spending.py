"""What a job has spent, and what its budgets leave."""

from datetime import UTC, datetime, timedelta

import pytest

from advisor.protocol.asked.jobs import Budget, Job
from advisor.protocol.measured.spending import (
    count_devices,
    describe_budget,
    measure_device_hours,
    measure_time_left_s,
    measure_wall_s,
)
from advisor.protocol.measured.trials import Session, SessionState
from advisor.protocol.nodes.cluster import Cluster, Device, Node
from tests.unit.tuning.simulated_cluster import make_job, make_spec

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def session(start: float | None, end: float | None, number: int = 1) -> Session:
    return Session(
        id=f"s{number}",
        job_id="j",
        generation=number,
        state=SessionState.ENDED if end is not None else SessionState.RUNNING,
        created_at=START,
        started_at=None if start is None else at(start),
        ended_at=None if end is None else at(end),
    )


def make(hours: float | None = None, seconds: float = 1000.0) -> Job:
    return make_job(make_spec(budget=Budget(max_seconds=seconds, max_device_hours=hours)))


@pytest.mark.parametrize(
    ("spans", "wall_s"),
    [
        ([], 0),
        ([(None, None)], 0),
        ([(0, 10)], 10),
        ([(0, 10), (20, 30)], 20),
        ([(10, None)], 90),
        ([(0, 50), (60, None)], 90),
    ],
)
def test_wall_time_is_that_of_sessions_with_a_whole_gang(
    spans: list[tuple[float | None, float | None]], wall_s: float
) -> None:
    sessions = [session(start, end, number) for number, (start, end) in enumerate(spans)]
    assert measure_wall_s(sessions, at(100)) == wall_s
    assert measure_wall_s(sessions[::-1], at(100)) == wall_s


def test_device_hours_count_every_session_and_ranks_where_nodes_have_no_devices() -> None:
    job = make()
    assert count_devices(job) == 4
    assert measure_device_hours(job, [session(0, 1800), session(0, 900, 2)], at(3600)) == pytest.approx(3.0)


def test_nodes_with_accelerators_count_those() -> None:
    card = Device(index=0, uuid="u", name="H200", memory_bytes=1)
    node = Node(hostname="n", cpu_count=8, memory_bytes=1, devices=(card,) * 8)
    job = make().model_copy(update={"cluster": Cluster(nodes=(node, node))})
    assert count_devices(job) == 16
    assert count_devices(make().model_copy(update={"facts": None})) == 2


def test_narrower_budget_counts() -> None:
    # 4 ranks, 0.5 device-hours: 450 s of one gang.
    spent = [session(0, 100)]
    assert measure_time_left_s(make(), spent, at(200)) == 900
    assert measure_time_left_s(make(hours=0.5), spent, at(200)) == pytest.approx(350)
    assert measure_time_left_s(make(hours=50), spent, at(200)) == 900
    assert measure_time_left_s(make(hours=0.05), spent, at(200)) < 0
    assert describe_budget(make(hours=0.5), spent, at(200)) == "The budget of 0.5 device-hours"
    assert describe_budget(make(hours=50), spent, at(200)) == "The budget of 1000 s"
