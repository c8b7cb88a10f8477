"""A job on two nodes joined by a slow link finds communication knobs that are worth having."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.testbed.network import Testbed, build_testbed, unavailable_because

ROOT = Path(__file__).parents[3]
DECODER = ROOT / "agent" / "workloads" / "decoder.py"
PYTHON = sys.executable


def wait_until_ready(url: str) -> None:
    """Wait until the server answers; raises when it does not within 30 s."""
    deadline = time.monotonic() + 30
    while True:
        try:
            if httpx.get(f"{url}/readyz").is_success:
                return
        except httpx.TransportError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def tune_over(testbed: Testbed, tmp_path: Path, *options: str) -> dict:
    """Run a whole job over one agent in each namespace and return the advice."""
    data = tmp_path / "data"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ADVISOR_")}
    environment |= {
        "ADVISOR_DATA_DIR": str(data),
        "PYTHONPATH": str(ROOT),
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
    }
    environment["ADVISOR_ALLOWED_HOSTS"] = json.dumps([testbed.host_address])
    url = f"http://{testbed.host_address}:8765"
    server = subprocess.Popen(
        [PYTHON, "-m", "advisor", "serve", "--host", testbed.host_address, "--port", "8765"], env=environment
    )
    agents = []
    try:
        wait_until_ready(url)
        agents = [
            subprocess.Popen(
                [
                    *node.prefix, PYTHON, "-m", "agent", "run", "--server", url, "--name", node.name,
                    "--token-file", str(data / "agent-token"), "--work-dir", str(tmp_path / node.name),
                ],
                env=environment,
            )
            for node in testbed.nodes
        ]  # fmt: skip
        done = subprocess.run(
            [
                PYTHON, "-m", "advisor", "tune", "--nodes", "2", "--minutes", "8", "--trials", "8", "--json", *options,
                "--output", str(tmp_path / "advice"), "--", "torchrun", "--nproc-per-node", "1", str(DECODER),
                "--width", "128", "--layers", "2", "--vocabulary", "2048",
            ],
            env=environment | {"ADVISOR_URL": url, "ADVISOR_TOKEN_FILE": str(data / "admin-token")},
            cwd=tmp_path, capture_output=True, text=True, timeout=660, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout)
    finally:
        for process in [*agents, server]:
            process.terminate()
        for process in [*agents, server]:
            process.wait(timeout=20)


@pytest.mark.testbed
@pytest.mark.distributed
@pytest.mark.skipif(unavailable_because() is not None, reason=str(unavailable_because()))
@pytest.mark.timeout(720)
def test_slow_link_makes_communication_knobs_worth_having(tmp_path: Path) -> None:
    with build_testbed(nodes=2, rate="200mbit") as testbed:
        advice = tune_over(testbed, tmp_path, "--allow", "numeric")
    print(advice["headline"])
    assert advice["verdict"] == "change", advice["headline"]
    assert advice["gain"]["low"] > 1.1
    assert "fp16_allreduce" in advice["changes"]
    assert advice["diagnosis"]["bound"] == "communication"
    assert any(rung["effect"] == "convergence" for rung in advice["ladder"])
