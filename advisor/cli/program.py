"""The commands put together, and the one place where their errors become sentences and exit codes."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

_HELP = """Find the fastest safe way to train: measures your own training script on your own machines.

Start with: advisor tune -- torchrun --nproc-per-node 2 train.py

Exit codes: 0 ok (a job's answer may be change, keep or undecided) · 1 internal · 2 usage · 3 invalid job ·
4 not allowed · 5 server unreachable · 100 job failed · 101 job not finished · 102 not found ·
103 job cancelled · 104 verified to be below what was asked for · 105 not shown either way · 130 interrupted.

Environment: ADVISOR_URL and ADVISOR_TOKEN (or ADVISOR_TOKEN_FILE) name a server, or `advisor login` does; without
them commands use the server of this machine (ADVISOR_DATA_DIR, default ~/.local/share/fleet-advisor)."""


@dataclass(frozen=True)
class Place:
    """Where a command is written. Its module is imported only when the command is wanted: a run needs one of them."""

    module: str
    function: str
    context_settings: Mapping[str, Any] = field(default_factory=dict)
    is_group: bool = False
    """Whether the function returns an application of further commands."""


_FORWARDED = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}
"""Every word is another program's to read, `--help` as well."""

COMMANDS: Mapping[str, Place] = {
    "tune": Place("measuring.tune", "tune", {"allow_interspersed_args": False}),
    "verify": Place("measuring.verify", "verify"),
    "run": Place("measuring.run", "run", _FORWARDED),
    "exec": Place("measuring.execute", "execute", _FORWARDED),
    "serve": Place("operating.serve", "serve"),
    "submit": Place("jobs.submit", "submit"),
    "jobs": Place("jobs.overview", "list_jobs"),
    "show": Place("jobs.overview", "show"),
    "watch": Place("jobs.overview", "watch"),
    "logs": Place("jobs.logs", "logs"),
    "cancel": Place("jobs.overview", "cancel"),
    "pause": Place("jobs.job_changes", "pause"),
    "resume": Place("jobs.job_changes", "resume"),
    "prioritise": Place("jobs.job_changes", "prioritise"),
    "repeat": Place("jobs.job_changes", "repeat"),
    "extend": Place("jobs.job_changes", "extend"),
    "clone": Place("jobs.job_changes", "clone"),
    "archive": Place("jobs.job_changes", "archive"),
    "delete": Place("jobs.job_changes", "delete"),
    "advice": Place("answers.answers", "advice"),
    "export": Place("answers.answers", "export"),
    "report": Place("answers.answers", "report"),
    "predict": Place("answers.predict", "predict"),
    "doctor": Place("operating.doctor", "doctor"),
    "login": Place("operating.login", "login"),
    "logout": Place("operating.login", "logout"),
    "agents": Place("operating.agents", "build_app", is_group=True),
    "token": Place("operating.tokens", "build_app", is_group=True),
    "admin": Place("operating.admin", "build_app", is_group=True),
    "testbed": Place("operating.testbed", "run_testbed"),
    "workloads": Place("measuring.workloads", "list_workloads"),
    "knobs": Place("answers.knobs", "list_knobs"),
    "version": Place("answers.knobs", "version"),
}
"""Every command, in the order of the help."""


_SIGNING_IN = frozenset({"login", "logout"})
"""They work however broken the file is that says who signed in."""


class Commands(TyperGroup):
    """A group of commands whose errors are explained instead of traced."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; turn what went wrong into a sentence and an exit code."""
        from advisor.cli.exits import Exit, explain_failure
        from advisor.cli.screen import Screen

        screen = ctx.ensure_object(Screen)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(Exit.INTERRUPTED) from None
        except Exception as error:
            failure = explain_failure(error)
            if failure is None:
                raise
            screen.explain(failure)
            raise typer.Exit(failure.exit_code) from error


def _say_version(wanted: bool) -> None:
    if wanted:
        from advisor import __version__

        typer.echo(f"fleet-advisor {__version__}")
        raise typer.Exit


def _begin(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback says it
        bool,
        typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_say_version),
    ] = False,
) -> None:
    """What comes before every command: who is signed in."""
    from advisor.cli.login import apply_login

    if context.invoked_subcommand not in _SIGNING_IN:
        apply_login(os.environ)


def build_app(words: Sequence[str] = ()) -> typer.Typer:
    """Return the application: with the one command that `words` begin with, or with all of them for help."""
    app = typer.Typer(
        cls=Commands,
        help=_HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    # With a callback of its own it stays a group, even of one command.
    app.callback(help=_HELP)(_begin)
    wanted = words[:1] if words and words[0] in COMMANDS else COMMANDS
    for name in wanted:
        place = COMMANDS[name]
        function = getattr(import_module(f"advisor.cli.commands.{place.module}"), place.function)
        if place.is_group:
            app.add_typer(function(), name=name)
        else:
            app.command(name, context_settings=dict(place.context_settings) or None)(function)
    return app
