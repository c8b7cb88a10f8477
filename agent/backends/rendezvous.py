"""Where the ranks of a gang meet: an address and a free port on node 0, and the interface that leads there."""

import ipaddress
import socket
from urllib.parse import urlsplit

import psutil

from agent.errors import Unlaunchable


def find_advertised_address(server_url: str) -> str:
    """Return this node's address on the way to the server, which the other nodes can be expected to reach as well.

    No packet is sent. Raises Unlaunchable when the server's name does not resolve.
    """
    parts = urlsplit(server_url)
    return _find_local_address(parts.hostname or "127.0.0.1", parts.port or 80)


def offer_rendezvous(address: str) -> str:
    """Return `host:port` with a port that is free now.

    Another process may take it before torchrun does; the session then ends as lost and is started again.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            raise Unlaunchable(
                f"The rendezvous address {address} is not an address of this node ({error.strerror}). "
                "Give one that the other nodes reach with --advertise-address."
            ) from error
        port: int = probe.getsockname()[1]
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def split_rendezvous(rendezvous: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[v6]:port`."""
    host, _, port = rendezvous.rpartition(":")
    return host.strip("[]"), int(port)


def find_interface(host: str) -> str | None:
    """Return the interface that leads to `host` ("lo" for this machine itself), None when it cannot be told."""
    try:
        local = _find_local_address(host, 1)
    except Unlaunchable:
        return None
    if ipaddress.ip_address(local.partition("%")[0]).is_loopback:
        return "lo"
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == local for entry in addresses):
            return name
    return None


def _find_local_address(host: str, port: int) -> str:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            found: str = probe.getsockname()[0]
            return found
    except OSError as error:
        raise Unlaunchable(
            f"No route leads from this node to {host} ({error.strerror}). Check the name and the network, or give the "
            "address that other nodes reach this one at with --advertise-address."
        ) from error
