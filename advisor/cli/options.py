"""Arguments and options that several commands share, and what stands behind them."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from advisor.cli.moments import read_span
from advisor.cli.screen import Screen
from advisor.protocol.asked.jobs import JobSpec, Priority


def screen_of(context: typer.Context) -> Screen:
    """Return the screen of the running command."""
    return context.ensure_object(Screen)


def sign_as_asked(spec: JobSpec, key: Path | None, valid_s: float) -> JobSpec:
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


JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, for programs.", callback=_choose_json)
]
VerboseOption = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Print everything that was left out as less important.",
                 callback=_choose_verbose),
]  # fmt: skip
DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Say what would be searched, within which limits, and measure nothing."),
]
DetachOption = Annotated[
    bool, typer.Option("--detach", "-d", help="On a server: print the job's id and return at once.")
]
TrialsOption = Annotated[
    int | None,
    typer.Option(min=1, help="Most strategies to try; with --continue, how many more.", show_default="24"),
]
MinutesOption = Annotated[
    float | None,
    typer.Option(
        min=0.01, help="Most minutes to measure; with --continue, how many more.", show_default="30"
    ),
]
NodesOption = Annotated[
    int | None, typer.Option(min=1, help="Machines that train together.", show_default="1")
]
ALLOW_HELP = (
    "What a change may cost besides nothing: exact keeps the mathematics, numeric may round differently, convergence "
    "may change how the model learns."
)
GangsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=64,
        help="Gangs of --nodes machines each that search side by side, where as many agents are idle.",
        show_default="1",
    ),
]
ValuesOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KNOB=V,V", help="The only values to try of a knob, beside its present one; repeatable."
    ),
]
LabelOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", help="A label to find the job by (`advisor jobs --label`); repeatable."
    ),
]
PriorityOption = Annotated[
    Priority | None,
    typer.Option(help="Which waiting jobs come first; administrators also give high.", show_default="normal"),
]
PoolOption = Annotated[
    str | None, typer.Option(help="Measure on nodes of this pool.", show_default="nodes of no pool")
]
NeedsOption = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="A label that each node must have; repeatable."),
]
WithinOption = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="A label, such as rack, that all nodes must have with one value."),
]
WebhookOption = Annotated[
    list[str] | None,
    typer.Option(
        "--webhook",
        metavar="URL",
        help="Tell this URL when the job ends (repeatable); the server's operator lists the hosts.",
    ),
]
MaxDeviceHoursOption = Annotated[
    float | None,
    typer.Option(
        help="Most device-hours to spend: GPUs, or ranks on nodes without any, times hours.",
        show_default="no limit",
    ),
]
SignOption = Annotated[
    Path | None,
    typer.Option(
        "--sign",
        metavar="KEY",
        help="Sign the job with this Ed25519 key of OpenSSH's, for agents that start signed jobs only.",
    ),
]
SignForOption = Annotated[
    float,
    typer.Option(parser=read_span, metavar="SPAN", help="How long the signature counts: 12h, 7d."),
]
JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="A job's id, the start of it, the job's name, or `last` for the newest."
    ),
]
