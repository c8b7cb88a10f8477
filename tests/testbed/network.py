"""A small cluster on one Linux machine: network namespaces joined by a bridge, each one a node.

Links are shaped with `tc tbf`. Needs root; `unavailable_because()` says so otherwise. Everything is named after the
calling process, and torn down whatever happens.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class TestbedNode:
    """One node: run a command in it by putting `prefix` in front."""

    __test__ = False
    name: str
    address: str

    @property
    def prefix(self) -> list[str]:
        """The words that start a command inside this node."""
        return ["ip", "netns", "exec", self.name]


@dataclass(frozen=True)
class Testbed:
    """Nodes, and the address at which they reach a server on the host."""

    __test__ = False
    nodes: tuple[TestbedNode, ...]
    host_address: str


def unavailable_because() -> str | None:
    """A sentence when this machine cannot build a testbed, else None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        return f"{', '.join(missing)} is not installed (Debian: iproute2)"
    probe = f"fa-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode != 0:
        return "this kernel or container does not allow network namespaces"
    subprocess.run(["ip", "netns", "del", probe], check=False)
    return None


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


@contextmanager
def build_testbed(nodes: int, rate: str, latency: str = "50ms") -> Iterator[Testbed]:
    """Build `nodes` namespaces whose outgoing links carry `rate` (as `tc` writes it, e.g. 300mbit)."""
    mark = os.getpid() % 100000
    bridge, subnet = f"fabr{mark}", f"10.{77 + mark % 100}.0"
    made: list[list[str]] = []
    try:
        _run("ip", "link", "add", bridge, "type", "bridge")
        made.append(["ip", "link", "del", bridge])
        _run("ip", "addr", "add", f"{subnet}.254/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        members = []
        for index in range(nodes):
            name, inside, outside = f"fa{mark}n{index}", "eth0", f"fa{mark}v{index}"
            _run("ip", "netns", "add", name)
            made.append(["ip", "netns", "del", name])
            _run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside, "netns", name)
            _run("ip", "link", "set", outside, "master", bridge, "up")
            address = f"{subnet}.{index + 1}"
            _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", inside)
            _run("ip", "-n", name, "link", "set", inside, "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            shape = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", latency]
            _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", inside, *shape)
            members.append(TestbedNode(name, address))
        yield Testbed(tuple(members), f"{subnet}.254")
    finally:
        for command in reversed(made):
            subprocess.run(command, check=False, capture_output=True)
