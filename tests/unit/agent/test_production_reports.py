"""`advisor run --watch`: with a server it reports there, and a token goes nowhere else."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from advisor.exporters import export
from tests.unit.exporters.conftest import advise

PRINT = "import json, os; print(json.dumps(dict(os.environ)))"


def run(
    folder: Path, options: list[str], typed: tuple[str, ...] = (), **variables: str
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the training's environment, and what its ranks are told of the watch.

    `typed`: in front of its command.
    """
    strategy = folder / "strategy.json"
    strategy.write_text(export(*advise({"num_threads": 2}), "json").content)
    kept = {name: text for name, text in os.environ.items() if not name.startswith("ADVISOR_")}
    words = [sys.executable, "-P", "-m", "agent.production", "--strategy", str(strategy), *options]
    done = subprocess.run(
        [*words, "--", *typed, sys.executable, "-c", PRINT], env={**kept, **variables}, cwd=folder, capture_output=True,
        text=True, timeout=60, check=True,
    )  # fmt: skip
    environment = json.loads(done.stdout.splitlines()[-1])
    return environment, json.loads(environment["ADVISOR_RUN"]).get("watch", {})


@pytest.mark.parametrize(
    ("variable", "kept"), [("ADVISOR_TOKEN", "token"), ("ADVISOR_TOKEN_FILE", "token_file")]
)
def test_a_watch_with_a_server_reports_to_the_job_with_the_token(
    tmp_path: Path, variable: str, kept: str
) -> None:
    environment, watch = run(tmp_path, ["--watch"], ADVISOR_URL="http://server:8765/", **{variable: "secret"})
    assert variable not in environment
    assert watch["server"].startswith("http://server:8765/api/v1/jobs/job7/runs/")
    assert watch[kept] == "secret"


def test_without_a_watch_or_a_server_no_token_goes_anywhere(tmp_path: Path) -> None:
    for options, variables in ((["--watch"], {}), ([], {"ADVISOR_URL": "http://server:8765"})):
        environment, watch = run(tmp_path, options, ADVISOR_TOKEN="secret", **variables)
        assert "server" not in watch
        assert not any("secret" in text for text in environment.values())


def test_variables_in_front_of_the_command_are_the_trainings(tmp_path: Path) -> None:
    environment, _ = run(tmp_path, [], ("FORCE_TORCHRUN=1", "WHO=typed"), WHO="outside")
    assert (environment["FORCE_TORCHRUN"], environment["WHO"]) == ("1", "typed")
