"""Lines between the supervisors of several nodes: what fails on one node ends all of them."""

import argparse
import contextlib
import fcntl
import json
import os
import random
import select
import socket
import struct
import time

_SIOCGIFADDR = 0x8915
"""Linux's number of the question for an interface's address."""
_PORTS = (15_000, 32_000)
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A node that vanishes without a word is missed after 25 s."""


class OtherNodes:
    """Node 0 holds a line to every other node, and passes on what it hears."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Meet the other nodes; SystemExit with a sentence where they do not come in time."""
        self.is_first, self._lines = options.node_rank == 0, {}
        self._ended: set[int] = set()
        self._rest: dict[int, bytes] = {}
        if options.nodes == 1:
            ports = _find_free_ports("127.0.0.1")
        elif self.is_first:
            self._listen(options)
            ports = _find_free_ports("")
            self._say({"ports": ports})
        else:
            self._call(options)
            ports = self._read_ports(options)
        host = options.master_addr if options.nodes > 1 else "127.0.0.1"
        self.stores = [f"{host}:{port}" for port in ports]
        """Where roles meet: for the transport, and for collectives."""
        _choose_interface(host)

    def _listen(self, options: argparse.Namespace) -> None:
        with socket.create_server(("", options.master_port), backlog=options.nodes) as listener:
            listener.settimeout(options.timeout)
            while len(self._lines) < options.nodes - 1:
                try:
                    line, _ = listener.accept()
                    line.settimeout(options.timeout)
                    (rank,) = struct.unpack("!I", line.recv(4, socket.MSG_WAITALL))
                except (OSError, struct.error) as error:
                    missing = sorted(set(range(1, options.nodes)) - self._lines.keys())
                    raise SystemExit(
                        f"No word from node {missing[0]} in {options.timeout:.0f} s ({error}): start the same command "
                        "on every node, each with its --node-rank."
                    ) from None
                self._keep(rank, line)

    def _call(self, options: argparse.Namespace) -> None:
        deadline, address = time.monotonic() + options.timeout, (options.master_addr, options.master_port)
        while True:
            try:
                line = socket.create_connection(address, timeout=options.timeout)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise SystemExit(
                        f"Node 0 does not answer at {address[0]}:{address[1]} ({error}): start the same command there, "
                        "with --node-rank 0, and give its address here."
                    ) from None
                time.sleep(0.2)
        line.sendall(struct.pack("!I", options.node_rank))
        self._keep(0, line)

    def _keep(self, rank: int, line: socket.socket) -> None:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._lines[rank], self._rest[rank] = line, b""

    def _read_ports(self, options: argparse.Namespace) -> list[int]:
        deadline = time.monotonic() + options.timeout
        while time.monotonic() < deadline:
            for message in self._read(0.2):
                if "ports" in message:
                    return message["ports"]
                raise SystemExit(message["failed"])
        raise SystemExit(f"Node 0 waits for other nodes for more than {options.timeout:.0f} s.")

    def hear(self, seconds: float) -> str:
        """Wait so long for news; return why all have to end, empty where nothing failed."""
        for message in self._read(seconds):
            if "failed" in message:
                return message["failed"]
        return ""

    def _read(self, seconds: float) -> list[dict]:
        if not self._lines:
            time.sleep(seconds)
            return []
        found = []
        ready, _, _ = select.select(list(self._lines.values()), [], [], seconds)
        for rank, line in list(self._lines.items()):
            if line not in ready:
                continue
            try:
                data = line.recv(65536)
            except OSError:
                data = b""
            if not data:
                del self._lines[rank]
                if rank not in self._ended:
                    found.append({"failed": f"Node {rank} has vanished"})
                continue
            *whole, self._rest[rank] = (self._rest[rank] + data).split(b"\n")
            for message in map(json.loads, whole):
                if message.get("ended"):
                    self._ended.add(rank)
                else:
                    found.append(message)
        return found

    def say_failed(self, sentence: str) -> None:
        """Tell every node that it has to end."""
        self._say({"failed": sentence})

    def say_ended(self) -> None:
        """Tell that all roles of this node have come to their regular end."""
        self._say({"ended": True})

    def have_ended(self) -> bool:
        """Whether the roles of all other nodes have come to their regular end, as far as this one hears of it."""
        return self._ended >= self._lines.keys()

    def _say(self, message: dict) -> None:
        for line in self._lines.values():
            try:
                line.sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                continue  # It is missed at the next read.


def _find_free_ports(host: str) -> list[int]:
    """Return two ports that are free, below those that the kernel gives: roles' own connections would take them."""
    found: list[int] = []
    while len(found) < 2:
        port = random.randrange(*_PORTS)
        with contextlib.suppress(OSError), socket.create_server((host, port)):
            found.append(port)
    return found


def _choose_interface(host: str) -> None:
    """Let gloo and TensorPipe use the interface that leads to node 0, where nobody has chosen one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 1))
        mine = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            question = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, question)
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == mine or (name == "lo" and mine.startswith("127.")):
                os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
                break
    if "GLOO_SOCKET_IFNAME" in os.environ:
        os.environ.setdefault("TP_SOCKET_IFNAME", os.environ["GLOO_SOCKET_IFNAME"])
