"""What the page of agents says of a node, and how another one is added."""

import re
from collections.abc import Callable

from starlette.testclient import TestClient

from advisor.dashboard.views.server.node_findings import FINE, LOOK, NOTE, list_findings
from advisor.protocol.nodes.cluster import Device, Link, Node
from tests.samples.job import make_agents
from tests.samples.stored import NOW, Stories, read_words

SignIn = Callable[[str], TestClient]
GPU = Device(index=0, uuid="GPU-1", name="H200", memory_bytes=2**37, driver="580.1")


def examine(**fields: object) -> dict[str, tuple[object, str]]:
    node = Node(**{"hostname": "n1", "cpu_count": 4, "memory_bytes": 2**33, "rdma": (), **fields})
    return {finding.name: (finding.chip, finding.sentence) for finding in list_findings(node)}


def test_node_that_lacks_nothing_is_fine_throughout() -> None:
    found = examine(
        devices=(GPU,), telemetry="nvml", torch_version="2.13.0", rdma=("mlx5_0",),
        links=(Link(name="eth0", address="10.0.0.1"),),
    )  # fmt: skip
    assert {chip for chip, _ in found.values()} == {FINE}
    assert found["node"][1] == "n1: 4 CPUs, 8 GiB, 1 × H200; eth0 10.0.0.1."
    assert found["driver"][1] == "580.1."


def test_what_stands_in_the_way_is_told_apart_from_what_is_good_to_know() -> None:
    found = examine(devices=(GPU,), warning="NVML does not answer.", telemetry="psutil", signed_only=True)
    assert found["node"] == (
        LOOK,
        "n1: 4 CPUs, 8 GiB, 1 × H200; no network link but loopback. NVML does not answer.",
    )
    assert found["telemetry"][0] is LOOK
    assert {name for name, (chip, _) in found.items() if chip is NOTE} == {"torch", "rdma", "signed"}


def test_node_without_an_rdma_adapter_is_said_to_use_tcp() -> None:
    assert "over TCP" in examine(rdma=())["rdma"][1]


def test_page_counts_what_to_look_at_and_names_the_command(sign_in: SignIn, stories: Stories) -> None:
    agent = make_agents(NOW)[0]
    node = agent.node.model_copy(update={"warning": "<b>too hot</b>", "telemetry": "nvml"})
    stories.connect([agent.model_copy(update={"node": node})])
    page = sign_in("adv_viewer_3_x").get("/agents").text
    assert "(1 to look at)" in page
    assert "&lt;b&gt;too hot" in page
    assert "<b>too hot" not in page
    assert "advisor-agent doctor --server http://127.0.0.1:8765" in read_words(page)
    assert "An administrator makes one" in page
    assert 'href="/tokens"' not in page


def test_empty_page_still_says_how_to_add_a_node(sign_in: SignIn, stories: Stories) -> None:
    stories.connect([])
    page = sign_in("adv_admin_1_x").get("/agents").text
    assert "No agent is known" in page
    assert "Ask a node itself" not in page
    assert '<a href="/tokens">Make one</a>' in page
    assert "srun --ntasks-per-node=1 advisor-agent run --server http://127.0.0.1:8765" in read_words(page)


def test_administrator_drains_and_resumes_an_agent(sign_in: SignIn, stories: Stories) -> None:
    agent = make_agents(NOW)[0]
    client = sign_in("adv_admin_1_x")
    key = re.search(r'name="form_key" value="([^"]+)"', client.get("/agents").text).group(1)
    page = client.post(f"/agents/{agent.id}/drain", data={"form_key": key, "reason": " <b>fans</b> "}).text
    assert stories.agents()[agent.id].drained_because == "<b>fans</b>"
    assert "Drained: &lt;b&gt;fans" in page
    assert f"/agents/{agent.id}/drain" not in page
    client.post(f"/agents/{agent.id}/resume", data={"form_key": key})
    assert stories.agents()[agent.id].drained_because is None
    client.post(f"/agents/{agent.id}/drain", data={"form_key": key, "reason": ""})
    assert (stories.agents()[agent.id].drained_because or "").startswith("Drained by ")
    assert client.post("/agents/none/drain", data={"form_key": key}).status_code == 404
    assert client.post(f"/agents/{agent.id}/drain", data={"form_key": "wrong"}).status_code == 403


def test_administrator_removes_an_agent_that_does_nothing(sign_in: SignIn, stories: Stories) -> None:
    busy = make_agents(NOW)[0]
    stories.connect([busy, busy.model_copy(update={"id": "a2", "name": "idle"})])
    client = sign_in("adv_admin_1_x")
    page = client.get("/agents").text
    key = re.search(r'name="form_key" value="([^"]+)"', page).group(1)
    assert re.findall(r'action="(/agents/\w+/remove)"', page) == ["/agents/a2/remove"]
    assert client.post("/agents/a2/remove", data={"form_key": "wrong"}).status_code == 403
    assert "/agents/a2/" not in client.post("/agents/a2/remove", data={"form_key": key}).text
    assert list(stories.agents()) == [busy.id]
    assert client.post("/agents/a2/remove", data={"form_key": key}).status_code == 404


def test_others_see_no_drain_and_may_not(sign_in: SignIn, stories: Stories) -> None:
    agent = make_agents(NOW)[0]
    client = sign_in("adv_submitter_2_x")
    assert "/drain" not in client.get("/agents").text
    assert "/remove" not in client.get("/agents").text
    key = re.search(r'name="form_key" value="([^"]+)"', client.get("/jobs").text).group(1)
    for action in ("drain", "remove"):
        assert client.post(f"/agents/{agent.id}/{action}", data={"form_key": key}).status_code == 403
    assert stories.agents()[agent.id].drained_because is None


def test_what_keeps_nccl_from_the_right_network_is_something_to_look_at() -> None:
    assert examine(network=("mlx5_0 is up.",))["network"] == (LOOK, "mlx5_0 is up.")
