"""Node 0's side: who of the nodes is there, the way to its server for each of them, and the word that it is over."""

import asyncio
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from advisor.here.environments import Place
from advisor.here.join import Meeting
from advisor.here.lines import Line, NotProven, Said, welcome
from advisor.local.relay import carry_both, talking

_LEAVING_S = 40.0
"""An agent waits for its training processes to be gone: nodes get that long to leave."""
_LATE_S = 20.0
"""Nodes that never came may be about to, and are told that it is over."""
_POLL_S = 0.1


@dataclass
class JoinedNode:
    """A node that is there."""

    name: str
    line: Line
    because: str = ""
    """Why it leaves, in its own words."""


@dataclass
class Gathering:
    """The nodes of one command. Its methods are called by the command, what `_…` says runs beside it."""

    place: Place
    tell: Callable[[str], None]
    began_s: float = field(default_factory=time.monotonic)
    own_address: str = ""
    """Node 0's address, as the others reach it; known once one of them is there."""
    _joined: dict[int, JoinedNode] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)
    """Of nodes that were there."""
    _gone_s: dict[int, float] = field(default_factory=dict)
    """Since when each is away."""
    _server: tuple[str, int] = ("", 0)
    _token: str = ""
    _opened: asyncio.Event = field(default_factory=asyncio.Event)
    _over: int | None = None
    _serving: "asyncio.Task[None] | None" = None

    def there(self) -> int:
        """Return how many nodes are there, node 0 among them."""
        return 1 + len(self._joined)

    def missing(self) -> dict[int, float]:
        """Return the nodes that are away, and for how many seconds."""
        now = time.monotonic()
        away = [rank for rank in range(1, self.place.count) if rank not in self._joined]
        return {rank: now - self._gone_s.get(rank, self.began_s) for rank in away}

    def describe(self, rank: int) -> str:
        """Return a node as people know it."""
        return f"Node {rank} ({self._names[rank]})" if rank in self._names else f"Node {rank}"

    def longest_farewell_s(self) -> float:
        """Return how long node 0 stays for the others after the end: for those that leave, and for late ones."""
        late = any(rank not in self._names for rank in self.missing())
        return _LEAVING_S if self._joined else _LATE_S if late else 0.0

    async def serve(self, tls: ssl.SSLContext, certificate: bytes, meeting: Meeting) -> None:
        """Begin to listen."""

        async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, asyncio.CancelledError):
                try:
                    await self._meet(*await welcome(reader, writer, meeting.secret, certificate))
                except NotProven:
                    self.tell(
                        f"{writer.get_extra_info('peername')[0]} came without this gang's secret: turned away."
                    )
                except asyncio.CancelledError:
                    writer.transport.abort()  # A parting in the manner of TLS would take a loop that goes on.
                finally:
                    writer.close()

        server = await asyncio.start_server(meet, None, meeting.port, ssl=tls)
        self._serving = asyncio.create_task(server.serve_forever())

    async def open(self, url: str, token: str) -> None:
        """Let nodes through to the server."""
        parts = urlsplit(url)
        self._server, self._token = (parts.hostname or "", parts.port or 80), token
        self._opened.set()

    async def end(self, code: int) -> None:
        """Tell every node that it is over, and with which exit code."""
        self._over = code
        for joined in list(self._joined.values()):
            with suppress(OSError):
                await joined.line.say({"over": code})

    async def _meet(self, line: Line, said: Said) -> None:
        if said.get("tunnel"):
            await carry_both(line.reader, line.writer, *await asyncio.open_connection(*self._server))
            return
        rank, name = int(said["rank"]), str(said["name"])
        if refused := self._refuse(rank, name, said):
            await line.say({"refused": refused})
            return
        self.own_address = line.own_address
        known, joined = rank in self._names, JoinedNode(name, line)
        self._joined[rank], self._names[rank] = joined, name
        if self._over is None:
            back = "is back" if known else "is there"
            self.tell(f"Node {rank} ({name}) {back}: {self.there()} of {self.place.count}.")
        beats = asyncio.create_task(line.beat())
        try:
            await self._opened.wait()
            await line.say({"token": self._token} if self._over is None else {"over": self._over})
            while True:
                heard = await line.hear()
                joined.because = str(heard.get("leaves") or joined.because)
        except OSError as error:
            joined.because = joined.because or str(error)
        finally:
            beats.cancel()
            if self._joined.get(rank) is joined:
                del self._joined[rank]
                self._gone_s[rank] = time.monotonic()
                if self._over is None:
                    left = f"Node {rank} ({name}) has left: {joined.because}."
                    self.tell(f"{left} {self.there()} of {self.place.count} are there.")

    def _refuse(self, rank: int, name: str, said: Said) -> str:
        """Why a node does not belong here; "" where it does. It may be one of another start, and tries again."""
        if said.get("allocation") != self.place.allocation:
            return f"node 0 belongs to {self.place.engine} allocation {self.place.allocation or 'none'}"
        if said.get("count") != self.place.count or not 0 < rank < self.place.count:
            return f"node 0 is one of {self.place.count}, and this is node {rank} of {said.get('count')}"
        if (there := self._joined.get(rank)) and there.name != name:
            return f"node {rank} is there already, and is {there.name}"
        return ""


@contextmanager
def gathering(
    place: Place, meeting: Meeting, tls: tuple[ssl.SSLContext, bytes], tell: Callable[[str], None]
) -> Iterator[tuple[Gathering, Callable[[str, str], None], Callable[[int], None]]]:
    """Gather the nodes for as long as the context lasts, which waits until they have left.

    Yields who is there, what lets them through to a server, and what tells them that it is over.
    """
    with talking() as begin:
        gathered = Gathering(place, tell)
        begin(gathered.serve(*tls, meeting)).result()

        def open_to(url: str, token: str) -> None:
            begin(gathered.open(url, token)).result()

        def end(code: int) -> None:
            begin(gathered.end(code)).result()

        try:
            yield gathered, open_to, end
        finally:
            ended_s = time.monotonic()
            while time.monotonic() - ended_s < gathered.longest_farewell_s():
                time.sleep(_POLL_S)
