"""The advice as `--json` prints it: the API's document, and the version of its form."""

from advisor.protocol.answers.advice import Advice

SCHEMA_VERSION = 1
"""Grows when a field goes or changes its meaning; a new field does not change it."""


def describe_advice(advice: Advice) -> dict[str, object]:
    """Return the document."""
    return {"schema_version": SCHEMA_VERSION, **advice.model_dump(mode="json")}
