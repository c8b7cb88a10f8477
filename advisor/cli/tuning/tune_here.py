"""Tune on this machine: a server and agents of our own, gone again when the command ends."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from advisor.answers.wording import spell_duration
from advisor.cli.exits import Exit
from advisor.cli.interrupts import interruptible
from advisor.cli.page_link import address_page
from advisor.cli.screen import Screen
from advisor.cli.tuning.job_spec import WantedJob
from advisor.cli.tuning.preflight import check_here, warn_of_nodes
from advisor.data_dir import data_dir_of
from advisor.local.agents import AgentPlace, HeldAgents, held_agents, places_here
from advisor.local.record import measuring_turn, pointing_at
from advisor.local.server import LocalServer, starting_server
from advisor.protocol.asked.jobs import Job, JobSpec, JobState
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.nodes.load import say_load_here

if TYPE_CHECKING:  # It loads while server and agents start.
    from advisor.client import Client


def tune_here(
    wanted: WantedJob,
    agents: int | None,
    finish: Callable[["Client", Job], None],
    environment: Mapping[str, str],
    screen: Screen,
) -> None:
    """Obtain a job, serve it with `agents` agents (one for each of its nodes when None) or a testbed, and `finish` it.

    An interrupt stops agents and server, loses nothing, and says how to go on.
    """
    if wanted.spec is not None:
        check_here(wanted.spec, environment)
        for warning in filter(None, (warn_of_nodes(wanted.spec), say_load_here())):
            screen.warn(warning)
        if wanted.spec.testbed is not None:
            from advisor.local.testbed import require_testbed

            require_testbed(wanted.spec.testbed)
    data_dir = data_dir_of(environment)
    job: Job | None = None
    try:
        with interruptible(), ExitStack() as stack:
            stack.enter_context(measuring_turn(data_dir, screen.tell))
            screen.tell("Starting a server and agents on this machine …")
            tell = screen.tell if screen.verbose else _say_nothing
            starting = stack.enter_context(starting_server(data_dir, environment, tell))

            def hold(places: Sequence[AgentPlace]) -> HeldAgents:
                token_file = starting.agent_token_file
                return stack.enter_context(held_agents(token_file, data_dir, places, environment))

            held: HeldAgents | None = None
            if wanted.spec is not None and wanted.spec.testbed is None:
                # Side by side with the server.
                held = hold(_places_of(wanted.spec, agents, starting.url))
            # Meanwhile the rest of this command loads.
            from advisor.cli.tuning.follow import follow_job
            from advisor.cli.tuning.obtain_job import obtain_job
            from advisor.client import Client

            server = starting.await_ready()
            client = stack.enter_context(Client(server.url, server.token, patience_s=0))
            job = obtain_job(client, wanted, screen, alone=server.started_here)
            if not job.state.is_final:
                for line in announce(job):
                    screen.tell(line)
                screen.tell(f"Live: {address_page(server.url, data_dir, f'/jobs/{job.id}')}")
                if held is None:
                    held = hold(_build_places(stack, job.spec, agents, server, tell))
                check_agents = held.let_go(server, tell)

                def check() -> None:
                    server.check()
                    check_agents()

                job = follow_job(client, job, screen, check, own_agents=True)
            finish(client, job)
    except KeyboardInterrupt:
        screen.tell(say_farewell(job))
        raise typer.Exit(Exit.INTERRUPTED) from None


def _places_of(spec: JobSpec, agents: int | None, server_url: str) -> tuple[AgentPlace, ...]:
    return places_here(server_url, spec.nodes if agents is None else agents)


def _build_places(
    stack: ExitStack, spec: JobSpec, agents: int | None, server: LocalServer, tell: Callable[[str], None]
) -> tuple[AgentPlace, ...]:
    """The places of a job, on this machine as it is or in testbeds that last as long as `stack`."""
    if spec.testbed is None:
        return _places_of(spec, agents, server.url)
    from advisor.local.testbed import testbed_places

    return stack.enter_context(testbed_places(spec.testbed, server, tell))


def _say_nothing(_: str) -> None:
    """What a server and agents that start as they should have to say."""


def announce(job: Job) -> list[str]:
    """Return what is about to happen, before anything is known of the script."""
    budget = job.spec.budget
    hours = f" and {budget.max_device_hours:g} device-hours" if budget.max_device_hours is not None else ""
    nodes = f" · {job.spec.nodes} nodes" if job.spec.nodes > 1 else ""
    time = spell_duration(budget.max_seconds)
    tuning = f"Tuning {job.spec.name}{nodes} · at most {budget.max_trials} strategies in {time}{hours}"
    rival = Changes(job.spec.workload.base).describe() if job.spec.workload.base else "your settings"
    verifying = f"Verifying {job.spec.verify.describe()} against {rival}{nodes} · at most {time}"
    return [
        verifying if job.spec.verify else tuning,
        "Files untouched. Ctrl-C pauses; the same command resumes.",
    ]


def say_farewell(job: Job | None, state: Path | None = None) -> str:
    """Return what an interrupted command says last: what became of its job, and how to go on.

    `state`: the data directory of a command on nodes, which nothing else looks into by itself.
    """
    if job is None:
        return "\nStopped before a job was submitted."
    advisor = f"{pointing_at(state)}advisor"
    if job.state.is_final:
        where = _say_where_it_is(job, advisor)
        return f"\nStopped after job {job.id} had ended; nothing is left running. {where}"
    other = f"; it continues from {state}" if state else f", or advisor tune --resume {job.id}"
    return f"\nStopped; nothing is left running and nothing is lost. Go on: run the same command again{other}"


def _say_where_it_is(job: Job, advisor: str) -> str:
    if job.state is JobState.FINISHED:
        return f"Its answer: {advisor} advice {job.id}   Its files: {advisor} tune --resume {job.id}"
    return f"What became of it: {advisor} show {job.id}"
