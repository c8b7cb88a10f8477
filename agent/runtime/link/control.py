"""Rank 0's line to its agent: JSON lines over a unix socket, one reply per hello and per race."""

from __future__ import annotations

import json
import socket
import time
from typing import Any, Callable, Dict, Mapping

PROTOCOL = 2


class AgentLost(RuntimeError):
    """The agent closed the control socket or did not answer; the session cannot go on. Look at the agent's log."""


class ControlLine:
    """Speaks first, then waits for the answer; never used by two threads."""

    def __init__(self, path: str, while_waiting: Callable[[], None] = lambda: None) -> None:
        """`while_waiting` is called about twice a second during a wait, so that beats go on."""
        self._while_waiting = while_waiting
        self._unread = b""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(10.0)
        try:
            self._socket.connect(path)
        except OSError as error:
            raise AgentLost(
                f"No agent listens on {path} ({error}); start the session through the agent."
            ) from error

    def _send(self, message: Mapping[str, Any]) -> None:
        """Sends one line; NaN is refused here because the other side may read JSON strictly."""
        line = json.dumps(message, allow_nan=False).encode() + b"\n"
        try:
            self._socket.settimeout(30.0)
            self._socket.sendall(line)
        except OSError as error:
            raise AgentLost(f"The agent left the control socket ({error}); see the agent's log.") from error

    def send_last(self, message: Mapping[str, Any]) -> None:
        """Sends a line without a reply, waits up to 5 s until the agent has read it, and closes.

        The agent looks at who connects: a script that ends at once would be gone by then, and its word turned away.
        """
        self._send(message)
        try:
            self._socket.settimeout(5.0)
            self._socket.shutdown(socket.SHUT_WR)
            while self._socket.recv(65536):
                pass
        except OSError:  # a slow agent reads it later
            pass
        finally:
            self.close()

    def ask(self, message: Mapping[str, Any], timeout_s: float) -> Dict[str, Any]:
        """Sends and waits for the reply; raises AgentLost after `timeout_s`, or at once if the agent hangs up."""
        self._send(message)
        deadline = time.monotonic() + timeout_s
        self._socket.settimeout(0.5)
        while b"\n" not in self._unread:
            if time.monotonic() > deadline:
                raise AgentLost(f"The agent gave no instruction for {timeout_s:.0f} s; see the agent's log.")
            try:
                chunk = self._socket.recv(65536)
            except socket.timeout:
                self._while_waiting()
                continue
            except OSError as error:
                raise AgentLost(
                    f"The agent left the control socket ({error}); see the agent's log."
                ) from error
            if not chunk:
                raise AgentLost("The agent closed the control socket; see the agent's log.")
            self._unread += chunk
        line, self._unread = self._unread.split(b"\n", 1)
        reply = json.loads(line)
        if not isinstance(reply, dict):
            raise AgentLost(f"The agent's reply is not a JSON object: {line[:200]!r}.")
        return reply

    def close(self) -> None:
        self._socket.close()
