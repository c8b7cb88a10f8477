"""Where a command would lose the environment by which the runtime gets into its ranks."""

import re
from collections.abc import Sequence
from pathlib import Path

from agent.files import DIRECT, Files

_LARGEST_SCRIPT = 2**20
_LOSES_PATH = re.compile(
    r"\bPYTHONPATH=(?![^\s;]*\$\{?PYTHONPATH)|\benv\s+(-i|--ignore-environment)\b|\bpython\S*\s+-\w*[EIS]"
)


def find_lost_paths(words: Sequence[str], working_dir: Path, files: Files = DIRECT) -> list[tuple[str, str]]:
    """Return where in a command and its shell scripts Python would lose PYTHONPATH, each with the text that says so."""
    texts = {" ".join(words[:2]): " ".join(words)}
    for word in words:
        path = working_dir / word
        if path.suffix in {".sh", ".bash", ""}:
            texts[word] = files.read_beginning(path, _LARGEST_SCRIPT)
    return [(name, found[0]) for name, text in texts.items() if (found := _LOSES_PATH.search(text))]
