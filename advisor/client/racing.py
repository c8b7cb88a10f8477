"""`race(a, b)`: which of two launch commands trains faster, from a program, as `advisor race` says it.

    from advisor.client import race

    answer = race("torchrun --nproc-per-node 2 a.py", "torchrun --nproc-per-node 2 b.py", minutes=5)
    print(answer.verdict, answer.gain, answer.differences)

It is the command itself that is started, so that a program and a person are told the same: on this machine, or on the
server that ADVISOR_URL names.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGINT

from advisor.protocol.answers.raced import RaceAnswer
from advisor.protocol.kinds import Effect
from advisor.protocol.reading import read_document

_FAREWELL_S = 60.0
"""What a race that is given up has for ending its launches."""


class RaceFailed(RuntimeError):
    """The race has no answer; the message is the command's own, and `exit_code` what it ended with."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


def race(
    a: str,
    b: str,
    *,
    minutes: float = 10.0,
    effect: Effect = Effect.CONVERGENCE,
    min_gain: float = 1.0,
    options: Sequence[str] = (),
    folder: Path | str = ".",
    environment: Mapping[str, str] | None = None,
) -> RaceAnswer:
    """Race two launch commands for at most `minutes` minutes of measuring; `min_gain` is in percent.

    `options` are further options of `advisor race`, `folder` is where the commands start, `environment` the variables
    of the race (None: this process's own). Raises `RaceFailed`; an interrupt ends the launches first.
    """
    words = [sys.executable, "-m", "advisor", "race", "--json", "--quiet", "--minutes", f"{minutes:g}"]
    words += ["--effect", Effect(effect).value, "--min-gain", f"{min_gain:g}", *options, "--", a, b]
    running = subprocess.Popen(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        told, said = running.communicate()
    except BaseException:
        running.send_signal(SIGINT)
        with suppress(subprocess.TimeoutExpired):
            running.wait(_FAREWELL_S)
        raise
    if running.returncode != 0:
        raise RaceFailed(_read_failure(said), running.returncode)
    return read_document(RaceAnswer, told)


def _read_failure(said: str) -> str:
    """The sentence of a failed command, whose last line is JSON where it is an error of its own."""
    last = said.strip().rpartition("\n")[2]
    try:
        failure = json.loads(last)
        return f"{failure['detail']} {failure['hint']}".strip()
    except (ValueError, KeyError, TypeError):
        return last or "The race ended without a word."
