"""Activations kept in place of computed again: the bits of a training without us, however it asks torch for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .fake_agent import DEVICE, END, Session, launch, measure, race

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.distributed

KNOB = "activation_checkpointing"
RULES = {
    "warmup_steps": 2,
    "segment_steps": 3,
    "min_steps": 9,
    "max_steps": 9,
    "profile_steps": 0,
    "target_s": 3.0,
}
REST = measure("rest", warmup_steps=1000)
ARMS: dict[str, dict[str, Any]] = {"base": {}, "kept": {KNOB: False}}


def train(folder: Path, *words: str, **given: Any) -> tuple[Session, list[Any]]:
    """The session, and each rank's losses, parameters and buffers."""
    folder.mkdir(exist_ok=True)
    session = launch(folder, ["recomputing.py", *words], **given)
    assert session.code == 0, session.log
    return session, [value for rank in (0, 1) for value in torch.load(folder / f"seen.{rank}")]


WAYS = {
    "plain": "checkpoint",
    "selective": "checkpoint",
    "reentrant": "checkpoint",
    "wrapper": "checkpoint_wrapper",
    "sequential": "checkpoint_sequential",
    "switched": "gradient_checkpointing",
}
"""What has activations computed again, in the words of the facts."""


@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_counted_left_out_and_the_same_to_the_bit(way: str, tmp_path: Path) -> None:
    _, alone = train(tmp_path / "alone", "--way", way, patched=False)
    session, seen = train(tmp_path / "raced", "--way", way, instructions=[race(ARMS, **RULES), REST])
    told = session.hello["facts"]["recomputed"]
    # Three blocks, two micro-batches.
    assert told["per_step"] == 6
    assert told["seconds"] > 0
    assert told["site"].startswith("recomputing.py:")
    assert told["by"] == WAYS[way]
    assert session.hello["facts"]["software"] == {}
    assert (told["kept_bytes"] > 0) is (DEVICE == "cuda")
    assert session.hello["baseline"][KNOB] is True
    assert session.hello["refusals"].get(KNOB) is None
    kept = session.result("kept")
    # The proof is read at the end of a segment, and a race that lasts longer does not read it again.
    proof = f"{6 * kept['segments'][0]} checkpointed calls kept their activations"
    assert kept["consumed"][KNOB].startswith(proof), kept
    assert len(alone) == len(seen)
    assert all(map(torch.equal, alone, seen))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--way", "none"], "computes no activation again"),
        (["--norm"], "it changes buffers of the model each time"),
        (["--way", "unrepeated"], "it draws random numbers of its own each time"),
        (["--way", "reentrant", "--static"], "Give checkpoint() use_reentrant=False"),
    ],
    ids=str,
)
def test_it_is_refused_with_a_sentence_where_it_would_train_otherwise(
    words: list[str], sentence: str, tmp_path: Path
) -> None:
    session = launch(tmp_path, ["recomputing.py", *words], [race({"kept": {KNOB: False}}, **RULES), END])
    assert sentence in session.hello["refusals"][KNOB]
    assert sentence in session.result("kept")["not_consumed"][KNOB]
