"""docs/knobs.md is what the catalogue says."""

import json
from pathlib import Path

from advisor.exporters.knob_reference import main, write_reference
from advisor.protocol.knobs.catalogue import CATALOGUE

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "knobs.md"
EFFECTS = DOCS / "results" / "knob_effects.json"


def test_the_committed_page_is_the_generated_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == write_reference(json.loads(EFFECTS.read_text())["knobs"]), (
        "docs/knobs.md is stale: run "
        "python -m advisor.exporters.knob_reference docs/knobs.md docs/results/knob_effects.json"
    )


def test_every_knob_has_one_row() -> None:
    rows = [line.split(" | ")[0] for line in write_reference().splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted(f"| `{name}`" for name in CATALOGUE)


def test_all_tables_have_nine_columns() -> None:
    tables = [line for line in write_reference().splitlines() if line.startswith("|")]
    assert {line.count("|") for line in tables} == {10}


def test_the_module_writes_the_file_it_is_given(tmp_path: Path) -> None:
    main([str(tmp_path / "knobs.md")])
    assert (tmp_path / "knobs.md").read_text(encoding="utf-8") == write_reference()


def test_a_measured_effect_stands_in_its_row_and_a_refusal_too() -> None:
    effects = {
        "num_threads": {"overrides": {"num_threads": 2}, "gain": 0.25, "low": 0.2, "high": 0.3},
        "localsgd": {"overrides": {"localsgd": True}, "refused": "There is one rank."},
    }
    rows = {line.split(" | ")[0]: line for line in write_reference(effects).splitlines()}
    assert "+25.0% (+20.0% … +30.0%) with num_threads 2" in rows["| `num_threads`"]
    assert "refused: There is one rank." in rows["| `localsgd`"]
    assert "not on this machine" in rows["| `nccl_comm_num`"]
