"""Forecasts: what a job's cost model expects on another cluster."""

from datetime import datetime

from advisor.errors import InvalidRequest, NoForecast
from advisor.protocol.answers.advice import Forecast, WhatIf
from advisor.protocol.nodes.testbed import read_rate
from advisor.services.jobs import get_job, read_history
from advisor.services.tuning import Tuning
from advisor.storage import Database


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
            bits_per_s = read_rate(rate)
        except ValueError as error:
            raise InvalidRequest(f"rate: {error}.") from error
        if bits_per_s <= 0:
            raise InvalidRequest(f"rate: {rate!r} carries nothing: give a rate above 0, for example 1gbit.")
    # The cost model's libraries are large: they load at the first forecast, not with the server.
    from advisor.tuning.explain.forecast import ForecastImpossible

    with database.read() as work:
        job, history = get_job(work, job_id), read_history(work, job_id)
    try:
        return tuning.forecast(job, history, now, WhatIf(nodes=nodes, bits_per_s=bits_per_s, batch=batch))
    except ForecastImpossible as error:
        raise NoForecast(str(error)) from error
