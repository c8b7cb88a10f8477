"""What an exporter returns, what it offers, and how it refuses."""

import base64
from typing import Literal

from pydantic import Field

from advisor.protocol.answers.advice import Provenance
from advisor.protocol.base import Message
from advisor.protocol.training.workload import WorkloadKind


class ExportError(ValueError):
    """The strategy cannot be exported as asked. The sentence names the value and what is allowed."""


class Exported(Message):
    """One exported file, with what it claims and what it cannot say."""

    format: str
    """Name of the format."""
    target: str = ""
    """Version of the tool it is written for; empty where the format has no versions."""
    filename: str
    """Name to save it under; other files of the export refer to it by this name."""
    media_type: str
    content: str
    encoding: Literal["utf-8", "base64"] = "utf-8"
    """How `content` holds the file's bytes: as text, or, of an archive, in base64."""
    provenance: dict[str, Provenance] = Field(default_factory=dict)
    """For every knob that the file sets: how much is known about its value in that tool."""
    left: dict[str, str] = Field(default_factory=dict)
    """Knobs left to the tool's own default or to the script, each with the reason."""
    unmapped: dict[str, str] = Field(default_factory=dict)
    """Knobs of the advised strategy that the format cannot express, each with a sentence."""
    warnings: tuple[str, ...] = ()
    """What to know before using the file."""
    needs: tuple[str, ...] = ()
    """Formats whose files must lie beside this one."""

    @property
    def data(self) -> bytes:
        """The file's bytes."""
        return self.content.encode() if self.encoding == "utf-8" else base64.b64decode(self.content)


class FormatInfo(Message):
    """A format that can be exported."""

    name: str
    """What to ask for."""
    filename: str
    media_type: str
    meaning: str
    """What the file is and who loads it, in one sentence."""
    targets: tuple[str, ...] = ()
    """Versions of the tool it can be written for, the default first; empty where it has none."""
    knobs: tuple[str, ...] = ()
    """Knobs that it can express."""
    kinds: tuple[WorkloadKind, ...] = tuple(WorkloadKind)
    """Kinds of workload whose strategy it can apply."""
    software: str = ""
    """Library that has to be at work in the training for the file to mean anything; empty where none has."""
