"""Tune on the nodes that an engine gives: the same command on each, of which node 0 has the server and the answer."""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from advisor.answers.wording import spell_duration
from advisor.cli.exits import CommandFailed, Exit, exit_code_of
from advisor.cli.interrupts import interruptible
from advisor.cli.screen import Screen
from advisor.cli.tuning.job_spec import WantedJob
from advisor.cli.tuning.nodes import Missing, Nodes
from advisor.cli.tuning.preflight import check_here
from advisor.cli.tuning.tune_here import announce, say_farewell
from advisor.data_dir import make_private
from advisor.here.attending import attending
from advisor.here.environments import Place, reset_added, spread
from advisor.here.gathering import Gathering, gathering
from advisor.here.join import Meeting, find_meeting, leave_meeting, open_tls, prove, read_secret
from advisor.local.agents import AgentPlace, held_agents, start_agent
from advisor.local.process import LocalProcess, ProcessDied
from advisor.local.record import measuring_turn, note_tuning
from advisor.local.server import LocalServer, failure_of, starting_server
from advisor.protocol.asked.jobs import Job, JobSpec
from advisor.protocol.nodes.load import say_load_here

if TYPE_CHECKING:  # It loads while server and agents start.
    from advisor.client import Client

_LEAVING_S = 60.0
"""Time before an allocation's end that is left for agents and server to end, and for what engines round."""
_FIRST_PAIR_S = 90.0
"""What starts, and the first pair of measurements, take on a machine of which little is known."""
_STOP_S, _POLL_S, _SILENT_S = 30.0, 0.2, 15.0


class _NodesMissing(Exception):
    """Nodes were away for longer than they may be, and the job is to go on with the others."""


def tune_on_nodes(
    wanted: WantedJob,
    nodes: Nodes,
    finish: Callable[["Client", Job], None],
    environment: Mapping[str, str],
    screen: Screen,
) -> None:
    """Be one of the nodes until the job is over, stopped or out of time; raises what node 0 ends with."""
    place = nodes.place
    if place.task > 0:
        screen.tell(f"Task {place.task} of node {place.rank} leaves: the node's first task runs its agent.")
        return
    own, added = reset_added(environment)
    own["ADVISOR_DATA_DIR"] = str(nodes.state)
    for sentence in filter(None, [*(added if place.rank == 0 else ()), spread(place), say_load_here()]):
        screen.warn(sentence)
    _prove_time(place, wanted.spec, screen)
    if place.rank > 0:
        raise typer.Exit(_attend(nodes, own, screen))
    _lead(wanted, nodes, finish, own, screen)


def _attend(nodes: Nodes, environment: Mapping[str, str], screen: Screen) -> int:
    """Run this node's agent until node 0 ends; return its exit code."""
    place = nodes.place

    def find() -> Meeting | None:
        return find_meeting(nodes.join_file, environment, place.head)

    with interruptible(), attending(place, find) as (attendance, leave):
        agent: LocalProcess | None = None
        try:
            while attendance.over is None:
                if attendance.token and agent is None:
                    screen.tell(f"Node {place.rank} of {place.count} ({place.name}) has found node 0.")
                    agent = _start(
                        nodes, attendance.port, attendance.own_address, attendance.token, environment
                    )
                if agent is not None:
                    agent.check()
                away_s = time.monotonic() - (attendance.away_since_s or time.monotonic())
                if away_s > nodes.patience_s:
                    raise CommandFailed(
                        Exit.UNREACHABLE,
                        f"Node 0 was not found for {spell_duration(away_s)}: {attendance.trouble}.",
                        "Is the same command running on node 0, and does this node reach it there? What was measured "
                        "is kept with node 0.",
                    )
                time.sleep(_POLL_S)
        except ProcessDied as died:
            leave(f"its agent stopped with exit code {agent.exit_code if agent else None}")
            raise failure_of(died, "Run `advisor-agent doctor` on this node to see what it lacks.") from died
        except KeyboardInterrupt:
            leave("it was asked to stop")
            screen.tell(f"Node {place.rank} was asked to stop: nothing is left running here.")
            return Exit.INTERRUPTED
        finally:
            if agent is not None:
                agent.stop(_STOP_S)
    screen.tell(
        f"Node 0 has ended with exit code {attendance.over}; nothing is left running on node {place.rank}."
    )
    return attendance.over


def _start(nodes: Nodes, port: int, address: str, token: str, environment: Mapping[str, str]) -> LocalProcess:
    url, name = f"http://127.0.0.1:{port}", nodes.place.name
    place = AgentPlace(
        name, url, options=("--advertise-address", address), environment={"ADVISOR_AGENT_TOKEN": token}
    )
    known = nodes.state / "agents" / name / "secret"
    if (given := read_secret(environment)) and not known.exists():
        # A node that comes back without its disk, as pods do, is known to the server as the same one.
        make_private(known.parent)
        known.touch(mode=0o600)
        known.write_text(prove(given, "agent", b"", name))
    agent = start_agent(place, None, nodes.state, environment)
    agent.let_go()
    return agent


def _lead(
    wanted: WantedJob,
    nodes: Nodes,
    finish: Callable[["Client", Job], None],
    environment: Mapping[str, str],
    screen: Screen,
) -> None:
    """Be node 0: server, agent, progress and answer."""
    place, job = nodes.place, None
    try:
        with interruptible(), ending_in_time(place, screen), ExitStack() as stack:
            meeting = leave_meeting(nodes.join_file, environment, place.head)
            stack.callback(nodes.join_file.unlink, missing_ok=True)
            gathered, open_to, end = stack.enter_context(
                gathering(place, meeting, open_tls(environment), screen.tell)
            )
            stack.push(lambda _, error, __: end(exit_code_of(error)))
            stack.enter_context(measuring_turn(nodes.state, screen.tell))
            note_tuning(nodes.state, nodes.again)
            screen.tell(f"Node 0 of {place.count} ({place.name}, {place.engine}): starting the server …")
            starting = stack.enter_context(starting_server(nodes.state, environment, lambda _: None))
            from advisor.cli.tuning.follow import follow_job
            from advisor.cli.tuning.obtain_job import find_answered, obtain_job
            from advisor.client import Client

            server = starting.await_ready()
            client = stack.enter_context(Client(server.url, server.token, patience_s=0))
            open_to(server.url, server.agent_token_file.read_text().strip())
            job = find_answered(client, wanted, screen)
            if job is None:
                check_agent = _await_nodes(stack, nodes, gathered, server, environment, screen)
            while job is None or not job.state.is_final:
                fitting = _fit(wanted, nodes, gathered.there())
                if fitting.spec is not None:
                    check_here(fitting.spec, environment)
                job = obtain_job(client, fitting, screen, alone=True, on_nodes=nodes.state)
                wanted = replace(wanted, new=False)
                for line in () if job.state.is_final else announce(job):
                    screen.tell(line)
                watch = _Watch(nodes, gathered, job.spec.nodes, screen)

                def check(watch: _Watch = watch) -> None:
                    server.check()
                    check_agent()
                    watch.look()

                try:
                    job = follow_job(client, job, screen, check, own_agents=True)
                except _NodesMissing:
                    client.pause_job(job.id)
            finish(client, job)
    except KeyboardInterrupt:
        screen.tell(say_farewell(job, nodes.state))
        raise typer.Exit(Exit.INTERRUPTED) from None


def _fit(wanted: WantedJob, nodes: Nodes, there: int) -> WantedJob:
    """Return the job as it is for all nodes, or for those that are there where the user chose so."""
    if wanted.spec is None or nodes.when_missing is Missing.WAIT:
        return wanted
    fewer = max(1, min(wanted.spec.nodes, there))
    return replace(wanted, spec=wanted.spec.model_copy(update={"nodes": fewer}))


def _await_nodes(
    stack: ExitStack,
    nodes: Nodes,
    gathered: Gathering,
    server: LocalServer,
    environment: Mapping[str, str],
    screen: Screen,
) -> Callable[[], None]:
    """Wait for the nodes, start node 0's own agent, and return a check that it runs."""
    watch = _Watch(nodes, gathered, nodes.place.count, screen)
    with suppress(_NodesMissing):
        while gathered.there() < nodes.place.count:
            server.check()
            watch.look()
            time.sleep(_POLL_S)
    # Others have come to it by this address, so ranks can meet there.
    address = ("--advertise-address", gathered.own_address) if gathered.own_address else ()
    own = AgentPlace(nodes.place.name, server.url, options=address)
    held = stack.enter_context(held_agents(server.agent_token_file, nodes.state, [own], environment))
    return held.let_go(server, lambda _: None)


class _Watch:
    """Says which nodes are away, and ends the wait for them where the user chose so."""

    def __init__(self, nodes: Nodes, gathered: Gathering, needed: int, screen: Screen) -> None:
        self._nodes, self._gathered, self._needed, self._screen = nodes, gathered, needed, screen
        self._told: set[tuple[int, bool]] = set()

    def look(self) -> None:
        """Raises `_NodesMissing` where the job is to go on with the nodes that are there."""
        if self._gathered.there() >= self._needed:
            return
        patience_s = self._nodes.patience_s
        for rank, away_s in self._gathered.missing().items():
            is_late = away_s > patience_s
            if away_s > min(_SILENT_S, patience_s) and (rank, is_late) not in self._told:
                self._told.add((rank, is_late))
                self._screen.warn(self._describe(rank, away_s, is_late=is_late))
            if is_late and self._nodes.when_missing is Missing.FEWER:
                raise _NodesMissing

    def _describe(self, rank: int, away_s: float, *, is_late: bool) -> str:
        who = f"{self._gathered.describe(rank)} has been away for {spell_duration(away_s)}"
        if self._nodes.when_missing is Missing.FEWER:
            limit = f"after {spell_duration(self._nodes.patience_s)} the job goes on without it"
            return f"{who}: " + (
                f"it goes on with {self._gathered.there()} nodes." if is_late else f"{limit}."
            )
        return f"{who}: the job waits for it." + (
            " (--when-missing fewer goes on without.)" if is_late else ""
        )


@contextmanager
def ending_in_time(place: Place, screen: Screen) -> Iterator[None]:
    """Interrupt what runs in the context a minute before the allocation ends."""
    if place.ends_in_s is None:
        yield
        return
    ends_s = time.monotonic() + place.ends_in_s - _LEAVING_S
    signal.setitimer(signal.ITIMER_REAL, max(1.0, ends_s - time.monotonic()))
    try:
        yield
    except KeyboardInterrupt:
        if time.monotonic() >= ends_s:
            screen.tell(
                f"\nThis allocation ends in {spell_duration(_LEAVING_S)}: stopping while there is time."
            )
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _prove_time(place: Place, spec: JobSpec | None, screen: Screen) -> None:
    """Raise `CommandFailed` where nothing could be measured before the allocation ends."""
    if place.ends_in_s is None:
        return
    left_s, least_s = max(0.0, place.ends_in_s), _LEAVING_S + _FIRST_PAIR_S
    if left_s < least_s:
        raise CommandFailed(
            Exit.JOB_NOT_FINISHED,
            f"This allocation ends in {spell_duration(left_s)}. The start and a first pair of measurements take up to "
            f"{spell_duration(_FIRST_PAIR_S)} and leaving {spell_duration(_LEAVING_S)}: nothing was started.",
            "Ask for more time; the same command in it goes on where the job was.",
        )
    if spec is not None and place.rank == 0 and spec.budget.max_seconds > left_s - least_s:
        screen.warn(
            f"The job may take {spell_duration(spec.budget.max_seconds)} and this allocation has "
            f"{spell_duration(left_s)}: what does not fit goes on in the next one, by the same command."
        )
