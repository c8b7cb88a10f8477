"""`advisor study`: optuna-dashboard over the jobs, while they run."""

import os
from typing import Annotated

import typer

from advisor.cli.connection import look_at, resolve_job
from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.options import MaybeJobArgument, screen_of


def study(
    context: typer.Context,
    job: MaybeJobArgument = None,
    host: Annotated[
        str, typer.Option(help="Address to serve on; who reaches it reads every job.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to serve on.")] = 8080,
) -> None:
    """Open all jobs as studies of Optuna in optuna-dashboard, live: each strategy is a trial, valued by its gain.

    advisor study last

    Says the address of the job's study, or without a job that of all. Needs optuna-dashboard here: the extra `study`
    of this package. It reads, and changes nothing; Ctrl-C ends it. In a notebook:
    optuna.load_study(study_name=JOB, storage=advisor.client.optuna_storage.JobsStorage(client)).
    """
    try:
        from optuna_dashboard import run_server  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise CommandFailed(
            Exit.USAGE,
            "advisor study needs the package optuna-dashboard.",
            "pip install 'fleet-advisor[study]'",
        ) from None
    from advisor.client.optuna_storage import JobsStorage
    from advisor.settings import is_loopback
    from advisor.tuning.history.study import place_study

    screen = screen_of(context)
    if not is_loopback(host):
        screen.tell(f"Whoever reaches {host}, port {port}, reads every job: this page asks for no token.")
    with look_at(os.environ) as reader:
        place = place_study(resolve_job(reader, job).id) if job else ""
        screen.tell(
            f"{'The job' if job else 'Every job'} as a study of Optuna: http://{host}:{port}{place} (Ctrl-C ends it)"
        )
        run_server(JobsStorage(reader), host=host, port=port)
