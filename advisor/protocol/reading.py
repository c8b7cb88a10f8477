"""Reads what our own programs wrote, in a message or in the database, whichever release they are of.

A field that is not known comes from another release and is ignored, at every depth: also inside the models that are
strict about what people write. A value that is not known (a new kind of workload) cannot be ignored: it ends in a
sentence that names it, for the one document that holds it.
"""

from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

_MOST_FINDINGS = 3

Document = TypeVar("Document")


class Unreadable(ValueError):
    """The document holds what this release does not know; the sentence names the fields, never what they hold."""


def read_document(kind: type[Document], text: str | bytes) -> Document:
    """Return the JSON document of a peer, or of our database, as that model; raises Unreadable."""
    asked: Any = kind
    try:
        read: Document = _adapt(asked).validate_json(text, extra="ignore")
    except ValidationError as error:
        raise Unreadable(describe_faults(error)) from error
    return read


@cache
def _adapt(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def describe_faults(error: ValidationError) -> str:
    """Return its first findings in one clause: `minutes: Input should be greater than 0`."""
    found = error.errors(include_url=False, include_input=False)
    named = []
    for finding in found[:_MOST_FINDINGS]:
        field = ".".join(str(part) for part in finding["loc"])
        message = str(finding["msg"]).removeprefix("Value error, ")
        named.append(f"{field}: {message}" if field else message)
    more = f"; and {len(found) - _MOST_FINDINGS} more" if len(found) > _MOST_FINDINGS else ""
    return "; ".join(named) + more
