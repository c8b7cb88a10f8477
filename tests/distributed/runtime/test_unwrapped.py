"""A diagnosis times what several ranks train without a wrapper that the runtime knows; a trial leaves it as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.runtime.link.environment import LOOKS_ONLY

from .fake_agent import SCRIPTS, launch, measure

pytest.importorskip("torch")
pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(
    ("way", "calls", "sent"),
    [
        ("by-hand", {"all_reduce": 4}, 576),
        ("copies", {"all_reduce": 4}, 576),
        ("pipeline", {"send": 2, "recv": 2}, 256),
    ],
)  # fmt: skip
def test_steps_of_an_unwrapped_training_are_timed(
    way: str, calls: dict[str, int], sent: int, tmp_path: Path
) -> None:
    look = measure("a", min_steps=10, max_steps=10, looks_closely=True)
    session = launch(tmp_path, ["unwrapped.py", way], [look], variables={LOOKS_ONLY: "1"})
    facts, result = session.hello["facts"], session.result("a")
    assert facts["exchanges_by"] == "calls of the script's own"
    assert (facts["microbatches_per_step"], facts["batch_size_per_rank"]) == (2, 8)
    assert facts["gradient_bytes"] == 4 * 2 * (8 * 8 + 8)
    assert result["steps"] == 10
    made = {call["name"]: call for call in result["collective_calls"]}
    assert {name: call["per_step"] for name, call in made.items() if name != "wait"} == calls
    text = (SCRIPTS / "unwrapped.py").read_text().splitlines()
    for name in calls:
        path, _, line = made[name]["site"].rpartition(":")
        assert path.endswith("unwrapped.py")
        assert f"dist.{name}(" in text[int(line) - 1]
        assert made[name]["bytes_per_step"] == sent
    phases = result["phases"]
    assert phases["exposed_comm_s"] is None
    assert all(phases[part] > 0 for part in ("forward_s", "backward_s", "collectives_s", "optimizer_s"))
    # Every moment of its steps was marked for one part.
    assert sum(value for value in phases.values() if value) == pytest.approx(
        result["per_rank_step_time_s"][result["phases_rank"]], rel=1e-3
    )
