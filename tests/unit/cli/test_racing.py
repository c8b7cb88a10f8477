"""`race(a, b)` in a program: it is the command, and says what the command says."""

from pathlib import Path

import pytest

from advisor.client import RaceFailed, race


def test_a_race_that_cannot_begin_says_why(tmp_path: Path) -> None:
    with pytest.raises(RaceFailed, match="nosuchlauncher is not a program on this machine's PATH") as raised:
        race("nosuchlauncher a.py", "nosuchlauncher b.py", minutes=1, folder=tmp_path)
    assert raised.value.exit_code == 3
