"""`advisor study`: optuna-dashboard over the jobs, while they run."""

import os
from typing import Annotated

import typer

from advisor.cli.connection import look_at
from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.options import screen_of


def study(
    context: typer.Context,
    host: Annotated[
        str, typer.Option(help="Address to serve on; who reaches it reads every job.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to serve on.")] = 8080,
) -> None:
    """Open all jobs as studies of Optuna in optuna-dashboard, live: each strategy is a trial, valued by its gain.

    advisor study

    Needs the package optuna-dashboard here. It reads, and changes nothing; Ctrl-C ends it. In a notebook:
    optuna.load_study(study_name=JOB, storage=advisor.client.optuna_storage.JobsStorage(client)).
    """
    try:
        from optuna_dashboard import run_server  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise CommandFailed(
            Exit.USAGE, "advisor study needs the package optuna-dashboard.", "pip install optuna-dashboard"
        ) from None
    from advisor.client.optuna_storage import JobsStorage
    from advisor.settings import is_loopback

    screen = screen_of(context)
    if not is_loopback(host):
        screen.tell(f"Whoever reaches {host}, port {port}, reads every job: this page asks for no token.")
    with look_at(os.environ) as reader:
        screen.tell(f"Every job as a study of Optuna: http://{host}:{port} (Ctrl-C ends it)")
        run_server(JobsStorage(reader), host=host, port=port)
