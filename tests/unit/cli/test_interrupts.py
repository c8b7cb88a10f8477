"""Signals that ask a command to stop: the first counts, the rest wait until everything is stopped."""

import signal
from collections.abc import Iterator

import pytest

from advisor.cli.interrupts import interruptible


@pytest.fixture
def terminal() -> Iterator[None]:
    """Signals as at a terminal: under nohup the tests themselves would ignore one."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_signal_interrupts_and_a_second_does_not_break_off_the_stopping(
    number: signal.Signals, terminal: None
) -> None:
    stopped = []
    before = signal.getsignal(number)

    def stop_impatiently() -> None:
        with interruptible():
            try:
                signal.raise_signal(number)
            finally:
                signal.raise_signal(number)
                signal.raise_signal(signal.SIGINT)
                stopped.append(True)

    with pytest.raises(KeyboardInterrupt):
        stop_impatiently()
    assert stopped
    assert signal.getsignal(number) is before


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
