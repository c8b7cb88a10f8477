"""Whether the guard would find a session's processes, and what is said where it would not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.guard.account import find_account
from agent.guard.blind_spot import find_blind_spot

pytestmark = pytest.mark.thorough

LESS = """
import ctypes, os, sys
for capability in (19, 21, 38):  # SYS_PTRACE, SYS_ADMIN, PERFMON: each lets root read the environment of others
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes as another user")


def test_processes_of_its_own_user_are_found() -> None:
    assert find_blind_spot(None) == ""


@needs_root
def test_processes_of_another_user_are_found_by_root() -> None:
    assert find_blind_spot(find_account("nobody")) == ""


def ask_doctor(tmp_path: Path, *options: str) -> tuple[bool, str]:
    """What the doctor says of the guard where root has as few capabilities as in a container."""
    doctor = ["-m", "agent", "doctor", "--json", "--work-dir", str(tmp_path), *options]
    asked = subprocess.run([sys.executable, "-c", LESS, *doctor], capture_output=True, text=True, check=False)
    guard = next(finding for finding in json.loads(asked.stdout) if finding["name"] == "guard")
    return guard["is_fine"], guard["sentence"]


@needs_root
def test_root_of_a_container_learns_that_it_is_blind_for_another_user_only(tmp_path: Path) -> None:
    fine, sentence = ask_doctor(tmp_path, "--run-as", "nobody")
    assert not fine
    assert "nobody's processes" in sentence
    assert "SYS_PTRACE" in sentence
    assert ask_doctor(tmp_path)[0]


def test_user_that_does_not_exist_is_said(tmp_path: Path) -> None:
    fine, sentence = ask_doctor(tmp_path, "--run-as", "nobody-of-that-name")
    assert not fine
    assert "nobody-of-that-name" in sentence
