"""`advisor run`: becomes the user's own command, whose ranks put the strategy in force themselves.

The process is replaced, so signals, output and exit code are the command's own.
"""

import json
import os
import secrets
import shlex
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from advisor.protocol.answers.strategy_file import read_strategy_file
from advisor.protocol.training.command_options import split_variables
from agent.guard.rank_folder import lay_out
from agent.production.beside import start_beside
from agent.production.plan import Unusable, find_program, make_plan, start_tuner, warn_of
from agent.runtime.inject.variables import INVALID, LEFT_OUT, is_trial
from agent.runtime.link.rank_output import flush_output, say

_TOKENS = ("ADVISOR_TOKEN", "ADVISOR_TOKEN_FILE")
_USAGE = 2
_TIDIER_START_S = 10.0


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="[--] COMMAND…", help="A launch command, exactly as you type it.")
    ],
    strategy: Annotated[
        Path | None, typer.Option(help="The strategy.json of a tuning job.", show_default=False)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KNOB=VALUE", help="A setting beside the file's, or instead of one; repeatable."
        ),
    ] = None,
    leave: Annotated[
        list[str] | None,
        typer.Option(metavar="KNOB", help="Leave this knob as the script has it; repeatable."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Write what came into force, with the proof, to this file as JSON."),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Write step times to a file all along, and say so when throughput leaves the advised interval.",
        ),
    ] = False,
    watch_file: Annotated[
        Path | None,
        typer.Option(help="With --watch: where to write.", show_default="advisor-run-<process>.jsonl"),
    ] = None,
    watch_seconds: Annotated[
        float, typer.Option(min=0.1, help="With --watch: seconds of steps that are judged together.")
    ] = 30.0,
    webhook: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="With --watch: post alerts there, signed with the key in ADVISOR_WEBHOOK_SECRET.",
        ),
    ] = None,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="Let exact settings take turns inside this training, and go on with the best. Needs the extras "
            "server and agent on the first node.",
        ),
    ] = False,
    minutes: Annotated[
        float, typer.Option(min=0.05, help="With --tune: most minutes of interleaved A/B rounds.")
    ] = 5.0,
    max_loss: Annotated[
        float, typer.Option(min=0.0, help="With --tune: most seconds that slower settings may cost in all.")
    ] = 60.0,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="With --tune: the strategy file that comes out.")
    ] = Path("strategy-online.json"),
    copy_on_drift: Annotated[
        bool,
        typer.Option(
            "--copy-on-drift",
            help="Where ranks that held the same parameters ever differ, copy rank 0's to all. The settings are taken "
            "back in any case.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the command and the variables that it would get.")
    ] = False,
) -> None:
    """Train for real under an advised strategy: your own command, no line of the script changed.

    The strategy is in force from the fourth step on; the first rank says on standard error which settings are, with the
    proof. Where several nodes are started one by one, put it before each node's command. Exit code: the command's own;
    2 usage, 3 the strategy cannot be used.
    """
    variables, command = split_variables(command)
    outside = dict(os.environ)
    os.environ |= variables
    if not command:
        _fail("There are only variables: give the command behind them, e.g. torchrun.", _USAGE)
    # Out of the training's own variables: only the watch gets it (in ADVISOR_RUN), and only with a server to report to.
    tokens = {name: text for name in _TOKENS if (text := os.environ.pop(name, ""))}
    try:
        text = strategy.read_text() if strategy is not None else ""
        file = read_strategy_file(text) if strategy is not None else None
    except (OSError, ValueError) as error:
        remedy = f"`advisor export JOB --format json --output {strategy}` writes one."
        _fail(f"{strategy} cannot be read as a strategy file: {error}. {remedy}", INVALID)
    if file is None and not settings and not watch and not tune:
        _fail(
            "Say what to run under: --strategy strategy.json, --set KNOB=VALUE, --tune, or --watch alone.",
            _USAGE,
        )
    try:
        # Tuning leaves knobs alone that no strategy sets.
        left = [name for name in leave or () if not tune or (file is not None and name in file.changes)]
        plan = make_plan(file, settings or (), left)
        if is_trial(os.environ):
            # The script is started by way of this command.
            say(LEFT_OUT)
            os.execvp(find_program(command[0], os.environ), command)  # noqa: S606 - the user's own command, never a shell
        copies_dir = Path(tempfile.gettempdir(), f"advisor-run-{secrets.token_hex(8)}")
        command, copies = plan.settle(command, Path.cwd(), copies_dir)
        program = find_program(command[0], os.environ)
    except Unusable as error:
        _fail(str(error), INVALID)
    if not watch and (watch_file or webhook):
        _fail("--watch-file and --webhook belong to --watch.", _USAGE)
    watching = _describe_watch(strategy, watch_file, watch_seconds, webhook, command) if watch else None
    if watching is not None and file is not None and (server := os.environ.get("ADVISOR_URL")):
        watching["server"] = f"{server.rstrip('/')}/api/v1/jobs/{file.job_id}/runs/{secrets.token_hex(8)}"
        watching |= {name.removeprefix("ADVISOR_").lower(): text for name, text in tokens.items()}
    variables = plan.build_environment(
        os.environ, report.absolute() if report else None, watching, tune=tune, copies=copy_on_drift
    )
    if dry_run:
        added = {name: value for name, value in variables.items() if outside.get(name) != value}
        typer.echo(json.dumps({"command": command, "environment": added}, indent=2))
        return
    told = [plan.headline]
    if tune:
        start = plan.headline if plan.changes else "yours as they are."
        told = [f"settings take turns inside this training for at most {minutes:g} minutes, from {start}"]
    if watching:
        too = (
            f", and to job {file.job_id} on {os.environ['ADVISOR_URL']}"
            if file and "server" in watching
            else ""
        )
        told.append(f"step times go to {watching['path']}{too}")
    for sentence in (*told, *warn_of(command, Path.cwd())):
        say(sentence)  # the training starts also where nothing can be written
    if tune:
        try:
            folder = start_tuner(plan, minutes * 60.0, max_loss, leave or (), output.absolute(), command)
        except Unusable as error:
            _fail(str(error), INVALID)
        variables |= {"ADVISOR_CONTROL": str(folder / "s")}
    if copies:
        copies_dir.mkdir(mode=0o700)
        start_beside("agent.production.beside", str(copies_dir), within_s=_TIDIER_START_S)
        lay_out(copies_dir, copies)
    flush_output()
    os.execve(program, command, variables)  # noqa: S606 - the user's own command, never a shell


def _describe_watch(
    strategy: Path | None, file: Path | None, every_s: float, webhook: str | None, command: list[str]
) -> dict[str, object]:
    """What the ranks need to watch themselves; absent values leave their own defaults."""
    path = file or Path(f"advisor-run-{os.getpid()}.jsonl")
    if webhook is not None and not webhook.startswith(("http://", "https://")):
        _fail(f"--webhook {webhook}: give an http or https address.", _USAGE)
    watch: dict[str, object] = {"path": str(path.absolute()), "every_s": every_s}
    if webhook is not None:
        watch["webhook"] = webhook
    if strategy is not None:
        watch["retune"] = f"advisor verify {shlex.quote(str(strategy))} -- {shlex.join(command)}"
    return watch


def _fail(sentence: str, code: int) -> None:
    typer.echo(f"Error: {sentence}", err=True)
    raise typer.Exit(code)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command("run", context_settings={"allow_interspersed_args": False})(run)
    app(prog_name="advisor run")
