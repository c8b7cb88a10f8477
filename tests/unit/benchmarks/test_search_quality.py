"""The replay of surfaces, the simulated ones, and the peers' side of the comparison."""

import json
import math
import random
from pathlib import Path

import pytest
from generated_surfaces import TUNED, list_drawn, list_held, list_tuned, make_case
from peers import PEERS
from quality_report import write_table
from replay import Replay
from search_quality import lay_axes, merge, run_peer
from simulated_surfaces import list_simulated
from step_simulator import MB, Link, Machine, Training, fill_buckets, simulate_step, time_allreduce
from surfaces import FOLDER, read_surface

from advisor.protocol.answers.advice import Advice, Verdict
from advisor.protocol.measured.trials import Outcome, Purpose

MACHINE = Machine(2, 1, Link(1e-6, 1e12), Link(1e-5, 1e9), jitter=0.0, contention=0.0)
TRAINING = Training(tuple((4.0 * MB, (i + 1) / 10) for i in range(10)), 0.02, 0.04, 100)
VALUES = {
    "fuse_all_reduce_ops": True, "fuse_grad_size_in_MB": 25.0, "last_comm_group_size_MB": 1.0, "nccl_comm_num": 1,
    "sync_nccl_allreduce": False, "use_hierarchical_allreduce": False, "hierarchical_allreduce_inter_nranks": 1,
    "fp16_allreduce": False, "amp": False, "fuse_all_optimizer_ops": False, "num_iteration_per_run": 100,
    "num_iteration_per_drop_scope": 1, "num_threads": 1, "loader_num_workers": 2, "loader_prefetch_factor": 2,
    "localsgd": False, "localsgd_k_steps": 1, "gradient_merge": False, "gradient_merge_k_steps": 1,
}  # fmt: skip


def test_a_replayed_job_finds_a_clear_gain_and_its_regret_is_true() -> None:
    steps = {1.0: 0.05, 5.0: 0.08, 25.0: 0.1}
    dice = random.Random(5)
    cells = [
        {
            "changes": {} if size == 25.0 else {"fuse_grad_size_in_MB": size},
            "blocks": [
                {"step_time_s": [step_s * math.exp(dice.gauss(0, 0.01)) for _ in range(30)]} for _ in range(3)
            ],
        }
        for size, step_s in steps.items()
    ]
    surface = read_surface(
        {
            "knobs": {"fuse_grad_size_in_MB": list(steps)}, "cells": cells,
            "baseline": {"fuse_grad_size_in_MB": 25.0, "last_comm_group_size_MB": 1.0},
        }
    )  # fmt: skip
    replay = Replay(surface, max_trials=4, watched=True, max_seconds=600.0)
    replay.run()
    assert replay.regret_after(arms=0) == pytest.approx(0.5, abs=0.02)  # nothing but the baseline is known
    assert isinstance(replay.settled, Advice)
    assert replay.settled.verdict is Verdict.CHANGE
    assert replay.settled.changes["fuse_grad_size_in_MB"] == 1.0
    assert surface.regret(replay.recommend()) == 0.0


def test_the_same_seed_replays_the_same_job() -> None:
    surface = list_simulated()[-1]
    runs = [
        [b.result and b.result.step_time_s for b in Replay(surface, seed=3).search(6).blocks]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_one_ring_takes_what_its_bytes_and_hops_take() -> None:
    assert time_allreduce(MACHINE, 1e6) == pytest.approx(2 * 1e-5 + 1e6 / 1e9, rel=1e-3)
    assert time_allreduce(MACHINE, 1e6, 2) == pytest.approx(2 * 1e-5 + 2e6 / 1e9, rel=1e-3)


def test_communication_hides_behind_backward_unless_it_starts_too_late() -> None:
    early = simulate_step(MACHINE, TRAINING, VALUES)
    late = simulate_step(
        MACHINE, TRAINING, {**VALUES, "fuse_grad_size_in_MB": 64.0, "last_comm_group_size_MB": 64.0}
    )
    assert [sum(size for size, _ in bucket) for bucket in fill_buckets(TRAINING, VALUES)] == [
        4 * MB,
        28 * MB,
        8 * MB,
    ]
    whole = time_allreduce(MACHINE, TRAINING.size)
    assert late.exposed_comm_s == pytest.approx(
        whole, rel=0.02
    )  # one bucket, full only when backward is over
    assert early.exposed_comm_s < 0.75 * whole  # the first bucket and most of the second are over by then
    halved = simulate_step(MACHINE, TRAINING, {**VALUES, "fp16_allreduce": True})
    assert halved.exposed_comm_s < 0.6 * early.exposed_comm_s


def test_local_sgd_spreads_one_exchange_over_its_steps() -> None:
    local = simulate_step(MACHINE, TRAINING, {**VALUES, "localsgd": True, "localsgd_k_steps": 4})
    assert local.exposed_comm_s == pytest.approx(time_allreduce(MACHINE, TRAINING.size) / 4, rel=0.02)


def test_a_scripts_own_options_are_found_and_what_dies_is_a_failure() -> None:
    surface = make_case(next(case for case in TUNED if case.kind == "own"))
    crashed = surface.find({"attention": "flash", "amp": False})
    assert crashed.outcome is Outcome.CRASHED
    assert surface.regret(crashed.changes) == 1.0
    faster = surface.find({"attention": "fused"})
    assert faster.truth is not None
    assert faster.truth > 0.05
    replay = Replay(surface, seed=1, watched=True).search(6)
    assert {"attention", "recompute", "tile"} & {name for trial in replay.trials for name in trial.changes}


def test_the_first_race_has_the_rule_that_the_cost_model_predicts_far_above_those_of_its_first_kind() -> None:
    surface = make_case(next(case for case in TUNED if case.kind == "communication"))
    replay = Replay(surface, seed=1).search(1)
    first = [trial.changes for trial in replay.trials if trial.changes and trial.purpose is Purpose.SEARCH]
    assert any(changes.get("fp16_allreduce") for changes in first)  # exact rules cannot race beside it
    assert len(first) == 3


def test_held_out_surfaces_are_a_third_and_none_is_among_those_for_tuning() -> None:
    held, tuned, drawn = ([s.name for s in list_them()] for list_them in (list_held, list_tuned, list_drawn))
    assert len({*held, *tuned, *drawn}) == len(held) + len(tuned) + len(drawn)
    assert 3 * len(held) >= len(held) + len(tuned) + len(list(FOLDER.glob("*.json")))


def test_simulated_surfaces_have_something_to_find_and_something_that_fails() -> None:
    surfaces = {surface.name: surface for surface in list_simulated()}
    dice = random.Random(0)
    bert = surfaces["bert-2x8-25g-tcp"]
    assert bert.find({}).truth == 0.0
    drawn = [
        bert.find(bert.changes_at({k: dice.randrange(len(v)) for k, v in bert.grid.items()}))
        for _ in range(60)
    ]
    assert 0.05 < sum(cell.truth is None for cell in drawn) / len(drawn) < 0.9
    assert max(cell.truth or 0.0 for cell in drawn) > 0.2


@pytest.mark.parametrize("method", ["random", "random-repeats", "optuna-tpe", "optuna-tpe+rules", "grid"])
def test_a_peer_never_does_worse_by_looking_longer_without_noise(method: str) -> None:
    surface = read_surface(
        {
            "knobs": {"nccl_comm_num": [1, 2, 3, 4], "fuse_all_reduce_ops": [True, False]},
            "baseline": {"nccl_comm_num": 1, "fuse_all_reduce_ops": True, "sync_nccl_allreduce": False},
            "cells": [
                {
                    "changes": ({"nccl_comm_num": n} if n > 1 else {}) | ({} if f else {"fuse_all_reduce_ops": False}),
                    "blocks": [{"step_time_s": [(0.1 - 0.01 * n) * (1 if f else 1.3)] * 24}] * 2,
                }
                for n in (1, 2, 3, 4) for f in (True, False)
            ],
        }
    )  # fmt: skip
    axes = lay_axes(surface)
    first = [{"nccl_comm_num": 3, "fuse_all_reduce_ops": axes["fuse_all_reduce_ops"].baseline}]
    peer = PEERS[method][1](axes, 0, first if method.endswith("+rules") else [])
    standings = run_peer(surface, 0, 20, peer)
    regrets = [standings[count].regret for count in (2, 5, 20)]
    assert regrets == sorted(regrets, reverse=True)
    assert regrets[-1] == 0.0
    if method.endswith("+rules"):
        assert standings[1].regret == surface.regret({"nccl_comm_num": 4})


def test_the_table_leaves_out_what_was_not_run() -> None:
    run = {"method": "random", "surface": "s", "seed": 0, "regrets": {"6": 0.1, "9": 0.2}, "arms": 9,
           "by_time": {"6": 0.1}, "seconds": 1.0}  # fmt: skip
    table = write_table([run], ["advisor", "random"])
    assert len(table) == 3
    assert table[-1] == "| random search | 20.0, –, – | – |"


def test_merged_runs_replace_those_of_their_method_and_surface_alone(tmp_path: Path) -> None:
    def results(*runs: tuple[str, str, int, int]) -> dict[str, object]:
        kept = [dict(zip(("method", "surface", "seed", "arms"), run, strict=True)) for run in runs]
        return {"runs": kept, "surfaces": {}, "failures": [], "commands": [], "checksum": "c", "machine": "m"}

    file = tmp_path / "after.json"
    file.write_text(json.dumps(results(("advisor", "s", 0, 9))))
    old = results(
        ("advisor", "s", 0, 20), ("advisor", "s", 1, 20), ("advisor", "t", 0, 20), ("random", "s", 0, 20)
    )
    merged = merge(old, [file])
    assert {tuple(run.values()) for run in merged["runs"]} == {
        ("advisor", "s", 0, 9), ("advisor", "t", 0, 20), ("random", "s", 0, 20),
    }  # fmt: skip
    file.write_text(json.dumps({**results(), "checksum": "other"}))
    with pytest.raises(SystemExit, match="checksum"):
        merge(old, [file])
