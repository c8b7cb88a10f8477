"""The base models: strict for what people write, lenient for what a peer sends.

A Spec inside a peer's message, or in our database, was judged before: `advisor.protocol.reading` reads it leniently.
Their errors do not repeat what they were given: it may hold a secret, and errors get into logs.
"""

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict

Value = bool | int | float | str
"""What a knob can hold."""

_DATED = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d")


def _refuse_number(given: Any) -> Any:
    """Pydantic takes a number for seconds since 1970, also where it is text."""
    if isinstance(given, int | float) or (isinstance(given, str) and not _DATED.match(given)):
        raise ValueError("a moment looks like 2026-11-20T09:30:00Z")
    return given


def _put_into_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("it lies beyond the years 1 to 9999 in UTC") from None


Moment = Annotated[AwareDatetime, BeforeValidator(_refuse_number), AfterValidator(_put_into_utc)]
"""A date and time with its zone, in text as RFC 3339 has it."""


class Spec(BaseModel):
    """Something a person or a program hands to us: an unknown field is a mistake, and is refused."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )


class Message(BaseModel):
    """Something our own peer sends: an unknown field comes from a newer version, and is ignored."""

    model_config = ConfigDict(
        extra="ignore",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )
