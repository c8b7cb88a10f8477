"""Follow a job until it is over: a line for every stage and now and then, or every event where that is asked for."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import typer
from rich.live import Live
from rich.text import Text

from advisor.answers.wording import spell_clock, spell_duration
from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.interrupts import interruptible
from advisor.cli.screen import Screen
from advisor.cli.views.progress import describe_progress, describe_stage, list_troubles
from advisor.client import ApiProblem, Client, ServerUnreachable
from advisor.protocol.asked.jobs import Job, JobState
from advisor.protocol.measured.trials import JobHistory
from advisor.protocol.views import AgentState, AgentView, JobEvent

_POLL_S = 1.0
_SILENT_S = 15.0
"""A user who sees no line for longer wonders whether it still works."""
_PATIENCE_S = 120.0
"""A server that restarts is away for a moment; the job does not notice, and neither should its watcher."""
_SERVER_BUSY = 500
_POLLS_BEFORE_ASKING = 3
"""A queued job usually starts at once; after so many looks it is worth saying what it waits for."""


class Watcher:
    """Shows what happens to one job: NDJSON, or lines for people, on a terminal with one that is redrawn."""

    def __init__(self, screen: Screen, live: Live | None, zero: datetime, as_result: bool) -> None:
        self._screen = screen
        self._live = live
        self._zero = zero
        self._as_result = as_result
        self._told: set[str] = set()
        self._last_at: datetime | None = None
        self._shown: Job | None = None

    def show_event(self, event: JobEvent) -> None:
        """Show one event: to programs and with --verbose all of them, to others what they can use."""
        if self._as_result:
            self._screen.print_line(event)
        elif self._screen.verbose:
            self._print(event.at, event.sentence)
        elif event.at >= self._zero and _is_for_people(event):
            self._tell(event.at, event.sentence)

    def wants_history(self, job: Job, now: datetime) -> bool:
        """Return whether a line is due: a stage has begun, or nothing was told for a while."""
        if self._as_result or self._screen.quiet or (self._screen.verbose and self._live is None):
            return False
        if self._live is not None or self._shown is None or self._last_at is None:
            return True
        if (self._shown.state, self._shown.stage) != (job.state, job.stage):
            return True
        return (now - self._last_at).total_seconds() >= _SILENT_S

    def show_progress(self, job: Job, history: JobHistory, now: datetime) -> None:
        """Tell how far the job is, where that is due and new; redraw the line at the bottom, where there is one."""
        if self._live:
            line = describe_progress(job, history, now, self._zero)
            self._live.update(Text(line, style="bold cyan", overflow="ellipsis", no_wrap=True), refresh=True)
        if self._screen.verbose or self._as_result:
            return
        for trouble in list_troubles(history.sessions, self._zero):
            self._tell(now, trouble)
        changed = self._shown is not None and (self._shown.state, self._shown.stage) != (job.state, job.stage)
        if self._shown is not None and changed:
            # How the stage before ended, as far as this look at the job knows.
            self._tell(now, describe_stage(job.model_copy(update={"stage": self._shown.stage}), history))
        if self._live is None or self._shown is None or changed:
            self._tell(now, describe_stage(job, history))
        self._shown, self._last_at = job, now

    def show_trouble(self, sentence: str) -> None:
        """Say that the server is away."""
        self._screen.warn(sentence)

    def _tell(self, at: datetime, sentence: str) -> None:
        """Print a line that was not printed before."""
        if sentence not in self._told:
            self._told.add(sentence)
            self._print(at, sentence)

    def _print(self, at: datetime, sentence: str) -> None:
        if self._screen.quiet:
            return
        clock = Text(f"{spell_clock(at - self._zero):>5}  ", style="dim")
        # One line an event, however long: that is what a batch job's log is searched by.
        self._screen.err.print(Text.assemble(clock, sentence), soft_wrap=True)


def _is_for_people(event: JobEvent) -> bool:
    """Whether it tells what the budget can find or measure, or why an earlier job's strategy is tried."""
    facts = event.facts
    return facts is not None and (
        facts.smallest_gain is not None or facts.named is not None or bool(facts.earlier)
    )


@contextmanager
def watching(screen: Screen, job: Job, as_result: bool) -> Iterator[Watcher]:
    """Offer a watcher; a live line is cleared at the end."""
    # Of a job that is resumed neither the pause nor what ended launches before it is told.
    zero = datetime.now(UTC) if job.started_at else max([job.created_at, *job.continued_at])
    if not screen.is_live:
        yield Watcher(screen, None, zero, as_result)
        return
    with Live(Text(""), console=screen.err, auto_refresh=False, transient=True) as live:
        yield Watcher(screen, live, zero, as_result)


def follow_job(
    client: Client,
    job: Job,
    screen: Screen,
    check: Callable[[], None] = lambda: None,
    events_are_the_result: bool = False,
    own_agents: bool = False,
) -> Job:
    """Show what happens to the job until it is over, and return it as it ended.

    `check` raises when following on is in vain. A server that is away for two minutes ends it too. Where the
    events are the result, they go to stdout, one JSON document a line; otherwise lines for people to stderr.
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
                now = datetime.now(UTC)
                due = watcher.wants_history(job, now)
                if due and (page.items or not history.trials or not screen.is_live):
                    history = client.history(job.id)
                away_since = None
            except (ServerUnreachable, ApiProblem) as error:
                away_since = _tolerate(error, away_since, watcher)
                time.sleep(_POLL_S)
                continue
            for event in page.items:
                watcher.show_event(event)
            after = max(after, page.next_after)
            if due and not job.state.is_final:
                watcher.show_progress(job, history, now)
            queued_polls = queued_polls + 1 if job.state is JobState.QUEUED else 0
            if queued_polls == _POLLS_BEFORE_ASKING:
                agents = _list_agents(client)
                watcher.show_trouble(explain_waiting(job.spec.nodes, agents, client.url, own_agents))
            if job.state.is_final and not page.items:
                return job
            if not page.items:
                time.sleep(_POLL_S)


def _list_agents(client: Client) -> tuple[AgentView, ...]:
    try:
        return client.agents()
    except (ServerUnreachable, ApiProblem):
        return ()


def explain_waiting(wanted: int, agents: Sequence[AgentView], url: str, own_agents: bool = False) -> str:
    """Return what a job that begins on none of the `agents` waits for, and what its owner can do.

    `own_agents`: the command that watches has started the agents itself.
    """
    idle = sum(agent.state is AgentState.IDLE for agent in agents)
    nodes = f"{wanted} idle agent{'s' if wanted > 1 else ''}"
    if idle >= wanted:
        return (
            f"The job needs {nodes}, and there {'are' if idle > 1 else 'is'} {idle}: it begins in a moment, or "
            "`advisor agents list` tells what speaks against them."
        )
    there = f"{idle} of {len(agents)}" if agents else "none"
    waits = f"The job waits: it needs {nodes} at once, and {there} {'are' if idle > 1 else 'is'} idle."
    if own_agents:
        return f"{waits} This command starts them itself; a moment on a busy machine."
    return (
        f"{waits} Start one on each node: advisor-agent run --server {url} --token-file FILE --allow-root DIR"
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


def watch_detachably(
    client: Client, job: Job, screen: Screen, events_are_the_result: bool = False, cancels: bool = False
) -> Job:
    """Follow a job of a server that outlives this command; an interrupt says how to come back, and exits.

    `cancels`: an interrupt cancels the job.
    """
    try:
        with interruptible():
            return follow_job(client, job, screen, events_are_the_result=events_are_the_result)
    except KeyboardInterrupt:
        if cancels:
            client.cancel_job(job.id)
            screen.tell(f"\nJob {job.id} was cancelled.")
            raise typer.Exit(Exit.INTERRUPTED) from None
        screen.tell(
            f"\nStopped watching; the job goes on. Watch it again: advisor watch {job.id}   "
            f"Stop it: advisor cancel {job.id}"
        )
        raise typer.Exit(Exit.INTERRUPTED) from None
