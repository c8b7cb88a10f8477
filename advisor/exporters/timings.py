"""The export `timings`: a compiler's bucketing pass reads when gradients become ready and what an allreduce costs."""

import json

from advisor.exporters.exported import Exported, ExportError
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job


def export_timings(advice: Advice, job: Job) -> Exported:
    """Return the file; its fields are described in docs/exports.md."""
    timings, facts = advice.timings, job.facts
    if timings is None or facts is None:
        raise ExportError("The job's probe did not time gradients and allreduces: there is nothing to write.")
    told = {
        "format": "fleet-advisor-timings",
        "version": 1,
        "job": job.id,
        "world_size": facts.world_size,
        "nodes": facts.nodes,
        "backend": facts.backend,
        "gradient_dtype": facts.gradient_dtype,
        "torch": facts.torch_version,
        "allreduce": {"alpha_s": timings.alpha_s, "beta_s_per_byte": timings.beta_s_per_byte},
        "gradients": [
            {"bytes": size, "ready_s": ready}
            for size, ready in zip(timings.gradient_bytes, timings.ready_s, strict=True)
        ],
        "bucket_cap_mb_list": list(timings.planned_mb),
    }
    return Exported(
        format="timings",
        filename="timings.json",
        media_type="application/json",
        content=json.dumps(told, indent=1, allow_nan=False) + "\n",
        unmapped=dict.fromkeys(advice.changes, "The file holds what was measured, and no settings."),
    )
