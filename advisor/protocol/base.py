"""The base models: strict for what people write, lenient for what a peer sends.

A Spec inside a peer's message, or in our database, was judged before: `advisor.protocol.reading` reads it leniently.
Their errors do not repeat what they were given: it may hold a secret, and errors get into logs.
"""

from pydantic import BaseModel, ConfigDict

Value = bool | int | float | str
"""What a knob can hold."""


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
