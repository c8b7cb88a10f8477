"""The HTTP API is a frozen surface: a change of it is made on purpose, together with this snapshot.

After a change that is meant, write the snapshot anew and read its difference:

    UPDATE_OPENAPI=1 pytest tests/contracts/test_openapi.py
"""

import json
import os
from pathlib import Path

from advisor.app import create_app
from advisor.settings import Settings
from tests.unit.services.scripted_tuning import ScriptedTuning

SNAPSHOT = Path(__file__).parent / "openapi.json"


def test_api_is_the_one_of_the_snapshot(tmp_path: Path) -> None:
    document = create_app(Settings(data_dir=tmp_path), tuning=ScriptedTuning()).openapi()
    # The version changes with every release, the API does not.
    document["info"].pop("version")
    present = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    if os.environ.get("UPDATE_OPENAPI"):
        SNAPSHOT.write_text(present)
    assert present == SNAPSHOT.read_text(), "see the first lines of this file for how to accept the change"


def test_every_operation_says_what_it_is_for(tmp_path: Path) -> None:
    document = create_app(Settings(data_dir=tmp_path), tuning=ScriptedTuning()).openapi()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], (method, path)
            assert operation["description"], (method, path)
            assert {"4XX", "5XX"} <= operation["responses"].keys(), (method, path)
            public = path in {"/livez", "/readyz"}
            assert ("security" in operation) is not public, (method, path)
