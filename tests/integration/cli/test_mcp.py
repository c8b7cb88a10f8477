"""`advisor mcp` as the SDK's own client sees it: real answers over a pipe, bounded, and nothing left of a call."""

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import psutil
import pytest
from mcp import Client, StdioServerParameters

from advisor.client import Client as ServerClient
from advisor.local.record import running_server
from advisor.protocol.asked.jobs import JobState

from .conftest import ROOT, environment_on, processes_of, start_server, wait_until

pytestmark = pytest.mark.distributed

SCRIPT = """
import sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(32, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    model(torch.randn(4, 32)).square().mean().backward()
    time.sleep(float(sys.argv[1]))
    optimizer.step()
    optimizer.zero_grad()
"""
PRINTS = """
import json, sys, time
while True:
    time.sleep(float(sys.argv[1]))
    print(json.dumps({"step_time_s": float(sys.argv[1])}), flush=True)
"""
RACE = {
    "a": "python steps.py 0.03",
    "b": "python steps.py 0.01",
    "kind": "command",
    "effect": "exact",
    "minutes": 2,
}
TRAIN = "torchrun --nproc-per-node 2 train.py"


@asynccontextmanager
async def connect(folder: Path, environment: Mapping[str, str]) -> AsyncIterator[Client]:
    """The SDK's client of a server that was started in this folder."""
    (folder / "train.py").write_text(SCRIPT)
    (folder / "steps.py").write_text(PRINTS)
    given = {**environment, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "advisor", "mcp"], env=given, cwd=folder
    )
    async with Client(server) as client:
        yield client


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []  # it has gone


def read_text(result: object) -> list[str]:
    return result.content[0].text.splitlines()  # type: ignore[attr-defined]


@pytest.mark.calm
def test_client_gets_a_diagnosis_and_the_verdict_of_a_race(tmp_path, environment):
    heard = []

    async def hear(seconds: float, total: float | None, message: str | None) -> None:
        heard.append((seconds, total, message))

    async def ask() -> None:
        async with connect(tmp_path, environment) as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            assert tools == {"diagnose", "race", "tune", "verify", "export", "lab_status", "lab_adopt"}

            found = await client.call_tool("diagnose", {"command": f"{TRAIN} 0.02"})
            assert not found.is_error, read_text(found)
            assert found.structured_content["found"][0]["name"] == "own_code"
            assert read_text(found)[0].startswith("2 ranks · ")

            found = await client.call_tool("race", RACE, progress_callback=hear)
            assert not found.is_error, read_text(found)
            told = found.structured_content
            assert told["verdict"] == "change"
            assert 1.5 < told["gain"]["low"] < told["gain"]["high"]
            assert read_text(found)[0].startswith("RESULT   B is faster than A: ")
            assert len(read_text(found)) <= 60
            assert {total for _, total, _ in heard} == {120}
            assert any("Starting a server" in message for _, _, message in heard), heard
            assert not any("/enter/" in message for _, _, message in heard)

    anyio.run(ask)


def test_call_starts_nothing_that_the_rules_do_not_allow(tmp_path, environment):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "train.py").write_text(SCRIPT)
    inside = tmp_path / "inside"
    inside.mkdir()

    async def ask() -> None:
        async with connect(inside, environment) as client:
            asked = {"command": "torchrun --nproc-per-node 2 ../outside/train.py 0.01"}
            found = await client.call_tool("diagnose", asked)
            assert found.is_error
            assert f"starts nothing outside of {inside}" in "\n".join(read_text(found))
            asked = {"command": "bash -c true"}
            found = await client.call_tool("diagnose", asked)
            assert found.is_error
            assert "allow.launchers" in "\n".join(read_text(found))

    anyio.run(ask)


def test_call_with_a_wrong_argument_starts_nothing_and_says_which(tmp_path, environment):
    wrong = {
        "race takes no min_gian, but b, a, minutes, ": {"min_gian": 2},
        " Did you mean idea?": {"ide": "wait less"},
        "race: minutes: Input should be greater than 0.": {"minutes": -1},
        "race: nodes: Input should be a valid integer": {"nodes": "two"},
    }

    async def ask() -> None:
        async with connect(tmp_path, environment) as client:
            for told, words in wrong.items():
                found = await client.call_tool("race", {**RACE, **words})
                assert found.is_error
                (line,) = read_text(found)
                assert told in line
                assert "pydantic" not in line
            found = await client.call_tool("lab_adopt", {"race": 1})
            assert found.is_error
            assert read_text(found)[0].startswith("There is no lab at ")
            (race,) = [tool for tool in (await client.list_tools()).tools if tool.name == "race"]
            assert race.input_schema["additionalProperties"] is False

    anyio.run(ask)


@pytest.mark.calm
def test_idea_is_raced_in_a_lab_and_adopted(tmp_path, environment):
    idea = tmp_path / "idea"
    idea.mkdir()
    (idea / "train.py").write_text(SCRIPT.replace("(float(sys.argv[1]))", "(float(sys.argv[1]) / 4)"))

    async def ask() -> None:
        async with connect(tmp_path, environment) as client:
            words = [sys.executable, "-m", "advisor", "lab", "open", "--minutes", "30", f"{TRAIN} 0.04"]
            await anyio.run_process(words, cwd=tmp_path, env=environment)
            asked = {"lab": ".", "idea": "wait less", "effect": "exact", "minutes": 3}
            asked["b"] = TRAIN.replace("train.py", "idea/train.py") + " 0.04"
            found = await client.call_tool("race", asked)
            assert found.structured_content["lab"]["is_told"], read_text(found)
            found = await client.call_tool("lab_adopt", {"race": 1, "minutes": 3})
            assert not found.is_error, read_text(found)
            assert found.structured_content["verdict"] == "change"
            found = await client.call_tool("lab_status", {})
            assert "GAINS    race 1; adopted: race 1" in read_text(found)

    anyio.run(ask)


def test_cancelled_call_leaves_no_process_and_the_next_one_is_answered(tmp_path, data_dir, environment):
    async def ask() -> None:
        async with connect(tmp_path, environment) as client:
            served = {process.pid for process in processes_of(data_dir)}
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "race", RACE)
                runs = lambda: any("steps.py" in words_of(process) for process in processes_of(data_dir))  # noqa: E731
                await anyio.to_thread.run_sync(wait_until, runs, "a training runs")
                tasks.cancel_scope.cancel()
            ends = lambda: {process.pid for process in processes_of(data_dir)} == served  # noqa: E731
            await anyio.to_thread.run_sync(wait_until, ends, "every process of the call is gone")
            found = await client.call_tool("export", {"job": "nothing"})
            assert found.is_error
            assert found.structured_content["code"] == "not_found"

    anyio.run(ask)


def test_cancelled_call_cancels_its_job_on_a_server(tmp_path):
    operator = environment_on(tmp_path / "data")
    serving = start_server(tmp_path / "data", operator)
    record = running_server(tmp_path / "data")
    token = (tmp_path / "data" / "admin-token").read_text().strip()
    given = {**environment_on(tmp_path / "mine"), "ADVISOR_URL": record.url, "ADVISOR_TOKEN": token}

    async def ask() -> None:
        with ServerClient(record.url, token) as there:
            is_in = lambda state: [job.state for job in there.list_jobs().items] == [state]  # noqa: E731
            async with connect(tmp_path, given) as client:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(client.call_tool, "race", RACE)
                    queued = lambda: is_in(JobState.QUEUED)  # noqa: E731
                    await anyio.to_thread.run_sync(wait_until, queued, "the job waits for an agent")
                    tasks.cancel_scope.cancel()
                cancelled = lambda: is_in(JobState.CANCELLED)  # noqa: E731
                await anyio.to_thread.run_sync(wait_until, cancelled, "the job is cancelled")

    try:
        anyio.run(ask)
    finally:
        serving.terminate()
        serving.communicate(timeout=30)


def test_server_that_was_started_in_the_root_asks_for_a_folder(environment):
    import subprocess

    ended = subprocess.run(
        [sys.executable, "-m", "advisor", "mcp"], cwd="/", env={**environment, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "--allow-root DIR" in ended.stderr


def test_server_whose_client_was_killed_ends_without_a_traceback(tmp_path, environment):
    import json
    import subprocess

    server = subprocess.Popen(
        [sys.executable, "-m", "advisor", "mcp"], cwd=tmp_path, env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    server.stdout.close()
    params = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    server.stdin.write(json.dumps(asked) + "\n")
    server.stdin.close()
    server.wait(timeout=60)
    assert server.stderr.read() == ""
