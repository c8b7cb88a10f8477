"""A testbed from its making to its end, whichever way it ends; nothing that is not ours is touched."""

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from advisor.local.namespaces import NAMESPACES, RECORDS, own_namespaces, remove_leftovers
from advisor.local.relay import relay_to
from advisor.local.server import LocalModeFailed
from advisor.local.testbed import TestbedNode, build_testbed
from advisor.protocol.nodes.testbed import Testbed
from tests.testbed.network import requires_testbed

pytestmark = [pytest.mark.testbed, pytest.mark.distributed, pytest.mark.calm, requires_testbed]

SMALL = Testbed(nodes=2, rate="100mbit")
PATIENCE_S = 60
OWNER = """
import sys, time
from advisor.local.testbed import build_testbed
from advisor.protocol.nodes.testbed import Testbed
import subprocess
with build_testbed(Testbed(nodes=2, rate="100mbit")) as nodes:
    sleeper = subprocess.Popen([*nodes[0].prefix, "sleep", "600"])
    print(sleeper.pid, *(node.namespace for node in nodes), flush=True)
    time.sleep(600)
"""
RECEIVE = """
import socket, time
listener = socket.create_server(("0.0.0.0", 5000))
print("ready", flush=True)
connection, _ = listener.accept()
received, since = 0, time.perf_counter()
while chunk := connection.recv(1 << 20):
    received += len(chunk)
print(received * 8 / (time.perf_counter() - since))
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as connection:
    connection.sendall(bytes(12_000_000))
"""


def python_on(node: TestbedNode, program: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*node.prefix, sys.executable, "-c", program, *words], stdout=subprocess.PIPE, text=True
    )


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def foreign_namespace(name: str) -> Iterator[None]:
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        yield
        assert (NAMESPACES / name).exists(), f"{name} is not ours and was removed"
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


def start_owner() -> tuple[subprocess.Popen[str], int, list[str]]:
    """Start a process that builds a testbed and sleeps; return it, what it runs there, and its namespaces."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout
    pid, *names = owner.stdout.readline().split()
    return owner, int(pid), names


def test_links_carry_their_rate_in_both_directions_and_no_more() -> None:
    with build_testbed(SMALL) as (first, second):
        for sender, receiver in ((first, second), (second, first)):
            receiving = python_on(receiver, RECEIVE)
            assert receiving.stdout
            assert receiving.stdout.readline() == "ready\n"
            sending = python_on(sender, SEND, receiver.address)
            bits_per_s = float(receiving.communicate(timeout=PATIENCE_S)[0])
            assert sending.wait(timeout=PATIENCE_S) == 0
            assert bits_per_s <= 1.1 * SMALL.bits_per_s


def test_nodes_have_cpus_of_their_own_when_asked() -> None:
    program = "import os; print(*sorted(os.sched_getaffinity(0)))"
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU cannot be shared out to two nodes")
    with build_testbed(SMALL.model_copy(update={"cpus": 1})) as nodes:
        seen = [python_on(node, program).communicate(timeout=PATIENCE_S)[0].split() for node in nodes]
    assert [len(cpus) for cpus in seen] == [1, 1]
    assert seen[0] != seen[1]
    with (
        pytest.raises(LocalModeFailed, match="cpus=1000"),
        build_testbed(SMALL.model_copy(update={"cpus": 1000})),
    ):
        pass


def test_node_reaches_the_server_on_its_own_loopback() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    ask = f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:{port}/').status)"
    try:
        with build_testbed(SMALL) as nodes, relay_to("127.0.0.1", port, [node.namespace for node in nodes]):
            for node in nodes:
                assert python_on(node, ask).communicate(timeout=PATIENCE_S)[0] == "200\n"
    finally:
        server.shutdown()
        server.server_close()


def test_failure_inside_removes_the_testbed_and_what_runs_in_it() -> None:
    sleepers: list[subprocess.Popen[bytes]] = []

    def fail_in(nodes: tuple[TestbedNode, ...]) -> None:
        sleepers.append(subprocess.Popen([*nodes[1].prefix, "sleep", "600"]))
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"), build_testbed(SMALL) as nodes:
        fail_in(nodes)
    (sleeper,) = sleepers
    assert sleeper.wait(timeout=PATIENCE_S) != 0
    assert not any((NAMESPACES / node.namespace).exists() for node in nodes)


def test_failure_while_building_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "tc"
    broken.write_text("#!/bin/sh\necho no shaping here >&2\nexit 1\n")
    broken.chmod(0o755)
    before = set(NAMESPACES.iterdir())
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(LocalModeFailed, match="no shaping here"), build_testbed(SMALL):
        pass
    made = {
        path.name for path in set(NAMESPACES.iterdir()) - before if path.name.startswith("fleet-advisor-")
    }
    records = [path.read_text() for path in RECORDS.glob("*.json")]
    assert not {name for name in made if not any(name in record for record in records)}, "nobody owns them"
    assert not [record for record in records if record and json.loads(record)["pid"] == os.getpid()]


def test_what_a_killed_owner_left_is_removed_by_the_next_one_and_nothing_else() -> None:
    owner, sleeper, names = start_owner()
    with build_testbed(SMALL):
        assert all((NAMESPACES / name).exists() for name in names), "another owner's testbed was taken down"
    owner.send_signal(signal.SIGKILL)
    owner.wait(timeout=PATIENCE_S)
    with foreign_namespace("fleet-advisor-of-somebody-else"):
        remove_leftovers()
    wait_until(lambda: not is_alive(sleeper), "the process in the removed testbed is gone")
    assert not any((NAMESPACES / name).exists() for name in names)


def test_name_that_somebody_else_has_taken_is_avoided() -> None:
    with own_namespaces(("probe",)) as (name,):
        free = name
    with foreign_namespace(free), own_namespaces(("probe",)) as (other,):
        assert other != free
