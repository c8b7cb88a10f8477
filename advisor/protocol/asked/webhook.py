"""A webhook of a job: a URL whose path is a secret, so that it is shown by its host only."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import PlainSerializer, SerializationInfo

from advisor.protocol.training.workload import HIDDEN


def hide_path(url: str) -> str:
    """Return a webhook as it may be shown."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/{HIDDEN}"


def _write_webhook(url: str, info: SerializationInfo) -> str:
    return url if (info.context or {}).get("with_secrets") else hide_path(url)


Webhook = Annotated[str, PlainSerializer(_write_webhook, return_type=str, when_used="json")]
"""A URL of which JSON shows the host only, unless it is asked for secrets."""
