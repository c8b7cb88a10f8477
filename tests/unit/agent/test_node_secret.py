"""The secret that proves an agent: made once, private, and part of every registration."""

import json

import httpx

from advisor.protocol.nodes.cluster import Node
from agent.client import ServerClient
from agent.loop import Agent
from agent.settings import AgentSettings
from agent.trust.secrets import read_node_secret


def test_secret_is_made_once_and_is_private(tmp_path):
    secret = read_node_secret(tmp_path)
    assert len(secret) >= 43
    assert read_node_secret(tmp_path) == secret
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    other = tmp_path / "other"
    other.mkdir()
    assert read_node_secret(other) != secret


def test_agent_shows_the_same_secret_whenever_it_registers(tmp_path):
    shown = []

    def answer(request):
        shown.append(json.loads(request.content)["secret"])
        return httpx.Response(200, json={"agent_id": "7"})

    for _ in range(2):
        settings = AgentSettings(server_url="http://server", work_dir=tmp_path, name="one")
        client = ServerClient("http://server", "token", transport=httpx.MockTransport(answer))
        agent = Agent(settings, client, None, {})
        agent._register(Node(hostname="h", cpu_count=1, memory_bytes=1))
    assert shown == [read_node_secret(tmp_path)] * 2
