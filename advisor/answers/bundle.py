"""The files of an answer: what the job's own training loads, and the report, alone or beside them."""

from contextlib import suppress

from advisor.answers.report import write_report
from advisor.exporters import Exported, ExportError, export, list_bundled
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job
from advisor.protocol.measured.trials import JobHistory


def export_report(advice: Advice, job: Job, history: JobHistory) -> str:
    """Return the answer and everything that was measured as one HTML page that opens without a network."""
    return write_report(advice, job, _export_all(advice, job), history)


def export_bundle(advice: Advice, job: Job) -> dict[str, bytes]:
    """Return the files of the export by name, for each default target, and a report for people.

    It holds what the training loads: `export` writes every other format when asked. Where nothing is advised no file
    would change anything, so that there are `strategy.json` and the report alone.
    """
    files = _export_all(advice, job)
    report = write_report(advice, job, files)
    return {file.filename: file.data for file in files} | {"report.html": report.encode()}


def _export_all(advice: Advice, job: Job) -> list[Exported]:
    files = []
    for info in list_bundled(job):
        with suppress(ExportError):  # no parameter servers in what was advised
            files.append(export(advice, job, info.name))
    carried = set(advice.changes)
    return [file for file in files if file.format == "json" or carried & set(file.provenance)]
