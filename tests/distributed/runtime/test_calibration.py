"""A calibrating block watches gradients and links and changes no bit; a race ends early where that was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.sessions.control import parse_result

from .fake_agent import DEVICE, END, Session, launch, measure

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.distributed

STEPS = 40
RUNS = {
    "mlp": "--model mlp",
    "conv": "--model conv --views --accumulate 2",
    "transformer": "--model transformer --adam",
    # NCCL reduces no sparse gradients.
    **({"recommender": "--model recommender"} if DEVICE == "cpu" else {}),
    "hook": "--model mlp --own-hook",
}


def name_steps(run: str) -> list[str]:
    return ["plain.py", "--name", run, "--steps", str(STEPS), *RUNS[run].split()]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs without the runtime, in one launch."""
    folder = tmp_path_factory.mktemp("reference")
    script = ["plain.py"]
    for run in RUNS:
        script += ([] if len(script) == 1 else ["--then"]) + name_steps(run)[1:]
    session = launch(folder, script, patched=False)
    assert session.code == 0, session.log
    return folder


def calibrate(folder: Path, run: str, **options: Any) -> Session:
    """One calibrating block of 4 + 2 profiled + 13 watched steps, then another one, then the script goes on."""
    blocks = [measure("first", calibrate=True), measure("rest", warmup_steps=1000)]
    session = launch(folder, name_steps(run), blocks, **options)
    assert session.code == 0, session.log
    return session


@pytest.mark.parametrize("run", list(RUNS))
def test_training_ends_in_the_same_bits(run: str, reference: Path, tmp_path: Path) -> None:
    session = calibrate(tmp_path, run)
    for rank in range(2):
        for what in ("losses", "final"):
            name = f"{run}.{what}.{rank}"
            assert (tmp_path / name).read_text() == (reference / name).read_text(), session.log
    result = parse_result(session.result("first"))
    assert result.calibration is not None
    found = result.calibration
    assert next(link.bytes for link in found.links if link.concurrent == 1) == 1024
    assert {link.ranks for link in found.links} == {2}
    assert any(link.concurrent == 2 for link in found.links)
    assert len(found.gradients) == session.hello["facts"]["parameter_tensors"]
    times = [gradient.ready_s for gradient in found.gradients]
    assert times == sorted(times)
    assert times[-1] > 0
    assert sum(gradient.bytes for gradient in found.gradients) == session.hello["facts"]["gradient_bytes"]
    if run in ("recommender", "hook"):
        assert found.noise is None, "sparse gradients, and a hook of the script's own, tell nothing"
    else:
        assert found.noise is not None
        assert found.noise.steps == 8
        samples = session.hello["facts"]["batch_size_per_rank"]
        assert (found.noise.small_batch, found.noise.large_batch) == (samples, 2 * samples)
        # The mean of two vectors is at most as long as they are, and shorter where they differ.
        assert 0 < found.noise.large_square < found.noise.small_square


def test_norms_are_of_each_ranks_own_gradient_and_of_the_average(tmp_path: Path) -> None:
    session = launch(
        tmp_path, ["known_gradients.py"], [measure("first", calibrate=True, max_steps=4)], ranks=2
    )
    assert session.code == 0, session.log
    noise = parse_result(session.result("first")).calibration.noise
    # Rank r's gradient is 3 (r + 1) in each of 4 places: 36 and 144, their mean 4.5 in each place: 81.
    assert noise.small_square == pytest.approx((36 + 144) / 2)
    assert noise.large_square == pytest.approx(81)
    assert (noise.small_batch, noise.large_batch) == (2, 4)


def test_two_nodes_have_links_of_three_levels(tmp_path: Path) -> None:
    session = launch(
        tmp_path,
        ["plain.py", "--steps", "60"],
        [measure("first", calibrate=True)],
        ranks=4,
        local_world_size=2,
    )
    assert session.hello["facts"]["nodes"] == 2, session.log
    found = parse_result(session.result("first")).calibration
    levels = {(str(link.level), link.ranks) for link in found.links}
    assert levels == {("world", 4), ("node", 2), ("across", 2)}


def test_a_race_ends_when_the_step_time_is_known(tmp_path: Path) -> None:
    asked = {"min_steps": 14, "max_steps": 200, "target_s": 100.0, "segment_steps": 5}
    blocks = [measure("known", target_error=5.0, **asked), measure("unknown", target_error=1e-9, **asked)]
    session = launch(tmp_path, ["plain.py", "--name", "r", "--steps", "500"], blocks)
    assert session.code == 0, session.log
    known, unknown = parse_result(session.result("known")), parse_result(session.result("unknown"))
    # Looks come after 1, 2 and 4 cycles; fewer than four say nothing.
    assert known.steps == 20
    assert unknown.steps == 200
    # With nobody to alternate with there are no turns.
    assert known.segments == unknown.segments == ()


def test_a_backward_inside_a_backward_is_one_and_its_gradients_tell_nothing(tmp_path: Path) -> None:
    """It is armed at the step's first forward, which comes in the middle of that backward."""
    session = launch(
        tmp_path, ["cached_loss.py"], [measure("a", calibrate=True, min_steps=8, max_steps=8), END]
    )
    assert session.code == 0, session.log
    result = session.result("a")
    assert result["samples_per_step"] == 64
    phases = result["phases"]
    assert min(phases["backward_s"], phases["forward_s"]) > 0
    assert phases["own_code_s"] < 0.5 * sum(phases.values())
    calibration = parse_result(result).calibration
    assert calibration is not None
    assert not [gradient for gradient in calibration.gradients if gradient.ready_s is not None]
    assert not calibration.noise
