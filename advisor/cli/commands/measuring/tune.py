"""`advisor tune`: from a launch command to the advice, on this machine or on a server."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.options import (
    ALLOW_HELP,
    DetachOption,
    DryRunOption,
    GangsOption,
    JsonOption,
    LabelOption,
    MaxDeviceHoursOption,
    MinutesOption,
    NeedsOption,
    NodesOption,
    PoolOption,
    PriorityOption,
    SignForOption,
    SignOption,
    TrialsOption,
    ValuesOption,
    VerboseOption,
    WebhookOption,
    WithinOption,
    screen_of,
    sign_as_asked,
)
from advisor.cli.tuning.built_in import RANKS, launch_built_in
from advisor.cli.tuning.job_spec import TuneOptions, WantedJob, Where, read_testbed, spec_from_options
from advisor.cli.tuning.tune_anywhere import preview_anywhere, submit_detached, tune_anywhere
from advisor.protocol.asked.jobs import Job
from advisor.protocol.knobs.knob import Effect
from advisor.protocol.training.workload import Injection, WorkloadKind

if TYPE_CHECKING:  # It loads while server and agents start.
    from advisor.client import Client


def tune(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[--] COMMAND…",
            help="Your launch command, exactly as you type it; with --workload, the workload's own options.",
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="A name for the job.", show_default="the script's")] = "",
    workload: Annotated[
        str | None, typer.Option(metavar="NAME", help="A built-in training; `advisor workloads` lists them.")
    ] = None,
    kind: Annotated[
        WorkloadKind,
        typer.Option(
            help="pytorch switches settings inside the running script. command starts any program anew for each "
            "strategy, with '${num_threads}' and the like replaced in its command (docs/commands.md). paddle starts "
            "a PaddlePaddle dynamic-graph script anew for each strategy."
        ),
    ] = WorkloadKind.PYTORCH,
    reads: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KNOB[=VALUE]",
            help="With --kind command: a knob that the program reads from ADVISOR_STRATEGY, and its present value; "
            "repeatable.",
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="With --kind command: finds a step in a line of the output, e.g. 'step (?P<step_time_s>[0-9.]+) s'.",
            show_default="JSON lines",
        ),
    ] = None,
    nproc_per_node: Annotated[
        int | None, typer.Option(min=1, help="With --workload: processes on each node.", show_default=str(RANKS))
    ] = None,
    nodes: NodesOption = None,
    testbed: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Measure on nodes with shaped links made on this machine, e.g. nodes=2,rate=1gbit. Needs root.",
        ),
    ] = None,
    allow: Annotated[
        Effect,
        typer.Option(help=ALLOW_HELP),
    ] = Effect.EXACT,
    trials: TrialsOption = None,
    minutes: MinutesOption = None,
    max_device_hours: MaxDeviceHoursOption = None,
    webhook: WebhookOption = None,
    sign: SignOption = None,
    sign_for: SignForOption = "7d",  # type: ignore[assignment]
    gangs: GangsOption = None,
    knob: Annotated[list[str] | None, typer.Option(help="Search only this knob; repeatable.")] = None,
    freeze: Annotated[list[str] | None, typer.Option(help="Leave this knob alone; repeatable.")] = None,
    values: ValuesOption = None,
    label: LabelOption = None,
    priority: PriorityOption = None,
    pool: PoolOption = None,
    needs: NeedsOption = None,
    within: WithinOption = None,
    samples_per_step: Annotated[
        int | None, typer.Option(help="Samples one process takes per forward pass.", show_default="observed")
    ] = None,
    block_seconds: Annotated[
        float | None, typer.Option(help="Seconds one measurement aims at.", show_default="3")
    ] = None,
    min_gain: Annotated[
        float | None, typer.Option(help="Smallest gain worth a change, in percent.", show_default="1")
    ] = None,
    from_checkpoint: Annotated[
        bool,
        typer.Option(
            "--from-checkpoint",
            help="The command resumes a training from a checkpoint in its middle, by your script's own option. Without "
            "it, a change to how the model learns is never advised: at the start of a training it does no harm yet.",
        ),
    ] = False,
    injection: Annotated[
        Injection, typer.Option(help="How the advisor gets into the training processes; docs/integration.md.")
    ] = Injection.AUTO,
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
    more: Annotated[
        str | None,
        typer.Option("--continue", metavar="JOB",
                     help="Give a job that has ended --minutes more; it keeps all it measured."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    local_agents: Annotated[
        int | None,
        typer.Option(
            min=0, help="Agents to start on this machine, without ADVISOR_URL.", show_default="--nodes times --gangs"
        ),
    ] = None,
    dry_run: DryRunOption = False,
    detach: DetachOption = False,
    as_json: JsonOption = False,  # noqa: ARG001 - its callback tells the screen
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
    if testbed is not None and local_agents is not None:
        raise CommandFailed(
            Exit.USAGE,
            f"--local-agents {local_agents} does not go with --testbed: it starts one agent on each of its nodes.",
            "Leave --local-agents out; nodes=N of the testbed says how many there are.",
        )
    if workload is not None:
        command = launch_built_in(workload, nproc_per_node, command or ())
    shaped = read_testbed(testbed) if testbed is not None else None
    if [bool(command), resume is not None, more is not None].count(True) != 1:
        raise CommandFailed(
            Exit.USAGE,
            "Give one of a launch command, --resume JOB and --continue JOB.",
            "For example: advisor tune -- torchrun --nproc-per-node 2 train.py",
        )
    options = TuneOptions(
        name=name,
        nodes=nodes or (shaped.nodes if shaped else 1),
        testbed=shaped,
        allow=allow,
        trials=trials,
        minutes=minutes,
        device_hours=max_device_hours,
        gangs=gangs or 1,
        values=values or (),
        kind=kind,
        reads=reads or (),
        pattern=pattern or "",
        knobs=knob or (),
        freeze=freeze or (),
        labels=label or (),
        where=Where(priority, pool, needs or (), within),
        samples_per_step=samples_per_step,
        block_seconds=block_seconds,
        injection=injection,
        protect=protect or (),
        min_gain_percent=min_gain,
        from_checkpoint=from_checkpoint,
        webhooks=webhook or (),
        seed=seed,
    )
    spec = sign_as_asked(spec_from_options(command, options, Path.cwd()), sign, sign_for) if command else None
    wanted = WantedJob(
        spec,
        resume=resume,
        more=more,
        more_seconds=None if minutes is None else minutes * 60,
        more_trials=trials or 0,
        new=new,
    )

    if dry_run:
        if spec is None:
            raise CommandFailed(
                Exit.USAGE,
                "--dry-run needs a launch command: what a job of before searches is settled.",
                "`advisor show JOB` says where it stands.",
            )
        preview_anywhere(spec, os.environ, screen)
        return
    if detach:
        submit_detached(wanted, os.environ, screen)
        return

    def finish(client: "Client", job: Job) -> None:
        from advisor.cli.tuning.conclude import conclude

        conclude(client, job, output, screen)

    tune_anywhere(wanted, local_agents, finish, os.environ, screen)
