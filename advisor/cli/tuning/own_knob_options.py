"""The options that describe knobs of the user's own: keys of files, variants, and what must hold between knobs."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.tuning.filled_options import SEARCH, Fills
from advisor.cli.tuning.preset import list_presets
from advisor.protocol.training.inherited import race_away
from advisor.protocol.training.key_files import fit_to_file, read_key
from advisor.protocol.training.own_knob_texts import read_own_knob, read_variants
from advisor.protocol.training.own_knobs import OwnKnob


def _read_file_knobs(typed: Sequence[str]) -> list[dict[str, Any]]:
    """`config.toml:training.batch=1,2` as a knob, with the value that the file has today."""
    knobs = []
    for text in typed:
        try:
            fields = read_own_knob(text)
            path, key = OwnKnob.model_validate(fields).file or ("", "")
            if not path:
                raise ValueError("name a .json, .yaml or .toml file and a key of it")
            values, today = fit_to_file(fields["values"], read_key(Path(path), key), key)
            knobs.append({**fields, "values": values, "baseline": today})
        except (ValueError, OSError) as error:
            raise CommandFailed(
                Exit.INVALID_SPEC,
                f"--knob-file {text}: {error}.",
                "Write it as --knob-file config.toml:training.batch=1,2,4.",
            ) from error
    return knobs


def _read_variants(typed: Sequence[str]) -> list[dict[str, Any]]:
    try:
        fields = read_variants(typed)
        OwnKnob.model_validate(fields)
        return [fields]
    except ValueError as error:
        raise CommandFailed(
            Exit.INVALID_SPEC, f"--variant: {error}.", "Write it as --variant 'fsdp: --engine fsdp'."
        ) from error


@dataclass(frozen=True)
class OwnKnobOptions:
    """What is typed of knobs of one's own; all but the switch may be repeated."""

    try_: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="NAME=V,V",
            help="Values to try of something of your own: 'micro=1,2,4:exact' stands for '${micro}' or --micro in the "
            "command, '--batch=1,2,4' for that option, '$NAME=…' for a variable (docs/own-knobs.md). Repeatable.",
            rich_help_panel=SEARCH,
        ),
        Fills("workload.own"),
    ] = None
    knob_file: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE:KEY=V,V",
            help="A key of a JSON, YAML or TOML file that the command names, e.g. config.toml:training.batch=1,2,4; "
            "trials read a changed copy. Repeatable.",
            rich_help_panel=SEARCH,
        ),
        Fills("workload.own", read=_read_file_knobs),
    ] = None
    variant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME: WORDS",
            help="One of several groups of words for the end of the command, or for '${variant}'; the first is "
            "today's. E.g. 'ddp: --engine ddp', 'fsdp: --engine fsdp'.",
            rich_help_panel=SEARCH,
        ),
        Fills("workload.own", read=_read_variants),
    ] = None
    inherited: Annotated[
        bool | None,
        typer.Option(
            "--inherited",
            help="Measure the training without each variable of your environment that bears on its speed, such as "
            "CUDA_LAUNCH_BLOCKING, OMP_… or NCCL's (`advisor doctor` lists them). A launch each.",
            rich_help_panel=SEARCH,
        ),
        Fills("workload.own", read=lambda typed: race_away(os.environ) if typed else []),
    ] = None
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help=f"The knobs and requirements of {' or '.join(list_presets())}, or of a file of yours "
            "(docs/own-knobs.md); what you name beside it takes the place of its own.",
            rich_help_panel=SEARCH,
        ),
    ] = None
    require: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EXPRESSION",
            help="What must hold of every strategy, e.g. 'micro * accumulate == 8'; also over world_size, nodes and "
            "gpus_per_node. Repeatable.",
            rich_help_panel=SEARCH,
        ),
        Fills("workload.require"),
    ] = None
