"""docs/knobs.md is what the catalogue says."""

from advisor.protocol.knobs.catalogue import CATALOGUE
from tests.architecture.documents import ROOT, load_tool

knob_reference = load_tool("knob_reference")
write_reference = knob_reference.write_reference


def test_the_committed_page_is_the_generated_one() -> None:
    committed = (ROOT / "docs" / "knobs.md").read_text(encoding="utf-8")
    assert committed == knob_reference.describe_knobs(), "run: python docs/make_reference.py"


def test_every_knob_stands_there_once() -> None:
    lines = write_reference().splitlines()
    rows = [line.split("`")[1] for line in lines if line.startswith("| `")]
    carried = [line.split("`")[1] for line in lines if line.startswith("* `")]
    assert sorted(rows) == sorted(knob.name for knob in CATALOGUE.values() if not knob.carried)
    assert sorted(carried) == sorted(knob.name for knob in CATALOGUE.values() if knob.carried)


def test_all_tables_have_nine_columns() -> None:
    tables = [line for line in write_reference().splitlines() if line.startswith("|")]
    assert {line.count("|") for line in tables} == {10}


def test_a_measured_effect_stands_in_its_row_and_a_refusal_too() -> None:
    effects = {
        "num_threads": {"overrides": {"num_threads": 2}, "gain": 0.25, "low": 0.2, "high": 0.3},
        "localsgd": {"overrides": {"localsgd": True}, "refused": "There is one rank."},
    }
    rows = {line.split(" | ")[0]: line for line in write_reference(effects).splitlines()}
    assert "+25.0% (+20.0% … +30.0%) with num_threads 2" in rows["| `num_threads`"]
    assert "refused: There is one rank." in rows["| `localsgd`"]
    assert " | – | " in rows["| `nccl_comm_num`"]


def test_what_several_rows_say_stands_once_in_a_note() -> None:
    table, notes = write_reference().split("## Notes")
    told = CATALOGUE["nccl_tuner_allreduce"].realised
    assert told == CATALOGUE["nccl_tuner_channels"].realised
    assert told not in table
    assert notes.count(told) == 1
