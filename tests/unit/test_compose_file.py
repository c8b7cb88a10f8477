"""docker-compose.yml says what our own commands understand (no engine is needed to check that)."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
OURS = {"advisor": "advisor", "advisor-agent": "agent"}


def test_services_are_the_four_and_name_only_what_exists() -> None:
    services = COMPOSE["services"]
    assert set(services) == {"database", "server", "agent-1", "agent-2"}
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in COMPOSE["volumes"]


@pytest.mark.parametrize("name", ["server", "agent-1", "agent-2"])
def test_command_uses_options_that_exist(name: str) -> None:
    program, command, *rest = COMPOSE["services"][name]["command"].split()
    module = OURS[program]
    helped = subprocess.run(
        [sys.executable, "-m", module, command, "--help"], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(ROOT), "COLUMNS": "200", "NO_COLOR": "1", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    known = set(re.findall(r"--[a-z-]+", helped.stdout))
    assert {word for word in rest if word.startswith("--")} <= known


def test_agents_read_the_token_file_that_the_server_writes() -> None:
    assert COMPOSE["services"]["server"]["environment"]["ADVISOR_DATA_DIR"] == "/data"
    for name in ("agent-1", "agent-2"):
        assert "--token-file /data/agent-token" in COMPOSE["services"][name]["command"]
