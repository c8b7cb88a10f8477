"""A spooled report is whole or ignored, wherever the write was cut."""

import pytest

from agent.sessions.spool import Spool, SpooledReport

REPORT = SpooledReport(session_id="s1", race_id="b1", body='{"generation": 1}')


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "spool")


def test_report_is_found_after_a_restart(spool, tmp_path):
    spool.put(REPORT)
    assert [entry.report for entry in Spool(tmp_path / "spool").list_waiting()] == [REPORT]


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
