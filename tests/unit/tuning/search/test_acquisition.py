"""What is measured next, and what is recommended: repeats where noise hides the best, and bounded work."""

import math
import random
from collections.abc import Mapping

import numpy as np
import pytest

from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.tuning.search.acquisition import choose, expect_best
from advisor.tuning.search.asking import MOST_ARMS, suggest
from advisor.tuning.search.belief import MOST_FAILURES, MOST_OBSERVED, Observation, learn, merge_repeats
from advisor.tuning.search.candidate_pool import list_candidates, place
from advisor.tuning.search.recommendation import TIE, recommend
from tests.unit.tuning.search_space import make_space

FEW = ("num_threads",)
MANY = ("fuse_grad_size_in_MB", "num_threads", "nccl_comm_num", "use_hierarchical_allreduce")


def sizes(*pairs: tuple[int, float], error: float = 0.01) -> list[Observation]:
    """Scores of thread counts."""
    return [Observation(Changes({"num_threads": count}), score, error) for count, score in pairs]


def price(_: Mapping[str, Value]) -> float:
    return 1.0


def test_the_best_of_several_lines_is_what_many_draws_say() -> None:
    dice = np.random.default_rng(1)
    means, slopes = dice.normal(0, 0.05, (4, 6)), dice.normal(0, 0.05, (4, 6))
    z = dice.standard_normal(200_000)
    wanted = [(m[:, None] + s[:, None] * z).max(axis=0).mean() for m, s in zip(means, slopes, strict=True)]
    assert expect_best(means, slopes) == pytest.approx(np.array(wanted), abs=5e-4)


def test_leaders_that_noise_holds_apart_are_measured_again() -> None:
    space = make_space(knobs=FEW)
    told = sizes((2, 0.100), (4, 0.101), error=0.03)
    found = suggest(space, told, [], seed=0, number=0, count=2)
    assert {s.changes["num_threads"] for s in found} == {2, 4}
    assert all(s.repeat and "Measured again" in s.because for s in found)
    assert found[0].improvement is not None
    assert found[0].improvement >= (found[1].improvement or 0.0)


def test_what_is_known_well_is_worth_no_further_measurement() -> None:
    space = make_space(knobs=FEW)
    rough = choose(learn(space, sizes((2, 0.10), (4, 0.11), error=0.03), None), set(), price, 0)
    sure = choose(learn(space, sizes((2, 0.05), (4, 0.11), error=0.003), None), set(), price, 0)
    assert rough[0].improvement > 0.001
    assert sure[0].improvement < 1e-5


def test_strategies_that_failed_are_under_way_or_barred_are_never_chosen() -> None:
    space = make_space(knobs=FEW)
    told = [
        Observation(Changes({"num_threads": 2}), None),
        Observation(Changes({"num_threads": 4}), None, pending=True),
    ]
    assert suggest(space, told, [], seed=0, number=0, count=4) == []
    barred: list[Mapping[str, Value]] = [{"num_threads": 2}]
    left = suggest(space, sizes((2, 0.2), (4, 0.0)), barred, seed=0, number=0, count=4)
    assert [s.changes for s in left] == [{"num_threads": 4}]


def test_a_strategy_that_failed_once_is_not_recommended_for_its_earlier_score() -> None:
    space = make_space(knobs=FEW)
    told = [*sizes((2, 0.3), (4, 0.1)), Observation(Changes({"num_threads": 2}), None)]
    assert recommend(learn(space, told, None)).changes == {"num_threads": 4}


def test_a_batch_holds_distinct_strategies_and_is_reproducible() -> None:
    space = make_space(knobs=MANY)
    told = [
        Observation(Changes({"num_threads": 4}), 0.2, 0.02),
        Observation(Changes({"nccl_comm_num": 2}), -0.1, 0.02),
    ]
    batch = suggest(space, told, [], seed=3, number=5, count=9)
    assert len({s.changes for s in batch}) == len(batch) == MOST_ARMS
    assert batch == suggest(space, told, [], seed=3, number=5, count=9)
    assert [s.changes for s in batch[:2]] == [
        s.changes for s in suggest(space, told, [], seed=3, number=5, count=2)
    ]


def test_repeats_count_by_their_precision() -> None:
    (merged,) = merge_repeats([*sizes((2, 0.10), error=0.01), *sizes((2, 0.20), error=0.1)])
    assert merged.count == 2
    assert merged.score == pytest.approx(0.10, abs=0.002)
    (twice,) = merge_repeats(sizes((2, 0.1), (2, 0.1), error=0.01))
    assert math.sqrt(twice.variance) == pytest.approx(math.hypot(0.01, 0.003) / math.sqrt(2))


def test_the_least_expected_loss_is_recommended_and_fewest_knobs_among_equals() -> None:
    space = make_space(knobs=MANY)
    both: dict[str, Value] = {"num_threads": 4, "use_hierarchical_allreduce": True,
                              "hierarchical_allreduce_inter_nranks": 2}  # fmt: skip
    told = [
        Observation(Changes({"num_threads": 4}), 0.2000, 0.001),
        Observation(Changes(both), 0.2004, 0.001),
    ]
    found = recommend(learn(space, told, None))
    assert found.changes == {"num_threads": 4}
    assert abs(found.leaders[0].mean - found.leaders[1].mean) < TIE
    assert sum(leader.best for leader in found.leaders) == pytest.approx(1.0)
    assert [leader.loss for leader in found.leaders] == sorted(leader.loss for leader in found.leaders)

    told[1] = Observation(Changes(both), 0.22, 0.001)
    surely = recommend(learn(space, told, None))
    assert surely.changes == both
    assert surely.chosen.best > 0.99
    assert surely.chosen.loss < 1e-4


def test_the_baseline_is_recommended_where_nothing_is_better() -> None:
    space = make_space(knobs=FEW)
    found = recommend(learn(space, sizes((2, -0.05), (4, -0.2)), None))
    assert found.changes == {}
    assert found.chosen.measurements == 1


def test_expected_loss_says_how_unsure_the_choice_is() -> None:
    space = make_space(knobs=FEW)
    rough = recommend(learn(space, sizes((2, 0.10), (4, 0.11), error=0.05), None))
    sure = recommend(learn(space, sizes((2, 0.10), (4, 0.11), error=0.002), None))
    assert rough.chosen.loss > 10 * sure.chosen.loss
    assert rough.chosen.best < sure.chosen.best


def test_a_long_history_is_no_more_work_than_a_short_one() -> None:
    space = make_space(allow="convergence")
    dice = random.Random(0)
    drawn = [c for seed in range(6) for c in list_candidates(space, set(), [], seed)]
    pool = list({Changes(changes): changes for changes in drawn}.values())
    told = [
        Observation(Changes(changes), dice.gauss(0, 0.01), 0.01) for changes in dice.choices(pool[80:], k=900)
    ]
    best = pool[0]
    told += [Observation(Changes(best), 0.5, 0.005), *(Observation(Changes(c), None) for c in pool[1:80])]
    belief = learn(space, told, None)
    assert len(belief.measured) == MOST_OBSERVED
    assert belief.failures is not None
    assert len(belief.failures.data.scores) <= MOST_FAILURES
    assert belief.count > 100
    assert recommend(belief).changes == best
    assert len(place(space, [s.changes for s in belief.measured])) == MOST_OBSERVED
