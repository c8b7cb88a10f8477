"""How many servers, and servers at all? Asked of a job that measured one setup or several."""

import pytest

from advisor.protocol.answers.forecast import Forecast, WhatIf
from advisor.protocol.asked.jobs import Budget
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.nodes.cluster import Cluster, Link, Node
from advisor.protocol.training.own_knobs import OwnKnob
from advisor.protocol.training.parameter_servers import Architecture, ParameterServers
from advisor.protocol.training.workload import Workload, WorkloadKind
from advisor.tuning.explain.forecast import ForecastImpossible, forecast
from advisor.tuning.model.parameter_servers import ServerModel, find_traffic, lay_out
from tests.unit.tuning.simulated_cluster import QUIET, SimulatedCluster, make_facts, make_job, make_spec

VARIABLES = (("w1", 262_144, 256), ("b1", 1024, 1), ("w2", 262_144, 1024), ("b2", 256, 1))
TODAY: dict[str, object] = {
    "variables": VARIABLES, "table_rows": 20_000, "table_width": 32, "rows_per_step": 250.0,
    "trainer_nodes": (0, 1), "server_nodes": (2,), "min_block": 0, "compute_s": 0.01,
}  # fmt: skip
RATE = 100_000_000


def measure(off: float = 1.0, rate: int | None = RATE, allow: Effect = Effect.EXACT) -> SimulatedCluster:
    """A job that races `servers` 1 and 2; two take `off` times what the model expects."""
    job = ParameterServers.model_validate(TODAY)
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
    nodes = tuple(Node(hostname=f"n{i}", cpu_count=2, memory_bytes=2**33, links=(link,)) for i in range(4))
    facts = make_facts(
        parameter_servers=TODAY, world_size=2, local_world_size=1, nodes=4, gradient_bytes=2 * 2**20
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
    assert all(told.effect is Effect.EXACT for told in found.setups if told.step_time_s == found.step_time_s)
    assert "servers" in found.caveat


def test_what_is_not_allowed_is_shown_and_not_chosen(measured: SimulatedCluster) -> None:
    found = ask(measured)
    assert found.setups[0].effect is Effect.CONVERGENCE
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


def test_model_that_misses_its_measurements_forecasts_nothing() -> None:
    with pytest.raises(ForecastImpossible, match="misses the step times"):
        ask(measure(off=4.0))


def test_unknown_links_are_asked_for() -> None:
    with pytest.raises(ForecastImpossible, match="what its nodes' links carry is not known"):
        ask(measure(rate=None))
