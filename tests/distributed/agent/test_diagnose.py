"""`advisor diagnose`: a script runs once as it stands, its causes are found and counted, and nothing of it is left."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.distributed, pytest.mark.calm]

ROOT = Path(__file__).parents[3]
SCRIPT = """
import contextlib, os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

steps, cause = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo")
rank = dist.get_rank()
width = 512 if cause.startswith("accumulate") else 64
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
micro = 4 if cause.startswith("accumulate") else 1

class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 10 ** 9
    def __getitem__(self, place):
        if cause == "input":
            time.sleep(0.002)
        return torch.randn(width)

loader = iter(torch.utils.data.DataLoader(Items(), batch_size=8))
for step in range(steps):
    for part in range(micro):
        batch = next(loader)
        defers = cause == "accumulate-well" and part < micro - 1
        with model.no_sync() if defers else contextlib.nullcontext():
            model(batch).square().mean().backward()
    if cause == "own":
        time.sleep(0.02)
    if cause == "late" and rank == 1:
        time.sleep(0.03)
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def diagnose(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(steps: int | str, cause: str, *options: str) -> "subprocess.CompletedProcess[str]":
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        torchrun = ["torchrun", "--nproc-per-node", "2", "train.py", str(steps), cause]
        command = [sys.executable, "-P", "-m", "agent", "diagnose", *options, "--", *torchrun]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    return run


@pytest.mark.parametrize(
    ("cause", "name", "cost_s", "line"),
    [
        ("input", "input", 0.016, "time.sleep(0.002)"),
        ("own", "own_code", 0.02, "time.sleep(0.02)"),
        ("late", "late_rank", 0.03, "time.sleep(0.03)"),
        ("accumulate", "accumulation", None, ".backward()"),
    ],
)
def test_dearest_finding_is_the_cause_that_the_script_has(diagnose, tmp_path, cause, name, cost_s, line):
    found = diagnose(1_000_000, cause, "--json", "--trace", "trace.json")
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    first = told["found"][0]
    assert first["name"] == name, told
    [number] = [number for number, text in enumerate(SCRIPT.splitlines(), start=1) if line in text]
    assert first["where"] == f"train.py:{number}"
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    seen = [{event["name"] for event in events if event["pid"] == rank} for rank in (1, 2)]
    assert all(
        {"step 20", "data wait", "forward", "backward", "optimizer", "own code"} <= names for names in seen
    )
    assert first["remedy"]
    assert (told["ranks"], told["rate_unit"]) == (2, "samples/s")
    assert told["steps"] >= 20
    if cost_s is not None:
        assert first["cost_s"] >= 0.9 * cost_s  # a sleep lasts at least as long as it was asked for
    if cause == "accumulate":
        assert "4 times a step" in first["what"]
        assert first["saves_s"] == pytest.approx(0.75 * first["cost_s"])


def test_accumulation_that_defers_the_exchange_is_no_finding(diagnose):
    found = diagnose(1_000_000, "accumulate-well", "--json")
    assert found.returncode == 0, found.stderr
    assert "accumulation" not in [one["name"] for one in json.loads(found.stdout)["found"]]


def test_lines_say_where_the_time_goes_and_how_to_go_on(diagnose):
    found = diagnose(1_000_000, "own", "--samples-per-step", "4", "--scaling", "--price-per-hour", "2.5")
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert lines[0].startswith("2 ranks · ")
    assert lines[1].startswith("1  ")
    assert "the script's own code between the phases" in lines[1]
    assert lines[-1].startswith(
        "Prove a change:  advisor tune --minutes 10 -- torchrun --nproc-per-node 2 train.py"
    )
    assert len(lines) <= 21
    assert [line for line in lines if line.startswith("2 ranks give ") and "x of one (" in line]
    assert [line for line in lines if "of what matrices reach here (float32, " in line]
    assert [
        line for line in lines if line.startswith("The fullest rank used ") and "stayed free for it" in line
    ]
    assert "for a million samples at 2.5 an hour" in lines[-2]


def test_run_says_why_nothing_was_measured(diagnose):
    found = diagnose(2, "own")
    assert found.returncode == 1
    assert "Nothing was measured: The script ended after 2 training steps" in found.stdout


BESIDE = """
import sys
import torch
import torch._dynamo
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

has = sys.argv[1] == "has"
torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 10 ** 6
scale = torch.compile(lambda x, number: x + number, backend="eager", dynamic=False)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.spare = torch.nn.Linear(64, 64), None if has else torch.nn.Linear(64, 64)
        self.register_buffer("constant", torch.zeros(2 ** 21))

    def forward(self, x, step):
        for _ in range(500):
            x = x + 1e-6
        return scale(self.layer(x), step // 10 if has else step % 2)

dist.init_process_group("gloo")
model = DistributedDataParallel(Model(), find_unused_parameters=True, broadcast_buffers=has)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
total = torch.zeros(1)
for step in range(1_000_000):
    loss = model(torch.randn(8, 64), step).square().mean()
    loss.backward()
    total += loss.detach()
    for _ in range(20 if has else step % 50 == 49):
        dist.all_reduce(total)
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("has", ["has", "nearly"])
def test_what_stands_beside_a_step_is_found_with_its_line_and_only_where_it_is(diagnose, tmp_path, has):
    (tmp_path / "train.py").write_text(BESIDE)
    found = diagnose(has, "", "--json")
    assert found.returncode == 0, found.stderr
    told = {one["name"]: one for one in json.loads(found.stdout)["found"]}
    lines = {
        "buffers": "model = Dist",
        "collectives": "dist.all_reduce",
        "compiling": "return scale(",
    }
    if has == "nearly":
        assert not {*lines, "unused_search"} & told.keys(), told
        return
    for name, text in lines.items():
        [number] = [number for number, line in enumerate(BESIDE.splitlines(), start=1) if text in line]
        assert told[name]["where"] == f"train.py:{number}", told
    assert "all_reduce() of 4 bytes, 20 times a step" in told["collectives"]["what"]


PLAIN = """
import socket, sys, time
import torch

model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1_000_000):
    if step == 10 and len(sys.argv) > 1:
        socket.socket(socket.AF_UNIX).connect(sys.argv[1].replace("@", "\\0"))
        time.sleep(600)
    time.sleep(0.02)
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def start_plain(folder: Path, *words: str) -> "subprocess.Popen[str]":
    (folder / "plain.py").write_text(PLAIN)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    options = [] if words else ["--json"]
    command = [sys.executable, "-P", "-m", "agent", "diagnose", *options, "--", "python", "plain.py", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, **pipes)


def test_a_plain_script_that_python_starts_is_diagnosed(tmp_path):
    answer, errors = start_plain(tmp_path).communicate(timeout=120)
    told = json.loads(answer)
    assert told["ranks"] == 1, errors
    assert told["found"][0]["name"] == "own_code"
    assert told["phases"]["exposed_comm_s"] == told["phases"]["wait_s"] == 0.0
    # One product forward, and one for the weights' gradients.
    assert told["limits"]["operations_per_step"] == 2 * 2 * 8 * 64 * 8


def test_an_interrupt_ends_the_script_and_tells_what_was_seen(tmp_path):
    place = f"\0advisor-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen()
        listener.settimeout(120)
        running = start_plain(tmp_path, place.replace("\0", "@"))
        listener.accept()
        running.send_signal(signal.SIGINT)
        told, errors = running.communicate(timeout=120)
    assert running.returncode == 1, errors
    assert "Nothing was measured: SIGINT ended it" in told
    assert "Seen until then: 1 rank on cpu, a step of about " in told
