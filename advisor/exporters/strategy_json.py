"""The canonical file: the whole strategy as versioned JSON, from which every other format can be understood."""

import json
from datetime import datetime

from advisor.exporters.exported import Exported
from advisor.protocol.advice import Advice, Interval, Provenance, Verdict
from advisor.protocol.base import Message, Value
from advisor.protocol.jobs import Job
from advisor.protocol.knob_entries import CATALOGUE
from advisor.protocol.knobs import Effect
from advisor.protocol.strategy import effect_of

SCHEMA = "fleet-advisor/strategy"
VERSION = 1


class StrategyFile(Message):
    """The content of a `strategy.json`."""

    schema_name: str = SCHEMA
    """Always `fleet-advisor/strategy`."""
    version: int = VERSION
    """Grows when a field changes its meaning; new fields alone do not change it."""
    job_id: str
    job_name: str
    date: datetime
    """When the job finished (UTC)."""
    verdict: Verdict
    headline: str
    """The verdict in one sentence."""
    gain: Interval | None
    """The confirmed throughput ratio; None when nothing was confirmed."""
    allowed: Effect
    """The highest rung the job allowed."""
    effect: Effect
    """The rung the strategy stands on."""
    changes: dict[str, Value]
    """Knobs that differ from the baseline; empty when the verdict is keep."""
    strategy: dict[str, Value]
    """A value for every knob."""
    baseline: dict[str, Value]
    """A value for every knob: the script as it stood."""
    provenance: dict[str, Provenance]
    """For every knob: measured, translated or carried."""
    cluster: str
    """The hardware in one phrase."""
    software: dict[str, str]
    """Versions that the advice is valid for."""


def export_json(advice: Advice, job: Job) -> Exported:
    """Return the canonical file. It expresses every knob."""
    provenance = {name: advice.provenance.get(name, Provenance.CARRIED) for name in CATALOGUE}
    file = StrategyFile(
        job_id=job.id,
        job_name=job.spec.name,
        date=job.finished_at or job.started_at or job.created_at,
        verdict=advice.verdict,
        headline=advice.headline,
        gain=advice.gain,
        allowed=advice.allowed,
        effect=effect_of(advice.changes),
        changes=advice.changes,
        strategy=advice.strategy,
        baseline=advice.baseline,
        provenance=provenance,
        cluster=advice.cluster or job.cluster.describe(),
        software=advice.software,
    )
    content = json.dumps(file.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return Exported(
        format="json",
        filename="strategy.json",
        media_type="application/json",
        content=content,
        provenance=provenance,
    )


def read_strategy_file(text: str) -> StrategyFile:
    """Return the content of a `strategy.json`.

    Raises ValueError (pydantic's, or ours with a sentence) when it is no such file or of a later version.
    """
    file = StrategyFile.model_validate_json(text)
    if file.schema_name != SCHEMA:
        raise ValueError(f"schema_name is {file.schema_name!r}, but a strategy file says {SCHEMA!r}.")
    if file.version > VERSION:
        raise ValueError(
            f"The strategy file has version {file.version}; this program reads up to {VERSION}. Upgrade it."
        )
    return file
