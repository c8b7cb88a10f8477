"""What blocks say against a node reaches the agents page and the job's story, once, and goes when it is over."""

import itertools
from typing import Any

import pytest

from advisor.protocol.measured.messages import Beat, HelloReport, MemberState
from advisor.protocol.measured.results import LateRank
from advisor.protocol.measured.telemetry import (
    DeviceSample,
    FlagKind,
    NodeFlag,
    TelemetryBatch,
    TelemetrySample,
)
from advisor.protocol.views import EventFacts, Straggler
from advisor.services import jobs
from advisor.services.agents import view_agents
from advisor.services.measuring import sessions, telemetry
from advisor.services.timers import Pace, Timers
from advisor.tuning.measure.utilisation import measure_joules

from .scripted_tuning import ScriptedTuning, make_facts, make_result
from .world import World

BATCH = TelemetryBatch(samples=(TelemetrySample(age_s=0.5, cpu=0.75, session_cpu=0.5, memory_bytes=9),))


def read_flag(world: World) -> NodeFlag | None:
    with world.database.read() as work:
        return view_agents(work, world.now, Timers())[0].flag


class Measuring:
    """One session, measured block by block."""

    def __init__(self, world: World, strategies: int = 0) -> None:
        """After the baseline's blocks come so many of a strategy."""
        baselines: list[dict[str, int]] = [{} for _ in range(12)]
        world.tuning = ScriptedTuning([*[{"num_threads": n + 1} for n in range(strategies)], *baselines])
        self.world = world
        self.agent = world.register("one")
        self.job = world.submit()
        self.news = itertools.count(1)
        (self.place,) = world.start_session(self.agent)
        hello = HelloReport(generation=self.place.generation, facts=make_facts(), baseline={})
        with world.work() as work:
            sessions.hear_hello(work, self.place.session_id, self.agent, hello, world.now)

    def measure(self, *works_s: float, batch: TelemetryBatch = BATCH) -> None:
        world, place = self.world, self.place
        race = world.begin(place, self.agent)
        world.wait(2)
        phases = {"forward_s": 0.05, "backward_s": 0.05}
        more_s = max(works_s) - min(works_s)
        late = LateRank(rank=works_s.index(max(works_s)), waited_s=more_s, part="forward_s", excess_s=more_s)
        result = make_result(per_rank_work_s=works_s, phases=phases, late=late if more_s >= 0.01 else None)
        world.report(place, self.agent, race, result)
        beat = Beat(
            generation=place.generation, state=MemberState.RUNNING, news=next(self.news), telemetry=batch
        )
        with world.work() as work:
            sessions.renew_session(work, place.session_id, self.agent, beat, world.now, Pace(2.0, 30.0))

    def count_events(self, words: str) -> int:
        with self.world.database.read() as work:
            return sum(words in event.sentence for event in jobs.list_events(work, self.job.id, 0, 1000))


def test_straggler_is_flagged_until_it_is_none_and_told_once(world: World) -> None:
    session = Measuring(world)
    for _ in range(2):
        session.measure(0.05, 0.09)
    assert read_flag(world) is None  # two blocks may be chance
    session.measure(0.05, 0.09)
    flag = read_flag(world)
    assert flag.kind is FlagKind.STRAGGLER
    assert flag.rank == 1
    assert "Rank 1 on one is late: the others wait 40.0 ms" in flag.sentence
    with world.database.read() as work:
        assert work.events.facts_of(session.job.id) == [EventFacts(straggler=Straggler(agent="one", rank=1))]
    assert session.count_events("Rank 1 on one") == 1
    with world.database.read() as work:
        series = telemetry.read_series(work, session.job.id)
    assert series.series[0].measure == "cpu"
    assert series.nodes[0].session_cpu.mean == 0.5
    block = world.history(session.job.id).blocks[0]
    assert block.utilisation == 0.5
    assert block.telemetry[0].memory_bytes == 9

    for _ in range(2):
        session.measure(0.05, 0.05)
    assert read_flag(world) is None
    for _ in range(4):
        session.measure(0.05, 0.09)
    assert read_flag(world) is not None
    assert session.count_events("Rank 1 on one") == 1


def test_straggler_that_was_told_is_known_by_its_rank_and_not_by_its_sentence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = telemetry.find_straggler
    found: list[NodeFlag] = []

    def find_anew(*asked: Any) -> NodeFlag | None:
        if (flag := find(*asked)) is not None:
            found.append(flag.model_copy(update={"sentence": f"Said in words number {len(found)}."}))
            return found[-1]
        return None

    monkeypatch.setattr(telemetry, "find_straggler", find_anew)
    session = Measuring(world)
    for late_s in (0.09, 0.09, 0.09, 0.05, 0.05, 0.09, 0.09, 0.09, 0.09):
        session.measure(0.05, late_s)
    assert len(found) > 2
    assert session.count_events("Said in words") == 1


@pytest.mark.parametrize(("in_turn", "events"), [(1, 0), (2, 0), (3, 2)])
def test_ranks_that_lag_in_turn_are_told_at_most_once_each(world: World, in_turn: int, events: int) -> None:
    # Two ranks on two cores: whatever else runs there slows down now the one and now the other.
    session = Measuring(world)
    for index in range(12):
        session.measure(*((0.05, 0.09) if index // in_turn % 2 else (0.09, 0.05)))
    assert session.count_events(" is late") == events


def test_a_rank_that_only_a_strategy_slows_down_is_no_straggler(world: World) -> None:
    session = Measuring(world, strategies=5)
    session.measure(0.05, 0.05)
    for _ in range(5):
        session.measure(0.05, 0.09)
    assert read_flag(world) is None
    assert session.count_events(" is late") == 0


def test_power_is_told_of_a_strategy_that_had_its_race_to_itself(world: World) -> None:
    session = Measuring(world)
    world.tuning = ScriptedTuning([{"num_threads": 2}], beside=1)
    used = TelemetryBatch(
        samples=tuple(
            TelemetrySample(
                age_s=age_s,
                cpu=0.5,
                devices=(DeviceSample(index=0, busy=0.9, memory_bytes=1, energy_j=9000.0 - 300.0 * age_s),),
            )
            for age_s in (0.9, 0.7, 0.5, 0.3, 0.1)
        )
    )
    session.measure(0.05, 0.05, batch=used)
    session.measure(0.05, 0.05, batch=used)
    alone, *raced = world.history(session.job.id).blocks
    assert alone.telemetry[0].power_w == pytest.approx(300.0)
    assert measure_joules([alone], 1) == pytest.approx(300.0 / alone.summary.samples_per_s)
    assert measure_joules([alone], 2) is None  # the other node's devices did not tell
    assert [block.telemetry[0].power_w for block in raced] == [None, None]
    assert measure_joules([alone, *raced], 1) is measure_joules([], 1) is None
