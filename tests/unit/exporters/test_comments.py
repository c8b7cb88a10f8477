"""Comment lines hold whatever a name holds, and nothing of it can leave the comment."""

from hypothesis import given
from hypothesis import strategies as st

from advisor.exporters.format import comment, one_line


@given(st.lists(st.text()))
def test_every_line_of_a_comment_starts_with_a_hash(lines: list[str]) -> None:
    text = comment(lines)
    assert len(text.splitlines()) == len(lines)
    assert all(line.startswith("#") for line in text.splitlines())


@given(st.text())
def test_a_line_is_printable_ascii(text: str) -> None:
    line = one_line(text)
    assert line.isascii()
    assert line.isprintable()


def test_a_newline_in_a_name_becomes_a_space() -> None:
    assert one_line("a\r\nrm -rf /\u2028b\x85c\u202ed") == "a rm -rf / b c d"


def test_typographic_signs_become_ascii() -> None:
    assert one_line("2 × 8 – +15.9 … é") == "2 x 8 - +15.9 ... \\xe9"
