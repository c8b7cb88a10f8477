"""The unix socket on which global rank 0's runtime reports and asks what comes next.

JSON lines. A hello or a block is answered with one line: a block to measure, or the end. What the runtime says is
parsed here into the protocol's models; a key that is not known is ignored.
"""

import json
import math
import os
import socket
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import structlog
from pydantic import ValidationError

from advisor.protocol.base import Value
from advisor.protocol.messages import NextReply, Trouble
from advisor.protocol.trials import BlockPlan, BlockResult, Phases
from advisor.protocol.workload import WorkloadFacts

_LONGEST_LINE = 16 * 2**20
_PHASES = tuple(Phases.model_fields)

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

    def take_block(self, block_id: str, result: BlockResult) -> NextReply:
        """Take a measured block, and say what comes next."""

    def take_trouble(self, trouble: Trouble) -> None:
        """Take note that the script cannot be measured."""

    def take_ending(self, ending: ScriptEnded) -> None:
        """Take note that the script ended by itself."""

    def take_nonsense(self, sentence: str) -> None:
        """Take note that the runtime said something that cannot be understood."""


class ControlSocket:
    """Listens in a private folder; a path in the session's own folder could be too long for a unix socket."""

    def __init__(self, dialogue: Dialogue) -> None:
        self._dialogue = dialogue
        self._folder = tempfile.TemporaryDirectory(prefix="adv-", ignore_cleanup_errors=True)
        self.path = Path(self._folder.name) / "s"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        os.chmod(self.path, 0o600)
        self._listener.listen(4)
        self._connections: list[socket.socket] = []
        self._pending = 0
        self._talking = 0
        threading.Thread(target=self._accept, name="control", daemon=True).start()

    @property
    def folder(self) -> Path:
        """The folder that the ranks must be able to reach."""
        return self.path.parent

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
        self._folder.cleanup()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                self._talking += 1
                threading.Thread(target=self._talk, args=(connection,), name="control", daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        try:
            self._converse(connection)
        finally:
            self._talking -= 1

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
            if kind == "block":
                result = parse_result(message["result"])
                return describe_next(self._dialogue.take_block(str(message["block_id"]), result))
            if kind == "trouble":
                self._dialogue.take_trouble(Trouble.model_validate(message))
            elif kind == "script_ended":
                self._dialogue.take_ending(ScriptEnded(int(message.get("total_steps") or 0)))
            else:
                log.warning("The runtime said something of an unknown kind; it is ignored.", kind=kind)
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            sentence = _describe_nonsense(line, error)
            self._dialogue.take_nonsense(sentence)
            return {"kind": "end", "reason": sentence}


def parse_hello(message: Mapping[str, Any]) -> Hello:
    """Raises ValueError, TypeError or KeyError when the message is not a hello."""
    if int(message.get("protocol", 1)) != 1:
        raise ValueError("the runtime speaks another version of the control protocol")
    baseline = {str(k): v for k, v in message["baseline"].items() if isinstance(v, bool | int | float | str)}
    refusals = {str(k): str(v) for k, v in (message.get("refusals") or {}).items()}
    return Hello(WorkloadFacts.model_validate(message["facts"]), baseline, refusals)


def parse_result(raw: Mapping[str, Any]) -> BlockResult:
    """Return the protocol's model of the runtime's result.

    A loss that is missing is left out, and one that is not finite makes the block diverged: JSON has no NaN. A block
    that could not be switched in place has no step at all.
    """
    fields: dict[str, Any] = {"steps": 0, "step_time_s": (), "samples_per_step": 0.0, "wall_s": 0.0}
    fields |= {key: value for key, value in raw.items() if value is not None}
    losses = [loss for loss in fields.get("losses", ()) if loss is not None]
    finite = tuple(loss for loss in losses if math.isfinite(loss))
    fields |= {"losses": finite, "diverged": bool(fields.get("diverged")) or len(finite) < len(losses)}
    breakdown = fields.pop("breakdown", None)
    if breakdown:
        fields |= _translate_breakdown(breakdown)
    return BlockResult.model_validate(fields)


def _translate_breakdown(breakdown: Mapping[str, Any]) -> dict[str, Any]:
    known = {phase: breakdown[phase] for phase in _PHASES if breakdown.get(phase) is not None}
    median = {phase: float(entry["median"]) for phase, entry in known.items()}
    worst = {phase: float(entry["worst"]) for phase, entry in known.items()}
    # The rank that stands out most is the one whose own work takes longest: waiting for others is not its own.
    own = [phase for phase in known if phase != "exposed_comm_s"]
    slowest = max(own, key=lambda phase: worst[phase] - median[phase], default=None)
    worst_rank = int(known[slowest].get("worst_rank", 0)) if slowest else 0
    return {"phases": median, "worst_rank_phases": worst, "worst_rank": worst_rank}


def describe_next(reply: NextReply) -> dict[str, Any]:
    """Return the line for the runtime."""
    if reply.plan is None:
        return {"kind": "end", "reason": reply.end_because}
    plan: BlockPlan = reply.plan
    return {"kind": "measure", **plan.model_dump(mode="json", exclude={"trial_number"})}


def _describe_nonsense(line: bytes, error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        why = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    else:
        why = f"{type(error).__name__}: {error}"
    log.error("The runtime sent a message that cannot be understood.", why=why, message=line[:500])
    return f"The agent cannot understand a message of the runtime ({why}): both must be of one version."
