"""`advisor agents`: a node is named, taken out of use and let back in."""

from advisor.cli.tuning.follow import explain_waiting
from advisor.protocol.views import AgentView

from .conftest import Run
from .fake_server import BIRTH, FakeServer

NODE = {"hostname": "n7", "cpu_count": 8, "memory_bytes": 1}


def known(**more: object) -> dict[str, object]:
    at = BIRTH.isoformat()
    return {
        "id": "a7",
        "name": "one",
        "node": NODE,
        "state": "idle",
        "last_seen_at": at,
        "last_seen_s": 3.0,
        **more,
    }


def test_list_tells_what_each_node_is_and_why_it_is_not_used(server: FakeServer, run: Run) -> None:
    server.agents = [known(), known(id="a8", name="two", drained_because="Its fan is replaced.")]
    out = run("agents", "list").stdout
    assert "n7, no GPUs, 8 CPUs" in out
    assert "drained" in out
    assert "Its fan is replaced." in out
    assert '"drained_because"' in run("agents", "list", "--json").stdout


def test_list_tells_pool_labels_end_and_what_is_set_aside(server: FakeServer, run: Run) -> None:
    flag = {"agent": "two", "kind": "throttled", "sentence": "It is hot."}
    placed = NODE | {"pool": "gpu", "labels": {"rack": "7"}, "signed_only": True}
    server.agents = [known(node=placed, ends_in_s=7200.0), known(id="a8", name="two", flag=flag)]
    out = run("agents", "list").stdout
    for words in ("gpu", "rack=7", "signed jobs", "in 2.0 h", "set aside", "It is hot."):
        assert words in out


def test_agent_is_drained_and_resumed_by_its_name(server: FakeServer, run: Run) -> None:
    server.agents = [known(job_id="aaa1")]
    drained = run("agents", "drain", "one", "--reason", "Its fan is replaced.")
    assert "finishes what it holds for job aaa1 first" in drained.stderr + drained.stdout
    assert run("agents", "resume", "one").exit_code == 0
    assert server.tokens_wanted == [
        ("/agents/a7:drain", {"reason": "Its fan is replaced."}), ("/agents/a7:resume", {}),
    ]  # fmt: skip
    missing = run("agents", "drain", "three")
    assert missing.exit_code == 102
    assert "The server knows one" in missing.stderr


def test_agent_is_removed_by_its_name_or_its_id_once_somebody_has_agreed(
    server: FakeServer, run: Run
) -> None:
    server.agents = [known(), known(id="a8", name="two")]
    refused = run("agents", "remove", "one")
    assert refused.exit_code != 0
    assert "Remove one (n7, last seen 3 s ago)?" in refused.stderr
    assert server.tokens_wanted == []
    assert "one is removed." in (done := run("agents", "remove", "one", "--yes")).stderr + done.stdout
    assert "two is removed." in (done := run("agents", "remove", "a8", "-y")).stderr + done.stdout
    assert server.tokens_wanted == [("/agents/a7", {}), ("/agents/a8", {})]
    missing = run("agents", "remove", "three", "--yes")
    assert missing.exit_code == 102
    assert "The server knows one, two" in missing.stderr
    # The other actions are about a name.
    assert run("agents", "drain", "a8").exit_code == 102


def test_agent_that_holds_a_session_is_not_removed_and_the_reason_is_told(
    server: FakeServer, run: Run
) -> None:
    server.agents = [known(job_id="aaa1")]
    said = {"code": "agent_is_busy", "detail": "Agent one holds session s1.", "hint": "Drain it first."}
    server.problems["/agents/a7"] = 409, {"title": "Conflict", **said}
    refused = run("agents", "remove", "one", "--yes")
    assert refused.exit_code != 0
    assert "Agent one holds session s1." in refused.stderr
    assert "Drain it first." in refused.stderr


def test_who_waits_with_enough_idle_agents_is_not_told_to_start_more() -> None:
    agents = [AgentView.model_validate(known()), AgentView.model_validate(known(id="a8", name="two"))]
    assert "needs 2 idle agents, and there are 2: it begins in a moment" in explain_waiting(
        2, agents, "http://h"
    )
    assert "needs 1 idle agent, and there is 1: it begins in a moment" in explain_waiting(
        1, agents[:1], "http://h"
    )
    lacking = explain_waiting(3, agents, "http://head:8765")
    assert "needs 3 idle agents at once, and 2 of 2 are idle. Start one on each node" in lacking
    assert "--server http://head:8765" in lacking


def test_who_started_the_agents_with_the_job_is_not_told_to_start_one() -> None:
    told = explain_waiting(1, [], "http://127.0.0.1:1", own_agents=True)
    assert told.startswith("The job waits: it needs 1 idle agent at once, and none is idle.")
    assert "advisor-agent run" not in told
