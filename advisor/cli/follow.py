"""Follow a job until it is over: events as they come, on a terminal with a line that says how far it is."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from rich.live import Live
from rich.table import Table
from rich.text import Text

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.progress import describe_progress
from advisor.cli.screen import Screen
from advisor.cli.wording import spell_clock, spell_duration
from advisor.client import ApiProblem, Client, ServerUnreachable
from advisor.protocol.jobs import Job, JobState
from advisor.protocol.trials import JobHistory
from advisor.protocol.views import AgentState, JobEvent

_POLL_S = 1.0
_PATIENCE_S = 120.0
"""A server that restarts is away for a moment; the job does not notice, and neither should its watcher."""
_SERVER_BUSY = 500
_POLLS_BEFORE_ASKING = 3
"""A queued job usually starts at once; after so many looks it is worth saying what it waits for."""


class Watcher:
    """Shows what happens to one job: NDJSON, a live line, or one line an event."""

    def __init__(self, screen: Screen, live: Live | None, zero: datetime, as_result: bool) -> None:
        self._screen = screen
        self._live = live
        self._zero = zero
        self._as_result = as_result

    def show_event(self, event: JobEvent) -> None:
        """Show one event."""
        if self._as_result:
            self._screen.print_line(event)
            return
        clock = Text(f"{spell_clock(event.at - self._zero):>8}  ", style="dim")
        if self._live is None:
            # One line an event, however long: that is what a batch job's log is searched by.
            self._screen.err.print(Text.assemble(clock, event.sentence), soft_wrap=True)
            return
        line = Table.grid()
        line.add_row(clock, Text(event.sentence))
        self._screen.err.print(line)

    def show_progress(self, line: str) -> None:
        """Redraw the line at the bottom, where there is one."""
        if self._live:
            self._live.update(Text(line, style="bold cyan", overflow="ellipsis", no_wrap=True), refresh=True)

    def show_trouble(self, sentence: str) -> None:
        """Say that the server is away."""
        self._screen.warn(sentence)


@contextmanager
def watching(screen: Screen, job: Job, as_result: bool) -> Iterator[Watcher]:
    """Offer a watcher; a live line is cleared at the end."""
    if not screen.is_live:
        yield Watcher(screen, None, job.created_at, as_result)
        return
    with Live(Text(""), console=screen.err, auto_refresh=False, transient=True) as live:
        yield Watcher(screen, live, job.created_at, as_result)


def follow_job(
    client: Client,
    job: Job,
    screen: Screen,
    check: Callable[[], None] = lambda: None,
    events_are_the_result: bool = False,
) -> Job:
    """Show the job's events until it is over, and return it as it ended.

    `check` raises when following on is in vain. A server that is away for two minutes ends it too. Where the
    events are the result, they go to stdout, one JSON document a line; otherwise to stderr, for people.
    """
    after = 0
    history = JobHistory()
    away_since: float | None = None
    queued_polls = 0
    with watching(screen, job, events_are_the_result) as watcher:
        while True:
            check()
            try:
                # The job first: a final state seen here means that all its events are there to be read.
                job = client.job(job.id)
                page = client.events(job.id, after)
                if screen.is_live and (page.items or not history.trials):
                    history = client.history(job.id)
                away_since = None
            except (ServerUnreachable, ApiProblem) as error:
                away_since = _tolerate(error, away_since, watcher)
                time.sleep(_POLL_S)
                continue
            for event in page.items:
                watcher.show_event(event)
            after = max(after, page.next_after)
            watcher.show_progress(describe_progress(job, history, datetime.now(UTC)))
            queued_polls = queued_polls + 1 if job.state is JobState.QUEUED else 0
            if queued_polls == _POLLS_BEFORE_ASKING:
                watcher.show_trouble(_explain_waiting(client, job))
            if job.state.is_final and not page.items:
                return job
            if not page.items:
                time.sleep(_POLL_S)


def _explain_waiting(client: Client, job: Job) -> str:
    try:
        agents = client.agents()
    except (ServerUnreachable, ApiProblem):
        agents = ()
    idle = sum(agent.state is AgentState.IDLE for agent in agents)
    return (
        f"The job waits for agents: it needs {job.spec.nodes} idle at once, {idle} of {len(agents)} are. Start one "
        f"on each node: advisor-agent run --server {client.url} --token-file FILE"
    )


def _tolerate(error: ServerUnreachable | ApiProblem, away_since: float | None, watcher: Watcher) -> float:
    """Return since when the server is away; raise what a short absence does not explain."""
    if isinstance(error, ApiProblem) and error.status < _SERVER_BUSY:
        raise error
    now = time.monotonic()
    if away_since is None:
        watcher.show_trouble(f"{error} The job goes on without us; trying again.")
        return now
    if now - away_since > _PATIENCE_S:
        raise CommandFailed(
            Exit.UNREACHABLE,
            f"The server did not answer for {spell_duration(_PATIENCE_S)}: {error}",
            "The job may well go on. When the server answers again: `advisor watch last`.",
        ) from error
    return away_since
