"""The parameter-server training: one result whatever travels how, proof of what was used, and an end for every role."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from parameter_server import transport

from advisor.local.record import free_port

pytestmark = pytest.mark.distributed

EXAMPLES = Path(__file__).parents[3] / "examples" / "servers"
PATIENCE_S = 280
SIZE = ["--rows", "500", "--width", "8", "--fields", "4", "--hidden", "64,16"]
TABLE = 500 * 8
IN_TURN = """
import json, sys
from parameter_server.__main__ import main
for number, words in enumerate(json.loads(sys.argv[1])):
    sys.argv[1:] = words
    if main():
        sys.exit(f"run {number} failed")
"""
"""One import of torch for many runs."""


def train_in_turn(folder: Path, runs: dict[str, str]) -> tuple[dict[str, Any], dict[str, list[dict]]]:
    """Train six steps with each run's options; return what each learnt, and its lines."""
    words = [
        [*SIZE, "--steps", "6", "--save", str(folder / name), *more.split()] for name, more in runs.items()
    ]
    done = subprocess.run(
        [sys.executable, "-c", IN_TURN, json.dumps(words)],
        cwd=EXAMPLES, env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    lines: list[list[dict]] = []
    for line in map(json.loads, done.stdout.splitlines()):
        if line.get("step") == 1:
            lines.append([])
        lines[-1].append(line)
    learnt = {}
    for name in runs:
        saved = torch.load(folder / name)
        learnt[name] = torch.cat([saved["values"][:3169], saved["table"].flatten()])
    return learnt, dict(zip(runs, lines, strict=True))


def test_every_architecture_and_mode_learns_what_it_should(tmp_path: Path) -> None:
    exact = {
        "one process": "--architecture collective --trainers 1 --batch 64",
        "collective": "--architecture collective",
        "hybrid": "--architecture hybrid --servers 2",
        "cut": "--servers 3 --min-block 100 --placement by_bytes --table dense --place together",
        "summed": "--servers 2 --placement hash_name --min-block 0 --reduce-in-node 1 --rpc-threads 1",
    }
    # Six steps more from where the first six ended; the table lies elsewhere than it did.
    resumed = {
        "twelve": "--architecture hybrid --steps 12",
        "six more": f"--servers 2 --table dense --resume {tmp_path / 'collective'}",
    }
    near = {
        "16 bits": "--architecture collective --wire 16",
        "prefetch": "--servers 2 --wire 16 --prefetch 1",
        "geo": "--mode geo --geo-k 3 --servers 2",
        "geo dense": "--mode geo --geo-k 3 --table dense",
        "async": "--mode async --servers 2",
    }
    learnt, lines = train_in_turn(tmp_path, exact | resumed | near)
    for name in exact:
        torch.testing.assert_close(learnt[name], learnt["one process"], atol=1e-7, rtol=1e-5, msg=name)
    torch.testing.assert_close(learnt["six more"], learnt["twelve"], atol=1e-7, rtol=1e-5)
    for name in near:
        difference = (learnt[name] - learnt["one process"]).abs().max().item()
        assert 1e-7 < difference < 0.5, name

    steps = {name: [line for line in of if "step" in line] for name, of in lines.items()}
    assert all(
        [line["step"] for line in of] == [1, 2, 3, 4, 5, 6] for name, of in steps.items() if name != "twelve"
    )
    assert {line["samples"] for of in steps.values() for line in of} == {64}
    dense = 4 * 3169
    assert steps["hybrid"][-1]["dense_bytes"] == steps["collective"][-1]["dense_bytes"] == dense
    assert steps["16 bits"][-1]["dense_bytes"] == dense // 2
    # Every third step of twelve is exchanged, however many of them are the first trainer's.
    assert sum(line["dense_bytes"] for line in steps["geo"]) <= 4 * dense
    cut = steps["cut"][-1]
    assert (cut["servers"], cut["blocks"]) == (3, 13)
    assert cut["largest_share"] == pytest.approx(0.337, abs=1e-3)
    # Two trainers send everything, the node's sum half of it, and all of them get everything back.
    assert sum(cut["received_bytes"]) == sum(cut["sent_bytes"]) == 2 * (dense + 4 * TABLE)
    assert dense < sum(steps["summed"][-1]["received_bytes"]) < 2 * dense
    told = next(line for line in lines["summed"] if "facts" in line)
    assert told["facts"]["parameter_servers"]["server_nodes"] == [0, 0]
    assert set(told["no_effect"]) == {"geo_k"}


def test_trainers_of_two_nodes_are_summed_up_in_each_node_first(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "parameter_server", *SIZE, "--architecture", "collective"]
    words += ["--trainers", "4", "--batch", "16", "--steps", "6", "--nodes", "2", "--trainer-nodes", "2"]
    words += [
        "--master-port",
        str(free_port()),
        "--reduce-in-node",
        "1",
        "--save",
        str(tmp_path / "two levels"),
    ]
    other = subprocess.Popen([*words, "--node-rank", "1"], cwd=EXAMPLES)
    done = subprocess.run(
        [*words, "--node-rank", "0"],
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert other.wait(timeout=PATIENCE_S) == 0
    told = next(line for line in map(json.loads, done.stdout.splitlines()) if "facts" in line)
    assert told["facts"]["parameter_servers"]["trainer_nodes"] == [0, 0, 1, 1]
    assert "reduce_in_node" not in told["no_effect"]
    learnt, _ = train_in_turn(tmp_path, {"one process": "--architecture collective --trainers 1 --batch 64"})
    saved = torch.load(tmp_path / "two levels")
    found = torch.cat([saved["values"][:3169], saved["table"].flatten()])
    torch.testing.assert_close(found, learnt["one process"], atol=1e-7, rtol=1e-5)


def test_a_killed_server_ends_every_role_with_its_name() -> None:
    words = [sys.executable, "-m", "parameter_server", *SIZE, "--servers", "2"]
    with subprocess.Popen(
        words, cwd=EXAMPLES, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        assert json.loads(started.stdout.readline())["step"] == 1
        roles = psutil.Process(started.pid).children()
        assert len(roles) == 4
        roles[-1].send_signal(signal.SIGKILL)
        _, said = started.communicate(timeout=PATIENCE_S)
    assert started.returncode == 1
    assert "The role server 1 was killed by signal 9; all roles on all nodes were ended." in said
    assert not [role for role in roles if role.is_running()]


def test_role_whose_last_word_comes_too_late_has_ended_well(monkeypatch, capsys) -> None:
    def shut_down() -> None:
        raise RuntimeError("Connection reset by peer\nException raised from …")

    monkeypatch.setattr(transport.rpc, "shutdown", shut_down)
    transport.leave()
    assert (
        capsys.readouterr().err
        == "The last word to the first trainer came too late: Connection reset by peer\n"
    )
