"""Labels: words in pairs, such as `rack=7`. A job's are there to find it by, a node's to choose it by."""

from typing import Annotated

from pydantic import Field

LabelKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$")]
"""Letters, digits and `._/-`, at most 63 of them."""
LabelValue = Annotated[str, Field(max_length=100)]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=32)]
Pool = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._/-]{0,62})?$")]
"""The name of a pool; empty for nodes and jobs of none."""
RACK = "rack"
"""The label whose nodes are close to each other: gangs are formed of one rack where one has enough nodes."""


def read_label(text: str) -> tuple[str, str]:
    """Return the key and the value that `rack=7` means; raises ValueError with a sentence."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text} has no value: write it as {RACK}=7")
    return key, value
