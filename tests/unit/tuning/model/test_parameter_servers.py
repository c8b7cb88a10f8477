"""Parameter servers: placement is exact arithmetic, and a step is the bytes of the fullest link over its rate."""

import math
import random

import pytest
from parameter_server.placement import Variable, choose_servers, cut_into_blocks

from advisor.protocol.training.parameter_servers import ParameterServers, Placement
from advisor.tuning.model.parameter_servers import ServerModel, find_traffic, fit, lay_out
from advisor.tuning.model.placement import cut, share_out

VARIABLES = (
    ("0.weight", 262_144, 256), ("0.bias", 1024, 1), ("2.weight", 262_144, 1024), ("2.bias", 256, 1),
    ("4.weight", 16_384, 256), ("4.bias", 64, 1), ("6.weight", 64, 64), ("6.bias", 1, 1),
)  # fmt: skip
"""256-1024-256-64-1: 542,081 elements."""
MODEL = {
    "variables": VARIABLES,
    "table_rows": 20_000,
    "table_width": 32,
    "rows_per_step": 254.4,
    "trainer_nodes": (0, 1),
}
RATE = 100e6 / 8
SLICED = {"servers": 2}

MEASURED: dict[str, tuple[dict[str, object], float | None, float]] = {
    "1 server": ({"servers": 1}, 1.0, 688.6),
    "2 servers, whole": ({"servers": 2, "min_block": 0}, 0.998, 675.0),
    "2 servers, sliced": (SLICED, 0.501, 390.4),
    "2 servers, whole, by name": ({"servers": 2, "min_block": 0, "placement": "hash_name"}, 0.514, 388.0),
    "2 servers, blocks of 262,144": ({"servers": 2, "min_block": 262_144}, 0.998, 671.5),
    "with the trainers": ({"servers": 2, "place": "together"}, 0.501, 220.7),
    "async": ({"servers": 2, "mode": "async"}, 0.501, 370.0),
    "geo, every 4 steps": ({"servers": 2, "mode": "geo", "geo_k": 4}, 0.501, 101.0),
    "geo, every 10 steps": ({"servers": 2, "mode": "geo", "geo_k": 10}, 0.501, 45.7),
    "16 bits": ({"servers": 2, "wire": 16}, 0.501, 200.0),
    "rows prefetched": ({"servers": 2, "prefetch": True}, 0.501, 383.5),
    "dense table": ({"servers": 2, "table": "dense"}, 0.500, 821.5),
    "hybrid": ({"architecture": "hybrid", "servers": 1}, None, 195.0),
    "collective, dense table": ({"architecture": "collective", "table": "dense"}, None, 425.5),
}
"""Setup, largest server's share and mean step in ms, of two trainers over links of 100 Mbit/s: torch 2.13, two cores,
rounds in alternating order, 2026-11-25. A trainer's step computed for 5 to 25 ms, which was not told apart."""


def make(**setup: object) -> ParameterServers:
    return lay_out(ParameterServers.model_validate({**MODEL, **setup}))


NAMES = tuple(MEASURED)


@pytest.mark.parametrize("name", NAMES)
def test_largest_share_is_that_of_the_measured_run(name: str) -> None:
    setup, share, _ = MEASURED[name]
    found = find_traffic(make(**setup)).largest_share
    assert found is None if share is None else round(found or 0.0, 3) == share


@pytest.mark.parametrize(
    ("fitted", "beyond"),
    [(NAMES[::2], {"with the trainers": 0.12}), (NAMES[1::2], {"hybrid": 0.12}), (NAMES, {})],
)
def test_measured_setups_are_predicted_within_a_tenth_from_half_of_them(
    fitted: tuple[str, ...], beyond: dict[str, float]
) -> None:
    """One constant is free, the overhead. `beyond` names who is further off, and by how much at most."""
    model = fit([(make(**MEASURED[name][0]), MEASURED[name][2] / 1e3) for name in fitted], RATE)
    assert 0.015 < model.overhead_s < 0.045
    assert abs(model.slowness - 1.0) < 0.02
    for name, (setup, _, measured_ms) in MEASURED.items():
        off = abs(math.log(model.predict_step_s(make(**setup)) * 1e3 / measured_ms))
        assert off < beyond.get(name, math.log(1.1)), f"{name}: {off:.3f}"


def test_order_of_the_measured_architectures_is_the_predicted_one() -> None:
    model = fit([(make(**MEASURED["1 server"][0]), 0.6886)], RATE)
    names = ("hybrid", "2 servers, sliced", "collective, dense table", "dense table")
    predicted = [model.predict_step_s(make(**MEASURED[name][0])) for name in names]
    assert predicted == sorted(predicted)


def test_blocks_are_whole_rows_and_none_is_below_the_smallest() -> None:
    assert cut((("w", 30, 3),), 4, 6) == [
        ("w.block0", 9),
        ("w.block1", 9),
        ("w.block2", 9),
        ("w.block3", 3),
    ]
    assert cut((("w", 30, 3), ("b", 10, 1)), 4, 16) == [("w", 30), ("b", 10)]
    assert cut((("w", 30, 3),), 4, 0) == [("w", 30)]
    assert share_out((("w", 30, 3), ("b", 10, 1)), 2, 0, Placement.ROUND_ROBIN) == (30, 10)
    assert share_out((("a", 4, 1), ("b", 9, 1), ("c", 6, 1)), 2, 0, Placement.BY_BYTES) == (9, 10)


def test_program_and_model_deal_out_alike() -> None:
    dice = random.Random(0)
    for _ in range(100):
        sizes = [(dice.choice([1, 3, 256]), dice.randint(1, 2000)) for _ in range(dice.randint(1, 12))]
        variables = tuple((f"{i}.weight", row * rows, row) for i, (row, rows) in enumerate(sizes))
        servers, min_block = dice.randint(1, 9), dice.choice([0, 64, 8192, 65_536])
        blocks = cut_into_blocks([Variable(*each) for each in variables], servers, min_block)
        for rule in Placement:
            held = [0] * servers
            for block, home in zip(blocks, choose_servers(blocks, servers, rule.value), strict=True):
                held[home] += block.elements
            assert tuple(held) == share_out(variables, servers, min_block, rule)


def test_a_server_beside_a_trainer_takes_its_share_off_the_link() -> None:
    apart, together = make(servers=2), make(servers=2, place="together")
    assert find_traffic(together).exchange == pytest.approx(find_traffic(apart).exchange / 2, rel=0.01)
    alone = lay_out(apart.model_copy(update={"trainer_nodes": (0, 0), "nodes": 1}))
    assert find_traffic(alone).busiest == 0.0


def test_trainers_of_a_node_that_sum_up_first_send_once() -> None:
    crowded = make(trainer_nodes=(0, 0, 1, 1))
    summed = make(trainer_nodes=(0, 0, 1, 1), reduce_in_node=True)
    assert find_traffic(crowded).exchange == 2 * find_traffic(summed).exchange


def test_trainers_that_do_not_wait_share_a_server_both_ways_at_once() -> None:
    """Without waiting, one pushes while the other pulls: the server's link is busy in both directions."""
    model = ServerModel(RATE)
    waiting, free = (model.predict_step_s(make(servers=1, mode=mode)) for mode in ("sync", "async"))
    assert free == pytest.approx(waiting / 2, rel=0.01)
    computing = make(servers=1, mode="async").model_copy(update={"compute_s": 0.1})
    assert model.predict_step_s(computing) == pytest.approx(free + 0.1, rel=0.01)


def test_fit_says_how_far_it_misses() -> None:
    job, other = make(servers=1), make(servers=2)
    assert fit([(job, 1.0)], RATE).residual == pytest.approx(0.1)
    seconds = ServerModel(RATE).predict_step_s(other)
    assert fit([(job, 1.0), (other, 3 * seconds)], RATE).residual > 0.15
