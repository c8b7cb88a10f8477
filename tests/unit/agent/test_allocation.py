"""When the allocation that an agent runs in ends: as typed, as the environment has it, and as Slurm answers."""

import logging
import os
from pathlib import Path

import pytest

from advisor.protocol.allocation import ask_squeue, find_seconds_left


def refuse(_: str) -> str:
    """Nobody asks Slurm here."""
    raise AssertionError("Slurm was asked.")


@pytest.mark.parametrize(
    ("typed", "end", "left_s"),
    [
        (None, "5000", 1000.0),
        ("30m", "5000", 1800.0),
        (None, "3000", 0.0),
        ("never", "5000", None),
        (None, "", None),
        (None, "soon", None),
    ],
)
def test_end_of_a_slurm_allocation_is_known_without_a_word(
    typed: str | None, end: str, left_s: float | None
) -> None:
    assert find_seconds_left(typed, {"SLURM_JOB_END_TIME": end}, 4000.0, refuse) == left_s


@pytest.mark.parametrize(
    ("told", "left_s"),
    [
        ("6:57", 417.0),
        ("2:00:03", 7203.0),
        ("1-02:00:00", 93_600.0),
        ("0:00", 0.0),
        ("UNLIMITED", None),
        ("INVALID", None),
        ("", None),
    ],
)
def test_slurm_that_puts_no_end_into_the_environment_is_asked(
    told: str, left_s: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert find_seconds_left(None, {"SLURM_JOB_ID": "12"}, 4000.0, lambda job_id: told) == left_s
    assert ("--ends-in" in caplog.text) == (told in {"INVALID", ""})


def test_squeue_is_asked_for_the_allocation_and_may_be_missing_or_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ask_squeue("12") == ""
    squeue = tmp_path / "squeue"
    squeue.write_text('#!/bin/sh\n[ "$*" = "--noheader --jobs 12 --format=%L" ] && echo 6:57\n')
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    assert ask_squeue("12") == "6:57"
    assert ask_squeue("13") == "", "Slurm has forgotten it"
