"""One exchange of gradients for all accumulated micro-batches: what the script would get with no_sync() by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.production.plan import make_plan

from .fake_agent import END, launch, race

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.distributed

KNOB = "defer_gradient_sync"


def train(folder: Path, *words: str, **given: Any) -> tuple[list[Any], str]:
    """The parameters that the ranks, which must agree, have in the end; and what they wrote."""
    folder.mkdir()
    session = launch(folder, ["accumulating.py", *words], **given)
    assert session.code == 0, session.log
    weights = [torch.load(folder / f"weights.{rank}") for rank in (0, 1)]
    assert all(map(torch.equal, *weights))
    return weights[0], session.log


def steer(folder: Path, *words: str) -> tuple[list[Any], str]:
    plan = make_plan(None, [f"{KNOB}=on"], ())
    return train(folder, *words, variables=plan.build_environment({}, None, None))


@pytest.mark.parametrize("words", [[], ["--find-unused"]], ids=["plain", "find_unused"])
def test_a_training_ends_as_with_no_sync_by_hand_also_where_a_step_is_shorter(
    tmp_path: Path, words: list[str]
) -> None:
    by_hand, _ = train(tmp_path / "by-hand", *words, "--by-hand", patched=False)
    found, log = steer(tmp_path / "steered", *words)
    for own, other in zip(found, by_hand, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)
    assert "11 exchanges in 11 optimizer steps, in place of the script's 4" in log


def test_it_is_not_in_force_where_gradients_are_clipped_after_each_micro_batch(tmp_path: Path) -> None:
    _, log = steer(tmp_path / "clips", "--clips-each")
    assert (
        "NOT in force: defer_gradient_sync. The script clips or unscales gradients after a micro-batch" in log
    )


def test_in_a_race_it_is_proved_by_counts_and_its_own_steps_are_put_back(tmp_path: Path) -> None:
    rules = {"warmup_steps": 2, "segment_steps": 3, "min_steps": 9, "max_steps": 9, "profile_steps": 0}
    arms = {"base": {}, "deferred": {KNOB: True}}
    session = launch(tmp_path, ["accumulating.py", "--epochs", "40"], [race(arms, **rules), END])
    assert session.code == 0, session.log
    told = session.result("deferred")
    assert told["consumed"][KNOB].endswith("in place of the script's 12."), told
    assert not told["drifted"]
    assert session.hello["baseline"][KNOB] is False
    assert session.hello["facts"]["exchanges_per_step"] == 4
