"""`advisor advice` and `advisor export`: the answer of a job, and the files a framework loads."""

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from advisor.answers.report import export_report
from advisor.cli.completions import complete_format
from advisor.cli.connection import look_at, resolve_job
from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.options import JobArgument, JsonOption, LogToOption, VerboseOption, screen_of
from advisor.cli.screen import Screen
from advisor.cli.tuning.strategy_files import default_directory, write_bundle, write_files
from advisor.cli.tuning.trackers import log_to_all, read_targets
from advisor.cli.tuning.usage import describe_use
from advisor.cli.views.advice_view import describe_advice, render_advice
from advisor.client import ExportedFile
from advisor.data_dir import data_dir_of
from advisor.exporters import ExportError
from advisor.exporters import export as make_export
from advisor.exporters.format import describe_difference, say_held
from advisor.exporters.formats import BUNDLE, FORMATS
from advisor.local.record import tuning_words
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job


def advice(
    context: typer.Context, job: JobArgument, as_json: JsonOption = False, verbose: VerboseOption = False
) -> None:
    """Show the advice: how much faster, how sure, why, and what to do."""
    screen = screen_of(context)
    with look_at(os.environ) as client:
        found = resolve_job(client, job)
        answer = client.advice(found.id)
    if as_json:
        screen.print_json(describe_advice(answer))
    else:
        use = describe_use(answer, found, default_directory(found), is_written=False)
        if not os.environ.get("ADVISOR_URL"):
            use = replace(use, tune=tuning_words(data_dir_of(os.environ)))
        screen.show(render_advice(answer, found.spec.name or found.id, verbose=verbose, use=use))


def export(
    context: typer.Context,
    job: JobArgument,
    format_name: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help=f"What to write: bundle (what this training loads, and a report), {', '.join(FORMATS)}.",
            autocompletion=complete_format,
        ),
    ] = BUNDLE,
    target: Annotated[
        str | None, typer.Option(help="Version of the tool that reads the file, e.g. 3.3.1 for Paddle.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="A file, or a directory. A single text file goes to stdout without it."
        ),
    ] = None,
    diff: Annotated[
        bool,
        typer.Option("--diff", help="Show what the format would change of your script, and write nothing."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the advised strategy in the format of your framework."""
    screen = screen_of(context)
    with look_at(os.environ) as client:
        found = resolve_job(client, job)
        answer = client.advice(found.id)
        if diff:
            screen.print_text(_describe_difference(answer, found, format_name, target))
            return
        if format_name == BUNDLE:
            written = write_bundle(answer, found, output or default_directory(found))
        else:
            _refuse_useless(answer, found, format_name, target)
            exported = client.export_strategy(found.id, format_name, target)
            if output is None and not as_json and not exported.name.endswith(".pyz"):
                _tell_held(answer, "This file", screen)
                screen.print_text(exported.content.decode())
                return
            written = [_write_one(exported, output)]
    _tell_held(answer, str(written[0]), screen)
    if as_json:
        screen.print_json({"files": [str(path) for path in written]})
    else:
        screen.print_text("\n".join(str(path) for path in written))


def report(
    context: typer.Context,
    job: JobArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write.", show_default="advisor-<name>.html"),
    ] = None,
    log_to: LogToOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the answer, its reasons and everything that was tried as one HTML file that opens without a network."""
    screen = screen_of(context)
    trackers = read_targets(log_to or ())
    with look_at(os.environ) as client:
        found = resolve_job(client, job)
        answer, history = client.advice(found.id), client.history(found.id)
        path = output or Path(f"{default_directory(found)}.html")
        page = export_report(answer, found, history)
        written = write_files({path.name: page.encode()}, path.parent)[0]
        log_to_all(trackers, client, found, answer, screen)
    if as_json:
        screen.print_json({"files": [str(written)]})
    else:
        screen.print_text(str(written))


def _tell_held(answer: Advice, file: str, screen: Screen) -> None:
    """Tell the user that a file holds the baseline where the advice changes nothing."""
    if held := say_held(answer, file):
        screen.tell(held)


def _describe_difference(answer: Advice, job: Job, format_name: str, target: str | None) -> str:
    try:
        file = make_export(answer, job, "json" if format_name == BUNDLE else format_name, target)
    except ExportError as error:
        raise CommandFailed(Exit.INVALID_SPEC, str(error)) from error
    return describe_difference(answer, file)


def _refuse_useless(answer: Advice, job: Job, format_name: str, target: str | None) -> None:
    """Raise CommandFailed where the format can hold settings, and can hold none of those that are advised."""
    if format_name not in FORMATS or not answer.changes:
        return
    with suppress(ExportError):  # The server says it of its own formats.
        file = make_export(answer, job, format_name, target)
        if not answer.changes.keys() & file.provenance.keys():
            raise CommandFailed(
                Exit.INVALID_SPEC,
                f"{file.filename} would carry 0 of {len(answer.changes)} changes ({', '.join(answer.changes)}): it was "
                "not written.",
                f"`advisor export {job.id} --format {format_name} --diff` says of each change why; "
                f"`advisor export {job.id}` writes the files that carry some.",
            )


def _write_one(exported: ExportedFile, output: Path | None) -> Path:
    """Write to the file that was named; into it where it is a directory, or has no ending and is new."""
    if output is not None and not output.is_dir() and (output.suffix or output.exists()):
        directory, name = output.parent, output.name
    else:
        directory, name = output or Path(), exported.name
    return write_files({name: exported.content}, directory)[0]
