"""What nodes say to each other: lines of JSON over TLS, after both sides have proven that they know the secret."""

import asyncio
import hmac
import json
import re
import secrets
import ssl
from dataclasses import dataclass
from typing import Any

from advisor.here.join import Meeting, fingerprint, prove, trusting_tls

BEAT_S = 5.0
"""Each side says at least that often that it is there."""
GONE_S = 20.0
"""A side that was silent for longer is gone."""
_HANDSHAKE_S = 10.0

Said = dict[str, Any]


class NotProven(Exception):
    """The other side does not know the secret."""


@dataclass(frozen=True)
class Line:
    """A connection whose other side has proven itself."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def say(self, said: Said) -> None:
        """Send one line."""
        self.writer.write(json.dumps(said).encode() + b"\n")
        await self.writer.drain()

    async def hear(self, patience_s: float = GONE_S) -> Said:
        """Return the next line. Raises ConnectionError where the other side is gone or talks nonsense."""
        try:
            line = await asyncio.wait_for(self.reader.readline(), patience_s)
            return dict(json.loads(line))
        except TimeoutError as error:
            raise ConnectionError(f"nothing was heard for {patience_s:.0f} s") from error
        except (ValueError, TypeError, RecursionError) as error:
            raise ConnectionError("the connection broke") from error

    async def beat(self) -> None:
        """Say again and again that this side is there."""
        while True:
            await self.say({})
            await asyncio.sleep(BEAT_S)

    @property
    def own_address(self) -> str:
        """This host's address on the way to the other side."""
        return str(self.writer.get_extra_info("sockname")[0])


def _read_hex(said: Said, name: str) -> str:
    """Return a field of who has proven nothing yet, "" where it is not what such a field holds."""
    text = said.get(name)
    return text if isinstance(text, str) and re.fullmatch(r"[0-9a-f]{1,128}", text) else ""


async def welcome(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: str, certificate: bytes
) -> tuple[Line, Said]:
    """Prove node 0 to who comes, and have it prove itself; return the connection and what it says of itself."""
    line, nonce = Line(reader, writer), secrets.token_hex(16)
    asked = await line.hear(_HANDSHAKE_S)
    await line.say({"nonce": nonce, "proof": prove(secret, "node 0", certificate, _read_hex(asked, "nonce"))})
    said = await line.hear(_HANDSHAKE_S)
    if not hmac.compare_digest(_read_hex(said, "proof"), prove(secret, "node", certificate, nonce)):
        raise NotProven("A process without the secret")
    return line, said


async def approach(meeting: Meeting, said: Said) -> Line:
    """Connect to node 0, which proves itself first, and say `said`. Raises OSError or NotProven."""
    failure: Exception = ConnectionError("no address is known")
    for address in meeting.addresses:
        try:
            return await asyncio.wait_for(_approach(address, meeting, said), _HANDSHAKE_S)
        except (OSError, TimeoutError, NotProven) as error:
            failure = error
    raise failure if isinstance(failure, OSError | NotProven) else ConnectionError(str(failure))


async def _approach(address: str, meeting: Meeting, said: Said) -> Line:
    reader, writer = await asyncio.open_connection(address, meeting.port, ssl=trusting_tls())
    line, nonce = Line(reader, writer), secrets.token_hex(16)
    try:
        tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
        certificate = fingerprint(tls.getpeercert(binary_form=True) or b"")
        await line.say({"nonce": nonce})
        answer = await line.hear(_HANDSHAKE_S)
        if not hmac.compare_digest(
            _read_hex(answer, "proof"), prove(meeting.secret, "node 0", certificate, nonce)
        ):
            raise NotProven(f"What listens at {address}:{meeting.port} does not know this gang's secret")
        proof = prove(meeting.secret, "node", certificate, _read_hex(answer, "nonce"))
        await line.say({**said, "proof": proof})
    except BaseException:
        writer.close()
        raise
    return line
