"""Looks at the paths that a job names: as the user that its scripts run as, in a child, for a limited time.

Whatever a submitter names may be a named pipe, a device, another user's file, or lie on a file system that does not
answer. So the agent looks at none of it itself: it asks a child, which has become that user, and which is killed when
it does not answer or the agent is stopped. Run as `python -m agent.guard.lookups`.

Standard input and output: JSON lines, first the account, then a question and its answer by turns.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.errors import AgentStopped, Unlaunchable
from agent.files import DIRECT, Directory, Files
from agent.guard.account import Account, become
from agent.guard.child import Child
from agent.guard.processes import AGENT_MARKER

if TYPE_CHECKING:
    from advisor.protocol.base import Value

_LIMIT_S = 10.0
"""The longest that a session waits for answers, all together."""
_STOP_CHECK_S = 0.1
_MOST_BYTES = 2**30
"""Memory that the child may take: what it reads may hold more than a file shows."""


class Lookups(Files):
    """The same questions, answered by a child of the agent's; close it."""

    def __init__(
        self,
        account: Account | None,
        agent_marker: str,
        is_stopping: Callable[[], bool],
        limit_s: float = _LIMIT_S,
    ) -> None:
        """Every question raises Unlaunchable when there is no answer in time, AgentStopped when the agent stops."""
        self._account, self._marker, self._is_stopping = account, agent_marker, is_stopping
        self._left_s = limit_s
        self._child: Child | None = None

    def exists(self, path: Path) -> bool:
        return bool(self._ask("exists", str(path)))

    def is_file(self, path: Path) -> bool:
        return bool(self._ask("is_file", str(path)))

    def resolve(self, path: Path) -> Path:
        return Path(self._ask("resolve", str(path)))

    def find_program(self, name: str, path: str) -> str | None:
        found: str | None = self._ask("find_program", name, path)
        return found

    def read_beginning(self, path: Path, most: int) -> str:
        return str(self._ask("read_beginning", str(path), most))

    def find_directory(self, path: Path) -> Directory | None:
        found = self._ask("find_directory", str(path))
        return Directory(**found) if found else None

    def change_keys(self, path: Path, values: "Mapping[str, Value]") -> tuple[str, str]:
        text, fault = self._ask("change_keys", str(path), dict(values))
        return text, fault

    def close(self) -> None:
        """End the child; one that the kernel holds is left to itself."""
        child, self._child = self._child, None
        if child is not None:
            child.end()

    def _ask(self, question: str, *words: Any) -> Any:
        began_s = time.monotonic()
        try:
            answer = self._exchange([question, *words], began_s + self._left_s)
        finally:
            self._left_s -= time.monotonic() - began_s
        if "refused" in answer:
            raise Unlaunchable(
                f"What the job names cannot be looked at on this node ({answer['refused']}). Check the path, and that "
                "the scripts' user may follow it."
            )
        return answer["found"]

    def _exchange(self, asked: list[Any], deadline_s: float) -> dict[str, Any]:
        child = self._child = self._child or self._start()
        child.tell(asked)
        while (answer := child.receive(_STOP_CHECK_S)) is None:
            if self._is_stopping():
                self.close()
                raise AgentStopped
            if child.has_ended:
                self.close()
                raise Unlaunchable(
                    f"The process that looks at what the job names has ended, at {asked[1]}: try again."
                )
            if time.monotonic() > deadline_s:
                self.close()
                raise Unlaunchable(
                    f"Looking at what the job names, {asked[1]} the last, took longer than {_LIMIT_S:.0f} s on this "
                    "node. Check that its file system answers, and that a configuration file which own knobs change "
                    "is small."
                )
        return answer

    def _start(self) -> Child:
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            AGENT_MARKER: self._marker,
        }
        # It loads all that it needs, and then becomes the account by itself: that user may not find our Python.
        child = Child(["-S", "-m", "agent.guard.lookups"], environment)
        child.tell(self._account and asdict(self._account))
        return child


def main() -> None:
    """Answer until nothing more is asked."""
    account = json.loads(sys.stdin.buffer.readline())
    become(Account(**account) if account else None)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    for line in sys.stdin.buffer:
        question, *words = json.loads(line)
        try:
            answer = {"found": getattr(DIRECT, question)(*words)}
        except (OSError, ValueError, OverflowError) as error:
            answer = {"refused": f"{words[0]}: {error}"}
        sys.stdout.write(json.dumps(answer, default=_spell) + "\n")
        sys.stdout.flush()


def _spell(value: Path | Directory) -> Any:
    return asdict(value) if isinstance(value, Directory) else str(value)


if __name__ == "__main__":
    main()
