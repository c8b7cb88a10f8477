"""When a disk counts as nearly full, and whose doing that is."""

import threading
from pathlib import Path

import pytest

from agent.guard.disk import DiskGuard, read_room

GIB = 2**30


class Disk:
    """One file system whose room a test decides."""

    def __init__(self, left, size):
        self.left, self.size = left, size

    def __call__(self, path):
        if self.left is None:
            raise OSError("gone")
        return self.left, self.size


@pytest.mark.parametrize(
    ("before", "now", "size", "is_short", "is_own"),
    [
        (100 * GIB, 3 * GIB, 500 * GIB, False, None),
        (100 * GIB, GIB, 500 * GIB, True, True),
        (GIB, GIB, 500 * GIB, True, False),
        (60 * 2**20, 20 * 2**20, 64 * 2**20, False, None),
        (60 * 2**20, 2 * 2**20, 64 * 2**20, True, True),
        (100 * GIB, None, 500 * GIB, False, None),
    ],
)
def test_shortage_is_found_before_the_disk_is_full(before, now, size, is_short, is_own):
    disk = Disk(before, size)
    guard = DiskGuard([Path("/data")], disk, period_s=0.0, patience_s=5.0)
    disk.left = now
    shortage = guard.find_shortage()
    assert (shortage is not None) == is_short
    if shortage is not None:
        assert shortage.is_sessions_own is is_own
        assert "The file system of /data has only" in shortage.sentence


def test_room_of_a_real_file_system_is_read(tmp_path):
    left, size = read_room(tmp_path)
    assert 0 < left <= size


def test_a_file_system_that_does_not_answer_holds_nobody_up():
    is_back = threading.Event()

    def read(path):
        if path == Path("/dead"):
            is_back.wait()
        return (GIB, 500 * GIB)

    guard = DiskGuard([Path("/dead"), Path("/data")], read, period_s=0.0)
    found = [guard.find_shortage() for _ in range(100)]
    assert all("/data" in shortage.sentence for shortage in found if shortage)
    assert threading.active_count() < 10
    is_back.set()
