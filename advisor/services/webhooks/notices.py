"""Notices to the webhooks of a job: sent once the transaction of what they tell of is committed."""

import json
from datetime import datetime
from enum import StrEnum

from advisor.errors import InvalidJob, UnreadableRecord
from advisor.protocol.asked.jobs import JobSpec, Notice
from advisor.services.webhooks.receivers import Receivers
from advisor.storage import UnitOfWork

_MOST_CHARS = 4000


class NoticeEvent(StrEnum):
    """What a notice tells of."""

    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    BELOW = "below"
    """A watched training has left the advised interval downwards."""
    RECOVERED = "recovered"
    """It is back."""


def refuse_webhooks(spec: JobSpec, receivers: Receivers) -> None:
    """Raise InvalidJob with a sentence for every webhook that this server would not post to."""
    reasons = [reason for url in spec.webhooks if (reason := receivers.explain_refusal(url))]
    if reasons:
        raise InvalidJob(f"webhooks: {' '.join(dict.fromkeys(reasons))}")


def tell_webhooks(
    work: UnitOfWork,
    job_id: str,
    event: NoticeEvent,
    sentence: str,
    now: datetime,
    **facts: str | int | float | None,
) -> None:
    """Let every webhook of a job be told of an event. `facts` stand beside the sentence in what is posted."""
    try:
        job = work.jobs.get(job_id)
    except UnreadableRecord:
        # Another release's job: its end must not wait for what this one cannot read.
        return
    if job is None or not job.spec.webhooks:
        return
    event_id = work.new_id()
    body = {
        "source": "fleet-advisor",
        "id": event_id,
        "at": now.isoformat(),
        "event": event.value,
        "sentence": sentence[:_MOST_CHARS],
        "job_id": job.id,
        "job_name": job.spec.name,
        **facts,
    }
    text = json.dumps(body, allow_nan=False)
    work.notices += [Notice(job.id, event_id, url, text) for url in dict.fromkeys(job.spec.webhooks)]
