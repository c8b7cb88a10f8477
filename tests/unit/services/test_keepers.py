"""Threads that go on whatever happens, and say once what is the matter."""

import logging
import threading

import pytest

from advisor.errors import Unavailable
from advisor.services.background.keeper import Keeper


def test_keeper_goes_on_after_a_defect_and_says_once_that_the_database_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done = threading.Event()
    faults: list[Exception] = [
        Unavailable("Away."),
        Unavailable("Away."),
        ZeroDivisionError(),
        Unavailable("Again."),
    ]

    def do() -> None:
        if faults:
            raise faults.pop(0)
        done.set()

    keeper = Keeper("reaper", do, tick_s=0.001)
    with caplog.at_level(logging.WARNING):
        keeper.start()
        assert done.wait(10)
        keeper.stop()
    assert [record.message for record in caplog.records] == [
        "The reaper waits: Away. Trying again.",
        "The reaper failed; it tries again at its next tick.",
    ]


def test_keeper_that_is_woken_does_not_wait_for_its_tick_and_stops_at_once() -> None:
    wake, looks = threading.Event(), threading.Semaphore(0)
    keeper = Keeper("scheduler", looks.release, tick_s=3600, wake=wake)
    keeper.start()
    assert looks.acquire(timeout=10)
    wake.set()
    assert looks.acquire(timeout=10)
    keeper.stop()
