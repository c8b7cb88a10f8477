"""Being asked to stop: Ctrl-C, a batch system's SIGTERM or SIGUSR1, a closed terminal and an alarm mean the same."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within the context, each of these signals raises `KeyboardInterrupt` once.

    Later ones are ignored until the context is left: what has to be stopped is stopped in bounded time, and an
    impatient second Ctrl-C must not break that off halfway. Under `nohup` a closed terminal stays without effect.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        if number == signal.SIGHUP and before[number] is signal.SIG_IGN:
            continue
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a signal handler
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt
