"""A spooled report is whole or set aside, wherever the write was cut; and neither folder grows without bounds."""

import os

import pytest

from agent.sessions.spool import Spool, SpooledReport, list_reports, read_reason

REPORT = SpooledReport(session_id="s1", race_id="b1", body='{"generation": 1}')


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path)


def test_report_is_found_after_a_restart(spool, tmp_path):
    spool.put(REPORT)
    assert [entry.report for entry in Spool(tmp_path).list_waiting()] == [REPORT]


def test_removed_report_is_gone(spool):
    spool.remove(spool.put(REPORT))
    assert list(spool.list_waiting()) == []


def test_report_put_twice_waits_once(spool):
    spool.put(REPORT)
    spool.put(REPORT)
    assert len(list(spool.list_waiting())) == 1


def test_torn_report_is_ignored_at_every_byte(spool, tmp_path):
    entry = spool.put(REPORT)
    whole = entry.path.read_bytes()
    for length in range(len(whole)):
        entry.path.write_bytes(whole[:length])
        assert list(spool.list_waiting()) == [], length
    entry.path.write_bytes(whole)
    assert len(list(spool.list_waiting())) == 1


def test_changed_byte_is_noticed_everywhere(spool):
    entry = spool.put(REPORT)
    whole = entry.path.read_bytes()
    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 0x20
        entry.path.write_bytes(changed)
        assert list(spool.list_waiting()) == [], position


def test_unfinished_write_is_ignored(spool, tmp_path):
    (tmp_path / "spool" / "x.tmp").write_bytes(b"half")
    assert list(spool.list_waiting()) == []


def test_report_that_is_set_aside_keeps_its_bytes_and_its_reason(spool):
    entry = spool.put(REPORT)
    whole = entry.path.read_bytes()
    spool.set_aside(entry, "A proxy refused it.")
    assert list(spool.list_waiting()) == []
    (aside,) = list_reports(spool.quarantine)
    assert aside.read_bytes() == whole
    assert read_reason(aside) == "A proxy refused it."


def test_report_that_is_moved_back_waits_again(spool):
    spool.set_aside(spool.put(REPORT), "A proxy refused it.")
    (aside,) = list_reports(spool.quarantine)
    aside.rename(spool.folder / aside.name)
    assert [entry.report for entry in spool.list_waiting()] == [REPORT]


def _put_dated(spool, *numbers):
    """Put reports, each a second younger than the one before."""
    for number in numbers:
        entry = spool.put(REPORT.model_copy(update={"race_id": f"b{number}"}))
        os.utime(entry.path, (number, number))


def test_oldest_report_is_set_aside_when_too_many_wait(tmp_path):
    spool = Spool(tmp_path, most_reports=2)
    _put_dated(spool, 1, 2, 3)
    assert sorted(entry.report.race_id for entry in spool.list_waiting()) == ["b2", "b3"]
    (aside,) = list_reports(spool.quarantine)
    assert "More reports waited" in read_reason(aside)


def test_oldest_report_is_deleted_when_the_quarantine_is_full(tmp_path):
    spool = Spool(tmp_path, most_reports=2)
    _put_dated(spool, 1, 2)
    for entry in list(spool.list_waiting()):
        spool.set_aside(entry, "So it is.")
    _put_dated(spool, 3)
    (last,) = spool.list_waiting()
    spool.set_aside(last, "So it is.")
    assert len(list_reports(spool.quarantine)) == 2
    assert last.path.name in {path.name for path in list_reports(spool.quarantine)}
    assert len(list(spool.quarantine.glob("*.reason"))) == 2


def test_reports_are_bounded_by_their_bytes(tmp_path):
    spool = Spool(tmp_path, most_bytes=300)
    _put_dated(spool, 1, 2, 3)
    waiting = list_reports(spool.folder)
    assert sum(path.stat().st_size for path in waiting) <= 300
    assert len(waiting) + len(list_reports(spool.quarantine)) == 3


def test_report_that_is_handed_in_meanwhile_is_passed_over(spool):
    entries = [spool.put(REPORT.model_copy(update={"race_id": f"b{number}"})) for number in range(3)]
    waiting = spool.list_waiting()
    first = next(waiting)
    for entry in entries:
        if entry.path != first.path:
            spool.remove(entry)
    assert list(waiting) == []
    spool.set_aside(entries[0], "Nobody wants it.")
    spool.set_aside(entries[0], "It is gone.")
    assert len(list(spool.quarantine.glob("*.reason"))) <= len(list_reports(spool.quarantine))
