"""How many servers, and servers at all? Asked of a job that measured one setup or several."""

import math

import pytest

from advisor.protocol.answers.forecast import Forecast, SetupForecast, WhatIf
from advisor.protocol.asked.jobs import Budget
from advisor.protocol.kinds import Allow, Effect
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.nodes.cluster import Cluster, Link, Node
from advisor.protocol.training.own_knobs import OwnKnob
from advisor.protocol.training.parameter_servers import Architecture, Mode, ParameterServers, ServerSetup
from advisor.protocol.training.workload import Workload, WorkloadKind
from advisor.tuning.explain.forecast import ForecastImpossible, forecast
from advisor.tuning.explain.server_forecast import (
    choose_setup,
    compare_architectures,
    describe_memory,
    describe_waiting,
    list_setups,
)
from advisor.tuning.model.parameter_servers import ServerModel, find_node_bytes, find_traffic, lay_out
from tests.unit.tuning.simulated_cluster import QUIET, SimulatedCluster, make_facts, make_job, make_spec

VARIABLES = (("w1", 262_144, 256), ("b1", 1024, 1), ("w2", 262_144, 1024), ("b2", 256, 1))
TODAY: dict[str, object] = {
    "variables": VARIABLES, "table_rows": 20_000, "table_width": 32, "rows_per_step": 250.0,
    "trainer_nodes": (0, 1), "server_nodes": (2,), "min_block": 0, "compute_s": 0.01,
}  # fmt: skip
RATE = 100_000_000


def measure(
    off: float = 1.0,
    rate: int | None = RATE,
    allow: Effect = Effect.EXACT,
    memory_bytes: int = 2**33,
    today: dict[str, object] = TODAY,
) -> SimulatedCluster:
    """A job that races `servers` 1 and 2; two take `off` times what the model expects."""
    job = ParameterServers.model_validate(today)
    truth = ServerModel(RATE / 8, overhead_s=0.03)

    def speed(changes: Changes) -> float:
        setup = lay_out(job.under(changes))
        return truth.predict_step_s(job) / truth.predict_step_s(setup) / (off if changes else 1.0)

    own = OwnKnob(name="servers", values=(1, 2), baseline=1, effect=Effect.EXACT)
    spec = make_spec(
        workload=Workload(kind=WorkloadKind.COMMAND, command=("ps", "${servers}"), own=(own,)),
        nodes=4, allow=allow, budget=Budget(max_trials=3, max_seconds=4000),
    )  # fmt: skip
    link = Link(name="eth0", address="10.0.0.1", bits_per_second=rate)
    nodes = tuple(
        Node(hostname=f"n{i}", cpu_count=2, memory_bytes=memory_bytes, links=(link,)) for i in range(4)
    )
    facts = make_facts(
        parameter_servers=today, world_size=2, local_world_size=1, nodes=4, gradient_bytes=2 * 2**20
    )
    cluster = SimulatedCluster(
        make_job(spec, facts=facts, cluster=Cluster(nodes=nodes), baseline={"servers": 1}),
        noise=QUIET, speed=speed, step_s=truth.predict_step_s(job),
    )  # fmt: skip
    while not any(block.plan.overrides for block in cluster.history.done_blocks()):
        cluster.step()
    return cluster


def ask(measured: SimulatedCluster, **what: object) -> Forecast:
    return forecast(measured.job, measured.history, measured.now, WhatIf.model_validate(what))


@pytest.fixture(scope="module")
def measured() -> SimulatedCluster:
    return measure()


def test_table_says_how_many_servers_and_whether_servers_at_all(measured: SimulatedCluster) -> None:
    found = ask(measured)
    fastest = {told.setup.architecture: told.step_time_s for told in reversed(found.setups)}
    assert set(fastest) == set(Architecture)
    today = next(told for told in found.setups if not told.changes)
    assert today.step_time_s == found.baseline_step_time_s == pytest.approx(measured.step_s, rel=0.01)
    two = next(
        t for t in found.setups if t.changes.get("servers") == 2 and t.changes.get("min_block") == 8192
    )
    assert two.largest_share == pytest.approx(0.5, abs=0.01)
    # Whole variables in turn leave both matrices on one server: more servers without slicing gain nothing.
    assert ParameterServers.model_validate(TODAY).under({"servers": 2}).min_block == 0
    assert found.changes
    assert found.step_time_s < found.baseline_step_time_s / 3
    assert next(told for told in found.setups if told.changes == found.changes).effect is Effect.EXACT
    assert "servers" in found.caveat


def test_what_is_not_allowed_is_shown_and_not_chosen(measured: SimulatedCluster) -> None:
    found = ask(measured)
    ranks = [told.effect.rank for told in found.setups]
    assert ranks == sorted(ranks)
    learns = [told.setup.mode for told in found.setups if told.effect is Effect.CONVERGENCE]
    assert sorted(learns) == [Mode.ASYNC, Mode.GEO]
    assert "geo_k" not in found.changes
    assert "geo_k" in ask(measure(allow=Effect.CONVERGENCE)).changes


def test_faster_links_leave_nothing_to_choose(measured: SimulatedCluster) -> None:
    found = ask(measured, bits_per_s=100e9)
    assert found.changes == {}
    assert found.baseline_step_time_s < 0.05
    assert "Too near to tell" in found.caveat


def test_more_nodes_ask_for_more_servers(measured: SimulatedCluster) -> None:
    found = ask(measured, nodes=8)
    counts = {told.setup.servers for told in found.setups if told.setup.architecture is Architecture.SERVERS}
    assert {1, 8} <= counts
    assert found.nodes == 8
    served = next(told for told in found.setups if told.setup.architecture is Architecture.SERVERS)
    assert served.setup.servers > 1


def test_servers_of_a_job_on_one_node_have_no_link_to_cross() -> None:
    job = ParameterServers.model_validate({**TODAY, "trainer_nodes": (0, 0), "server_nodes": (0,)})
    assert find_traffic(lay_out(job.model_copy(update={"nodes": 1, "servers": 2}))).busiest == 0.0


def test_sums_inside_a_node_are_weighed_where_a_node_has_several_trainers() -> None:
    crowd = {**TODAY, "trainer_nodes": (0, 0, 0, 0, 1, 1, 1, 1), "table_rows": 0}
    setups = list_setups(lay_out(ParameterServers.model_validate(crowd)), ServerModel(RATE / 8))
    summed = next(told for told in setups if told.changes == {"reduce_in_node": True})
    today = next(told for told in setups if not told.changes)
    # Four trainers that send one sum load a link as one of them does.
    assert today.step_time_s - 0.01 == pytest.approx(4 * (summed.step_time_s - 0.01))
    assert summed.effect is Effect.EXACT
    fastest = {told.setup.architecture: told for told in reversed(setups) if told.effect is Effect.EXACT}
    # Two nodes whose trainers send one sum: two servers beside them take as long as an allreduce of the sums.
    assert all(told.setup.reduce_in_node for told in fastest.values())
    assert fastest[Architecture.SERVERS].step_time_s == pytest.approx(
        fastest[Architecture.COLLECTIVE].step_time_s, rel=0.01
    )
    alone = list_setups(lay_out(ParameterServers.model_validate(TODAY)), ServerModel(RATE / 8))
    assert not any("reduce_in_node" in told.changes for told in alone)


def test_not_waiting_is_told_with_what_it_gains_and_changes() -> None:
    setups = [
        SetupForecast(setup=ServerSetup(mode=mode), step_time_s=step_s)
        for mode, step_s in ((Mode.SYNC, 0.3), (Mode.ASYNC, 0.2))
    ]
    told = describe_waiting(setups, 0.1)
    assert "1.50 times as many steps" in told
    assert "learns otherwise" in told
    assert describe_waiting(setups, 0.6) == describe_waiting(setups[:1], 0.1) == ""


def test_what_no_node_holds_is_marked_last_and_never_chosen() -> None:
    """A table of 64 GB on nodes of 10 GiB: eight servers hold it, and the four that trainers would allow do not."""
    huge = {**TODAY, "table_rows": 500_000_000, "trainer_nodes": (0, 1, 2, 3), "server_nodes": (4,)}
    job = lay_out(ParameterServers.model_validate(huge))
    memory = 10 * 2**30
    setups = list_setups(job, ServerModel(RATE / 8), memory)
    assert [told.fits for told in setups] == sorted((told.fits for told in setups), reverse=True)
    assert {told.setup.servers for told in setups if told.fits} == {8}
    assert all(told.node_bytes <= memory for told in setups if told.fits)
    assert not any(told.fits for told in setups if told.setup.architecture is Architecture.COLLECTIVE)
    assert not next(told for told in setups if not told.changes).fits
    # Whatever it costs: what runs now would not.
    assert choose_setup(setups, Allow.EXACT, doubt=100.0).fits
    assert "no servers" not in compare_architectures(setups, Allow.EXACT, 0.1)
    assert "do not fit: a node has 10 GiB" in describe_memory(setups, memory)
    assert "Nothing here fits" in describe_memory(list_setups(job, ServerModel(RATE / 8), 2**20), 2**20)
    unknown = list_setups(job, ServerModel(RATE / 8))
    assert all(told.fits for told in unknown)
    assert "a node holds 59.6 GiB at least" in describe_memory(unknown, math.inf)
    assert "--memory" in describe_memory(unknown, math.inf)


def test_memory_of_a_jobs_own_nodes_counts() -> None:
    assert all(told.fits for told in ask(measure()).setups)
    # Trainers hold their variables twice, values and gradients, and a server its part once: 4 and 2 MiB.
    job = ParameterServers.model_validate({**TODAY, "table_rows": 0})
    assert find_node_bytes(job) == 2 * 4 * (2 * 262_144 + 1280)
    beside = job.model_copy(update={"server_nodes": (0,)})
    assert find_node_bytes(beside) == 3 * 4 * (2 * 262_144 + 1280)
    found = ask(measure(memory_bytes=5 * 2**20))
    assert not any(
        told.fits for told in found.setups if told.setup.place == "together" and told.setup.servers == 1
    )
    assert "a node has 5 MiB" in found.caveat


def test_model_that_misses_its_measurements_forecasts_nothing() -> None:
    with pytest.raises(ForecastImpossible, match="misses the step times"):
        ask(measure(off=4.0))


def test_unknown_links_are_asked_for() -> None:
    with pytest.raises(ForecastImpossible, match="what its nodes' links carry is not known"):
        ask(measure(rate=None))


def test_links_whose_rate_is_given_are_no_assumption() -> None:
    on_one_node = measure(today={**TODAY, "trainer_nodes": (0, 0), "server_nodes": (0,), "place": "together"})
    assert "give their rate to improve it" in ask(on_one_node, nodes=2).caveat
    told = ask(on_one_node, nodes=2, bits_per_s=25e9).caveat
    assert "give their rate" not in told
    assert "shared uplink" in told
