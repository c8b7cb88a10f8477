"""The Gaussian process over strategies and the acquisition: what few noisy scores say about the rest."""

import math
import random
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.tuning.search.acquisition import choose, expect_improvement
from advisor.tuning.search.belief import Observation, learn
from advisor.tuning.search.candidate_pool import (
    MOST_WISHES,
    list_axes,
    list_candidates,
    list_dimensions,
    list_neighbours,
    place,
)
from advisor.tuning.search.surrogate import Axis, Data
from advisor.tuning.search.surrogate_fit import fit
from advisor.tuning.space.space import Space
from tests.unit.tuning import search_space

KNOBS = ("fuse_grad_size_in_MB", "num_threads", "nccl_comm_num", "use_hierarchical_allreduce")


def make_space(*knobs: str) -> Space:
    return search_space.make_space(knobs=knobs or KNOBS)


def effects(changes: Mapping[str, Value]) -> float:
    """Knobs that add up: threads matter, buckets a little, the hierarchy harms."""
    threads = 0.3 * math.log2(float(changes.get("num_threads", 1)))
    size = -0.05 * abs(math.log2(float(changes.get("fuse_grad_size_in_MB", 25.0)) / 4.0))
    return (
        threads
        + size
        + 0.05 * math.log2(25 / 4)
        - (0.1 if changes.get("use_hierarchical_allreduce") else 0.0)
    )


class Predictor:
    """A cost model that is right but for a factor, and knows one strategy that does not fit."""

    residual = 0.05

    def __init__(self, factor: float, too_large: float = math.inf) -> None:
        self.factor, self.too_large = factor, too_large

    def predict_many(self, strategies: Sequence[Mapping[str, Value]]) -> list[float]:
        return [math.exp(-self.factor * effects(values)) for values in strategies]

    def fits_in_memory(self, values: Mapping[str, Value]) -> str | None:
        return "Too large." if float(values["fuse_grad_size_in_MB"]) >= self.too_large else None


def draw(space: Space, count: int, noise: float = 0.01) -> list[Observation]:
    dice = random.Random(4)
    pool = dice.sample(list_candidates(space, set(), [], 0), count)
    return [Observation(Changes(changes), effects(changes) + dice.gauss(0, noise), noise) for changes in pool]


def test_few_noisy_scores_predict_the_other_strategies() -> None:
    space = make_space()
    belief = learn(space, draw(space, 14), None)
    rest = list_candidates(space, set(), [], 0)
    mean, sd = belief.predict(rest)
    truth = np.array([effects(changes) for changes in rest])
    assert float(np.corrcoef(mean, truth)[0, 1]) > 0.9
    # Nine in ten within two of its own standard deviations: it knows how little it knows.
    assert float(np.mean(np.abs(mean - truth) < 2 * sd + 0.01)) > 0.9


def test_the_baseline_is_known_to_be_nothing() -> None:
    belief = learn(make_space(), [], None)
    mean, sd = belief.predict([{}])
    assert abs(float(mean[0])) < 0.001
    assert float(sd[0]) < 0.005


def test_a_lucky_score_is_shrunk_towards_what_similar_strategies_brought() -> None:
    space = make_space("fuse_grad_size_in_MB")
    told = [
        Observation(Changes({"fuse_grad_size_in_MB": size}), 0.0, 0.05)
        for size in (2.562, 5.125, 10.25, 20.5)
    ]
    lucky = Observation(Changes({"fuse_grad_size_in_MB": 4.0}), 0.15, 0.05)
    belief = learn(space, [*told, lucky], None)
    mean, _ = belief.predict([lucky.changes])
    assert float(mean[0]) < 0.08
    assert belief.incumbent < 0.08


def test_a_precise_score_outweighs_a_rough_one() -> None:
    axes = [Axis((0.0, 1.0), False, 0.1)]
    noise = np.square([0.003, 0.01, 0.1])
    data = Data(np.array([[0], [1], [1]]), np.array([0.0, 0.2, 0.0]), noise, np.zeros(3))
    surrogate = fit(axes, data, 0.0)
    mean, _ = surrogate.predict(np.array([[1]]), np.zeros(1))
    assert float(mean[0]) > 0.17


@pytest.mark.parametrize("factor", [0.6, 1.0, 1.5])
def test_a_cost_model_that_is_off_by_a_factor_still_points_the_way(factor: float) -> None:
    space, model = make_space(), Predictor(factor)
    belief = learn(space, [], model)
    (choice,) = choose(belief, set(), lambda _: 1.0, 0)
    assert choice.changes["num_threads"] == 4
    assert choice.prior is not None
    assert choice.prior > 0.3 * factor


def test_strategies_that_cannot_fit_are_never_chosen() -> None:
    space = make_space("fuse_grad_size_in_MB")
    belief = learn(space, [], Predictor(1.0, too_large=4.0))
    known: set[object] = set()
    while found := choose(belief, known, lambda _: 1.0, 0):  # type: ignore[arg-type]
        assert found[0].changes["fuse_grad_size_in_MB"] < 4.0
        known.add(found[0].changes)
    assert known


def test_failures_make_their_neighbours_doubtful_and_nothing_else() -> None:
    space = make_space()
    told = [
        Observation(Changes({"nccl_comm_num": 4}), None),
        Observation(Changes({"nccl_comm_num": 4, "num_threads": 2}), None),
        Observation(Changes({"num_threads": 4}), 0.0),
        Observation(Changes({"fuse_grad_size_in_MB": 4.0}), 0.0),
    ]
    belief = learn(space, told, None)
    like, unlike = belief.runs(place(space, [{"nccl_comm_num": 4, "num_threads": 4}, {"num_threads": 2}]))
    assert like < 0.5
    assert unlike > 0.8


def test_a_strategy_under_way_is_believed_and_draws_no_second_one_beside_it() -> None:
    space = make_space()
    told = draw(space, 6)
    known = {t.changes for t in told}
    (alone,) = choose(learn(space, told, None), known, lambda _: 1.0, 0)
    waiting = [*told, Observation(alone.changes, None, pending=True)]
    (beside,) = choose(learn(space, waiting, None), known, lambda _: 1.0, 0)
    assert beside.changes != alone.changes
    _, before = learn(space, told, None).predict([alone.changes])
    _, after = learn(space, waiting, None).predict([alone.changes])
    assert float(after[0]) < 0.5 * float(before[0])


def test_a_dear_strategy_has_to_promise_more() -> None:
    space = make_space()
    belief = learn(space, [], None)
    (free,) = choose(belief, set(), lambda _: 1.0, 0)
    name = next(iter(free.changes))
    (dear,) = choose(belief, set(), lambda changes: 1000.0 if name in changes else 1.0, 0)
    assert name not in dear.changes


def test_expected_improvement_matches_its_definition() -> None:
    dice = np.random.default_rng(0)
    drawn = dice.normal(0.02, 0.05, 400_000)
    wanted = float(np.maximum(drawn - 0.04, 0.0).mean())
    got = float(expect_improvement(np.array([0.02]), np.array([0.05]), 0.04)[0])
    assert got == pytest.approx(wanted, rel=0.02)  # the simulation's own error is 0.3 %


def test_where_nothing_matters_little_is_expected_soon() -> None:
    space, dice = make_space(), random.Random(1)
    told: list[Observation] = []
    for number in range(12):
        (choice,) = choose(learn(space, told, None), {t.changes for t in told}, lambda _: 1.0, number)
        told.append(Observation(choice.changes, dice.gauss(0, 0.005), 0.005))
    assert choice.improvement < 0.003


def test_a_large_space_is_drawn_from_in_bounds() -> None:
    space = search_space.make_space(allow="convergence")
    best = {"num_threads": 2, "nccl_comm_num": 2, "sync_nccl_allreduce": False}
    pool = list_candidates(space, {Changes({"num_threads": 4})}, [best], 0)
    keys = [Changes(changes) for changes in pool]
    assert 100 < len(pool) <= MOST_WISHES
    assert len(set(keys)) == len(keys)
    assert Changes({"num_threads": 4}) not in keys
    assert pool == list_candidates(space, {Changes({"num_threads": 4})}, [best], 0)


def test_places_of_values_are_spread_by_their_logarithm() -> None:
    space = make_space("num_threads", "use_hierarchical_allreduce")
    axes = dict(zip([d.knob.name for d in list_dimensions(space)], list_axes(space), strict=True))
    assert axes["num_threads"].coordinates == pytest.approx((0.0, 0.5, 1.0))
    assert not axes["use_hierarchical_allreduce"].ordered
    assert place(space, [{}, {"num_threads": 4}]).shape == (2, 2)


def test_a_neighbour_is_without_what_only_completed_its_centre() -> None:
    space = search_space.make_space(knobs=("fuse_grad_size_in_MB", "fp16_allreduce"), allow="numeric")
    small = space.composer.compose({"fuse_grad_size_in_MB": 0.25})
    assert small is not None
    assert small["last_comm_group_size_MB"] == 0.25, "the first bucket is no larger than the others"

    found = [space.composer.compose(wish) for wish in list_neighbours(space, small)]

    large = [c for c in found if c is not None and float(c.get("fuse_grad_size_in_MB", 0)) >= 1]
    assert large
    assert not any("last_comm_group_size_MB" in changes for changes in large)
