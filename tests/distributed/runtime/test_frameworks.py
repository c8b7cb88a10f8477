"""Unchanged Hugging Face Trainer, Lightning and accelerate scripts: knobs arrive, and throughput is what they count."""

from __future__ import annotations

from pathlib import Path

import pytest

from .fake_agent import launch, measure

pytest.importorskip("torch")
pytestmark = pytest.mark.distributed

BLOCK = {"warmup_steps": 3, "min_steps": 40, "max_steps": 40, "profile_steps": 0}
LONG = {**BLOCK, "min_steps": 150, "max_steps": 150}
"""Long enough that the script's clock, read at another place in the step, makes no difference of 3 %."""
FIRST_BLOCK_OPENS = 7
"""Forward (from 0) at which the hello is said: 4 optimizer steps name the leader, 3 more are watched."""
FIRST_TIMED = FIRST_BLOCK_OPENS + 3 + 1


def count_samples(folder: Path, first: int, steps: int) -> tuple[int, float]:
    """What the script itself says of the steps of a block: its samples, and how many a second on the slowest rank."""
    samples, rates = 0, []
    for rank in range(2):
        lines = [line.split() for line in (folder / f"count.{rank}").read_text().splitlines()]
        # Line i is written after optimizer step i; the timed steps are `first` … `first + steps - 1`.
        start, end = lines[first - 1], lines[first + steps - 1]
        samples = sum(int(line[1]) for line in lines[first : first + steps])
        rates.append(samples / (float(end[0]) - float(start[0])))
    return samples, min(rates)


@pytest.mark.parametrize(
    ("script", "samples_per_step", "microbatches"),
    [
        ("hf_trainer.py", 32, 2),
        ("lightning_script.py", 32, 1),
        # Of the three the one that starts soonest is timed as well.
        pytest.param("accelerate_script.py", 32, 1, marks=pytest.mark.alone),
    ],
)
def test_knob_is_consumed_and_samples_are_those_that_the_script_counts(
    script: str, samples_per_step: int, microbatches: int, tmp_path: Path
) -> None:
    library = script.split("_")[0].replace("hf", "transformers")
    pytest.importorskip(library)
    knobs = {"fuse_grad_size_in_MB": 0.02, "nccl_comm_num": 2}
    session = launch(tmp_path, [script], [measure("base", **LONG), measure("knobs", knobs, **BLOCK)])
    assert session.code == 0, session.log
    facts = session.hello["facts"]
    assert list(facts["software"]) == [library]
    assert facts["microbatches_per_step"] == microbatches
    assert facts["batch_size_per_rank"] * 2 == samples_per_step
    base, tuned = session.result("base"), session.result("knobs")
    assert base["samples_per_step"] == samples_per_step
    assert set(tuned["consumed"]) == set(knobs), tuned["not_consumed"]
    assert len(tuned["bucket_bytes"]) > len(base["bucket_bytes"])
    samples, own = count_samples(tmp_path, FIRST_TIMED, base["steps"] + base["excluded_steps"])
    assert samples - base["samples"] == base["excluded_steps"] * samples_per_step
    if script == "accelerate_script.py":
        assert base["samples"] / base["wall_s"] == pytest.approx(own, rel=0.03)
    assert base["losses"][0] is not None
