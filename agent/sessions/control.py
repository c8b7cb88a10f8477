"""The unix socket on which global rank 0's runtime reports and asks what comes next.

JSON lines. A hello or a race is answered with one line: a race to run, or the end. What the runtime says is
parsed here into the classes that runtime and protocol share; a key that is not known is ignored, and a text is cleaned
and shortened. Only processes of the session are listened to.
"""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import structlog
from pydantic import ValidationError

from advisor.protocol.base import Message, Value
from advisor.protocol.measured.messages import NextReply, Trouble
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import RacePlan
from advisor.protocol.plain_text import clean_text
from advisor.protocol.training.workload import WorkloadFacts
from agent.guard.account import Account
from agent.guard.rank_folder import open_socket
from agent.runtime.link.control import PROTOCOL
from agent.runtime.races.order import ArmOrder, RaceOrder

_LONGEST_LINE = 8 * 2**20
"""Bytes: a race of many arms on many ranks has as many series."""
_LONGEST_TEXT = 2000
_MOST_TEXTS = 200
_MOST_CONNECTIONS = 16
_PEER = struct.Struct("3i")
"""Process, user and group of the other end, as the kernel states them."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Hello:
    """The runtime's first words."""

    facts: WorkloadFacts
    baseline: dict[str, Value]
    refusals: dict[str, str]


@dataclass(frozen=True)
class ScriptEnded:
    """The script ended by itself."""

    steps: int


class Dialogue(Protocol):
    """Answers the runtime."""

    def greet(self, hello: Hello) -> NextReply:
        """Take the first words, and say what comes first."""

    def take_race(self, race_id: str, results: Mapping[str, BlockResult]) -> NextReply:
        """Take what a race measured, by its arms' block ids, and say what comes next."""

    def take_trouble(self, trouble: Trouble) -> None:
        """Take note that the script cannot be measured."""

    def take_ending(self, ending: ScriptEnded) -> None:
        """Take note that the script ended by itself."""

    def take_nonsense(self, sentence: str) -> None:
        """Take note that the runtime said something that cannot be understood."""


class ControlSocket:
    """Listens in the session's folder, to processes of the session only."""

    def __init__(
        self,
        dialogue: Dialogue,
        folder: Path,
        *,
        is_ours: Callable[[int], bool],
        account: Account | None = None,
    ) -> None:
        """`is_ours` tells whether a process belongs to the session; `account` is the user that its scripts run as."""
        self._dialogue, self._is_ours = dialogue, is_ours
        self.path = folder / "s"
        self._listener = open_socket(folder, "s", socket.SOCK_STREAM, account)
        self._listener.listen(4)
        self._connections: set[socket.socket] = set()
        self._pending = 0
        self._talking = 0
        threading.Thread(target=self._accept, name="control", daemon=True).start()

    @property
    def instruction_pending(self) -> bool:
        """Whether the runtime waits for an answer of ours."""
        return self._pending > 0

    def wait_silent(self, timeout_s: float) -> None:
        """Wait until everything that a runtime which is gone had said was answered."""
        deadline = time.monotonic() + timeout_s
        while self._talking and time.monotonic() < deadline:
            time.sleep(0.02)

    def close(self) -> None:
        """Hang up."""
        for each in (self._listener, *self._connections):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                peer = _read_peer(connection)
                if len(self._connections) >= _MOST_CONNECTIONS or not self._is_ours(peer):
                    log.warning("A process that may not speak here was turned away.", pid=peer)
                    connection.close()
                    continue
                self._connections.add(connection)
                self._talking += 1
                threading.Thread(target=self._talk, args=(connection,), name="control", daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        try:
            self._converse(connection)
        finally:
            self._talking -= 1
            self._connections.discard(connection)

    def _converse(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, connection.makefile("rb") as lines:
            while line := lines.readline(_LONGEST_LINE):
                self._pending += 1
                try:
                    reply = self._answer(line)
                finally:
                    self._pending -= 1
                if reply is not None:
                    connection.sendall(json.dumps(reply).encode() + b"\n")

    def _answer(self, line: bytes) -> dict[str, Any] | None:
        try:
            message = json.loads(line)
            kind = message["kind"]
            if kind == "hello":
                return describe_next(self._dialogue.greet(parse_hello(message)))
            if kind == "race":
                results = {str(arm): parse_result(raw) for arm, raw in message["results"].items()}
                return describe_next(self._dialogue.take_race(str(message["race_id"]), results))
            if kind == "trouble":
                self._dialogue.take_trouble(parse_trouble(message))
            elif kind == "script_ended":
                self._dialogue.take_ending(ScriptEnded(int(message.get("total_steps") or 0)))
            else:
                log.warning("The runtime said something of an unknown kind; it is ignored.", kind=kind)
            return None
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            sentence = _describe_nonsense(line, error)
            self._dialogue.take_nonsense(sentence)
            return {"kind": "end", "reason": sentence}


def parse_hello(message: Mapping[str, Any]) -> Hello:
    """Raises ValueError, TypeError or KeyError when the message is not a hello."""
    if int(message.get("protocol", 1)) != PROTOCOL:
        raise ValueError("the runtime speaks another version of the control protocol")
    baseline = {str(k): v for k, v in message["baseline"].items() if isinstance(v, bool | int | float | str)}
    return Hello(
        WorkloadFacts.model_validate(message["facts"]), baseline, _clean(message.get("refusals") or {})
    )


def parse_trouble(message: Mapping[str, Any]) -> Trouble:
    """Raises ValueError, which ValidationError is, when the message is not a trouble."""
    trouble = Trouble.model_validate(message)
    return trouble.model_copy(
        update={"code": _shorten(trouble.code)[:64], "sentence": _shorten(trouble.sentence)}
    )


class _Told(Message):
    """One arm's result, as the runtime declares it; a number that is not finite is refused."""

    result: BlockResult


def parse_result(raw: Mapping[str, Any]) -> BlockResult:
    """Return the runtime's result with its texts cleaned. Raises ValidationError when it is none."""
    result = _Told.model_validate({"result": raw}).result
    return replace(
        result,
        consumed=_clean(result.consumed),
        not_consumed=_clean(result.not_consumed),
        no_effect=_clean(result.no_effect),
        relaunch_needed=_shorten(result.relaunch_needed),
        drifted=_shorten(result.drifted),
        bits_differ=_shorten(result.bits_differ),
    )


def describe_next(reply: NextReply) -> dict[str, Any]:
    """Return the line for the runtime."""
    if reply.race is None:
        settled = {} if reply.settle is None else {"overrides": reply.settle}
        return {"kind": "end", "reason": reply.end_because, **settled}
    race: RacePlan = reply.race
    arms = tuple(ArmOrder(arm.block_id, dict(arm.overrides)) for arm in race.arms)
    return {"kind": "race", **asdict(RaceOrder(race.race_id, arms, race.rules))}


def _clean(texts: Mapping[Any, Any]) -> dict[str, str]:
    """Return at most so many texts by name, each cleaned: a script may have written them."""
    return {_shorten(str(k))[:200]: _shorten(str(v)) for k, v in list(texts.items())[:_MOST_TEXTS]}


def _shorten(text: str) -> str:
    return clean_text(text)[:_LONGEST_TEXT]


def _read_peer(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    pid: int = _PEER.unpack(credentials)[0]
    return pid


def _describe_nonsense(line: bytes, error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        why = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    else:
        why = f"{type(error).__name__}: {_shorten(str(error))}"
    log.error("The runtime sent a message that cannot be understood.", why=why, message=line[:500])
    return f"The agent cannot understand a message of the runtime ({why}): both must be of one version."
