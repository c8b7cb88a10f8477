"""Hands spooled reports in, and sees by the answer what becomes of each: it is forgotten, waits, or is set aside.

A report is deleted only when the server itself says what became of it: accepted, kept in its quarantine, or numbers
that no measurement gives. What a wrong token, a wrong address or a failure caused is tried again later, each report
by itself, so that one which always fails keeps no other waiting. The rest is about the message as it stands (413, 422):
repeating it is useless, and it is set aside on this node.
"""

from collections.abc import Callable
from pathlib import Path

import structlog

from agent.client import QUARANTINED, GivenUp, ServerClient
from agent.errors import AgentError, NotTheServer, ServerFailed, ServerRefused, ServerUnreachable
from agent.sessions.spool import Spool, SpooledReport, SpoolEntry

_DECIDED = QUARANTINED | {"invalid_result"}
"""What our own problem documents call a report that was put into the server's quarantine, or needed no more."""
_LATER = frozenset({401, 403, 404, 407, 421, 426})
"""About the way, the token or the release: another day the same message is taken."""
_FIRST_PAUSE_S = 30.0
_LONGEST_PAUSE_S = 3600.0

log = structlog.get_logger(__name__)


class Delivery:
    """The way of reports from the spool to the server; used by one thread at a time."""

    def __init__(self, client: ServerClient, spool: Spool, clock: Callable[[], float]) -> None:
        """`clock` returns seconds; pauses between two attempts at one report are counted by it."""
        self._client, self._spool, self._clock = client, spool, clock
        self._pauses: dict[Path, tuple[float, float]] = {}
        """Of reports that have to wait: until when, and for how long."""

    def deliver(self, report: SpooledReport, given_up: GivenUp) -> None:
        """Write a report down and hand it in; raises the AgentError that was the answer to it."""
        self._hand_in(self._spool.put(report), given_up)

    def hand_in_waiting(self) -> None:
        """Try every report that waits once, but for those that failed a moment ago; stop where no server answers."""
        for entry in self._spool.list_waiting():
            if self._clock() < self._pauses.get(entry.path, (0.0, 0.0))[0]:
                continue
            try:
                self._hand_in(entry, lambda: True)
            except ServerFailed:
                continue
            except ServerUnreachable:
                return
            except AgentError:
                continue

    def _hand_in(self, entry: SpoolEntry, given_up: GivenUp) -> None:
        report = entry.report
        try:
            self._client.report_race(report.session_id, report.race_id, report.body.encode(), given_up)
        except ServerRefused as error:
            self._take_refusal(entry, error)
            raise
        except (ServerFailed, NotTheServer) as error:
            self._postpone(entry, str(error))
            raise
        self._forget(entry)

    def _take_refusal(self, entry: SpoolEntry, error: ServerRefused) -> None:
        said = f"The answer was {error.status} {error.code}".strip() + f": {error}"
        if error.code in _DECIDED:
            log.warning(
                "The server does not count a measurement.", race=entry.report.race_id, because=str(error)
            )
            self._forget(entry)
        elif error.status in _LATER:
            self._postpone(entry, said)
        else:
            self._pauses.pop(entry.path, None)
            self._spool.set_aside(entry, said)

    def _postpone(self, entry: SpoolEntry, because: str) -> None:
        pause_s = min(2 * self._pauses.get(entry.path, (0.0, _FIRST_PAUSE_S / 2))[1], _LONGEST_PAUSE_S)
        self._pauses[entry.path] = (self._clock() + pause_s, pause_s)
        log.warning(
            "A measurement could not be handed in; it is kept and tried again.",
            race=entry.report.race_id,
            because=because,
            after_s=pause_s,
        )

    def _forget(self, entry: SpoolEntry) -> None:
        self._pauses.pop(entry.path, None)
        self._spool.remove(entry)
