"""`advisor mcp`: the verbs as tools for programs that speak MCP, bounded by what may be started here."""

import json
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.tuning.tune_anywhere import CANCEL, WHEN_INTERRUPTED
from advisor.local.agents import AGENT_CONFIG


def serve_mcp(
    config: Annotated[
        Path | None,
        typer.Option(envvar=AGENT_CONFIG, metavar="FILE", show_default="what lies in --allow-root",
                     help="An agent's configuration: its table [allow] says what a call may start on this machine."),
    ] = None,
    allow_root: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", show_default="this folder",
                     help="Start training scripts in this folder only (repeatable); / starts any code."),
    ] = None,
) -> None:  # fmt: skip
    """Offer diagnose, race, tune, verify and export as tools to a program that speaks MCP, over stdin and stdout.

    claude mcp add fleet-advisor -- advisor mcp --allow-root ~/my-training

    A call starts no more than an agent with the same rules would start for a submitter; with ADVISOR_URL the server's
    agents measure, under their own rules. Cancelling a call ends what it started.
    """
    if find_spec("mcp") is None:
        raise CommandFailed(
            Exit.USAGE,
            "The package mcp is not installed, which speaks the protocol.",
            "pip install 'fleet-advisor[server,agent,mcp]'",
        )
    roots = [root.expanduser().resolve() for root in allow_root or [Path()]]
    if config is not None and allow_root:
        raise CommandFailed(
            Exit.USAGE,
            "--allow-root does not go with --config.",
            "Write the folder into [allow] of the file.",
        )
    if config is None and not allow_root and roots == [Path("/")]:
        raise CommandFailed(
            Exit.USAGE,
            "It was started in /, and nothing says what a call may start.",
            "Name the folder of your trainings: advisor mcp --allow-root DIR",
        )
    for root in roots:
        if not root.is_dir():
            raise CommandFailed(
                Exit.USAGE, f"--allow-root {root}: there is no such folder.", "Name one that there is."
            )
    from advisor.cli.commands.tools.server import build_server

    with tempfile.TemporaryDirectory(prefix="advisor-mcp-") as folder:
        if config is None:
            config = Path(folder, "agent.toml")
            listed = json.dumps([str(root) for root in roots], ensure_ascii=False)
            config.write_text(f"[allow]\nroots = {listed}\n")
        environment = {**os.environ, AGENT_CONFIG: str(config.absolute()), WHEN_INTERRUPTED: CANCEL}
        try:
            build_server(environment, Path(roots[0] if allow_root else Path.cwd())).run("stdio")
        except* BrokenPipeError:
            pass  # the client has gone in the middle of a call, which has ended with it
