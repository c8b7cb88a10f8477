"""A trial whose strategies are held against another strategy: it stands in every arm, and in what the ranks report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .fake_agent import END, launch, measure, race

pytest.importorskip("torch")
pytestmark = pytest.mark.distributed
BASE = {"fuse_all_reduce_ops": False, "num_iteration_per_drop_scope": 30}


def test_base_stands_in_the_first_arm_and_is_reported_as_the_script_own(tmp_path: Path) -> None:
    arms = {"rival": {}, "candidate": {"fuse_all_reduce_ops": True}}
    session = launch(
        tmp_path, ["plain.py", "--steps", "400"],
        [race(arms, min_steps=8, max_steps=8), measure("alone", {"num_iteration_per_drop_scope": 1}), END],
        variables={"ADVISOR_BASE": json.dumps(BASE)},
    )  # fmt: skip
    assert session.code == 0, session.log
    hello = session.messages[0]
    assert {knob: hello["baseline"][knob] for knob in BASE} == BASE
    assert hello["baseline"]["fuse_grad_size_in_MB"] == 25, "what the base leaves open is the script's"
    rival, candidate, alone = (session.result(name) for name in ("rival", "candidate", "alone"))
    assert set(rival["consumed"]) == set(BASE)
    assert len(rival["bucket_bytes"]) == 10, "every gradient alone"
    assert len(candidate["bucket_bytes"]) < 10
    assert "num_iteration_per_drop_scope" in candidate["consumed"]
    assert len(alone["bucket_bytes"]) == 10
