"""Runs checks one after the other: a failure ends none of the others, and Ctrl-C keeps what was found."""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from agent.devices.gpus import Gpus
from tests.gpu.bench import Bench, Interrupted, Machine
from tests.gpu.check import Check, Judgement, NotPossible, Outcome, Status
from tests.gpu.real_bench import SCRIPTS, RealBench

_QUESTION_S = 120.0
_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MOST_S = 3600.0
"""All of them together: a card is often lent, and by the hour. What was launched by then goes on to its own limit."""


class NoCard(Exception):
    """There is nothing to check here; the text says why, and what to do."""


def find_machine(device: str, gpus: Gpus, environment: Mapping[str, str]) -> Machine:
    """Return what the checks would run on; raises NoCard where torch finds no card and `device` is not `cpu`."""
    words = [sys.executable, str(SCRIPTS / "versions.py")]
    try:
        answer = subprocess.run(
            words, capture_output=True, text=True, timeout=_QUESTION_S, check=False, env=dict(environment)
        )
        found = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise NoCard(
            f"{sys.executable} has no torch that works: activate the environment that trains, or install torch."
        ) from error
    cards = tuple(str(name) for name in found["cards"])
    if device != "cpu" and not cards:
        raise NoCard(_explain_no_card(str(found["torch"]), str(found["cuda"]), len(gpus.list_devices())))
    devices = gpus.list_devices() if device != "cpu" else ()
    return Machine(
        device=device,
        cards=cards if device != "cpu" else (),
        driver=devices[0].driver if devices else "",
        torch=str(found["torch"]),
        cuda=str(found["cuda"]),
        nccl=str(found["nccl"]),
        cudnn=str(found["cudnn"]),
        has_transformers=bool(found["transformers"]),
    )


def _explain_no_card(torch: str, cuda: str, seen: int) -> str:
    if seen and not cuda:
        return f"{seen} cards are there, and torch {torch} is built without CUDA: install a build with CUDA."
    if seen:
        return f"{seen} cards are there, and torch {torch} (CUDA {cuda}) cannot use them: nvidia-smi shows the driver."
    return "No NVIDIA GPU is visible on this machine, so there is nothing to check: run it where one is."


def run_checks(
    checks: Sequence[Check],
    bench: Bench,
    tell: Callable[[Outcome], None],
    clock: Callable[[], float] = time.monotonic,
) -> list[Outcome]:
    """Run every check and tell each outcome; fewer outcomes than checks where the bench was interrupted.

    What would begin after an hour fails unrun.
    """
    outcomes: list[Outcome] = []
    first_s = clock()
    for check in checks:
        began_s = clock()
        because, judgement = "", Judgement()
        try:
            if began_s - first_s > MOST_S:
                raise TimeoutError(
                    f"An hour was over before it could begin. By itself: --checks {check.name}"
                )
            judgement = check.run(bench)
            status = Status.FAILED if judgement.faults else Status.PASSED
        except NotPossible as reason:
            status, because = Status.IMPOSSIBLE, str(reason)
        except Interrupted:
            break
        except Exception as error:  # of a check or of what it started: the others go on
            status = Status.FAILED
            judgement.faults.append(f"{type(error).__name__}: {error}")
        outcomes.append(Outcome(check, status, judgement, clock() - began_s, because))
        tell(outcomes[-1])
    return outcomes


@contextmanager
def open_bench(machine: Machine, gpus: Gpus, environment: Mapping[str, str]) -> Iterator[RealBench]:
    """A bench whose processes and files are gone afterwards; Ctrl-C, SIGTERM and a terminal that goes interrupt it."""
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        bench = RealBench(machine, gpus, Path(folder), environment, time.monotonic() + MOST_S)

        def interrupt(number: int, frame: FrameType | None) -> None:
            bench.interrupt()

        numbers = [
            number for number in _STOP if signal.getsignal(number) is not signal.SIG_IGN
        ]  # under nohup
        before = {number: signal.signal(number, interrupt) for number in numbers}
        try:
            yield bench
        finally:
            bench.close()
            for number, handler in before.items():
                signal.signal(number, handler)
