"""Certificates of equal bits in two real ranks: who gets one, who gets none, and that none is false."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .fake_agent import END, launch, race

pytest.importorskip("torch")
pytestmark = pytest.mark.distributed

ARMS: dict[str, dict[str, Any]] = {
    "base": {},
    "small": {"fuse_grad_size_in_MB": 0.02, "last_comm_group_size_MB": 0.005},
    "half": {"fp16_allreduce": True},
}


def test_buckets_of_two_ranks_are_certified_and_sixteen_bits_are_not(tmp_path: Path) -> None:
    """Though the rate, the batches, dropout and Python's own random numbers are others in every step."""
    races = [race(ARMS, bit_check_steps=12), race({"alone": {}}, bit_check_steps=12), END]
    session = launch(tmp_path, ["repeating.py"], races)
    assert session.code == 0, session.log
    told = {name: (session.result(name)["bit_steps"], session.result(name)["bits_differ"]) for name in ARMS}
    assert told["base"] == told["small"] == (12, ""), session.log
    assert told["half"][0] == 0
    assert told["half"][1].startswith("Not bit for bit: 12 steps from the same state")
    assert session.result("alone")["bit_steps"] == 12
    assert session.result("small")["steps"] == 4


def test_a_script_that_does_not_repeat_itself_gives_no_certificate(tmp_path: Path) -> None:
    races = [race({name: ARMS[name] for name in ("base", "small")}, bit_check_steps=3), END]
    session = launch(tmp_path, ["repeating.py", "--own-noise"], races)
    assert session.code == 0, session.log
    for name in ("base", "small"):
        assert session.result(name)["bit_steps"] == 0
        assert session.result(name)["bits_differ"].startswith(
            "The script as it stands does not repeat itself"
        )
