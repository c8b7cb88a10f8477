"""Planned buckets: the earliest end of all ways to cut, spelt as sizes under which DDP cuts there."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.knob import KnobContext, Rule
from advisor.protocol.measured.results import Calibration, GradientTiming, LinkLevel, LinkTiming
from advisor.protocol.measured.trials import Block
from advisor.tuning.model.bucket_plan import (
    MOST_BUCKETS,
    MOST_GROUPS,
    BucketPlan,
    Link,
    anchor_link,
    end_of,
    expose,
    fit_link,
    name_sizes,
    plan_buckets,
    propose_list,
    quieten,
)
from advisor.tuning.model.communication_schedule import list_caps
from advisor.tuning.model.cost_model import calibrate
from advisor.tuning.model.timeline import MIB
from tests.unit.tuning.measured_job import PHASES, make_block, make_context

DDPS_OWN = (MIB, 25 * MIB)


def draw_gradients(dice: random.Random, count: int, scale: int = MIB) -> list[GradientTiming]:
    ready = sorted(dice.uniform(0.0, 0.1) for _ in range(count))
    return [GradientTiming(bytes=4 * dice.randint(1, scale), ready_s=s) for s in ready]


def find_by_force(gradients: list[GradientTiming], link: Link) -> float:
    """The exposed time of the best of all ways to cut."""
    edges = np.cumsum([0, *(g.bytes for g in gradients)])
    ready = np.array([0.0, *(g.ready_s for g in gradients)])
    inside = range(1, len(gradients))
    ways = itertools.chain.from_iterable(itertools.combinations(inside, k) for k in range(len(gradients)))
    return min(end_of((*way, len(gradients)), edges, ready, link) for way in ways) - gradients[-1].ready_s


def plan_of(gradients: list[GradientTiming], link: Link) -> BucketPlan:
    plan = plan_buckets(gradients, link, DDPS_OWN)
    assert plan is not None
    return plan


@pytest.mark.parametrize("seed", range(25))
def test_the_plan_ends_as_early_as_the_best_of_all_ways_to_cut(seed: int) -> None:
    dice = random.Random(seed)
    gradients = draw_gradients(dice, dice.randint(2, 9))
    link = Link(10 ** dice.uniform(-5, -1.5), 10 ** dice.uniform(-10, -7.5))
    plan = plan_of(gradients, link)

    best = find_by_force(gradients, link)
    assert best - 1e-9 <= plan.planned_s <= best + 0.002 * gradients[-1].ready_s + 1e-9
    assert plan.planned_s <= plan.single_s + 0.002 * gradients[-1].ready_s + 1e-9


def test_sizes_grow_while_the_link_is_busy_and_shrink_for_what_comes_last() -> None:
    """Backward makes a MB every 10 ms, and the link takes 1 ms and 5 ms a MB: what comes last should be small."""
    gradients = [GradientTiming(bytes=MIB, ready_s=0.01 * (i + 1)) for i in range(20)]
    plan = plan_of(gradients, Link(0.001, 0.005 / MIB))

    assert plan.planned_s == pytest.approx(0.006), "the last MB alone"
    assert plan.single_s == pytest.approx(0.006), "which buckets of one MB do as well: no gain"
    slow = plan_of(gradients, Link(0.02, 0.008 / MIB))
    assert slow.planned_s < 0.95 * slow.single_s
    assert slow.sizes_mb[0] < max(slow.sizes_mb)


def test_a_link_without_latency_takes_few_buckets_and_one_of_latency_alone_takes_one() -> None:
    gradients = [GradientTiming(bytes=MIB, ready_s=0.01 * (i + 1)) for i in range(20)]

    assert plan_of(gradients, Link(1.0, 0.0)).sizes_mb == (20.0,)
    assert len(plan_of(gradients, Link(0.0, 1e-12)).sizes_mb) == 1, "nothing is won by cutting"


@pytest.mark.parametrize("seed", range(25))
def test_ddp_closes_its_buckets_under_the_named_sizes_where_they_were_planned(seed: int) -> None:
    dice = random.Random(seed)
    sizes = [dice.randint(2, 4 ** dice.randint(2, 11)) for _ in range(40)]
    cuts = sorted({*dice.sample(range(1, 40), 6), 40})
    edges = np.cumsum([0, *sizes]).astype(float)
    named = name_sizes(edges, cuts)

    found: list[int] = []
    held = 0
    for place, size in enumerate(sizes, start=1):  # as DDP does it
        held += size
        if held >= int(named[min(len(found), len(named) - 1)] * MIB) or place == len(sizes):
            found.append(place)
            held = 0
    assert found == cuts
    gradients = [GradientTiming(bytes=size, ready_s=0.01 * (i + 1)) for i, size in enumerate(sizes)]
    ready, link = np.array([0.0, *(g.ready_s for g in gradients)]), Link(0.003, 1e-6)
    exposed = expose(quieten(gradients, link, DDPS_OWN), link, [size * MIB for size in named])
    assert exposed == pytest.approx(end_of(cuts, edges, ready, link) - ready[-1])


def test_thousands_of_gradients_are_planned_at_once() -> None:
    gradients = draw_gradients(random.Random(1), 2000, scale=MIB // 8)
    link = Link(0.0005, 0.09 / sum(g.bytes for g in gradients))
    plan = plan_of(gradients, link)
    assert 1 < len(plan.sizes_mb) <= MOST_BUCKETS
    assert plan.planned_s <= plan.single_s + 0.1 / MOST_GROUPS


def test_one_gradient_has_no_plan() -> None:
    assert plan_buckets(draw_gradients(random.Random(1), 1), Link(0.001, 1e-9), DDPS_OWN) is None


def timed(size: int, seconds: float, concurrent: int = 1) -> LinkTiming:
    return LinkTiming(level=LinkLevel.WORLD, ranks=2, bytes=size, seconds=seconds, concurrent=concurrent)


def test_a_link_is_read_from_its_quickest_and_its_largest_allreduce() -> None:
    """64 KB fit into the queue of a shaped link: they say nothing of what a step's bytes take."""
    sizes = [timed(1024, 0.002), timed(2**16, 0.002), timed(2**24, 0.002 + 2**24 * 8e-9)]
    found = fit_link([*sizes, timed(2**24, 9.0, concurrent=2)])
    assert found is not None
    assert (found.alpha_s, found.beta_s) == pytest.approx((0.002, 8e-9))
    noisy = fit_link([timed(1024, 0.001), timed(2**20, 0.0005)])
    assert noisy is not None
    assert noisy.beta_s >= 0
    assert fit_link([timed(1024, 0.001)]) is None


def test_the_link_of_a_step_exposes_what_the_probe_measured_and_is_refused_where_it_cannot() -> None:
    gradients = [GradientTiming(bytes=MIB, ready_s=0.01 * (i + 1)) for i in range(20)]
    idle = Link(0.001, 0.02 / MIB, stolen=0.25)
    by_the_idle_link = expose(quieten(gradients, idle, DDPS_OWN), idle, DDPS_OWN)
    loaded = anchor_link(idle, gradients, DDPS_OWN, 1.2 * by_the_idle_link)

    assert loaded is not None
    assert loaded.load == pytest.approx(1.2)
    assert expose(quieten(gradients, loaded, DDPS_OWN), loaded, DDPS_OWN) == pytest.approx(
        1.2 * by_the_idle_link
    )
    assert anchor_link(idle, gradients, DDPS_OWN, 3 * by_the_idle_link) is None
    assert anchor_link(idle, gradients, DDPS_OWN, None) == idle


def test_of_two_reductions_at_once_one_waits_while_the_other_sends() -> None:
    link = Link(0.3, 1.0, at_once=2)
    ends: list[float] = []
    assert [link.end_next(ends, 0.0, 1.0) for _ in range(3)] == pytest.approx([1.3, 2.3, 3.3])
    short: list[float] = []
    ended = [link.end_next(short, 0.0, 0.0) for _ in range(4)]
    assert ended == pytest.approx([0.3, 0.3, 0.6, 0.6]), "latency alone: two by two"


def test_backward_beside_reductions_is_slower_and_exposes_less_of_them() -> None:
    """One gradient early and one after 1 s: the first one's reduction takes 0.5 s, and a fifth of backward's speed."""
    gradients = [GradientTiming(bytes=MIB, ready_s=0.0), GradientTiming(bytes=MIB, ready_s=1.0)]
    link = Link(0.0, 0.5 / MIB, stolen=0.2)
    backward = quieten(gradients, link, [MIB])

    assert backward.ready[-1] == pytest.approx(0.9), "timed beside it, backward alone is quicker"
    assert expose(backward, link, [MIB]) == pytest.approx(0.5)
    assert expose(backward, link, [2 * MIB]) == pytest.approx(1.0)
    slow = Link(0.0, 4.0 / MIB, stolen=0.2)
    assert expose(backward, slow, [MIB]) == pytest.approx(8.0 - 0.9 / 0.8), "beside reductions all the time"


# --- the candidate ---------------------------------------------------------------------------------------


def measure_probe(
    alpha_s: float, s_per_mb: float, load: float = 1.0, **fields: object
) -> tuple[KnobContext, list[Block]]:
    """Twenty gradients of 1 MB, one every 10 ms, on a link that takes so long; in a step `load` times as long."""
    context = make_context(gradient_bytes=20 * MIB, **fields)
    gradients = tuple(GradientTiming(bytes=MIB, ready_s=0.01 * (i + 1)) for i in range(20))
    links = tuple(
        LinkTiming(
            level=LinkLevel.WORLD, ranks=2, bytes=n, seconds=alpha_s + s_per_mb * n / MIB, concurrent=1
        )
        for n in (1024, 65536, 2**20, 2**24)
    )
    calibration = Calibration(gradients=gradients, links=links)
    link, caps = Link(alpha_s, s_per_mb / MIB, load, at_once=2), list_caps(context.baseline)
    phases = replace(PHASES, exposed_comm_s=expose(quieten(gradients, link, caps), link, caps))
    return context, [make_block(0.5, phases, calibration=calibration)]


def test_a_plan_is_proposed_where_it_beats_the_best_single_size_with_figures_that_can_be_checked() -> None:
    context, probe = measure_probe(0.01, 0.008)
    rule = propose_list(context.facts, context.baseline, probe)

    assert isinstance(rule, Rule)
    assert CATALOGUE["bucket_cap_mb_list"].parse(rule.value) == rule.value
    assert "10 ms and 8 ms a MB on an idle link, in a step 1.00 times that" in rule.because
    assert "gradients become ready over 200 ms" in rule.because
    assert "as it is" in rule.because


def test_no_plan_is_proposed_where_theory_sees_nothing_to_gain() -> None:
    context, probe = measure_probe(0.001, 0.005)
    sentence = propose_list(context.facts, context.baseline, probe)
    assert isinstance(sentence, str)
    assert sentence.endswith("less than 1% of a step to gain.")
    untimed = propose_list(context.facts, context.baseline, [make_block(0.5, PHASES)])
    assert "did not time" in str(untimed)
    context, probe = measure_probe(0.02, 0.008, load=3.0)
    sentence = propose_list(context.facts, context.baseline, probe)
    assert str(sentence).endswith("no plan is computed from a model that is so far off.")


def test_the_cost_model_sees_the_planned_buckets() -> None:
    context, probe = measure_probe(0.01, 0.008)
    rule = propose_list(context.facts, context.baseline, probe)
    assert isinstance(rule, Rule)
    model = calibrate(context, probe, [])
    assert model is not None
    planned = model.predict_step_s({**context.baseline, "bucket_cap_mb_list": rule.value})
    assert planned < model.predict_step_s(context.baseline)
