"""`advisor testbed`: nodes with shaped links on this machine, with an agent in each, until it is stopped."""

import os
import time
from contextlib import ExitStack
from typing import Annotated

import typer

from advisor.cli.interrupts import interruptible
from advisor.cli.options import screen_of
from advisor.cli.tuning.job_options import read_testbed
from advisor.data_dir import data_dir_of
from advisor.local.agents import local_agents
from advisor.local.server import LocalServer, local_server
from advisor.local.testbed import require_testbed, testbed_places
from advisor.protocol.nodes.testbed import Testbed

_CHECK_S = 1.0


def run_testbed(
    context: typer.Context,
    spec: Annotated[
        str,
        typer.Argument(metavar="SPEC", help="nodes=2,rate=1gbit; cpus=1 gives each node CPUs of its own."),
    ] = "nodes=2,rate=1gbit",
) -> None:
    """Build nodes with shaped links on this machine and serve them until Ctrl-C. Needs root."""
    screen = screen_of(context)
    wanted = read_testbed(spec)
    require_testbed(wanted)
    data_dir = data_dir_of(os.environ)
    try:
        with interruptible(), ExitStack() as stack:
            server = stack.enter_context(local_server(data_dir, os.environ, screen.tell))
            places = stack.enter_context(testbed_places(wanted, server, screen.tell))
            check = stack.enter_context(local_agents(server, data_dir, places, os.environ, screen.tell))
            screen.show(_usage(wanted, server, str(data_dir), " ".join(places[0].prefix)))
            while True:
                server.check()
                check()
                time.sleep(_CHECK_S)
    except KeyboardInterrupt:
        screen.tell("\nThe testbed is gone, with everything that ran in it.")


def _usage(wanted: Testbed, server: LocalServer, data_dir: str, prefix: str) -> str:
    return (
        f"The testbed {wanted} is ready. In another terminal:\n\n"
        f"  export ADVISOR_URL={server.url} ADVISOR_TOKEN_FILE={data_dir}/admin-token\n"
        f"  advisor tune --testbed {wanted} -- torchrun --nproc-per-node 1 train.py\n\n"
        f"A command on the first node: {prefix} COMMAND\n"
        f"In a browser: {server.url}\n"
        "Ctrl-C ends the testbed and whatever runs in it."
    )
