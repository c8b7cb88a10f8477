"""The canonical file: the whole strategy as versioned JSON, from which every other format can be understood."""

import json

from advisor.exporters.exported import Exported
from advisor.protocol.answers.advice import Advice, Provenance
from advisor.protocol.answers.strategy_file import StrategyFile
from advisor.protocol.asked.jobs import Job


def export_json(advice: Advice, job: Job) -> Exported:
    """Return the canonical file. It expresses every knob."""
    provenance = {name: advice.provenance.get(name, Provenance.CARRIED) for name in job.catalogue}
    file = StrategyFile(
        job_id=job.id,
        job_name=job.spec.name,
        date=job.finished_at or job.started_at or job.created_at,
        verdict=advice.verdict,
        headline=advice.headline,
        gain=advice.gain,
        baseline_samples_per_s=advice.baseline_samples_per_s,
        allowed=advice.allowed,
        certificate=advice.certificate,
        effect=job.catalogue.effect_of(advice.changes),
        changes=advice.changes,
        strategy=advice.strategy,
        baseline=advice.baseline,
        provenance=provenance,
        cluster=advice.cluster or job.cluster.describe(),
        software=advice.software,
        kind=job.spec.workload.kind,
        own=job.spec.workload.own,
        holds_for=job.facts,
    )
    content = json.dumps(file.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return Exported(
        format="json",
        filename="strategy.json",
        media_type="application/json",
        content=content,
        provenance=provenance,
    )
