"""Whoever is killed at whatever moment: no process of the session stays. `benchmarks/kills.py` does it 200 times."""

import pytest

from .killing import VICTIMS, open_yard

pytestmark = pytest.mark.distributed

GENEROUS_S = 30.0
"""A loaded machine may be slow; `docs/results/kills.md` says how long it takes."""


def test_no_process_stays_whoever_is_killed(tmp_path):
    with open_yard(tmp_path) as yard:
        for seed, victim in enumerate((*VICTIMS, "agent, SIGKILL", "inner shim, SIGKILL")):
            kill = yard.strike(seed, victim, is_real=False, deadline_s=GENEROUS_S)
            assert kill.left == 0, kill


def test_no_rank_of_torchrun_stays_when_the_agent_is_killed(tmp_path):
    with open_yard(tmp_path) as yard:
        kill = yard.strike(7, "agent, SIGKILL", is_real=True, deadline_s=GENEROUS_S)
    assert kill.left == 0, kill
