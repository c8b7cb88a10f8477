"""Two servers on one PostgreSQL: each serves whatever it is asked, and each hears what the other one has written."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from advisor.protocol.asked.jobs import Job, JobState
from advisor.protocol.measured.trials import BlockState, JobHistory
from advisor.services.measuring import races
from advisor.services.thinking.stock import Stock
from advisor.services.tuning import Tuning
from advisor.storage import Database, UnitOfWork
from advisor.tuning.decisions import Decision
from tests.integration.server.served import FakeAgent, Served, start_gang, wait_for
from tests.integration.server.test_metrics import of, read
from tests.unit.services.scripted_tuning import ScriptedTuning
from tests.unit.services.world import World

MANY = [{"fuse_grad_size_in_MB": float(size)} for size in range(2, 12)]


def leader_of(server: Served) -> str:
    """The name of the server that leads, as this one knows it."""
    return str(server.http.get("/readyz").json()["leader"])


def leads(server: Served) -> bool:
    """Whether this server leads."""
    told = server.http.get("/readyz").json()
    return bool(told["server"] == told["leader"])


class Recording(ScriptedTuning):
    """Remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(MANY)
        self.asked: list[tuple[str, str | None]] = []

    def plan(self, job: Job, history: JobHistory, *rest: object, **more: object) -> Decision:
        """Remember, and plan."""
        self.asked.append((job.id, rest[1] if len(rest) > 1 else None))  # type: ignore[arg-type]
        return super().plan(job, history, *rest, **more)  # type: ignore[arg-type]


@pytest.fixture
def pair(postgres_url: str, tmp_path: Path) -> Iterator[Callable[..., tuple[Served, Served]]]:
    """Starts two servers on one database: the one that leads, and one that does not."""
    started: list[Served] = []

    def run(
        first: Tuning | None = None, second: Tuning | None = None, **settings: object
    ) -> tuple[Served, Served]:
        for name, tuning in (("first", first), ("second", second)):
            served = Served(
                tmp_path / name, tuning or ScriptedTuning(MANY), database_url=postgres_url, **settings
            )
            started.append(served)
            wait_for(lambda: leader_of(started[-1]) or None, "somebody leads")
            bell = served.app.state.context.database.bell
            wait_for(lambda: bell.is_heard or None, "calls are heard")  # noqa: B023
        return started[0], started[1]

    yield run
    for served in started:
        served.stop()


def test_agent_that_knows_only_a_server_that_does_not_lead_measures_a_whole_job(
    pair: Callable[..., tuple[Served, Served]],
) -> None:
    planners = Recording(), Recording()
    leader, other = pair(*planners)
    assert leads(leader)
    assert not leads(other)
    agent = FakeAgent(other, "one")
    job = other.submit()
    start_gang(agent)
    agent.hello()
    assert agent.measure_all() == 1 + len(MANY)
    agent.end()
    other.await_state(job.id, JobState.FINISHED)
    assert {session for _, session in planners[0].asked} == {None}, "the leader plans what has no session"
    assert None not in {session for _, session in planners[1].asked}
    assert [trial.number for trial in leader.history(job.id).trials] == list(range(1 + len(MANY)))


def test_messages_of_one_session_may_go_to_any_server(pair: Callable[..., tuple[Served, Served]]) -> None:
    servers = pair()
    agent = FakeAgent(servers[0], "one")
    job = servers[1].submit()
    start_gang(agent)
    count = 0
    while (race := agent.moved_to(servers[count % 2]).next()["race"]) is not None:
        assert agent.moved_to(servers[1 - count % 2]).next()["race"] == race, "the same, whoever is asked"
        assert agent.report(race).status_code == 200
        assert agent.moved_to(servers[count % 2]).report(race).status_code == 200, "the same answer again"
        count += 1
    agent.end()
    servers[0].await_state(job.id, JobState.FINISHED)
    blocks = servers[1].history(job.id).blocks
    assert [block.race for block in blocks] == list(range(1, count + 1))
    assert {block.state for block in blocks} == {BlockState.DONE}


def test_what_one_server_writes_wakes_the_other_one(pair: Callable[..., tuple[Served, Served]]) -> None:
    # By themselves keepers look once an hour, and agents would wait for theirs.
    _, other = pair(tick_s=3600, look_s=5, poll_s=25)
    agent = FakeAgent(other, "one")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(agent.poll)
        job = other.submit()
        place = waiting.result()
    assert place is not None
    assert place.job_id == job.id


def test_story_that_is_followed_at_one_server_tells_what_another_one_writes(
    pair: Callable[..., tuple[Served, Served]],
) -> None:
    leader, other = pair(tick_s=3600)
    job = leader.submit()
    headers = {"Authorization": f"Bearer {other.admin}"}
    with ThreadPoolExecutor(1) as pool:
        address = f"/api/v1/jobs/{job.id}/events/stream"
        stream = pool.submit(lambda: other.http.get(address, headers=headers).text)
        topic = f"job {job.id}"
        calls = other.app.state.context.database.bell._calls
        wait_for(lambda: calls.get(topic), "somebody follows the job")
        leader.ask("POST", f"/jobs/{job.id}:cancel")
        told = stream.result(timeout=30)
    assert "The job was cancelled." in told
    assert "event: end" in told


def test_metrics_tell_who_leads_and_the_other_one_leads_when_it_stops(
    pair: Callable[..., tuple[Served, Served]],
) -> None:
    leader, other = pair()
    assert read(leader)[of("leader")] == 1.0
    assert read(other)[of("leader")] == 0.0
    assert read(other)[of("bell_heard")] == 1.0
    leader.stop()
    wait_for(lambda: leads(other) or None, "the other one leads")
    assert read(other)[of("leader")] == 1.0
    agent = FakeAgent(other, "one")
    other.submit()
    start_gang(agent)
    assert agent.measure_all() == 1 + len(MANY)


class Holding:
    """A server's database that holds a writing transaction back before its commit, until it is let go."""

    def __init__(self, database: Database, ready: Callable[[], object]) -> None:
        self.database, self.ready = database, ready
        self.read = database.read

    @contextmanager
    def begin(self) -> Iterator[UnitOfWork]:
        """Write, and wait."""
        with self.database.begin() as work:
            yield work
            self.ready()


def test_gangs_that_ask_two_servers_at_one_moment_get_different_races(postgres_url: str) -> None:
    world = World(postgres_url, ScriptedTuning(MANY))
    world.database.migrate()
    job = world.submit(gangs=2)
    agents = [world.register(name) for name in ("one", "two")]
    (first,) = world.start_session(agents[0])
    for _ in range(2):
        world.measure(first, agents[0])
    (second,) = world.start_session(agents[1])

    def blocked() -> bool | None:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        with world.database.read() as work:
            return bool(work.connection.execute(text(query)).scalar_one()) or None

    # Both servers have thought about the same version of the job, and so of the same race.
    stocks = [Stock(world.think, lambda run: run()) for _ in range(2)]
    for stock, place in zip(stocks, (first, second), strict=True):
        stock.order(job.id, place.session_id)
    with ThreadPoolExecutor(1) as pool:
        late: list[object] = []

        def ask_other() -> None:
            late.append(
                pool.submit(
                    races.next_race,
                    world.database,
                    stocks[1],
                    second.session_id,
                    agents[1],
                    second.generation,
                    world.now,
                )
            )
            wait_for(blocked, "the other server waits")

        held = Holding(world.database, ask_other)
        mine = races.next_race(
            held,  # type: ignore[arg-type]
            stocks[0],
            first.session_id,
            agents[0],
            first.generation,
            world.now,
        )
        other = late[0].result(30)  # type: ignore[attr-defined]
    assert mine.race is not None
    assert other.race is not None
    assert mine.race.arms[0].overrides != other.race.arms[0].overrides
    issued = [block for block in world.history(job.id).blocks if block.state is BlockState.ISSUED]
    assert len({block.race for block in issued}) == 2
    world.database.close()
