"""What the documentation takes from the code equals the code."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs" / "make_reference.py")
assert spec
assert spec.loader
make_reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_reference)

REMEDY = "run: python docs/make_reference.py"


def test_code_map_equals_the_code() -> None:
    assert (ROOT / "docs" / "code-map.md").read_text() == make_reference.describe_code(), REMEDY


def test_published_schema_equals_the_code() -> None:
    assert (ROOT / "docs" / "strategy.schema.json").read_text() == make_reference.describe_schema(), REMEDY


def test_readme_rooms_equal_the_code() -> None:
    text = (ROOT / "README.md").read_text()
    assert make_reference.place_rooms(text) == text, REMEDY
