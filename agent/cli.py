"""`advisor-agent`: `run` serves a server on this node, `doctor` says whether this node can; and `diagnose`."""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from pydantic import SecretStr, ValidationError

from advisor.protocol.allocation import find_seconds_left
from advisor.protocol.logs import LogFormat
from advisor.protocol.nodes.cluster import read_label
from advisor.protocol.nodes.testbed import Testbed, parse_testbed
from agent.client import ServerClient
from agent.devices.gpus import open_gpus
from agent.errors import AgentError, BadConfiguration, NotWelcome
from agent.logs import configure_logs
from agent.loop import Agent
from agent.operator.config import CONFIG_VARIABLE, describe_error, read_config
from agent.operator.diagnose_command import diagnose
from agent.settings import AgentSettings, default_work_dir
from agent.trust.allowance import TRAINING_LAUNCHERS, Allowance
from agent.trust.secrets import hide_memory, take_token_from_environment

_USAGE, _NOT_WELCOME = 2, 3


def _fail(sentence: str, code: int) -> NoReturn:
    typer.echo(sentence, err=True)
    raise typer.Exit(code)


def _use_config(context: typer.Context, path: Path | None) -> Path | None:
    """Let the file's values stand where neither an option nor a variable says otherwise."""
    if path is not None:
        try:
            context.default_map = read_config(path).list_options()
        except BadConfiguration as error:
            _fail(str(error), _USAGE)
    return path


app = typer.Typer(no_args_is_help=True, add_completion=False, help="The node's part of Fleet Advisor.")
app.command("diagnose", context_settings={"allow_interspersed_args": False})(diagnose)


@app.command()
def run(
    server: Annotated[
        str, typer.Option(envvar="ADVISOR_URL", help="The server's URL, e.g. http://10.0.0.1:8765.")
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            callback=_use_config,
            is_eager=True,
            envvar=CONFIG_VARIABLE,
            help="TOML file with these options and the table [allow].",
        ),
    ] = None,
    name: Annotated[
        str, typer.Option(help="Stable name of this agent; the host's name when not given.")
    ] = "",
    token_file: Annotated[
        Path | None, typer.Option(envvar="ADVISOR_AGENT_TOKEN_FILE", help="File that holds the agent token.")
    ] = None,
    work_dir: Annotated[
        Path | None, typer.Option(help="Logs, spool and scratch; one agent per directory.")
    ] = None,
    advertise_address: Annotated[
        str | None, typer.Option(help="Address at which the other nodes reach this one.")
    ] = None,
    testbed: Annotated[
        str | None, typer.Option(help="The testbed that this node is a part of, e.g. nodes=2,rate=1gbit.")
    ] = None,
    pool: Annotated[
        str,
        typer.Option(envvar="ADVISOR_AGENT_POOL", help="Pool of this node: only jobs that name it run here."),
    ] = "",
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            envvar="ADVISOR_AGENT_LABELS",
            help="What jobs may choose this node by (repeatable); nodes of one rack, e.g. rack=7, are preferred.",
        ),
    ] = None,
    ends_in: Annotated[
        str | None,
        typer.Option(
            metavar="SPAN",
            help="This node is there for 30m, 3h or 2d only, or never leaves; without it Slurm is believed.",
        ),
    ] = None,
    allow_launcher: Annotated[
        list[str] | None,
        typer.Option(
            help="Beginning of commands that may be started (repeatable); '*' allows every command."
        ),
    ] = None,
    allow_root: Annotated[
        list[Path] | None,
        typer.Option(help="Start what lies in this directory only (repeatable, needed); / starts any code."),
    ] = None,
    allow_module: Annotated[
        list[str] | None,
        typer.Option(help="Module that may be started wherever Python finds it (repeatable)."),
    ] = None,
    allow_command: Annotated[
        list[str] | None,
        typer.Option(help="Beginning of commands that may start code outside of the roots (repeatable)."),
    ] = None,
    allow_environment: Annotated[
        list[str] | None,
        typer.Option(
            help="Variables that a job may set, e.g. 'NCCL_*' (repeatable); without it none, or any where a root is /."
        ),
    ] = None,
    require_signed: Annotated[
        Path | None,
        typer.Option(metavar="KEYFILE", help="Start only jobs signed by one of these Ed25519 public keys."),
    ] = None,
    run_as: Annotated[
        str, typer.Option(help="Unprivileged user that training scripts run as; needs an agent run by root.")
    ] = "",
    hide: Annotated[
        list[Path] | None,
        typer.Option(help="Show this file or directory empty to training scripts (repeatable)."),
    ] = None,
    startup_timeout: Annotated[float, typer.Option(help="Seconds from a launch to the first step.")] = 900.0,
    isolate: Annotated[
        bool, typer.Option("--isolate/--no-isolate", help="Let trials write into a private overlay.")
    ] = True,
    telemetry_hz: Annotated[
        float, typer.Option(envvar="ADVISOR_TELEMETRY_HZ", help="Samples of the node a second, 0.1 to 10.")
    ] = 1.0,
    allow_busy_gpus: Annotated[
        bool,
        typer.Option(
            "--allow-busy-gpus", envvar="ADVISOR_ALLOW_BUSY_GPUS", help="Measure beside others' processes."
        ),
    ] = False,
    log_format: Annotated[
        LogFormat, typer.Option(help="The log's lines, on standard error.")
    ] = LogFormat.TEXT,
    await_word: Annotated[
        bool, typer.Option("--await-word", hidden=True, help="Begin when a line comes on standard input.")
    ] = False,
) -> None:
    """Serve a server with this node until stopped (Ctrl-C or SIGTERM).

    Exit codes: 0 stopped · 1 cannot serve · 2 usage · 3 the server refuses this agent's token or release.
    """
    token_of_variable = take_token_from_environment()
    hide_memory()
    agent_name = name or os.uname().nodename
    configure_logs(log_format, sys.stderr, agent_name)
    try:
        settings = AgentSettings(
            server_url=server,
            token=SecretStr(_read_token(token_file) if token_file and not await_word else token_of_variable),
            name=agent_name,
            work_dir=(work_dir or default_work_dir(agent_name, Path.home())).absolute(),
            advertise_address=advertise_address,
            testbed=_read_testbed(testbed),
            pool=pool,
            labels=_read_labels(label or ()),
            ends_in_s=_read_end(ends_in),
            allow=Allowance(
                launchers=tuple(TRAINING_LAUNCHERS if allow_launcher is None else allow_launcher),
                roots=tuple(root.absolute() for root in allow_root or ()),
                modules=tuple(allow_module or ()),
                commands=tuple(allow_command or ()),
                environment=None if allow_environment is None else tuple(allow_environment),
            ),
            require_signed=require_signed and require_signed.absolute(),
            run_as=run_as,
            hide=tuple(path.absolute() for path in [*(hide or ()), *filter(None, [token_file, config])]),
            isolate=isolate,
            startup_timeout_s=startup_timeout,
            telemetry_hz=telemetry_hz,
            allow_busy_gpus=allow_busy_gpus,
        )
    except ValidationError as error:
        _fail(describe_error(error), _USAGE)
    gpus = open_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ)
    client = ServerClient(settings.server_url, settings.token.get_secret_value())

    def wait() -> bool:
        if await_word and not sys.stdin.readline():
            return False
        if await_word and token_file:
            client.use_token(_read_token(token_file))
        return True

    try:
        agent = Agent(settings, client, gpus, dict(os.environ))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: agent.stop())
        agent.run(wait)
    except NotWelcome as error:
        _fail(str(error), _NOT_WELCOME)
    except AgentError as error:
        _fail(str(error), 1)
    finally:
        client.close()
        gpus.close()


@app.command()
def doctor(
    server: Annotated[
        str | None, typer.Option(envvar="ADVISOR_URL", help="Also try to reach this server.")
    ] = None,
    work_dir: Annotated[Path | None, typer.Option(help="The agent's work directory.")] = None,
    run_as: Annotated[
        str, typer.Option(help="The user that training scripts would run as, as with `run`.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings for programs.")] = False,
) -> None:
    """Say what this node offers, and what stands in an agent's way. Exit code 1 when something does."""
    folder = (work_dir or default_work_dir(os.uname().nodename, Path.home())).absolute()
    gpus = open_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ)
    from agent.operator.doctor import examine

    findings = examine(folder, server, gpus, os.environ, run_as)
    gpus.close()
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings]))
    for finding in () if as_json else findings:
        typer.echo(f"{'ok ' if finding.is_fine else 'NO '} {finding.name:7} {finding.sentence}")
    raise typer.Exit(0 if all(finding.is_fine for finding in findings) else 1)


def main() -> None:
    """Entry point of the installed command."""
    app()


def _read_token(token_file: Path) -> str:
    """The file wins over ADVISOR_AGENT_TOKEN; a token is never an argument, which everybody could read."""
    try:
        return token_file.read_text().strip()
    except OSError as error:
        _fail(
            f"The token file {token_file} cannot be read: {error.strerror}. The server's first start wrote one.",
            _USAGE,
        )


def _read_labels(texts: Sequence[str]) -> dict[str, str]:
    try:
        return dict(map(read_label, texts))
    except ValueError as error:
        _fail(f"--label {error}", _USAGE)


def _read_end(typed: str | None) -> float | None:
    try:
        return find_seconds_left(typed, os.environ, time.clock_gettime(time.CLOCK_REALTIME))
    except ValueError as error:
        _fail(f"--ends-in: {error}", _USAGE)


def _read_testbed(text: str | None) -> Testbed | None:
    try:
        return parse_testbed(text) if text else None
    except ValueError as error:
        _fail(f"--testbed {text}: {error}", _USAGE)
