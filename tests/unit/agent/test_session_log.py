"""The log keeps its beginning and its end, and hands out text only."""

import os

import pytest

from agent.guard.session_log import LogReader, LogWriter, clean_output, read_log_tail


@pytest.fixture
def writer(tmp_path):
    return LogWriter(tmp_path, head_bytes=20, tail_bytes=10)


def test_news_are_read_once(tmp_path, writer):
    reader = LogReader(tmp_path)
    assert reader.read_news(100) == ""
    writer.write(b"one\n")
    assert reader.read_news(100) == "one\n"
    writer.write(b"two\n")
    assert reader.read_news(100) == "two\n"
    assert reader.read_news(100) == ""


def test_head_and_tail_survive_a_flood(tmp_path, writer):
    writer.write(b"the beginning ......")
    for number in range(500):
        writer.write(b"%05d\n" % number)
    kept = read_log_tail(tmp_path, 10**6)
    assert kept.startswith("the beginning")
    assert kept.endswith("00499\n")
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 20 + 2 * 10


def test_news_go_on_over_rotations(tmp_path, writer):
    reader = LogReader(tmp_path)
    read = ""
    for number in range(50):
        writer.write(b"%05d\n" % number)
        read += reader.read_news(100)
    assert read == "".join(f"{number:05d}\n" for number in range(50))


def test_long_news_are_shortened_at_the_front(tmp_path):
    LogWriter(tmp_path).write(b"x" * 1000 + b"end")
    news = LogReader(tmp_path).read_news(10)
    assert news == "[… 993 characters left out]\nxxxxxxxend"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x1b[31mred\x1b[0m", "red"),
        (b"\x1b]8;;http://evil\x07link\x1b]8;;\x07", "link"),
        (b"50%\r100%\r\n", "50%\n100%\n"),
        (b"\x1b]0;a title without an end\nMemoryError", "0;a title without an end\nMemoryError"),
        (b"bell\x07 tab\t nul\x00", "bell tab\t nul"),
        (b"\xff\xfe", "��"),
        ("Größe ✓".encode(), "Größe ✓"),
    ],
)
def test_text_is_cleaned(data, text):
    assert clean_output(data) == text


def test_log_whose_next_part_cannot_be_opened_goes_on_when_it_can(tmp_path, writer, monkeypatch):
    real = os.open

    def refuse(path, *more):
        if str(path).endswith("log.tail"):
            raise OSError(28, "No space left on device")
        return real(path, *more)

    monkeypatch.setattr(os, "open", refuse)
    writer.write(b"x" * 30)
    writer.write(b"lost")
    monkeypatch.undo()
    writer.write(b"y" * 25)
    assert read_log_tail(tmp_path, 100).endswith("yyyyy")
