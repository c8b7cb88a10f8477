"""`fleet_advisor_runtime.pyz`: the runtime that measured the strategy, for nodes that have Python and torch only."""

import base64
import io
import zipfile
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from advisor import __version__
from advisor.exporters.exported import Exported
from advisor.exporters.launch.run_script import RUNTIME, carry_everything
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job

_NAME = RUNTIME.partition(".")[0]
"""Of the package in it."""
_FOLDER = Path(__file__).parents[3] / "agent" / "runtime"
_MAIN = f'''\
"""Fleet Advisor's runtime, version {__version__}: python {RUNTIME} [--strategy strategy.json] COMMAND..."""

from {_NAME}.inject.start_training import main

main()
'''


def export_runtime(advice: Advice, _: Job) -> Exported:
    """Return the archive. It is the same for every strategy, and reads the one in strategy.json beside it."""
    provenance, idle = carry_everything(advice)
    return Exported(
        format="runtime",
        filename=RUNTIME,
        media_type="application/zip",
        content=base64.b64encode(pack_runtime()).decode(),
        encoding="base64",
        provenance=provenance,
        unmapped=idle,
        needs=("json",),
    )


@cache
def pack_runtime() -> bytes:
    """Return the archive's bytes, the same ones for one version of this package."""
    sources = {
        f"{_NAME}/{path.relative_to(_FOLDER).as_posix()}": path.read_bytes()
        for path in sorted(_FOLDER.rglob("*"))
        if path.suffix in {".py", ".c"}
    }
    texts = {"__main__.py": _MAIN, "VERSION": f"{__version__}\n", "LICENSE": _read_license()}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in ({name: text.encode() for name, text in texts.items()} | sources).items():
            entry = zipfile.ZipInfo(name)  # of 1980, whenever the file was written
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED, 9)
    return packed.getvalue()


def _read_license() -> str:
    try:
        text = distribution("fleet-advisor").read_text("licenses/LICENSE")
    except PackageNotFoundError:  # a checkout on PYTHONPATH
        text = (_FOLDER.parents[1] / "LICENSE").read_text()
    if text is None:
        raise RuntimeError("The installed fleet-advisor lacks its licenses/LICENSE. Reinstall it.")
    return text
