"""`advisor tune`: from a launch command to the advice, on this machine or on a server."""

import os
from pathlib import Path
from typing import Annotated

import typer

from advisor.cli.conclude import conclude
from advisor.cli.connection import connect
from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.job_spec import TuneOptions, spec_from_options
from advisor.cli.jobs import watch_detachably
from advisor.cli.obtain_job import WantedJob, obtain_job
from advisor.cli.options import JsonOption, VerboseOption, screen_of
from advisor.cli.tune_here import tune_here
from advisor.protocol.knobs import Effect


def tune(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[--] COMMAND…", help="Your launch command, exactly as you type it."),
    ] = None,
    name: Annotated[str, typer.Option(help="A name for the job.", show_default="the script's")] = "",
    nodes: Annotated[int, typer.Option(min=1, help="Machines that train together.")] = 1,
    allow: Annotated[
        Effect,
        typer.Option(
            help="What a change may cost besides nothing: exact keeps the mathematics, numeric may round "
            "differently, convergence may change how the model learns."
        ),
    ] = Effect.EXACT,
    trials: Annotated[int | None, typer.Option(help="Most strategies to try.", show_default="24")] = None,
    minutes: Annotated[float | None, typer.Option(help="Most minutes to measure.", show_default="30")] = None,
    knob: Annotated[list[str] | None, typer.Option(help="Search only this knob; repeatable.")] = None,
    freeze: Annotated[list[str] | None, typer.Option(help="Leave this knob alone; repeatable.")] = None,
    samples_per_step: Annotated[
        int | None, typer.Option(help="Samples one process takes per forward pass.", show_default="observed")
    ] = None,
    block_seconds: Annotated[
        float | None, typer.Option(help="Seconds one measurement aims at.", show_default="3")
    ] = None,
    min_gain: Annotated[
        float | None, typer.Option(help="Smallest gain worth a change, in percent.", show_default="1")
    ] = None,
    protect: Annotated[
        list[Path] | None,
        typer.Option(help="Another directory that trials must not change; the working directory never is."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Directory for the strategy's files.",
                                  show_default="advisor-<name>")
    ] = None,
    new: Annotated[
        bool, typer.Option("--new", help="Start afresh, and give up this machine's unfinished jobs.")
    ] = False,
    resume: Annotated[str | None, typer.Option(metavar="JOB", help="Go on with an unfinished job.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    local_agents: Annotated[
        int | None,
        typer.Option(min=0, help="Agents to start on this machine, without ADVISOR_URL.", show_default="--nodes"),
    ] = None,
    as_json: JsonOption = False,  # noqa: ARG001 - its callback tells the screen
    verbose: VerboseOption = False,  # noqa: ARG001 - its callback tells the screen
) -> None:  # fmt: skip
    """Find the fastest safe settings for your own, unchanged training script.

    advisor tune --minutes 10 -- torchrun --nproc-per-node 2 train.py --epochs 3

    Without ADVISOR_URL everything happens on this machine and is gone when it ends. Ctrl-C loses nothing: the
    same command goes on where it was. On a server, Ctrl-C only stops watching.
    """
    screen = screen_of(context)
    if bool(command) == (resume is not None):
        raise CommandFailed(
            Exit.USAGE,
            "Give either a launch command or --resume JOB.",
            "For example: advisor tune -- torchrun --nproc-per-node 2 train.py",
        )
    options = TuneOptions(
        name=name,
        nodes=nodes,
        allow=allow,
        trials=trials,
        minutes=minutes,
        knobs=knob or (),
        freeze=freeze or (),
        samples_per_step=samples_per_step,
        block_seconds=block_seconds,
        protect=protect or (),
        min_gain_percent=min_gain,
        seed=seed,
    )
    spec = spec_from_options(command, options, Path.cwd()) if command else None
    wanted = WantedJob(spec, resume, new)
    if not os.environ.get("ADVISOR_URL"):
        tune_here(wanted, local_agents, output, os.environ, screen)
        return
    with connect(os.environ) as client:
        job = obtain_job(client, wanted, screen, alone=False)
        conclude(client, watch_detachably(client, job, screen), output, screen)
