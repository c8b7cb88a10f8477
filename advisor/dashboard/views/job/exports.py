"""Exports as their page shows them: what a file changes, line by line, and all files as one archive."""

import io
import zipfile
from collections.abc import Mapping

from advisor.exporters import Exported
from advisor.exporters.difference import describe_difference
from advisor.protocol.answers.advice import Advice

_TAGS = {"-": "del", "+": "ins", "!": "strong"}


def view_difference(advice: Advice, file: Exported) -> tuple[tuple[str, str], ...]:
    """Return the lines of the diff, each with the element that says so to who does not see its sign."""
    lines = describe_difference(advice, file).splitlines()
    return tuple(
        ("span" if line.startswith(("---", "+++")) else _TAGS.get(line[:1], "span"), line) for line in lines
    )


def pack_files(files: Mapping[str, bytes]) -> bytes:
    """Return the files as a zip archive, the same bytes for the same files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name.endswith(".sh") else 0o644) << 16
            archive.writestr(entry, content)
    return packed.getvalue()
