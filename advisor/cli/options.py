"""Arguments and options that several commands share, and what stands behind them."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advisor.cli.completions import complete_job
from advisor.cli.moments import read_minutes, read_span
from advisor.cli.screen import Screen

if TYPE_CHECKING:  # Most commands need no model of a job for their options.
    from advisor.protocol.asked.jobs import JobSpec


def screen_of(context: typer.Context) -> Screen:
    """Return the screen of the running command."""
    return context.ensure_object(Screen)


def sign_as_asked(spec: "JobSpec", key: Path | None, valid_s: float) -> "JobSpec":
    """Return the job as `--sign` and `--sign-for` want it: with its owner's signature, without a key as it is."""
    if key is None:
        return spec
    from advisor.cli.tuning.sign import sign_job

    return sign_job(spec, key, datetime.now(UTC), valid_s)


def _choose_json(context: typer.Context, chosen: bool) -> bool:
    screen_of(context).json = chosen
    return chosen


def _choose_verbose(context: typer.Context, chosen: Any) -> bool:
    screen_of(context).verbose = bool(chosen)
    return bool(chosen)


def _choose_quiet(context: typer.Context, chosen: bool) -> bool:
    screen_of(context).quiet = chosen
    return chosen


BEFORE, OUTPUT, ELSEWHERE, IN_LAB = "Jobs of before", "What is printed", "On a server", "In a lab"
"""Panels of the help."""

JsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print the result as JSON, for programs.",
        callback=_choose_json,
        rich_help_panel=OUTPUT,
    ),
]
VerboseOption = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Print everything that was left out as less important.",
                 callback=_choose_verbose, rich_help_panel=OUTPUT),
]  # fmt: skip
QuietOption = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        help="Print the answer only: no progress, no notes.",
        callback=_choose_quiet,
        rich_help_panel=OUTPUT,
    ),
]
MinutesOption = Annotated[
    float, typer.Option(parser=read_minutes, metavar="MINUTES", help="Most minutes to measure.")
]
ByOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Who asks: the lab's ledger and its report name them.",
        show_default="user@host",
        rich_help_panel=IN_LAB,
    ),
]
DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Say what would be searched, within which limits, and measure nothing."),
]
DetachOption = Annotated[
    bool,
    typer.Option("--detach", "-d", help="Print the job's id and return at once.", rich_help_panel=ELSEWHERE),
]
LogToOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TRACKER[:PLACE]",
        help="Also write verdict and trials to mlflow[:URI], wandb[:PROJECT], tensorboard[:DIRECTORY] or "
        "optuna[:FILE]; repeatable.",
        rich_help_panel=OUTPUT,
    ),
]
SignOption = Annotated[
    Path | None,
    typer.Option(
        "--sign",
        metavar="KEY",
        help="Sign the job with this Ed25519 key of OpenSSH's, for agents that start signed jobs only.",
        rich_help_panel=ELSEWHERE,
    ),
]
SignForOption = Annotated[
    float,
    typer.Option(
        parser=read_span,
        metavar="SPAN",
        help="How long the signature counts: 12h, 7d.",
        rich_help_panel=ELSEWHERE,
    ),
]
FailBelowOption = Annotated[
    float | None,
    typer.Option(
        min=0.01,
        metavar="RATIO",
        help="Exit with 104 where less than RATIO times the throughput is shown (0.98: slower by over 2 %; 1.05: less "
        "than 5 % faster), with 105 where the time did not tell.",
    ),
]
JunitOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the result to this file as JUnit XML.", rich_help_panel=OUTPUT),
]
SummaryOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Add the result to this file as Markdown, with a picture of the interval: GitHub's job summary.",
        rich_help_panel=OUTPUT,
    ),
]
MaybeJobArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB]",
        help="A job's id, the start of it, the job's name, or `last` for the newest.",
        autocompletion=complete_job,
    ),
]
JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="A job's id, the start of it, the job's name, or `last` for the newest.",
        autocompletion=complete_job,
    ),
]
