"""Composing: the fast way gives what the models of the protocol say, and equal bucket plans are one strategy."""

import random
from collections.abc import Mapping

import pytest

from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.strategy import COUPLING_RULES, DistributedStrategy, Strategy
from advisor.tuning.model.timeline import MIB, Gradient, Line, Plan
from advisor.tuning.space.composition import Composer
from advisor.tuning.space.space import Space
from tests.unit.tuning.search_space import make_facts, make_job, make_space, make_spec

BASELINES: tuple[dict[str, Value], ...] = (
    {"fuse_grad_size_in_MB": 25.0, "last_comm_group_size_MB": 1.0, "sync_nccl_allreduce": False},
    {"nccl_comm_num": 2, "sync_nccl_allreduce": True},
    {"fuse_all_reduce_ops": False, "fuse_grad_size_in_MB": 64.0, "last_comm_group_size_MB": 64.0},
    {"localsgd": True, "localsgd_k_steps": 4},
)


def break_rules(strategy: Strategy, composer: Composer) -> set[str]:
    return {rule.name for rule in COUPLING_RULES if rule.broken_because(strategy.values(), composer.layout)}


def compose_with_models(composer: Composer, wishes: Mapping[str, Value]) -> dict[str, Value] | None:
    """What `Composer.compose` means, by the protocol's own models."""
    baseline = DistributedStrategy.model_validate(composer.own)
    values = {**composer.own, **wishes}
    composer._complete(values)
    strategy = DistributedStrategy.model_validate(values)
    complete = strategy.changes_from(baseline)
    changes = {name: value for name, value in complete.items() if name in composer.taken}
    if not changes or composer.frozen & changes.keys():
        return None
    if any(value not in composer.only.get(name, {value}) for name, value in changes.items()):
        return None
    effective = DistributedStrategy.from_changes(complete, base=baseline)
    if break_rules(effective, composer) - break_rules(baseline, composer):
        return None
    return changes


def draw_wish(space: Space, dice: random.Random) -> dict[str, Value]:
    dimensions = [*space.dimensions, *space.costly, *space.higher]
    some = dice.sample(dimensions, dice.randint(0, len(dimensions)))
    wish = {d.knob.name: dice.choice(d.values) for d in some}
    if "fuse_grad_size_in_MB" in wish and dice.random() < 0.3:
        wish["fuse_grad_size_in_MB"] = dice.choice((8, 2.5, 100.0, 39, 1000.0))  # ints, and off the grid
    return wish


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize(
    "fields",
    [
        {"allow": Effect.CONVERGENCE},
        {"allow": Effect.NUMERIC, "freeze": ("num_threads", "last_comm_group_size_MB")},
        {"values": {"fuse_grad_size_in_MB": (1, 8, 64), "num_threads": (2,)}},
    ],
)
def test_composing_gives_what_the_models_say(baseline: dict[str, Value], fields: dict[str, object]) -> None:
    space = make_space(make_job(make_spec(**fields), baseline=baseline))
    dice = random.Random(1)
    for _ in range(400):
        wish = draw_wish(space, dice)
        assert space.composer.compose(wish) == compose_with_models(space.composer, wish), wish


@pytest.mark.parametrize(
    "wish",
    [
        {"unheard_of": 1},
        {"num_threads": 100_000},
        {"num_threads": "many"},
        {"fuse_grad_size_in_MB": float("nan")},
        {"amp_dtype": "fp8"},
    ],
)
def test_wishes_that_no_strategy_can_have_are_refused(wish: dict[str, Value]) -> None:
    with pytest.raises(ValueError, match=next(iter(wish))):
        make_space(allow="convergence").composer.compose(wish)


def bucket_plan(values: Mapping[str, Value], line: Line, unlimited: float) -> list[float]:
    size, last = float(values["fuse_grad_size_in_MB"]), float(values["last_comm_group_size_MB"])
    limit = float(values["fuse_grad_size_in_TFLOPS"])
    layers = int(limit) if limit < unlimited else 0
    return line.form_buckets(Plan((min(size, last) * MIB, size * MIB), layers))[:, 0].tolist()


@pytest.mark.parametrize(("size", "last"), [(25.0, 1.0), (64.0, 64.0), (6.0, 6.0), (41.0, 0.5)])
def test_of_sizes_that_make_the_same_buckets_one_stands_for_all(size: float, last: float) -> None:
    total = 20
    line = Line(tuple(Gradient(MIB / 2, (i + 1) / 40, i // 2) for i in range(2 * total)))
    facts = make_facts(gradient_bytes=total * MIB, layers=20)
    baseline: dict[str, Value] = {
        "fuse_grad_size_in_MB": size, "last_comm_group_size_MB": last, "fuse_grad_size_in_TFLOPS": 20.0,
    }  # fmt: skip
    composer = make_space(make_job(facts=facts, baseline=baseline)).composer
    own, dice = composer.own, random.Random(2)
    for _ in range(1500):
        first = dice.choice((0.5, 1.0, 3.0, 12.0, 19.5, 20.0, 25.0, 100.0))
        whole = max(first, dice.choice((0.5, 4.0, 10.0, 17.0, 19.0, 19.5, 20.0, 21.0, 25.0, 64.0, 500.0)))
        wish: dict[str, Value] = {"fuse_grad_size_in_MB": whole, "last_comm_group_size_MB": first}
        if dice.random() < 0.3:
            wish["fuse_grad_size_in_TFLOPS"] = dice.choice((3.0, 7.0))
        composed = {**own, **(composer.compose(wish) or {})}
        assert bucket_plan(composed, line, 20.0) == bucket_plan({**own, **wish}, line, 20.0), wish
    alike = [{"fuse_grad_size_in_MB": s, "last_comm_group_size_MB": s} for s in (20.0, 21.0, 64.0, 1000.0)]
    assert len({str(composer.compose(wish)) for wish in alike}) == 1
    alike = [{"fuse_grad_size_in_MB": s, "last_comm_group_size_MB": 3.0} for s in (17.0, 20.0, 64.0, 1000.0)]
    assert len({str(composer.compose(wish)) for wish in alike}) == 1
