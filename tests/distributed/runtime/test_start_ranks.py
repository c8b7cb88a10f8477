"""Ranks that are started without torchrun are those that torchrun starts, and end as they do."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.distributed

STARTER = Path(__file__).parents[3] / "agent" / "runtime" / "inject" / "start_ranks.py"
DESCRIBE = """
import json, os, signal, sys
what = {
    "environment": dict(os.environ), "words": sys.orig_argv, "path": sys.path, "directory": os.getcwd(),
    "leads session": os.getsid(0) == os.getpid(), "input": os.readlink("/proc/self/fd/0"),
    "signals": {s.name: str(signal.getsignal(s)) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)},
}
open(f"{sys.argv[1]}.{os.environ['RANK']}", "w").write(json.dumps(what))
"""
ONE_FAILS = """
import os, time
if os.environ["RANK"] == "1":
    raise SystemExit(3)
time.sleep(600)
"""
MEET = """
import os, torch.distributed as dist
told = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = dist.TCPStore(*told, is_master=False, wait_for_workers=False)  # as torchft does, before any group
store.add("ready", 1)
dist.init_process_group("gloo")
dist.barrier()
open(f"met.{dist.get_rank()}", "w").write(f"{store.add('ready', 0)} {os.getppid()}")
"""
DIFFERENT = {"TORCHELASTIC_ERROR_FILE", "MASTER_PORT"}
"""Variables that have to differ: where a rank's error is written."""


def launch(starter: list[str], script: Path, *words: str, ranks: int = 2) -> subprocess.Popen[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    gang = (
        "--nnodes=1",
        "--node-rank=0",
        "--rdzv-backend=static",
        "--master-addr=127.0.0.1",
        f"--master-port={port}",
    )
    environment = {
        name: value for name, value in os.environ.items() if not re.match("ADVISOR_|OMP_|PET_|TORCH", name)
    }
    command = [
        sys.executable,
        *starter,
        *gang,
        "--max-restarts=0",
        "--nproc-per-node",
        str(ranks),
        str(script),
        *words,
    ]
    return subprocess.Popen(
        command,
        cwd=script.parent,
        env=environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ranks_are_those_that_torchrun_starts(tmp_path: Path) -> None:
    script = tmp_path / "describe.py"
    script.write_text(DESCRIBE)
    for name, starter in (("ours", [str(STARTER)]), ("torchrun", ["-m", "torch.distributed.run"])):
        started = launch(starter, script, str(tmp_path / name))
        assert started.wait(60) == 0, started.stderr and started.stderr.read()
    for rank in range(2):
        ours, torchruns = (
            json.loads((tmp_path / f"{name}.{rank}").read_text()) for name in ("ours", "torchrun")
        )
        told, wanted = ours.pop("environment"), torchruns.pop("environment")
        assert {
            name for name in told.keys() | wanted.keys() if told.get(name) != wanted.get(name)
        } == DIFFERENT
        ours["words"][-1] = torchruns["words"][-1] = ""
        assert ours == torchruns


def test_launcher_keeps_the_store_as_torchrun_does(tmp_path: Path) -> None:
    script = tmp_path / "meet.py"
    script.write_text(MEET)
    started = launch([str(STARTER)], script)
    assert started.wait(60) == 0, started.stderr and started.stderr.read()
    told = [(tmp_path / f"met.{rank}").read_text() for rank in range(2)]
    assert told == [f"2 {started.pid}"] * 2


def test_rank_that_fails_ends_the_others(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(ONE_FAILS)
    started = launch([str(STARTER)], script)
    _, told = started.communicate(timeout=60)
    assert started.returncode == 1
    assert "local rank 1 ended with exitcode : 3" in told


@pytest.mark.parametrize(("ranks", "begun"), [(2, 2), (8, 1), (8, 3)])
def test_starter_that_is_asked_to_stop_leaves_no_rank(ranks: int, begun: int, tmp_path: Path) -> None:
    """Also while it still starts them."""
    script = tmp_path / "sleeps.py"
    script.write_text("import time; time.sleep(600)")
    started = launch([str(STARTER)], script, ranks=ranks)
    starter, deadline = psutil.Process(started.pid), time.monotonic() + 30
    while len(starter.children()) < begun:
        assert time.monotonic() < deadline
    started.send_signal(signal.SIGTERM)
    assert started.wait(60) == 1
    left = [
        found for found in psutil.process_iter(["cmdline"]) if str(script) in (found.info["cmdline"] or ())
    ]
    for found in left:
        found.kill()
    assert not left
