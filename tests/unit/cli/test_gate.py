"""The gate of a CI: three ends, told alike by exit code, JUnit XML and Markdown."""

from xml.etree import ElementTree

import pytest

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.tuning.gate import Gate, conclude_gate, draw_interval, format_junit, format_summary


@pytest.mark.parametrize(
    ("low", "likely", "high", "asked", "code", "word"),
    [
        (0.985, 1.0, 1.02, 0.98, Exit.OK, "passed"),
        (0.93, 0.95, 0.97, 0.98, Exit.BELOW, "regression"),
        (0.97, 1.0, 1.03, 0.98, Exit.NOT_SHOWN, "no verdict"),
        (0.97, 0.99, 1.01, 1.0, Exit.NOT_SHOWN, "no verdict"),
        (1.02, 1.06, 1.1, 1.05, Exit.OK, "passed"),
        (0.99, 1.06, 1.13, 1.05, Exit.NOT_SHOWN, "no verdict"),
        (1.01, 1.02, 1.04, 1.05, Exit.BELOW, "below"),
        (0.09, 63.0, 4e3, 0.98, Exit.NOT_SHOWN, "no verdict"),
        (0.9, 1.0, 1.1, None, Exit.OK, "measured"),
    ],
)
def test_gate_passes_only_on_what_is_shown(low, likely, high, asked, code, word) -> None:
    gate = Gate("B against A", "What was found.", (low, likely, high), asked)
    assert (gate.exit_code, gate.word) == (code, word)
    suite = ElementTree.fromstring(format_junit(gate))
    counted = (suite.get("failures"), suite.get("errors"))
    assert counted == {Exit.OK: ("0", "0"), Exit.BELOW: ("1", "0"), Exit.NOT_SHOWN: ("0", "1")}[code]
    assert format_summary(gate, []).startswith(f"### {word}: B against A")


def test_nothing_measured_is_no_verdict() -> None:
    gate = Gate("B against A", "The script fails.", None, 0.98)
    assert gate.exit_code is Exit.NOT_SHOWN
    assert "The script fails." in format_summary(gate, [])


def test_picture_shows_the_interval_beside_the_same_speed_and_what_was_asked_for() -> None:
    rows = draw_interval(Gate("B against A", "", (0.93, 0.95, 0.97), 0.98))
    bar, axis = rows[0], rows[1]
    asked, same = [place for place, sign in enumerate(axis) if sign == "│"]
    assert bar.index("├") < bar.index("●") < bar.index("┤") < asked < same
    assert rows[2].index("┘") == asked
    assert rows[3].index("┘") == same
    assert rows[0].endswith("−7.0 … −3.0 %")


def test_summary_is_added_to_what_stands_there_and_a_missing_folder_costs_no_answer(tmp_path) -> None:
    gate = Gate("B against A", "What was found.", (0.99, 1.0, 1.01), 0.98)
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    conclude_gate(gate, ["RESULT"], tmp_path / "junit.xml", summary)
    assert summary.read_text().startswith("before\n### passed")
    assert ElementTree.parse(tmp_path / "junit.xml").getroot().get("tests") == "1"
    with pytest.raises(CommandFailed, match=r"cannot be written.*What was found\."):
        conclude_gate(gate, [], tmp_path / "none" / "junit.xml", None)
