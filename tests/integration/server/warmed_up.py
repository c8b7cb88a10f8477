"""What every server does first, done at import in the process that servers are forked from: that halves a start."""

from pathlib import Path

from advisor.app import create_app
from advisor.settings import Settings
from tests.integration.server import struck

APP = create_app(Settings(data_dir=Path("unused")), tuning=struck.make_tuning())
