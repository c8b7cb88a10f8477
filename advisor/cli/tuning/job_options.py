"""The options that describe a job, each once: how it is typed, what it says, and which field of a job it fills."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from advisor.cli.completions import complete_knob, complete_values
from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.moments import read_minutes
from advisor.cli.tuning.filled_options import SEARCH, TRAINED, WHERE, Fills, list_options, put
from advisor.cli.tuning.own_knob_options import OwnKnobOptions
from advisor.cli.tuning.preset import add_preset
from advisor.protocol.asked.jobs import Priority
from advisor.protocol.base import Value
from advisor.protocol.kinds import Allow
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.reach import read_typed
from advisor.protocol.nodes.cluster import read_label
from advisor.protocol.nodes.testbed import Testbed, parse_testbed
from advisor.protocol.training.own_knobs import read_value
from advisor.protocol.training.workload import Injection, WorkloadKind


def read_testbed(text: str) -> Testbed:
    """Return the testbed that `nodes=2,rate=1gbit` means; raises `CommandFailed` (invalid spec)."""
    try:
        return parse_testbed(text)
    except ValueError as error:
        raise CommandFailed(
            Exit.INVALID_SPEC, f"{text!r} does not describe a testbed.", str(error)
        ) from error


def _read_reads(typed: Sequence[str]) -> dict[str, Value]:
    """`num_threads=2` as name and value; the documented default where no value is given."""
    read = {}
    for text in typed:
        name, equals, value = text.partition("=")
        knob = CATALOGUE.get(name)
        if knob is None:
            raise _wrong(
                f"--reads {text}: {CATALOGUE.say_unknown([name])}", "Write it as --reads num_threads=2."
            )
        try:
            read[name] = read_typed(knob, value) if equals else knob.default
        except ValueError as error:
            raise _wrong(f"--reads {text}: {error}", f"`advisor knobs {name}` says what it takes.") from error
    return read


def _read_values(typed: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """`num_threads=1,2` as the knob's name and the values to try."""
    read = {}
    for text in typed:
        name, equals, listed = text.partition("=")
        knob = CATALOGUE.get(name)
        words = [word.strip() for word in listed.split(",") if word.strip()]
        if knob is None or not equals or not words:
            wrong = CATALOGUE.say_unknown([name]) if knob is None else "it names no value"
            raise _wrong(f"--values {text}: {wrong}", "Write it as --values num_threads=1,2.")
        try:
            read[name] = tuple(read_typed(knob, word) for word in words)
        except ValueError as error:
            raise _wrong(
                f"--values {text}: {error}", f"`advisor knobs {name}` says what it takes."
            ) from error
    return read


def _refuse_values(typed: Sequence[str]) -> list[str]:
    """The names of the only knobs to search; values are typed elsewhere."""
    for text in typed:
        name, equals, _ = text.partition("=")
        if equals:
            hint = f"Write it as --values {text}." if name in CATALOGUE else f"Write it as --try '{text}'."
            raise _wrong(f"--knob {text}: --knob names what alone is searched, and takes no values", hint)
    return list(typed)


def _read_labels_of(option: str) -> Callable[[Sequence[str]], dict[str, str]]:
    """`rack=7` as a label and its value."""

    def read(typed: Sequence[str]) -> dict[str, str]:
        labels = {}
        for text in typed:
            try:
                key, labels[key] = read_label(text)
            except ValueError as error:
                raise _wrong(f"{option} {text}: it has no value", f"Write it as {option} rack=7.") from error
        return labels

    return read


def _read_paths(typed: Sequence[Path]) -> list[str]:
    return [str(path.expanduser().resolve()) for path in typed]


def _wrong(what: str, hint: str) -> CommandFailed:
    return CommandFailed(Exit.INVALID_SPEC, f"{what}.", hint)


@dataclass(frozen=True)
class JobOptions:
    """What is typed beside a command or a job's file; None leaves the file's own, or the documented default."""

    minutes: Annotated[
        float | None,
        typer.Option(
            parser=read_minutes,
            metavar="MINUTES",
            help="Most minutes to measure (or 90s, 2h); with --continue, how many more.",
            show_default="30",
        ),
        Fills("budget.max_seconds", unit=60.0),
    ] = None
    allow: Annotated[
        Allow | None,
        typer.Option(
            help="What a change may cost besides nothing: bitwise keeps every bit, which is checked; exact keeps the "
            "mathematics, numeric may round differently, convergence may change how the model learns.",
            show_default="exact",
        ),
        Fills("allow"),
    ] = None
    nodes: Annotated[
        int | None,
        typer.Option(min=1, help="Machines that train together.", show_default="1"),
        Fills("nodes"),
    ] = None
    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most strategies to try; with --continue, how many more.",
            show_default="24",
            rich_help_panel=SEARCH,
        ),
        Fills("budget.max_trials"),
    ] = None
    max_device_hours: Annotated[
        float | None,
        typer.Option(
            help="Most device-hours to spend: GPUs, or ranks on nodes without any, times hours.",
            show_default="no limit",
            rich_help_panel=SEARCH,
        ),
        Fills("budget.max_device_hours"),
    ] = None
    values: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KNOB=V,V",
            help="The only values to try of a knob, beside its present one; repeatable.",
            autocompletion=complete_values,
            rich_help_panel=SEARCH,
        ),
        Fills("values", read=_read_values),
    ] = None
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A label to find the job by (`advisor jobs --label`); repeatable.",
            rich_help_panel=TRAINED,
        ),
        Fills("labels", read=_read_labels_of("--label")),
    ] = None
    priority: Annotated[
        Priority | None,
        typer.Option(
            help="Which waiting jobs come first; administrators also give high.",
            show_default="normal",
            rich_help_panel=WHERE,
        ),
        Fills("priority"),
    ] = None
    pool: Annotated[
        str | None,
        typer.Option(
            help="Measure on nodes of this pool.", show_default="nodes of no pool", rich_help_panel=WHERE
        ),
        Fills("pool"),
    ] = None
    needs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="A label that each node must have; repeatable.", rich_help_panel=WHERE
        ),
        Fills("needs", read=_read_labels_of("--needs")),
    ] = None
    within: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="A label, such as rack, that all nodes must have with one value.",
            rich_help_panel=WHERE,
        ),
        Fills("within"),
    ] = None

    def fill(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a job's fields with what was typed in place; lists and mappings come beside what is there."""
        filled = dict(body)
        for option in list_options(type(self)):
            typed = getattr(self, option.name)
            if typed is None or typed == []:
                continue
            value = option.fills.read(typed)
            put(
                filled,
                option.fills.field.split("."),
                value * option.fills.unit if option.fills.unit != 1.0 else value,
            )
        return filled

    def list_filled(self) -> frozenset[str]:
        """Return the fields of a job that options were typed for."""
        return frozenset(
            option.fills.field
            for option in list_options(type(self))
            if getattr(self, option.name) is not None
        )


@dataclass(frozen=True)
class TuneOptions(JobOptions, OwnKnobOptions):
    """What describes a job that has no file."""

    name: Annotated[
        str | None,
        typer.Option(help="A name for the job.", show_default="the script's", rich_help_panel=TRAINED),
        Fills("name"),
    ] = None
    kind: Annotated[
        WorkloadKind | None,
        typer.Option(
            help="pytorch switches settings inside the running script. command starts any program anew for each "
            "strategy, with '${num_threads}' and the like replaced in its command (docs/commands.md). paddle starts "
            "a PaddlePaddle dynamic-graph script anew for each strategy.",
            show_default="pytorch",
            rich_help_panel=TRAINED,
        ),
        Fills("workload.kind"),
    ] = None
    reads: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KNOB[=VALUE]",
            help="With --kind command: a knob that the program reads from ADVISOR_STRATEGY, and its present value; "
            "repeatable.",
            rich_help_panel=TRAINED,
        ),
        Fills("workload.knobs", read=_read_reads),
    ] = None
    pattern: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="With --kind command: finds a step in a line of the output, e.g. 'step (?P<step_time_s>[0-9.]+) s'.",
            show_default="JSON lines",
            rich_help_panel=TRAINED,
        ),
        Fills("workload.pattern"),
    ] = None
    testbed: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Measure on nodes with shaped links made on this machine, e.g. nodes=2,rate=1gbit. Needs root.",
            rich_help_panel=WHERE,
        ),
        Fills("testbed", read=read_testbed),
    ] = None
    knob: Annotated[
        list[str] | None,
        typer.Option(
            help="Search only this knob; repeatable.",
            autocompletion=complete_knob,
            rich_help_panel=SEARCH,
        ),
        Fills("knobs", read=_refuse_values),
    ] = None
    freeze: Annotated[
        list[str] | None,
        typer.Option(
            help="Leave this knob alone; repeatable.", autocompletion=complete_knob, rich_help_panel=SEARCH
        ),
        Fills("freeze"),
    ] = None
    samples_per_step: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER",
            help="Samples one process takes per forward pass, or an expression over knobs of your own: '2 * micro'.",
            show_default="observed",
            rich_help_panel=TRAINED,
        ),
        Fills("workload.samples_per_step", read=lambda typed: read_value(str(typed))),
    ] = None
    block_seconds: Annotated[
        float | None,
        typer.Option(help="Seconds one measurement aims at.", show_default="3", rich_help_panel=SEARCH),
        Fills("measurement.block_s"),
    ] = None
    min_gain: Annotated[
        float | None,
        typer.Option(
            help="Smallest gain worth a change, in percent.", show_default="1", rich_help_panel=SEARCH
        ),
        Fills("min_gain", unit=0.01),
    ] = None
    price_per_hour: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="What all that it runs on costs an hour: says what a million samples cost.",
            rich_help_panel=TRAINED,
        ),
        Fills("price_per_hour"),
    ] = None
    from_checkpoint: Annotated[
        bool,
        typer.Option(
            "--from-checkpoint",
            help="The command resumes a training from a checkpoint in its middle, by your script's own option. Without "
            "it, a change to how the model learns is never advised: at the start of a training it does no harm yet.",
            rich_help_panel=TRAINED,
        ),
        Fills("from_checkpoint"),
    ] = False
    injection: Annotated[
        Injection | None,
        typer.Option(
            help="How the advisor gets into the training processes; docs/integration.md.",
            show_default="auto",
            rich_help_panel=TRAINED,
        ),
        Fills("workload.injection"),
    ] = None
    protect: Annotated[
        list[Path] | None,
        typer.Option(
            help="Another directory that trials must not change; the working directory never is.",
            rich_help_panel=TRAINED,
        ),
        Fills("workload.protect", read=_read_paths),
    ] = None
    sampler: Annotated[
        str | None,
        typer.Option(
            help="One of Optuna's samplers to propose strategies, such as TPESampler, or hub:NAME of OptunaHub.",
            show_default="the advisor's own search",
            rich_help_panel=SEARCH,
        ),
        Fills("sampler"),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of the search.", show_default="0", rich_help_panel=SEARCH),
        Fills("seed"),
    ] = None

    def fill(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """As of every job, with a preset's knobs; a testbed says how many nodes there are."""
        filled = super().fill(body)
        if self.preset is not None:
            filled["workload"] = add_preset(self.preset, filled["workload"])
        if self.testbed is not None and self.nodes is None:
            filled["nodes"] = filled["testbed"].nodes
        return filled
