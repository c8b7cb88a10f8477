"""The checks of `advisor doctor`, each in the state that it warns of."""

import json
import os
from pathlib import Path

from advisor.cli.commands.operating.checks import (
    Status,
    check_agent,
    check_data_dir,
    check_launcher,
    check_server,
)

from .conftest import Run
from .fake_server import TOKEN, FakeServer


def test_missing_launcher_fails_with_a_remedy() -> None:
    check = check_launcher("no-such-launcher", {"PATH": "/nowhere"})
    assert check.status is Status.FAIL
    assert "Activate" in check.remedy


def test_data_directory_that_is_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    assert check_data_dir(tmp_path / "data").status is Status.FAIL
    assert check_data_dir(tmp_path / "new").status is Status.OK


def test_server_is_judged_by_its_answer_and_our_token(server: FakeServer, tmp_path: Path) -> None:
    good = {"ADVISOR_URL": server.url, "ADVISOR_TOKEN": TOKEN}
    assert check_server(good, tmp_path).status is Status.OK
    assert check_server({**good, "ADVISOR_TOKEN": "wrong"}, tmp_path).status is Status.FAIL
    assert check_server({**good, "ADVISOR_URL": "http://127.0.0.1:9"}, tmp_path).status is Status.FAIL
    assert "starts its own" in check_server({}, tmp_path).finding


def test_agent_tells_what_it_finds_and_what_it_lacks(tmp_path: Path) -> None:
    checks = check_agent({"PATH": os.environ["PATH"], "HOME": str(tmp_path)})
    assert "agent's guard" in {check.name for check in checks}
    assert all(check.finding for check in checks)


def test_doctor_as_json_lists_every_check(run: Run) -> None:
    result = run("doctor", "--json", "--launcher", "no-such-launcher")
    checks = {check["name"]: check["status"] for check in json.loads(result.stdout)["checks"]}
    assert {"Python", "torch", "launcher", "ports", "data directory", "testbed", "server"} <= set(checks)
    assert checks["launcher"] == "fail"
    assert result.exit_code == 1
