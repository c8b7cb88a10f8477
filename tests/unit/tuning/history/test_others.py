"""What the search leaves open of the strategies that were not confirmed."""

from statistics import fmean

from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Purpose
from advisor.tuning.history.ended_search import judge_others
from tests.unit.tuning.raced import BASE, Raced

SMALL: dict[str, Value] = {"fuse_grad_size_in_MB": 4.0}


def test_what_the_search_leaves_open_of_the_others_holds_the_fastest_of_them() -> None:
    """Ten were tried, and one of the others truly brings 3 %."""
    held, seen = [], []
    for seed in range(60):
        raced = Raced(seed=seed, spread=0.1).launch().race(BASE).race(BASE, (Purpose.SEARCH, SMALL, 0.0))
        for size in range(5, 14):
            changes: dict[str, Value] = {"fuse_grad_size_in_MB": float(size)}
            raced.race(BASE, (Purpose.SEARCH, changes, 0.03 if size == 9 else 0.0))
        others = judge_others(raced.record, Changes(SMALL))
        assert others is not None
        assert others.count == 9
        assert others.best < others.most
        held.append(others.most >= 0.03)
        seen.append(others.most)
    assert fmean(held) >= 0.95
    assert fmean(seen) < 0.12


def test_others_are_of_the_allowed_rung_and_not_the_one_that_is_told() -> None:
    raced = Raced().launch().race(BASE).race(BASE, (Purpose.SEARCH, SMALL, 0.2))
    raced.race(BASE, (Purpose.SEARCH, {"fp16_allreduce": True}, 0.5))

    assert judge_others(raced.record, Changes(SMALL)) is None
