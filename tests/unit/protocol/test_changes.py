"""Changes are a frozen mapping: a key of its own, whatever the order, and plain JSON outside."""

import copy
import pickle

import pytest
from pydantic import ValidationError

from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import BlockPlan

BOTH = Changes({"num_threads": 2, "fuse_grad_size_in_MB": 4.0})


def test_equal_changes_are_one_key_in_any_order() -> None:
    other = Changes({"fuse_grad_size_in_MB": 4.0, "num_threads": 2})

    assert len({BOTH, other}) == 1
    assert other == dict(BOTH)
    assert Changes({"num_threads": 2}) != BOTH


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.__setitem__("num_threads", 3),
        lambda c: c.pop("num_threads"),
        lambda c: c.update(num_threads=3),
        lambda c: c.setdefault("amp", True),
        lambda c: c.__ior__({"amp": True}),
        lambda c: c.clear(),
    ],
)
def test_they_cannot_be_changed(change: object) -> None:
    with pytest.raises(TypeError, match="frozen"):
        change(BOTH)  # type: ignore[operator]
    assert dict(BOTH) == {"num_threads": 2, "fuse_grad_size_in_MB": 4.0}


def test_copies_are_equal() -> None:
    assert pickle.loads(pickle.dumps(BOTH)) == copy.deepcopy(BOTH) == BOTH
    assert {BOTH: 1}[copy.deepcopy(BOTH)] == 1


def test_messages_carry_them_as_plain_objects() -> None:
    plan = BlockPlan(block_id="b", trial_number=1, overrides={"num_threads": 2})  # type: ignore[arg-type]

    assert isinstance(plan.overrides, Changes)
    assert plan.model_dump(mode="json")["overrides"] == {"num_threads": 2}
    assert BlockPlan.model_validate_json(plan.model_dump_json()) == plan
    with pytest.raises(ValidationError):
        BlockPlan(block_id="b", trial_number=1, overrides={"num_threads": [2]})  # type: ignore[arg-type]


def test_what_follows_from_them() -> None:
    assert BOTH.describe() == "num_threads 2, fuse_grad_size_in_MB 4"
    assert Changes().describe() == "the baseline"
    assert CATALOGUE.effect_of({"fp16_allreduce": True, "localsgd": True}) is Effect.CONVERGENCE
    assert CATALOGUE.keep_cold({"NCCL_BUFFSIZE": 4194304, "num_threads": 2}) == {"NCCL_BUFFSIZE": 4194304}
