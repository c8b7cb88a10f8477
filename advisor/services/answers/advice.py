"""Advice: the answer to a finished job, throughput against loss, exports, and forecasts."""

from datetime import datetime

from advisor.answers.report import export_bundle, export_report
from advisor.errors import AdviceNotReady, InvalidRequest, NoForecast, UnknownFormat
from advisor.exporters import FORMATS, Exported, ExportError, FormatInfo, export
from advisor.protocol.answers.advice import Advice, ParetoPoint
from advisor.protocol.answers.forecast import Forecast, WhatIf
from advisor.protocol.answers.raced import RaceAnswer
from advisor.protocol.nodes.testbed import read_link_rate
from advisor.services.jobs import get_history, get_job, read_history
from advisor.storage import Database, UnitOfWork
from advisor.tuning.asked import Tuning


def get_advice(work: UnitOfWork, job_id: str) -> Advice:
    """Return a job's advice. Raises JobNotFound, and AdviceNotReady while there is none.

    A job that is being continued has none until it ends again; if it is cancelled, what it said before still holds.
    """
    job = get_job(work, job_id)
    advice = work.advice.get(job_id)
    if advice is None or not job.state.is_final:
        raise AdviceNotReady(
            f"Job {job_id} {job.state.predicate} and has no advice. {job.state_reason}".strip()
        )
    return advice


def get_race(work: UnitOfWork, job_id: str) -> RaceAnswer:
    """Return what a finished job's races say of its two commands.

    Raises JobNotFound, AdviceNotReady while there is no answer, and InvalidRequest for a job that is no such race.
    """
    # Its libraries are large, and the advice itself needs none of them.
    from advisor.tuning.explain.raced import build_race, find_command_knob

    job, advice = get_job(work, job_id), get_advice(work, job_id)
    knob = find_command_knob(job)
    if knob is None:
        raise InvalidRequest(f"Job {job_id} is no race of two commands: ask for its advice.")
    return build_race(job, read_history(work, job_id), advice, knob)


def get_pareto(database: Database, job_id: str, now: datetime) -> tuple[ParetoPoint, ...]:
    """Return throughput against loss of every strategy measured so far, fastest first; also while the job runs.

    Raises JobNotFound.
    """
    # Its libraries are large, and the advice itself needs none of them.
    from advisor.tuning.explain.pareto import build_pareto
    from advisor.tuning.history.record import Record

    with database.read() as work:
        job, history = get_job(work, job_id), read_history(work, job_id)
    return build_pareto(Record(job, history, now))


def predict(
    database: Database,
    tuning: Tuning,
    job_id: str,
    nodes: int | None,
    rate: str | None,
    batch: float,
    now: datetime,
) -> Forecast:
    """Return the forecast for `nodes` nodes whose links carry `rate` (`25gbit`), None as measured, and a rank's batch.

    Raises JobNotFound, InvalidRequest for a rate that is none, and NoForecast where too little is known.
    """
    bits_per_s = None
    if rate is not None:
        try:
            bits_per_s = read_link_rate(rate)
        except ValueError as error:
            raise InvalidRequest(f"rate: {error}.") from error
    # The cost model's libraries are large: they load at the first forecast, not with the server.
    from advisor.tuning.explain.forecast import ForecastImpossible

    with database.read() as work:
        job, history = get_job(work, job_id), read_history(work, job_id)
    try:
        return tuning.forecast(job, history, now, WhatIf(nodes=nodes, bits_per_s=bits_per_s, batch=batch))
    except ForecastImpossible as error:
        raise NoForecast(str(error)) from error


def export_strategy(work: UnitOfWork, job_id: str, format: str, target: str | None) -> Exported:
    """Return a job's advised strategy in `format`, written for version `target` of the tool that reads it.

    Raises JobNotFound, AdviceNotReady, and UnknownFormat when the format or the target does not exist.
    """
    job, advice = get_job(work, job_id), get_advice(work, job_id)
    try:
        return export(advice, job, format, target)
    except ExportError as error:
        raise UnknownFormat(str(error)) from error


def bundle_strategy(work: UnitOfWork, job_id: str) -> dict[str, bytes]:
    """Return the files of a job's advised strategy by name, with a report.

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
