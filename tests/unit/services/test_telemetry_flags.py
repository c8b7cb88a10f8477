"""What blocks say against a node reaches the agents page and the job's story, once, and goes when it is over."""

from advisor.protocol.messages import Beat, HelloReport, MemberState
from advisor.protocol.telemetry import FlagKind, NodeFlag, TelemetryBatch, TelemetrySample
from advisor.services import jobs, sessions, telemetry
from advisor.services.agents import list_agents

from .scripted_tuning import ScriptedTuning, make_facts, make_result
from .world import World

BATCH = TelemetryBatch(samples=(TelemetrySample(age_s=0.5, cpu=0.75, session_cpu=0.5, memory_bytes=9),))


def read_flag(world: World) -> NodeFlag | None:
    with world.database.read() as work:
        return list_agents(work, world.now).items[0].flag


def test_straggler_is_flagged_until_it_is_none(world: World) -> None:
    world.tuning = ScriptedTuning([{"num_threads": n} for n in range(1, 12)])
    agent = world.register("one")
    job = world.submit()
    (place,) = world.start_session(agent)
    hello = HelloReport(generation=place.generation, facts=make_facts(), baseline={})
    with world.work() as work:
        sessions.hear_hello(work, place.session_id, agent, hello, world.now)

    def measure(*works_s: float) -> None:
        plan = world.next(place, agent).plan
        world.wait(2)
        phases = {"forward_s": 0.05, "backward_s": 0.05}
        world.report(place, agent, plan, make_result(per_rank_work_s=works_s, phases=phases))
        beat = Beat(generation=place.generation, state=MemberState.RUNNING, telemetry=BATCH)
        with world.work() as work:
            sessions.renew_session(work, place.session_id, agent, beat, world.now, world.timers)

    for _ in range(2):
        measure(0.05, 0.09)
    assert read_flag(world) is None  # two blocks may be chance
    for _ in range(3):
        measure(0.05, 0.09)
    flag = read_flag(world)
    assert flag.kind is FlagKind.STRAGGLER
    assert "Rank 1 on one works 40.0 ms longer" in flag.sentence
    with world.database.read() as work:
        events = [event.sentence for event in jobs.list_events(work, job.id, 0, 1000)]
        series = telemetry.read_series(work, job.id)
    assert sum("Rank 1 on one" in sentence for sentence in events) == 1
    assert series.series[0].measure == "cpu"
    assert series.nodes[0].session_cpu.mean == 0.5
    block = world.history(job.id).blocks[0]
    assert block.utilisation == 0.5
    assert block.telemetry[0].memory_bytes == 9

    for _ in range(5):
        measure(0.05, 0.05)
    assert read_flag(world) is None
