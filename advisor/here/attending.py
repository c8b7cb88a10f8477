"""The other nodes' side: find node 0, hold the line to it, and lead this node's agent to its server."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from advisor.data_dir import NotPrivate
from advisor.here.environments import Place
from advisor.here.join import Meeting
from advisor.here.lines import Line, NotProven, approach
from advisor.local.relay import carry_both, talking

_PAUSE_S = 1.0


@dataclass
class Attendance:
    """What this node knows of node 0."""

    token: str = ""
    """What its agent registers with; "" until node 0's server is there."""
    own_address: str = ""
    """This node's address on the way to node 0."""
    over: int | None = None
    """The exit code that node 0 ended with."""
    port: int = 0
    """Of this host's loopback, which leads to node 0's server."""
    trouble: str = "no join file and no address tell where node 0 is"
    """Why node 0 cannot be reached, where it cannot."""
    away_since_s: float | None = field(default_factory=time.monotonic)
    _line: Line | None = None
    _serving: "asyncio.Task[None] | None" = None

    async def say_leaving(self, because: str) -> None:
        """Tell node 0 why this node leaves."""
        if self._line is not None:
            with suppress(OSError):
                await self._line.say({"leaves": because})

    async def attend(self, place: Place, find: Callable[[], Meeting | None]) -> None:
        """Hold the line until node 0 says that it is over; find it again whenever it is gone."""
        said = {"rank": place.rank, "count": place.count, "name": place.name, "allocation": place.allocation}
        while self.over is None:
            where = ""
            try:
                if (meeting := find()) is not None:
                    where = f" ({', '.join(meeting.addresses)}, port {meeting.port})"
                    self._line = await approach(meeting, said)
                    await self._hold(self._line)
            except Exception as error:
                # Whatever node 0, or what stands in its place, says: this node looks for it again.
                if self.away_since_s is None:
                    self.away_since_s = time.monotonic()
                self.trouble = f"{str(error).rstrip('.') or type(error).__name__}{where}"
            await asyncio.sleep(_PAUSE_S)

    async def _hold(self, line: Line) -> None:
        beats = asyncio.create_task(line.beat())
        try:
            while True:
                said = await line.hear()
                if refused := said.get("refused"):
                    raise ConnectionError(str(refused))
                self.own_address, self.away_since_s = line.own_address, None
                self.token = said.get("token") or self.token
                if (code := said.get("over")) is not None:
                    self.over = int(code)
        finally:
            beats.cancel()
            line.writer.close()

    async def lead(self, find: Callable[[], Meeting | None]) -> None:
        """Lead each connection to a port of this host's loopback on to node 0's server."""

        async def onward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                line = await approach(meeting, {"tunnel": True}) if (meeting := find()) else None
            except (OSError, NotProven, NotPrivate):
                line = None
            if line is None:
                writer.close()
                return
            with suppress(asyncio.CancelledError):
                await carry_both(reader, writer, line.reader, line.writer)

        server = await asyncio.start_server(onward, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._serving = asyncio.create_task(server.serve_forever())


@contextmanager
def attending(
    place: Place, find: Callable[[], Meeting | None]
) -> Iterator[tuple[Attendance, Callable[[str], None]]]:
    """Hold the line to node 0 for as long as the context lasts; yields what is known of it, and what says farewell."""
    with talking() as begin:
        attendance = Attendance()
        begin(attendance.lead(find)).result()
        begin(attendance.attend(place, find))

        def leave(because: str) -> None:
            begin(attendance.say_leaving(because)).result()

        yield attendance, leave
