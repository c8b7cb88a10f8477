"""docker-compose.yml says what our own commands understand (no engine is needed to check that)."""

import json
import re
import subprocess
import sys
import tomllib
from ipaddress import ip_network
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from advisor.settings import Settings, find_exposure

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
OURS = {"advisor": "advisor", "advisor-agent": "agent"}


def test_services_are_the_six_and_name_only_what_exists() -> None:
    services = COMPOSE["services"]
    assert set(services) == {"database", "server", "enrolment", "agent-1", "agent-2", "agent-gpu"}
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in COMPOSE["volumes"]


@pytest.mark.parametrize("name", ["server", "agent-1", "agent-2", "agent-gpu"])
def test_command_uses_options_that_exist(name: str) -> None:
    program, command, *rest = COMPOSE["services"][name]["command"].split()
    module = OURS[program]
    helped = subprocess.run(
        [sys.executable, "-m", module, command, "--help"], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(ROOT), "COLUMNS": "200", "NO_COLOR": "1", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    known = set(re.findall(r"--[a-z-]+", helped.stdout))
    assert {word for word in rest if word.startswith("--")} <= known


AGENTS = [name for name in COMPOSE["services"] if name.startswith("agent")]


def mounts_of(name: str) -> dict[str, str]:
    """A service's mounts: what is mounted, by where."""
    pairs = (volume.split(":") for volume in COMPOSE["services"][name].get("volumes", []))
    return {where: what for what, where, *_ in pairs}


def test_agents_read_the_token_file_that_the_server_writes() -> None:
    assert COMPOSE["services"]["server"]["environment"]["ADVISOR_DATA_DIR"] == "/data"
    assert mounts_of("enrolment") == {"/data": mounts_of("server")["/data"], "/enrolment": "enrolment"}
    words = COMPOSE["services"]["enrolment"]["command"].split()
    assert words == ["install", "-m", "0600", "/data/agent-token", "/enrolment/agent-token"]
    assert len(AGENTS) == 3
    for name in AGENTS:
        assert mounts_of(name)["/enrolment"] == "enrolment"
        assert "--token-file /enrolment/agent-token" in COMPOSE["services"][name]["command"]


def test_agents_never_see_the_servers_data_nor_its_environment() -> None:
    servers = set(mounts_of("server").values()) | set(mounts_of("database").values())
    assert servers == {"data", "database"}
    for name in AGENTS:
        assert not servers & set(mounts_of(name).values())
        assert not any(what.startswith((".", "/", "~")) for what in mounts_of(name).values())
        assert "environment" not in COMPOSE["services"][name]
        assert "env_file" not in COMPOSE["services"][name]


def test_each_agent_keeps_its_own_work_directory_and_runs_scripts_as_another_user() -> None:
    kept = [mounts_of(name)["/var/lib/fleet-advisor"] for name in AGENTS]
    assert kept == AGENTS
    for name in AGENTS:
        assert "--work-dir /var/lib/fleet-advisor --run-as trainer" in COMPOSE["services"][name]["command"]


def test_agents_may_mount_overlays_and_find_the_processes_of_another_user() -> None:
    for name in AGENTS:
        assert COMPOSE["services"][name]["cap_add"] == ["SYS_ADMIN", "SYS_PTRACE"]


def test_each_image_is_built_once_whichever_services_are_started() -> None:
    built = {
        name: service["build"]["target"]
        for name, service in COMPOSE["services"].items()
        if "build" in service
    }
    # The agent with GPUs is started by itself, without the two others.
    assert built == {"server": "server", "agent-1": "agent", "agent-gpu": "agent"}
    for name, service in COMPOSE["services"].items():
        if name != "database":
            kind = "agent" if name in AGENTS else "server"
            assert service["image"] == f"fleet-advisor-{kind}"


def test_services_come_back_and_say_how_they_are() -> None:
    for name, service in COMPOSE["services"].items():
        assert (service.get("restart") == "unless-stopped") == (name != "enrolment")
    for name in AGENTS:
        probe = COMPOSE["services"][name]["healthcheck"]["test"]
        assert probe[:3] == ["CMD", "python", "-c"]
        compile(probe[3], name, "exec")
        server = COMPOSE["services"][name]["command"].split("--server ")[1].split()[0]
        assert f"'{server}/readyz'" in probe[3]


def test_agents_have_memory_to_share_and_one_of_them_the_gpus() -> None:
    assert all(COMPOSE["services"][name]["shm_size"] == "8gb" for name in AGENTS)
    gpu = COMPOSE["services"]["agent-gpu"]
    (devices,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    # The image names no capabilities of the driver: NVML wants utility, CUDA compute.
    assert devices == {"driver": "nvidia", "count": "all", "capabilities": ["gpu", "compute", "utility"]}
    assert gpu["profiles"] == ["gpu"]
    assert not [
        name for name, service in COMPOSE["services"].items() if "profiles" in service and name != "agent-gpu"
    ]


def test_database_counts_as_up_only_once_others_can_reach_it() -> None:
    """The image answers on its socket while it sets itself up, and then starts again: the server found nobody."""
    assert COMPOSE["services"]["database"]["healthcheck"]["test"][1] == "pg_isready -U advisor -h 127.0.0.1"


def test_server_may_listen_where_it_is_told_to() -> None:
    environment = COMPOSE["services"]["server"]["environment"]
    (pool,) = COMPOSE["networks"]["default"]["ipam"]["config"]
    assert environment["ADVISOR_PLAIN_NETWORKS"] == json.dumps([pool["subnet"]])
    subnet = re.fullmatch(r"\$\{ADVISOR_SUBNET:-(.+)\}", pool["subnet"])
    assert subnet is not None
    networks = [subnet[1]]
    # The default network of a cloud account must not be shadowed: AWS's is 172.31.0.0/16, Docker's own 172.17.0.0/16.
    assert ip_network(subnet[1]).is_private
    assert not ip_network(subnet[1]).overlaps(ip_network("172.16.0.0/12"))
    assert all(port.startswith("127.0.0.1:") for port in COMPOSE["services"]["server"]["ports"])
    assert "ADVISOR_TRUSTED_PROXIES" not in environment, (
        "a script in an agent's container could speak for anybody"
    )
    assert find_exposure(Settings(host="0.0.0.0", plain_networks=networks)) == ""


def test_image_of_the_server_is_no_roots_and_says_how_it_is() -> None:
    base, agent, server = (ROOT / "Dockerfile").read_text().split("FROM ")[1:]
    assert "USER advisor\n" in server
    assert "HEALTHCHECK" in server
    assert "HEALTHCHECK" not in base + agent
    assert "trainer" in agent


def test_tune_may_write_where_it_is_typed_and_agents_have_that_directory_too() -> None:
    _, agent, server = (ROOT / "Dockerfile").read_text().split("FROM ")[1:]
    for image, user in ((agent, "trainer"), (server, "advisor")):
        assert re.findall(r"^WORKDIR (.*)", image, re.M) == ["/training"]
        assert f"install -d -o {user} -g {user} /training" in image


def test_image_of_the_server_installs_nothing_without_a_hash() -> None:
    base, _, server = (ROOT / "Dockerfile").read_text().split("FROM ")[1:]
    assert "pip install" not in base
    installs = re.findall(r"pip install .*", server)
    assert len(installs) == 2
    assert "--require-hashes -r requirements-server.lock" in installs[0]
    assert "--no-deps --no-build-isolation ." in installs[1]


def test_lock_holds_all_that_the_server_needs_in_versions_that_it_takes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["server"], *extras["postgres"], "hatchling"]
    lock = (ROOT / "requirements-server.lock").read_text()
    locked = dict(re.findall(r"^([a-z0-9-]+)==([^ ;]+).*\\$", lock, re.M))
    for requirement in map(Requirement, wanted):
        version = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), (requirement, version)
    blocks = re.split(r"^(?=[a-z])", lock, flags=re.M)[1:]
    assert not [block.split()[0] for block in blocks if "--hash=sha256:" not in block]
