"""The commands put together, and the one place where their errors become sentences and exit codes."""

from typing import Any

import typer
from typer.core import TyperGroup

from advisor.cli import (
    answers,
    doctor,
    execute,
    jobs,
    knobs,
    logs,
    predict,
    serve,
    submit,
    testbed,
    tokens,
    tune,
    workloads,
)
from advisor.cli.exits import Exit, explain_failure
from advisor.cli.screen import Screen

_HELP = """Find the fastest safe way to train: measures your own training script on your own machines.

Start with: advisor tune -- torchrun --nproc-per-node 2 train.py

Exit codes: 0 ok · 1 internal · 2 usage · 3 invalid job · 4 not allowed · 5 server unreachable · 100 job failed ·
101 job not finished · 102 not found · 103 job cancelled · 130 interrupted.

Environment: ADVISOR_URL and ADVISOR_TOKEN (or ADVISOR_TOKEN_FILE) name a server; without them commands use
the server of this machine (ADVISOR_DATA_DIR, default ~/.local/share/fleet-advisor)."""


class Commands(TyperGroup):
    """A group of commands whose errors are explained instead of traced."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; turn what went wrong into a sentence and an exit code."""
        screen: Screen = ctx.ensure_object(Screen)
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


def build_app() -> typer.Typer:
    """Return the application with all its commands."""
    app = typer.Typer(
        cls=Commands,
        help=_HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command("tune", context_settings={"allow_interspersed_args": False})(tune.tune)
    app.command("exec", context_settings=execute.FORWARDED)(execute.execute)
    app.command("serve")(serve.serve)
    app.command("submit")(submit.submit)
    app.command("jobs")(jobs.list_jobs)
    app.command("show")(jobs.show)
    app.command("watch")(jobs.watch)
    app.command("logs")(logs.logs)
    app.command("cancel")(jobs.cancel)
    app.command("advice")(answers.advice)
    app.command("export")(answers.export)
    app.command("predict")(predict.predict)
    app.command("doctor")(doctor.doctor)
    app.add_typer(tokens.build_app(), name="token")
    app.command("testbed")(testbed.run_testbed)
    app.command("workloads")(workloads.list_workloads)
    app.command("knobs")(knobs.list_knobs)
    app.command("version")(knobs.version)
    return app
