"""Describes the node: CPUs, memory, GPUs, network links, versions."""

import ipaddress
import os
import platform
import socket
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import MappingProxyType

import psutil

from advisor.protocol.nodes.cluster import Link, Node
from advisor.protocol.nodes.testbed import Testbed
from agent.devices.gpus import Gpus
from agent.devices.network import find_rdma, judge_network

NUMA_NODES = Path("/sys/devices/system/node")
"""Where Linux lists them."""


def describe_node(
    gpus: Gpus,
    testbed: Testbed | None = None,
    *,
    pool: str = "",
    labels: Mapping[str, str] = MappingProxyType({}),
    signed_only: bool = False,
) -> Node:
    """Return what this node offers; takes milliseconds, and imports no framework to find its version."""
    devices = gpus.list_devices()
    return Node(
        hostname=socket.gethostname(),
        cpu_count=len(os.sched_getaffinity(0)),
        numa_nodes=count_numa_nodes(),
        memory_bytes=psutil.virtual_memory().total,
        devices=devices,
        links=tuple(
            link.model_copy(update={"bits_per_second": testbed.bits_per_s}) if testbed else link
            for link in list_links()
        ),
        rdma=find_rdma(),
        network=judge_network(os.environ) if devices else (),
        telemetry="nvml" if devices else "psutil",
        warning=gpus.trouble,
        python_version=platform.python_version(),
        torch_version=find_version("torch"),
        testbed=testbed,
        pool=pool,
        labels=dict(labels),
        signed_only=signed_only,
    )


def count_numa_nodes(folder: Path = NUMA_NODES) -> int:
    """Return how many NUMA nodes have CPUs that this process may use; 1 where the kernel tells of none."""
    allowed = os.sched_getaffinity(0)
    nodes = {
        cpu.parent
        for cpu in folder.glob("node[0-9]*/cpu[0-9]*")
        if int(cpu.name.removeprefix("cpu")) in allowed
    }
    return max(1, len(nodes))


def find_version(distribution: str) -> str:
    """Return the installed version of a distribution, "" where there is none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def list_links() -> tuple[Link, ...]:
    """Return the interfaces that are up, loopback left out, IPv4 preferred."""
    states = psutil.net_if_stats()
    links = []
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        state = states.get(name)
        usable = [a.address for a in addresses if a.family in {socket.AF_INET, socket.AF_INET6}]
        usable = [
            address for address in usable if not ipaddress.ip_address(address.partition("%")[0]).is_loopback
        ]
        if state is None or not state.isup or not usable:
            continue
        usable.sort(key=lambda address: ":" in address)
        speed = state.speed * 1_000_000 if state.speed > 0 else None
        links.append(Link(name=name, address=usable[0], bits_per_second=speed))
    return tuple(links)
