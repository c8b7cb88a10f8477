"""Several models, wrapped one by one, in one backward or in many: right under every lever of the reduction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .fake_agent import ABOUT_CPUS, launch

pytest.importorskip("torch")
pytestmark = pytest.mark.distributed

SPLIT = {"fuse_all_reduce_ops": False}
"""Several buckets in each of these small models."""
LEVELS = {"use_hierarchical_allreduce": True, "hierarchical_allreduce_inter_nranks": 2}
EXACT: dict[str, list[dict[str, Any]]] = {
    "order": [{"sync_nccl_allreduce": True}, SPLIT, {"nccl_comm_num": 2, **SPLIT}],
    "pairs": [
        {"sync_nccl_allreduce": True, **SPLIT},
        {"sync_nccl_allreduce": True, "nccl_comm_num": 2, **SPLIT},
        {"fuse_grad_size_in_TFLOPS": 1, "nccl_comm_num": 3},
    ],
}
ROUNDED = [
    {"fp16_allreduce": True, "fp16_allreduce_dtype": "bf16", "sync_nccl_allreduce": True},
    {"fp16_allreduce": True, "fp16_allreduce_dtype": "bf16", "nccl_comm_num": 2, **SPLIT},
    {"dgc": True},
]
HARDEST = ("gan", "actor_critic", "overlapping", "repeated", "coming", "own_groups")
"""Several backwards a step, one that reaches over the step's end, a model that comes and goes, groups of their own."""
Found = dict[str, list[dict[str, Any]]]


def train(
    folder: Path, strategies: list[dict[str, Any]], *trainings: str, ranks: int = 2, **variables: str
) -> Found:
    words = ["many_models.py", json.dumps(strategies), *trainings]
    session = launch(folder, words, patched=False, ranks=ranks, variables=variables, timeout_s=280.0)
    assert session.code == 0, session.log[-6000:]
    found: Found = json.loads((folder / "0.json").read_text())
    return found


def name_missing(found: Found) -> dict[str, Any]:
    """What was not in force, without what says that a model had too little for it."""
    few = ("too few buckets", "worth compressing", "nothing to compress", "layers in one")
    return {
        f"{training} {place}": result["missing"]
        for training, results in found.items()
        for place, result in enumerate(results)
        if not (result["in_force"] or result["missing"])
        or not all(any(word in why for word in few) for why in result["missing"].values())
    }


@pytest.mark.parametrize(("kind", "trainings"), [("order", ()), ("pairs", HARDEST)])
def test_exact_strategies_leave_every_bit_as_it_is(
    kind: str, trainings: tuple[str, ...], tmp_path: Path
) -> None:
    found = train(tmp_path, EXACT[kind], *trainings)
    off = {
        f"{training} {EXACT[kind][place]}": (result["losses_off"], result["off"])
        for training, results in found.items()
        for place, result in enumerate(results)
        if result["losses_off"] or result["off"]
    }
    assert not off
    assert len(found) == (len(trainings) or 13)
    assert not name_missing(found)


def test_what_rounds_gradients_rounds_them_alike_for_all_models(tmp_path: Path) -> None:
    found = train(tmp_path, ROUNDED, "alike", *HARDEST)
    for training, results in found.items():
        for strategy, result in zip(ROUNDED, results, strict=True):
            case = f"{training} under {strategy}: {result}"
            # A generator and a critic drive each other further apart than others.
            assert result["losses_off"] < (0.2 if "dgc" in strategy else 0.02), case
            assert training == "repeated" or result["apart"] == 0.0, case
    assert not name_missing(found)


def test_two_levels_agree_within_rounding_on_four_ranks(tmp_path: Path) -> None:
    strategies = [
        LEVELS,
        {**LEVELS, "sync_nccl_allreduce": True, **SPLIT},
        {**LEVELS, "nccl_comm_num": 2, **SPLIT},
        {**LEVELS, "hierarchical_allreduce_gloo_between": True, "nccl_comm_num": 2, **SPLIT},
    ]
    found = train(tmp_path, strategies, "alike", "gan", "overlapping", "coming", ranks=4)
    for training, results in found.items():
        for strategy, result in zip(strategies, results, strict=True):
            assert result["losses_off"] < 1e-4, f"{training} under {strategy}: {result}"
            assert result["apart"] == 0.0, f"{training} under {strategy}: {result}"
    assert not name_missing(found)


def test_averages_after_every_step_are_the_steps_of_averaged_gradients(tmp_path: Path) -> None:
    """Of plain gradient descent. While it is not known which of new optimizers ends a step there is no average."""
    found = train(
        tmp_path,
        [{"localsgd": True, "localsgd_k_steps": 1}],
        *("alike", "interleaved", "own_groups", "rare"),
    )
    assert {name: results[0]["losses_off"] < 1e-5 for name, results in found.items()} == dict.fromkeys(
        found, True
    )
    assert not name_missing(found)


@ABOUT_CPUS
def test_sums_that_models_mix_up_are_found_and_taken_back(tmp_path: Path) -> None:
    """Lanes as they were once, one for each model over the process groups of all."""
    found = train(tmp_path, [{"sync_nccl_allreduce": True, "break": "lanes"}], "alike")
    [result] = found["alike"]
    assert result["off"] > 0.0, "nothing was broken"
    # Ranks are compared before the first sums are judged.
    assert "holds other values than rank 0" in str(result["missing"])
    assert not result["in_force"]
