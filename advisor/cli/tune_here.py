"""Tune on this machine: a server and agents of our own, gone again when the command ends."""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import typer

from advisor.cli.conclude import conclude
from advisor.cli.connection import data_dir_of
from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.follow import follow_job
from advisor.cli.interrupts import interruptible
from advisor.cli.obtain_job import WantedJob, obtain_job
from advisor.cli.screen import Screen
from advisor.cli.wording import spell_duration
from advisor.client import Client
from advisor.local.agents import AgentPlace, local_agents, places_here, training_environment
from advisor.local.record import measuring_turn
from advisor.local.server import local_server
from advisor.local.testbed import require_testbed, testbed_places
from advisor.protocol.jobs import Job


def tune_here(
    wanted: WantedJob, agents: int | None, output: Path | None, environment: Mapping[str, str], screen: Screen
) -> None:
    """Obtain a job, serve it with `agents` agents (as many as its gangs hold when None) or a testbed, show its advice.

    An interrupt stops agents and server, loses nothing, and says how to go on.
    """
    if wanted.spec is not None:
        check_launcher(wanted.spec.workload.command, environment)
        if wanted.spec.testbed is not None:
            require_testbed(wanted.spec.testbed)
    data_dir = data_dir_of(environment)
    job: Job | None = None
    try:
        with interruptible(), ExitStack() as stack:
            stack.enter_context(measuring_turn(data_dir, screen.tell))
            server = stack.enter_context(local_server(data_dir, environment, screen.tell))
            client = stack.enter_context(Client(server.url, server.token))
            job = obtain_job(client, wanted, screen, alone=server.started_here)
            if not job.state.is_final:
                screen.tell(_plan(job))
                screen.tell(
                    f"In a browser: {server.url}/jobs/{job.id} (the token to sign in: {data_dir / 'admin-token'})"
                )
                places: tuple[AgentPlace, ...] = ()
                if job.spec.testbed is not None:
                    # A gang's nodes reach each other only. A testbed that has a name is one testbed.
                    for _ in range(1 if job.spec.testbed.name else job.spec.gangs):
                        places += stack.enter_context(testbed_places(job.spec.testbed, server, screen.tell))
                else:
                    held = job.spec.nodes * job.spec.gangs
                    places = places_here(server, held if agents is None else agents)
                check_agents = stack.enter_context(
                    local_agents(server, data_dir, places, environment, screen.tell)
                )

                def check() -> None:
                    server.check()
                    check_agents()

                job = follow_job(client, job, screen, check)
            conclude(client, job, output, screen)
    except KeyboardInterrupt:
        screen.tell(_farewell(job))
        raise typer.Exit(Exit.INTERRUPTED) from None


def check_launcher(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise `CommandFailed` when the first word of the command cannot be started on this machine."""
    path = training_environment(environment)["PATH"]
    if shutil.which(command[0], path=path) is None:
        raise CommandFailed(
            Exit.INVALID_SPEC,
            f"{command[0]} is not a program on this machine's PATH.",
            "Activate the environment that you train in, or give the launcher's full path. The command goes after "
            "`--`, as you type it in your shell: advisor tune -- torchrun --nproc-per-node 2 train.py",
        )


def _plan(job: Job) -> str:
    budget = job.spec.budget
    hours = f" and {budget.max_device_hours:g} device-hours" if budget.max_device_hours is not None else ""
    return (
        f"Your script runs as it stands, again and again under other settings: at most {budget.max_trials} "
        f"strategies in {spell_duration(budget.max_seconds)}{hours}. Your files stay as they are. Ctrl-C loses nothing."
        f"{_warn_of_gangs(job)}"
    )


def _warn_of_gangs(job: Job) -> str:
    if job.spec.gangs == 1:
        return ""
    return (
        f" {job.spec.gangs} gangs share this machine while they search and slow each other down: the baseline beside "
        "each strategy is measured under the same load, and the confirmation runs alone."
    )


def _farewell(job: Job | None) -> str:
    if job is None:
        return "\nStopped before a job was submitted."
    return (
        f"\nStopped; nothing is left running and nothing is lost. Go on: run the same command again, or "
        f"advisor tune --resume {job.id}"
    )
