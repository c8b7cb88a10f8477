"""A job that a command asks for, on the server that is named or on this machine, to its end."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.screen import Screen
from advisor.cli.tuning.job_spec import WantedJob
from advisor.cli.tuning.tune_here import tune_here
from advisor.protocol.asked.jobs import Job

if TYPE_CHECKING:  # It loads while server and agents start.
    from advisor.client import Client

WHEN_INTERRUPTED = "ADVISOR_WHEN_INTERRUPTED"
CANCEL = "cancel"
"""What that variable says where nobody comes back to a job of a server that was left: cancel it."""


def tune_anywhere(
    wanted: WantedJob,
    local_agents: int | None,
    finish: Callable[["Client", Job], None],
    environment: Mapping[str, str],
    screen: Screen,
) -> None:
    """Obtain the job, watch it until it is over, and `finish` it."""
    if not environment.get("ADVISOR_URL"):
        if wanted.spec and (wanted.spec.pool or wanted.spec.needs or wanted.spec.within):
            raise CommandFailed(
                Exit.USAGE,
                "--pool, --needs and --within choose among the nodes of a server.",
                "Name the server in ADVISOR_URL, or leave them out.",
            )
        tune_here(wanted, local_agents, finish, environment, screen)
        return
    # Loaded where they are needed: on this machine, server and agents start first.
    from advisor.cli.connection import connect
    from advisor.cli.tuning.follow import watch_detachably
    from advisor.cli.tuning.obtain_job import obtain_job

    with connect(environment) as client:
        job = obtain_job(client, wanted, screen, alone=False)
        cancels = environment.get(WHEN_INTERRUPTED) == CANCEL
        finish(client, watch_detachably(client, job, screen, cancels=cancels))


def submit_detached(wanted: WantedJob, environment: Mapping[str, str], screen: Screen) -> None:
    """Obtain the job and print its id; the server's agents measure it, watched or not."""
    if not environment.get("ADVISOR_URL"):
        raise CommandFailed(
            Exit.USAGE,
            "--detach needs a server: on this machine server and agents end with this command.",
            "Name the server in ADVISOR_URL, or leave --detach out.",
        )
    from advisor.cli.connection import connect
    from advisor.cli.tuning.obtain_job import obtain_job

    with connect(environment) as client:
        job = obtain_job(client, wanted, screen, alone=False)
    if screen.json:
        screen.print_json(job)
        return
    screen.print_text(job.id)
    screen.tell(f"Watch it: advisor watch {job.id}")
