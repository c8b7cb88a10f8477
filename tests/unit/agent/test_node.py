"""The node described and sampled; rendezvous addresses; the command's edges."""

import json
import os
import socket
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from advisor.protocol.measured.telemetry import DeviceSample
from agent.backends.rendezvous import (
    find_advertised_address,
    find_interface,
    offer_rendezvous,
    split_rendezvous,
)
from agent.cli import app
from agent.devices.gpus import Reading
from agent.devices.hardware import count_numa_nodes, describe_node
from agent.devices.telemetry import Sampler
from agent.errors import Unlaunchable
from agent.sessions.spool import Spool, SpooledReport
from agent.settings import AgentSettings
from tests.no_gpus import NoGpus


class OneGpu(NoGpus):
    def sample(self):
        return Reading((DeviceSample(index=0, busy=0.5, memory_bytes=1),))


def test_node_is_described():
    node = describe_node(NoGpus())
    assert node.hostname == socket.gethostname()
    assert node.cpu_count == len(os.sched_getaffinity(0))
    assert node.telemetry == "psutil"
    assert node.torch_version
    assert all(not link.address.startswith("127.") for link in node.links)


def test_samples_are_rates_with_their_age():
    now = [100.0]
    sampler = Sampler(OneGpu(), lambda: os.getppid(), clock=lambda: now[0])
    now[0] = 101.0
    sampler.take_sample()
    now[0] = 103.5
    (sample,) = sampler.drain().samples
    assert sample.age_s == 2.5
    assert 0 <= sample.cpu <= 1
    assert 0 <= sample.session_cpu <= 1
    assert sample.memory_bytes > 0
    assert sample.devices[0].busy == 0.5
    assert sampler.drain().samples == ()


def test_two_samples_of_one_moment_are_one():
    sampler = Sampler(NoGpus(), lambda: None, clock=lambda: 5.0)
    sampler.take_sample()
    assert sampler.drain().samples == ()


def test_rendezvous_is_a_free_port_of_this_node():
    host, port = split_rendezvous(offer_rendezvous("127.0.0.1"))
    with socket.create_server((host, port)):
        assert host == "127.0.0.1"


def test_v6_rendezvous_keeps_its_brackets():
    assert split_rendezvous("[fd00::1]:4711") == ("fd00::1", 4711)


def test_address_of_another_machine_is_refused():
    with pytest.raises(Unlaunchable, match="--advertise-address"):
        offer_rendezvous("192.0.2.77")


def test_loopback_server_means_a_loopback_gang():
    assert find_advertised_address("http://127.0.0.1:8765") == "127.0.0.1"
    assert find_interface("127.0.0.1") == "lo"


@pytest.mark.parametrize("url", ["", "10.0.0.1:8765", "ftp://host"])
def test_url_without_scheme_is_refused(url, tmp_path):
    with pytest.raises(ValueError, match="--server"):
        AgentSettings(server_url=url, work_dir=tmp_path)


def test_unreadable_token_file_is_said(tmp_path):
    words = ["run", "--server", "http://127.0.0.1:1", "--token-file", str(tmp_path / "none")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "cannot be read" in result.output


def test_agent_without_a_word_about_what_it_may_start_does_not_start(tmp_path):
    result = CliRunner().invoke(app, ["run", "--server", "http://127.0.0.1:1", "--work-dir", str(tmp_path)])
    assert result.exit_code == 2
    assert "--allow-root" in result.output


def test_doctor_counts_measurements_that_were_set_aside(tmp_path):
    spool = Spool(tmp_path)
    spool.set_aside(spool.put(SpooledReport(session_id="s", race_id="b", body="{}")), "A proxy refused it.")
    result = CliRunner().invoke(app, ["doctor", "--work-dir", str(tmp_path)])
    assert "NO  reports 0 measurements wait" in result.output
    assert "A proxy refused it." in result.output
    told = json.loads(CliRunner().invoke(app, ["doctor", "--work-dir", str(tmp_path), "--json"]).stdout)
    (found,) = (finding for finding in told if finding["name"] == "reports")
    assert not found["is_fine"]
    assert "A proxy refused it." in found["sentence"]


def test_doctor_finds_what_an_agent_needs(tmp_path):
    result = CliRunner().invoke(
        app, ["doctor", "--work-dir", str(tmp_path), "--server", "http://127.0.0.1:1"]
    )
    assert result.exit_code == 1
    assert "NO  server" in result.output
    assert "ok  guard" in result.output
    assert stat.S_ISDIR(tmp_path.stat().st_mode)


def test_numa_nodes_are_counted_where_this_process_may_use_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node, cpu in ((0, 0), (0, 1), (1, 2), (2, 3)):
        (tmp_path / f"node{node}/cpu{cpu}").mkdir(parents=True)
    (tmp_path / "node3").mkdir()
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {1, 2})
    assert count_numa_nodes(tmp_path) == 2
    assert count_numa_nodes(tmp_path / "nothing") == 1
