"""`advisor tune`: from a launch command to the advice, on this machine or on a server."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advisor.cli.completions import complete_job
from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.options import (
    BEFORE,
    DetachOption,
    JsonOption,
    LogToOption,
    QuietOption,
    SignForOption,
    SignOption,
    VerboseOption,
    screen_of,
    sign_as_asked,
)
from advisor.cli.screen import Screen
from advisor.cli.tuning.built_in import RANKS, launch_built_in
from advisor.cli.tuning.filled_options import TRAINED, WHERE, list_options, takes
from advisor.cli.tuning.job_options import TuneOptions
from advisor.cli.tuning.job_spec import WantedJob, spec_from_options
from advisor.cli.tuning.nodes import (
    HereOptions,
    Nodes,
    describe_nodes,
    find_nodes,
    fit_options,
    launch_ranks,
    settle_nodes,
)
from advisor.cli.tuning.preflight import check_here
from advisor.cli.tuning.tune_anywhere import submit_detached, tune_anywhere
from advisor.protocol.asked.jobs import Job, JobSpec

if TYPE_CHECKING:  # It loads while server and agents start.
    from advisor.client import Client

_GENERIC = {
    "--name",
    "--seed",
    "--label",
    "--pattern",
    "--kind",
    "--nodes",
    "--pool",
    "--values",
    "--priority",
    "--within",
}
"""Options that scripts have as well, under the same name."""
_FLAGS = {option.flag for option in list_options(TuneOptions)} - _GENERIC | {
    "--local-agents",
    "--detach",
}


@takes(options=TuneOptions, here=HereOptions)
def tune(
    context: typer.Context,
    options: TuneOptions,
    here: HereOptions,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[--] COMMAND…",
            help="Your launch command, exactly as you type it; with --workload, the workload's own options.",
        ),
    ] = None,
    workload: Annotated[
        str | None, typer.Option(metavar="NAME", help="A built-in training; `advisor workloads` lists them.",
                                 rich_help_panel=TRAINED)
    ] = None,
    nproc_per_node: Annotated[
        int | None, typer.Option(min=1, help="With --workload: processes on each node.", show_default=str(RANKS),
                                 rich_help_panel=TRAINED)
    ] = None,
    sign: SignOption = None,
    sign_for: SignForOption = "7d",  # type: ignore[assignment]
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Directory for the strategy's files.",
                                  show_default="advisor-<name>")
    ] = None,
    log_to: LogToOption = None,
    new: Annotated[
        bool,
        typer.Option("--new", help="Start afresh, and give up this machine's unfinished jobs.",
                     rich_help_panel=BEFORE),
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(metavar="JOB", help="Go on with an unfinished job.", autocompletion=complete_job,
                     rich_help_panel=BEFORE),
    ] = None,
    more: Annotated[
        str | None,
        typer.Option("--continue", metavar="JOB",
                     help="Give a job that has ended --minutes more; it keeps all it measured.",
                     autocompletion=complete_job),
    ] = None,
    local_agents: Annotated[
        int | None,
        typer.Option(
            min=0, help="Agents to start on this machine, without ADVISOR_URL.", show_default="--nodes",
            rich_help_panel=WHERE,
        ),
    ] = None,
    prove: Annotated[
        bool, typer.Option("--prove", hidden=True, help="With --here: say what this node was told, and start nothing.")
    ] = False,
    detach: DetachOption = False,
    as_json: JsonOption = False,  # noqa: ARG001 - its callback tells the screen
    quiet: QuietOption = False,  # noqa: ARG001 - its callback tells the screen
    verbose: VerboseOption = False,  # noqa: ARG001 - its callback tells the screen
) -> None:  # fmt: skip
    """Find the fastest safe settings for your own, unchanged training script.

    advisor tune --minutes 10 -- torchrun --nproc-per-node 2 train.py --epochs 3

    Without ADVISOR_URL everything happens on this machine. Ctrl-C loses nothing: the same command goes on where it
    was. On a server, Ctrl-C only stops watching. A job that ended undecided gets more time with --continue.
    """
    screen = screen_of(context)
    if nproc_per_node is not None and workload is None:
        raise CommandFailed(
            Exit.USAGE,
            f"--nproc-per-node {nproc_per_node} belongs to --workload.",
            "Without it, the launch command says how many: advisor tune -- torchrun --nproc-per-node 2 train.py",
        )
    if options.testbed is not None and local_agents is not None:
        raise CommandFailed(
            Exit.USAGE,
            f"--local-agents {local_agents} does not go with --testbed: it starts one agent on each of its nodes.",
            "Leave --local-agents out; nodes=N of the testbed says how many there are.",
        )
    trackers = _find_trackers(log_to or ())
    if workload is not None:
        command = launch_built_in(workload, nproc_per_node, command or ())
    if [bool(command), resume is not None, more is not None].count(True) != 1:
        raise CommandFailed(
            Exit.USAGE,
            "Give one of a launch command, --resume JOB and --continue JOB.",
            "For example: advisor tune -- torchrun --nproc-per-node 2 train.py",
        )
    place = find_nodes(here, options, os.environ) if here.here else None
    if place is not None:
        options, command = fit_options(options, place), command and launch_ranks(command, place)
    spec = sign_as_asked(spec_from_options(command, options, Path.cwd()), sign, sign_for) if command else None
    is_first = place is None or place.rank == place.task == 0
    _look_ahead(spec, output, screen, writes=is_first and not prove and not detach)
    wanted = WantedJob(
        spec,
        resume=resume,
        more=more,
        more_seconds=None if options.minutes is None else options.minutes * 60,
        more_trials=options.trials or 0,
        new=new,
    )

    def finish(client: "Client", job: Job) -> None:
        from advisor.cli.tuning.conclude import conclude

        conclude(client, job, output, screen, trackers, nodes.state if nodes else None)

    nodes: Nodes | None = None
    if place is not None and not detach:
        nodes = settle_nodes(place, here, spec, output, os.environ)
        for line in describe_nodes(nodes, os.environ) if prove or screen.verbose else ():
            (screen.print_text if prove else screen.tell)(line)
        if prove:
            if spec is not None:
                check_here(spec, os.environ)
            return
        from advisor.cli.tuning.tune_on_nodes import tune_on_nodes

        tune_on_nodes(wanted, nodes, finish, os.environ, screen)
        return
    if detach and place is not None:
        raise CommandFailed(
            Exit.USAGE,
            "--detach does not go with --here: server and agents end with the command.",
            "Leave it out; the engine that starts the nodes returns at once.",
        )
    if detach and trackers:
        raise CommandFailed(
            Exit.USAGE,
            "--log-to writes when the job has ended, and --detach does not wait for that.",
            "Leave it out, and afterwards: advisor report JOB --log-to mlflow",
        )
    if detach:
        submit_detached(wanted, os.environ, screen)
        return

    tune_anywhere(wanted, local_agents, finish, os.environ, screen)


def _look_ahead(spec: JobSpec | None, output: Path | None, screen: Screen, *, writes: bool) -> None:
    """Say what is known before anything is started: words that went astray, files that could not be written."""
    from advisor.cli.tuning.preflight import warn_of_stray_options, warn_of_undeclared
    from advisor.cli.tuning.strategy_files import name_directory, require_room
    from advisor.protocol.knobs.combinations import say_too_many

    directory = name_directory(spec.name) if output is None and spec is not None and spec.name else output
    if directory is not None and (writes or output is not None):
        require_room(directory)
    if spec is None:
        return
    budget = spec.budget
    too_many = say_too_many(spec.workload, budget.max_seconds, budget.max_trials, spec.freeze)
    for warning in (warn_of_stray_options(spec, _FLAGS), warn_of_undeclared(spec), too_many):
        if warning:
            screen.warn(warning)


def _find_trackers(log_to: Sequence[str]) -> Sequence[tuple[str, str]]:
    if not log_to:
        return ()
    from advisor.cli.tuning.trackers import read_targets

    return read_targets(log_to)
