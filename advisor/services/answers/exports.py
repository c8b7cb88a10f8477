"""Exports: the advised strategy in other tools' formats."""

from advisor.errors import UnknownFormat
from advisor.exporters import FORMATS, Exported, ExportError, FormatInfo, export, export_bundle, export_report
from advisor.services.answers.advice import get_advice
from advisor.services.jobs import get_history, get_job
from advisor.storage import UnitOfWork


def export_strategy(work: UnitOfWork, job_id: str, format: str, target: str | None) -> Exported:
    """Return a job's advised strategy in `format`, written for version `target` of the tool that reads it.

    Raises JobNotFound, AdviceNotReady, and UnknownFormat when the format or the target does not exist.
    """
    if format not in FORMATS:
        raise UnknownFormat(f"There is no format {format[:100]!r}; there are {', '.join(FORMATS)}.")
    job, advice = get_job(work, job_id), get_advice(work, job_id)
    try:
        return export(advice, job, format, target)
    except ExportError as error:
        raise UnknownFormat(str(error)) from error


def bundle_strategy(work: UnitOfWork, job_id: str) -> dict[str, bytes]:
    """Return the files of a job's advised strategy by name, with a summary and a report.

    Raises JobNotFound and AdviceNotReady.
    """
    return export_bundle(get_advice(work, job_id), get_job(work, job_id))


def report_job(work: UnitOfWork, job_id: str) -> str:
    """Return a job's answer and all that was tried as one HTML page, as `advisor report` writes it.

    Raises JobNotFound and AdviceNotReady.
    """
    return export_report(get_advice(work, job_id), get_job(work, job_id), get_history(work, job_id))


def list_formats() -> tuple[FormatInfo, ...]:
    """Return the formats that strategies can be exported in."""
    return tuple(FORMATS.values())
