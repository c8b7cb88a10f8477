"""The rungs above the allowed one: what is tried on them, and what is said about it."""

from dataclasses import replace
from functools import lru_cache

import pytest

from advisor.protocol.answers.advice import Advice, Verdict
from advisor.protocol.asked.jobs import Budget
from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import Purpose, Session
from advisor.protocol.nodes.cluster import DeviceKind
from advisor.tuning.space.rungs import caveat_of, missing_schedules, rung_strategies, share_trials
from advisor.tuning.space.space import Space, build_space
from tests.unit.tuning.simulated_cluster import QUIET, SimulatedCluster, make_facts, make_job, make_spec


def make_space(**facts: object) -> Space:
    return build_space(make_job(), make_facts(**facts), [])


@lru_cache
def advise(
    efficiency: float,
    speed: float = 2.0,
    allow: Effect = Effect.CONVERGENCE,
    noise: float = 0.0,
    from_checkpoint: bool = False,
) -> Advice:
    """Local SGD of that speed, under which a sample teaches only `efficiency` of what it teaches the baseline."""

    def alter(changes: Changes, _: Session, result: BlockResult) -> BlockResult:
        # The simulated losses fall by 0.004 a step of the baseline, counted from the start of its own training.
        if not changes.get("localsgd"):
            return result
        within = [i for size in result.segments for i in range(size)]
        lag = tuple((1 - efficiency) * 0.004 * (i + 0.5) for i in within)
        losses = tuple(loss + late for loss, late in zip(result.losses, lag, strict=True))
        return replace(result, losses=losses)

    knobs = ("fuse_grad_size_in_MB", "localsgd", "localsgd_k_steps")
    budget = Budget(max_trials=6, max_seconds=500)
    # One interval: all segments are equally long, and the baseline learns equally much in each.
    values: dict[str, tuple[Value, ...]] = {"localsgd_k_steps": (4,)}
    spec = make_spec(allow=allow, knobs=knobs, values=values, budget=budget, from_checkpoint=from_checkpoint)
    sim = SimulatedCluster(
        make_job(spec),
        speed=lambda changes: speed if changes.get("localsgd") else 1.0,
        noise=QUIET,
        loss=lambda _, step: 6.0 - 0.004 * step + noise * ((step * 7919) % 13 - 6) / 6,
        alter=alter,
    )
    advice = sim.run()
    assert isinstance(advice, Advice)
    return advice


def test_every_kind_of_schedule_is_tried_before_other_intervals_of_one() -> None:
    wishes = rung_strategies(make_space(), Effect.CONVERGENCE, {})

    first = [set(p.changes) for p in wishes[:4]]
    assert first[0] == {"localsgd", "localsgd_k_steps"}
    assert {"adaptive_localsgd"} <= first[1]
    assert {"localsgd_begin_step"} <= first[2]
    assert {"gradient_merge"} <= first[3]
    assert wishes[2].changes["localsgd_begin_step"] == 16


def test_mixed_precision_comes_first_where_there_are_tensor_cores() -> None:
    cuda = rung_strategies(
        make_space(device=DeviceKind.CUDA, backend="nccl", device_name="NVIDIA H200"), Effect.NUMERIC, {}
    )
    cpu = rung_strategies(make_space(), Effect.NUMERIC, {})

    assert cuda[0].changes["amp"] is True
    assert "amp" not in cpu[0].changes


def test_the_rungs_share_is_bounded() -> None:
    job = make_job(make_spec(budget=Budget(max_trials=20, max_seconds=1e6)))
    shares = share_trials(job, build_space(job, make_facts(), []))

    assert set(shares) == {Effect.NUMERIC, Effect.CONVERGENCE}
    assert all(share <= 4 for share in shares.values())


def test_a_schedule_says_what_its_trial_could_not_see() -> None:
    post_local = _caveat({"localsgd": True, "localsgd_k_steps": 4, "localsgd_begin_step": 16})
    adaptive = _caveat({"adaptive_localsgd": True, "adaptive_localsgd_init_k_steps": 4})

    assert "first learning-rate drop" in post_local
    assert "follows the loss" in adaptive
    for caveat in (
        post_local,
        adaptive,
        _caveat({"fp16_allreduce": True}),
    ):
        assert "end of training" in caveat
    assert _caveat({"num_threads": 2}) == ""


def test_a_rung_shows_gain_goodput_efficiency_and_guard_side_by_side() -> None:
    advice = advise(efficiency=0.7, allow=Effect.EXACT)

    rung = next(r for r in advice.ladder if r.effect is Effect.CONVERGENCE)
    assert rung.gain is not None
    assert rung.gain.ratio == pytest.approx(2.0, rel=0.02)
    assert rung.efficiency == pytest.approx(0.7, abs=0.05)
    assert rung.goodput is not None
    assert rung.goodput.ratio == pytest.approx(2.0 * 0.7, rel=0.1)
    assert not rung.admitted
    assert "The loss guard refuses it" in rung.sentence
    assert "Goodput" in rung.sentence
    assert "end of training" in rung.caveat
    assert advice.verdict is Verdict.KEEP


def test_a_convergence_strategy_at_the_start_of_a_training_is_faster_and_unverified() -> None:
    advice = advise(efficiency=1.0)

    assert advice.verdict is Verdict.UNDECIDED
    assert advice.changes == {}
    assert advice.candidate["localsgd"] is True
    assert "accuracy unverified" in advice.headline


def test_a_convergence_strategy_that_keeps_the_loss_is_advised_with_its_goodput() -> None:
    advice = advise(efficiency=1.0, from_checkpoint=True)

    assert advice.verdict is Verdict.CHANGE
    assert advice.changes["localsgd"] is True
    (local,) = (point for point in advice.pareto if point.changes == advice.changes)
    assert local.confirmed


def test_a_strategy_that_learns_too_little_is_not_advised_however_fast() -> None:
    advice = advise(efficiency=0.3, speed=2.0, from_checkpoint=True)

    assert "localsgd" not in advice.changes


def test_the_advice_shows_throughput_against_loss() -> None:
    advice = advise(efficiency=0.7, allow=Effect.EXACT)

    assert advice.pareto
    assert any(point.on_front and "localsgd" in point.changes for point in advice.pareto)
    assert advice.pareto[0].throughput_ratio >= advice.pareto[-1].throughput_ratio


def test_schedules_are_candidates_where_the_job_allows_them() -> None:
    job = make_job(make_spec(allow=Effect.CONVERGENCE))
    space = build_space(job, make_facts(), [])

    best: dict[str, Value] = {"num_threads": 2, "localsgd": True, "localsgd_k_steps": 8}
    missing = missing_schedules(space, [{"localsgd": True}], best)

    assert ["localsgd_begin_step" in p.changes for p in missing] == [False, True]
    assert all(p.changes["num_threads"] == 2 for p in missing)
    assert not missing_schedules(space, [p.changes for p in missing], best)
    assert not missing_schedules(make_space(), [], {}), "the ladder's share serves jobs that allow less"


def test_a_job_that_allows_convergence_measures_every_schedule() -> None:
    spec = make_spec(allow=Effect.CONVERGENCE, budget=Budget(max_trials=8, max_seconds=500))
    sim = SimulatedCluster(make_job(spec), noise=QUIET)
    sim.run()

    searched = {name for t in sim.trials if t.purpose is Purpose.SEARCH for name in t.changes}
    assert {"adaptive_localsgd", "localsgd_begin_step"} <= searched


def _caveat(changes: dict[str, Value]) -> str:
    return caveat_of(changes, CATALOGUE.effect_of(changes))
