"""The commands put together, and the one place where their errors become sentences and exit codes."""

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from advisor.cli.screen import Screen

_HELP = """Find the fastest safe way to train: measures your own training script on your own machines.

Start with: advisor tune -- torchrun --nproc-per-node 2 train.py"""
_EPILOG = """Exit codes: 0 ok (a job's answer may be change, keep or undecided) · 1 internal · 2 usage · 3 invalid job ·
4 not allowed · 5 server unreachable · 100 job failed · 101 job not finished · 102 not found ·
103 job cancelled · 104 verified to be below what was asked for · 105 not shown either way · 130 interrupted.

Environment: ADVISOR_URL and ADVISOR_TOKEN (or ADVISOR_TOKEN_FILE) name a server, or `advisor login` does; without
them commands use the server of this machine (ADVISOR_DATA_DIR, default ~/.local/share/fleet-advisor).
ADVISOR_WHEN_INTERRUPTED=cancel: a job of a server that its command leaves is cancelled. ADVISOR_AGENT_CONFIG: the file
that says what commands may start on this machine."""


@dataclass(frozen=True)
class Place:
    """Where a command is written. Its module is imported only when the command is wanted: a run needs one of them."""

    module: str
    function: str
    context_settings: Mapping[str, Any] = field(default_factory=dict)
    is_group: bool = False
    """Whether the function returns an application of further commands, and its docstring is what the help says."""
    panel: str = ""
    """Where it stands in the help."""


_FORWARDED: Mapping[str, Any] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}
"""Every word is another program's to read, `--help` as well."""

_DAILY, _JOBS, _SERVER, _REFERENCE = "Measure and use", "Jobs", "Servers, agents, administration", "Look up"


def _place(panel: str, module: str, function: str, *, is_group: bool = False, **settings: Any) -> Place:
    return Place(module, function, settings, is_group, panel)


COMMANDS: Mapping[str, Place] = {
    "tune": _place(_DAILY, "measuring.tune", "tune", allow_interspersed_args=False),
    "diagnose": _place(_DAILY, "measuring.run", "diagnose", **_FORWARDED),
    "advice": _place(_DAILY, "answers.answers", "advice"),
    "slurm": _place(_DAILY, "measuring.slurm", "build_app", is_group=True),
    "ray": _place(_DAILY, "measuring.ray", "build_app", is_group=True),
    "run": _place(_DAILY, "measuring.run", "run", **_FORWARDED),
    "verify": _place(_DAILY, "measuring.verify", "verify"),
    "race": _place(_DAILY, "measuring.race", "race"),
    "calibrate": _place(_DAILY, "measuring.calibrate", "calibrate", allow_interspersed_args=False),
    "lab": _place(_DAILY, "measuring.lab", "build_app", is_group=True),
    "export": _place(_DAILY, "answers.answers", "export"),
    "report": _place(_DAILY, "answers.answers", "report"),
    "predict": _place(_DAILY, "answers.predict", "predict"),
    "study": _place(_DAILY, "answers.study", "study"),
    "jobs": _place(_JOBS, "jobs.listing", "list_jobs"),
    "show": _place(_JOBS, "jobs.overview", "show"),
    "watch": _place(_JOBS, "jobs.overview", "watch"),
    "logs": _place(_JOBS, "jobs.logs", "logs"),
    "submit": _place(_JOBS, "jobs.submit", "submit"),
    "cancel": _place(_JOBS, "jobs.overview", "cancel"),
    "pause": _place(_JOBS, "jobs.job_changes", "pause"),
    "resume": _place(_JOBS, "jobs.job_changes", "resume"),
    "extend": _place(_JOBS, "jobs.job_changes", "extend"),
    "repeat": _place(_JOBS, "jobs.job_changes", "repeat"),
    "clone": _place(_JOBS, "jobs.job_changes", "clone"),
    "prioritise": _place(_JOBS, "jobs.job_changes", "prioritise"),
    "archive": _place(_JOBS, "jobs.job_changes", "archive"),
    "delete": _place(_JOBS, "jobs.job_changes", "delete"),
    "serve": _place(_SERVER, "operating.serve", "serve"),
    "mcp": _place(_SERVER, "tools.mcp", "serve_mcp"),
    "skill": _place(_SERVER, "tools.skill", "build_app", is_group=True),
    "login": _place(_SERVER, "operating.login", "login"),
    "logout": _place(_SERVER, "operating.login", "logout"),
    "agents": _place(_SERVER, "operating.agents", "build_app", is_group=True),
    "token": _place(_SERVER, "operating.tokens", "build_app", is_group=True),
    "admin": _place(_SERVER, "operating.admin", "build_app", is_group=True),
    "doctor": _place(_REFERENCE, "operating.doctor", "doctor"),
    "knobs": _place(_REFERENCE, "answers.knobs", "list_knobs"),
    "workloads": _place(_REFERENCE, "measuring.workloads", "list_workloads"),
    "testbed": _place(_REFERENCE, "operating.testbed", "run_testbed"),
    "version": _place(_REFERENCE, "answers.knobs", "version"),
}
"""Every command, in the order of the help."""


COMPLETING = "_ADVISOR_COMPLETE"
"""The variable by which a shell asks for completions."""
_SIGNING_IN = frozenset({"login", "logout"})
"""They work however broken the file is that says who signed in."""


_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""What the parser of options raises; typer carries it under a private name."""


def _convert_given(params: list[Any]) -> list[Any]:
    """Let parameters convert only what was given: typer loads pydantic for it, which takes as long as all the rest."""
    for param in params:
        if "process_value" not in vars(param):
            param.process_value = partial(_process, param, param.process_value)
    return params


def _process(param: Any, convert: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    if value is not None or param.required:
        return convert(context, value)
    value = () if param.nargs == -1 or getattr(param, "multiple", False) else None
    return value if param.callback is None else param.callback(context, param, value)


class Command(TyperCommand):
    """A command that loads nothing for options that were not given."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return what it takes."""
        return _convert_given(super().get_params(ctx))


class Commands(TyperGroup):
    """A group of commands whose errors are explained instead of traced, those of the parser as well."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return what stands before the command."""
        return _convert_given(super().get_params(ctx))

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse what stands before the command."""
        from advisor.cli.screen import Screen

        try:
            return super().make_context(*args, **kwargs)
        except (_UsageError, OSError) as error:
            raise _explain(error, Screen()) from error

    def invoke(self, ctx: Any) -> Any:
        """Run the command; turn what went wrong into a sentence and an exit code."""
        from advisor.cli.exits import Exit
        from advisor.cli.screen import Screen

        screen = ctx.ensure_object(Screen)
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            raise typer.Exit(Exit.INTERRUPTED) from None
        except Exception as error:
            raise _explain(error, screen) from error


def _explain(error: Exception, screen: "Screen") -> Exception:
    """Say what is to be said of an error, and return how the command ends; the error itself where it is our defect."""
    from advisor.cli.exits import CommandFailed, Exit, explain_failure

    if isinstance(error, _UsageError) and type(error).__name__ != "NoArgsIsHelpError":
        context, said = getattr(error, "ctx", None), getattr(error, "format_message", error.__str__)()
        where = context.command_path if context is not None else "advisor"
        near = _find_near_options(error)
        meant = f"Did you mean {' or '.join(near)}? " if near else ""
        if near:
            said = said.partition(" (Possible options:")[0].partition(" Did you mean")[0]
        failure: CommandFailed | None = CommandFailed(
            Exit.USAGE, said, f"{meant}`{where} --help` says what it takes."
        )
    else:
        failure = explain_failure(error)
    if failure is None:
        return error
    if isinstance(error, OSError):
        # What is left of the output would fail once more as Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    screen.explain(failure)
    return typer.Exit(failure.exit_code)


def _find_near_options(error: Exception) -> tuple[str, ...]:
    """The options that are like one which there is not, the likest first; empty for other errors."""
    from advisor.protocol.near_names import find_nearest

    name, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if name is None or context is None:
        return ()
    flags = [flag for each in context.command.params for flag in getattr(each, "opts", ())]
    return find_nearest(name, [flag for flag in flags if flag.startswith("--")])[:1]


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
    from advisor.cli.exits import CommandFailed, Exit
    from advisor.cli.login import apply_login

    if os.path.expanduser("~") == "~":
        raise CommandFailed(
            Exit.USAGE,
            f"The user {os.getuid()} has no home directory.",
            "Set HOME to a folder that this user may write: data and sign-ins are kept there.",
        )
    if context.invoked_subcommand not in _SIGNING_IN:
        apply_login(os.environ)


def read_completed(environment: Mapping[str, str]) -> list[str]:
    """Return the words after `advisor` of the line that a shell completes."""
    typed = environment.get("COMP_WORDS") or environment.get("_TYPER_COMPLETE_ARGS", "")
    return typed.split()[1:]


def build_app(words: Sequence[str] | None = None) -> typer.Typer:
    """Return the application: with the one command that `words` begin with, or with all of them.

    Where `words` begin with none, for help or with an option, a command that they do not name is there by its name and
    by what the help says of it: to load all of them takes ten times as long.
    """
    app = typer.Typer(
        cls=Commands,
        help=_HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    # With a callback of its own it stays a group, even of one command.
    app.callback(help=_HELP, epilog=_unwrap(_EPILOG))(_begin)
    named = next((word for word in words or () if not word.startswith("-")), "")
    for name in words[:1] if words and words[0] in COMMANDS else COMMANDS:
        place = COMMANDS[name]
        module, settings = f"advisor.cli.commands.{place.module}", dict(place.context_settings)
        if words is not None and name != named:
            app.command(name, help=_read_help(module, place.function), rich_help_panel=place.panel)(
                _say_nothing
            )
            continue
        function = getattr(import_module(module), place.function)
        told = _unwrap(inspect.cleandoc(function.__doc__ or ""))
        if place.is_group:
            app.add_typer(function(), name=name, help=told, rich_help_panel=place.panel)
        else:
            made = app.command(
                name, cls=Command, help=told, context_settings=settings, rich_help_panel=place.panel
            )
            made(function)
    return app


def _say_nothing() -> None:
    """Stands for a command of which the name is enough."""


def _read_help(module: str, function: str) -> str:
    """What a function's docstring tells, from the compiled module, which is not run."""
    loader: Any = getattr(find_spec(module), "loader", None)
    code = next(one for one in loader.get_code(module).co_consts if getattr(one, "co_name", "") == function)
    told = code.co_consts[0]
    return _unwrap(inspect.cleandoc(told)) if isinstance(told, str) else ""


def _unwrap(text: str) -> str:
    """Let each paragraph be one line, which the terminal breaks where it ends."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
