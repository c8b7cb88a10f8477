"""docs/knobs.md is what the catalogue says."""

from pathlib import Path

from advisor.exporters.knob_reference import main, write_reference
from advisor.protocol.knob_entries import CATALOGUE

PAGE = Path(__file__).parents[3] / "docs" / "knobs.md"


def test_the_committed_page_is_the_generated_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == write_reference(), (
        "docs/knobs.md is stale: run python -m advisor.exporters.knob_reference docs/knobs.md"
    )


def test_every_knob_has_one_row() -> None:
    rows = [line.split(" | ")[0] for line in write_reference().splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted(f"| `{name}`" for name in CATALOGUE)


def test_all_tables_have_eight_columns() -> None:
    tables = [line for line in write_reference().splitlines() if line.startswith("|")]
    assert {line.count("|") for line in tables} == {9}


def test_the_module_writes_the_file_it_is_given(tmp_path: Path) -> None:
    main([str(tmp_path / "knobs.md")])
    assert (tmp_path / "knobs.md").read_text(encoding="utf-8") == write_reference()
