"""Builds a testbed: one network namespace per node, joined by a switch, with links that carry a given rate.

The switch is a bridge in a namespace of its own, so that nothing of a testbed shows on the machine's network.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from advisor.local.agents import AgentPlace
from advisor.local.namespaces import missing_tools, own_namespaces, remove_leftovers, run_tool
from advisor.local.relay import relay_to
from advisor.local.server import LocalModeFailed, LocalServer
from advisor.protocol.nodes.testbed import Testbed, burst_bytes

_LONGEST_QUEUE = "50ms"
"""A packet that would wait longer for its turn is dropped, as by a switch whose buffer is full."""
_HINT = "Leave the testbed out to tune on this machine as it is, or give the job to nodes that have such a network."


@dataclass(frozen=True)
class TestbedNode:
    """One node: `prefix` in front of a command runs it there."""

    __test__ = False
    namespace: str
    address: str
    """IPv4 address at which the other nodes reach it."""
    prefix: tuple[str, ...]


def unavailable_because() -> str | None:
    """Return a sentence when this machine cannot build a testbed, else None; found out by building one."""
    if os.geteuid() != 0:
        return "A testbed needs root: network namespaces and shaped links are made by root only. Use sudo."
    if missing := missing_tools():
        return (
            f"A testbed needs {' and '.join(missing)}, which is not installed (Debian: apt install iproute2)."
        )
    try:
        with build_testbed(Testbed(nodes=2, rate="1gbit")):
            return None
    except (LocalModeFailed, OSError) as error:
        return f"This kernel or container does not allow what a testbed needs: {error}"


def require_testbed(testbed: Testbed) -> None:
    """Raise `LocalModeFailed` when this machine cannot build that testbed."""
    if (sentence := unavailable_because()) is not None:
        raise LocalModeFailed(sentence, _HINT)
    _share_cpus(testbed)


@contextmanager
def testbed_places(
    testbed: Testbed, server: LocalServer, tell: Callable[[str], None]
) -> Iterator[tuple[AgentPlace, ...]]:
    """Build the testbed and lead its nodes to `server`; yields where agents are to be started, one for each node.

    Raises `LocalModeFailed`.
    """
    with build_testbed(testbed) as nodes:
        server_at = urlsplit(server.url)
        port = server_at.port or 80
        with relay_to(server_at.hostname or "127.0.0.1", port, [node.namespace for node in nodes]):
            tell(
                f"Built {testbed.describe()}: {', '.join(node.namespace for node in nodes)}. Its nodes train on CPUs."
            )
            own_name = nodes[0].namespace.removesuffix("-node-1")
            named = testbed.model_copy(update={"name": testbed.name or own_name})
            yield tuple(
                AgentPlace(
                    name=node.namespace,
                    server_url=f"http://127.0.0.1:{port}",
                    prefix=node.prefix,
                    options=("--advertise-address", node.address, "--testbed", str(named)),
                    # All nodes would see the same GPUs, and NCCL would go past the links.
                    environment={"CUDA_VISIBLE_DEVICES": ""},
                )
                for node in nodes
            )


@contextmanager
def build_testbed(testbed: Testbed) -> Iterator[tuple[TestbedNode, ...]]:
    """Build the nodes, and remove them in the end with whatever runs in them; yields them in their order.

    What killed owners left is removed first. Raises `LocalModeFailed` when there are too few CPUs or the kernel does
    not play along.
    """
    shares = _share_cpus(testbed)
    remove_leftovers()
    roles = [f"node-{number}" for number in range(1, testbed.nodes + 1)]
    with own_namespaces(("switch", *roles)) as (switch, *names):
        run_tool("ip", "-n", switch, "link", "add", "switch", "type", "bridge")
        run_tool("ip", "-n", switch, "link", "set", "switch", "up")
        yield tuple(
            _connect(testbed, switch, name, number, shares[number - 1])
            for number, name in enumerate(names, start=1)
        )


def _connect(
    testbed: Testbed, switch: str, namespace: str, number: int, cpus: tuple[int, ...]
) -> TestbedNode:
    address, port = f"10.77.0.{number}", f"node-{number}"
    run_tool(
        "ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace
    )
    run_tool("ip", "-n", switch, "link", "set", port, "master", "switch", "up")
    run_tool("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
    run_tool("ip", "-n", namespace, "link", "set", "eth0", "up")
    run_tool("ip", "-n", namespace, "link", "set", "lo", "up")
    # A queue shapes what it sends: the node's end is its way out, the switch's end its way in.
    _shape(testbed, namespace, "eth0")
    _shape(testbed, switch, port)
    pinned = ("taskset", "--cpu-list", ",".join(map(str, cpus))) if cpus else ()
    return TestbedNode(namespace, address, (*pinned, "ip", "netns", "exec", namespace))


def _shape(testbed: Testbed, namespace: str, device: str) -> None:
    burst = burst_bytes(testbed.bits_per_s)
    limits = ("rate", f"{testbed.bits_per_s}bit", "burst", f"{burst}b", "latency", _LONGEST_QUEUE)
    run_tool("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *limits)


def _share_cpus(testbed: Testbed) -> list[tuple[int, ...]]:
    """The CPUs of each node: empty where they share all of the machine's."""
    if testbed.cpus is None:
        return [()] * testbed.nodes
    ours, needed = sorted(os.sched_getaffinity(0)), testbed.nodes * testbed.cpus
    if needed > len(ours):
        raise LocalModeFailed(
            f"cpus={testbed.cpus}: {testbed.nodes} nodes with {testbed.cpus} CPUs each need {needed} CPUs; "
            f"this process has {len(ours)}.",
            "Give fewer nodes or CPUs, or leave cpus out: the nodes then share all CPUs.",
        )
    if shutil.which("taskset") is None:
        raise LocalModeFailed(
            f"cpus={testbed.cpus}: taskset is not installed, and it is what gives a node its CPUs.",
            "Install it (Debian: apt install util-linux), or leave cpus out.",
        )
    return [tuple(ours[first : first + testbed.cpus]) for first in range(0, needed, testbed.cpus)]
