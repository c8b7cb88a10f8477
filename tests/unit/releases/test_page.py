"""The page of torch's releases: what is a fault, and how each answer is told."""

from dataclasses import replace
from typing import Any

import pytest

from advisor.protocol.kinds import Switch
from advisor.protocol.knobs.catalogue import CATALOGUE
from tests.releases.page import describe, find_faults
from tests.releases.trials import TRIALS, Trial, judge

ONLY_ON_CARDS_OR_ENGINES = {
    "FLAGS_fraction_of_gpu_memory_to_use", "num_iteration_per_run", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS",
    "NCCL_CGA_CLUSTER_SIZE", "loader_pin_memory", "numa_binding", "sharding_overlap",
}  # fmt: skip
NEED_ANOTHER = {
    "localsgd_begin_step", "adaptive_localsgd_begin_step", "gradient_merge_avg", "amp_dynamic_loss_scaling",
    "amp_init_loss_scaling",
}  # fmt: skip
"""They only say how a knob that is tried begins, scales or averages."""


def test_every_hot_knob_that_a_cpu_can_turn_is_tried() -> None:
    hot = {name for name, knob in CATALOGUE.items() if knob.switch is not Switch.COLD and not knob.carried}
    assert hot - ONLY_ON_CARDS_OR_ENGINES - NEED_ANOTHER == {trial.knob for trial in TRIALS}


def step(number: int, **seen: Any) -> dict[str, Any]:
    return {"loss": number, "parameters": number, "threads": 1, **seen}


def train(proof: dict[str, str], code: int = 0, **seen: Any) -> dict[str, Any]:
    missing = {} if proof else {"num_threads": "It cannot be."}
    told = {"in_force": proof, "missing": missing}
    return {"code": code, "log": "died", "told": told, "seen": [[step(n, **seen) for n in range(10)]] * 2}


TRIAL = Trial("num_threads", 2, {}, {"threads": 2})
PROVED = {"num_threads": "torch.get_num_threads() is 2."}


def test_a_refusal_is_a_fault_unless_it_is_right() -> None:
    assert judge(replace(TRIAL, refusable=True), train({}), train({}))["state"] == "refused"


@pytest.mark.parametrize(
    ("under", "cell", "is_fault"),
    [
        (train(PROVED, threads=2), "in force =", False),
        (train(PROVED), "SILENT", True),
        (train(PROVED, threads=2, loss=-1), "OTHER BITS", True),
        (train({}), "BROKEN", True),
        (train({}, code=1), "BROKEN", True),
        ({**train({}), "told": {"in_force": {}, "missing": {}}}, "BROKEN", True),
    ],
)
def test_an_answer_is_told_and_a_fault_is_one(under: dict[str, Any], cell: str, is_fault: bool) -> None:
    answer = judge(TRIAL, train({}), under)
    found = {
        "torch": "2.6.0+cu124", "python": "3.11.7", "date": "2026-11-28", "minutes": {"knobs": 9.0},
        "knobs": {"num_threads": answer}, "names": {"asked": 90, "wrong": []},
        "suite": {"passed": 3, "failed": {}, "skipped": {}}, "frameworks": {},
    }  # fmt: skip
    page = describe({"2.6.0": found})
    assert f"| `num_threads` | {cell} |" in page
    assert bool(find_faults(found)) == is_fault
    assert ("\nNone.\n" in page) != is_fault
