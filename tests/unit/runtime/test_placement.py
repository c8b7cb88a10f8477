"""The one switch with which the runtime's tests run on cards."""

import os
import runpy
from pathlib import Path

import pytest

PLACEMENT = Path(__file__).parents[2] / "distributed" / "runtime" / "scripts" / "placement.py"


@pytest.mark.parametrize(
    ("wanted", "cards", "rank", "expected"),
    [
        ("cpu", 8, 1, ("cpu", None)),
        ("cuda", 1, 1, ("cuda:0", "rank-1")),
        ("cuda", 2, 1, ("cuda:1", None)),
        ("cuda", 3, 3, ("cuda:0", "rank-3")),
    ],
)
def test_ranks_have_a_card_of_their_own_or_share_it_as_ranks_of_different_nodes(
    monkeypatch: pytest.MonkeyPatch, wanted: str, cards: int, rank: int, expected: tuple[str, str | None]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.delenv("FLEET_TEST_DEVICE", raising=False)
    monkeypatch.setenv("NCCL_HOSTID", "")  # restored afterwards
    monkeypatch.delenv("NCCL_HOSTID")
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("LOCAL_RANK", str(rank))  # restored afterwards
    choose = runpy.run_path(str(PLACEMENT))["choose"]
    ranks = 4 if cards == 3 else 2
    device, backend = choose(wanted, cards, rank, ranks)
    assert (str(device), os.environ.get("NCCL_HOSTID")) == expected
    assert backend == ("gloo" if wanted == "cpu" else "nccl")


def test_asking_for_cards_without_any_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("FLEET_TEST_DEVICE", "cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit, match="finds no card here"):
        runpy.run_path(str(PLACEMENT))
