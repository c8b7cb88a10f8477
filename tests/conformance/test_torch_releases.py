"""docs/results/torch_releases.md goes with torch: its newest release is at most one minor behind the registry's."""

import json
import re
import subprocess
import sys

import pytest

from tests.architecture.torch_sources import read_version
from tests.releases.command import FIGURES

pytestmark = pytest.mark.conformance
ASKS_S = 60


def test_the_newest_release_that_was_tried_is_not_old() -> None:
    tried = max(read_version(release) for release in json.loads(FIGURES.read_text()))
    words = [sys.executable, "-m", "pip", "index", "versions", "torch"]
    try:
        asked = subprocess.run(words, capture_output=True, text=True, timeout=ASKS_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(
            f"The registry did not answer within {ASKS_S} s: whether there is a newer torch is not known."
        )
    newest = re.search(r"^torch \((\S+)\)", asked.stdout, re.MULTILINE)
    if newest is None:
        pytest.skip(
            f"The registry was not reached: whether there is a newer torch is not known. {asked.stderr[-200:]}"
        )
    major, minor = read_version(newest[1])
    assert tried >= (major, minor - 1), f'torch {newest[1]} is out: make matrix TORCH="{newest[1]}"'
