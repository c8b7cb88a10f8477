"""The planner's course through a whole job, and how it meets failures."""

from collections import Counter

import pytest

from advisor.protocol.advice import Advice, Verdict
from advisor.protocol.jobs import Budget, Stage
from advisor.protocol.knob_entries import CATALOGUE
from advisor.protocol.knobs import Effect, Part
from advisor.protocol.strategy import period_of
from advisor.protocol.trials import Block, Outcome, Purpose, SessionState
from advisor.tuning.decisions import EndSession, Fail, Finish, Launch, Measure, Wait
from advisor.tuning.planner import plan

from .simulated_cluster import (
    QUIET,
    START,
    Changes,
    SimulatedCluster,
    make_cluster,
    make_facts,
    make_job,
    make_spec,
)


def faster_with_small_buckets(changes: Changes) -> float:
    speed = 1.10 if float(changes.get("fuse_grad_size_in_MB", 25.0)) < 8 else 1.0
    speed *= 1.3 if changes.get("fp16_allreduce") else 1.0
    return speed * (1.6 if changes.get("localsgd") else 1.0)


def quiet(**fields: object) -> SimulatedCluster:
    values: dict[str, object] = {"job": make_job(), "speed": faster_with_small_buckets, "noise": QUIET}
    return SimulatedCluster(**{**values, **fields})  # type: ignore[arg-type]


def first_confirm_round(sim: SimulatedCluster) -> int:
    earlier = {t.number for t in sim.trials if t.purpose in {Purpose.FINAL, Purpose.REVERT}}
    return 1 + max((b.round or 0 for b in sim.blocks if b.trial_number in earlier), default=0)


def confirm_blocks(sim: SimulatedCluster) -> list[Block]:
    first = first_confirm_round(sim)
    return [b for b in sim.blocks if (b.round or 0) >= first]


def confirm_sessions(sim: SimulatedCluster) -> list[str]:
    return list(dict.fromkeys(b.session_id for b in confirm_blocks(sim)))


def test_a_job_without_sessions_is_launched() -> None:
    sim = quiet(job=make_job(facts=None, baseline={}))

    decision = plan(sim.job, sim.history, START)

    assert isinstance(decision, Launch)
    assert decision.cold == {}
    assert decision.stage is Stage.PROBE


def test_a_whole_job_finds_the_gain_and_says_so() -> None:
    sim = quiet()

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.CHANGE
    assert advice.gain is not None
    assert advice.gain.low < 1.10 < advice.gain.high
    assert advice.headline.startswith(advice.gain.describe().split(" % ")[0])
    assert sim.trials[0].purpose is Purpose.BASELINE
    assert not sim.trials[0].changes


def test_the_probe_measures_the_baseline_twice_before_anything_else() -> None:
    sim = quiet()

    sim.run()

    assert [b.trial_number for b in sim.blocks[:3]] == [0, 0, 1]


def test_every_session_begins_with_the_baseline_and_anchors_return_seldom_on_a_quiet_machine() -> None:
    sim = quiet(job=make_job(make_spec(budget=Budget(max_trials=24, max_seconds=1e6))))

    sim.run()

    for session in sim.sessions:
        own = [b.trial_number for b in sim.blocks if b.session_id == session.id]
        assert own[0] == 0
    search = [b for b in sim.blocks if b.session_id == "s0" and b.round is None]
    gaps, since = [], 0
    for block in search:
        gaps.append(since) if block.trial_number == 0 else None
        since = 0 if block.trial_number == 0 else since + 1
    assert max(gaps) == 10


def test_the_confirmation_never_uses_the_searchs_session_and_takes_two_at_least() -> None:
    sim = quiet()

    sim.run()

    searched = {b.session_id for b in sim.blocks if sim.trials[b.trial_number].purpose is Purpose.SEARCH}
    confirmed = confirm_sessions(sim)
    assert len(confirmed) >= 2
    assert not searched & set(confirmed)
    rounds = Counter((b.session_id, b.round) for b in confirm_blocks(sim))
    per_session = Counter(session for session, _ in rounds)
    assert min(per_session.values()) >= 2


def test_rounds_of_the_confirmation_are_interleaved_in_alternating_order() -> None:
    higher = tuple(name for name, knob in CATALOGUE.items() if knob.effect is not Effect.EXACT)
    sim = quiet(job=make_job(make_spec(freeze=higher)))

    sim.run()

    order = [(b.round, b.trial_number) for b in confirm_blocks(sim)]
    winner = next(t.number for t in sim.trials if t.purpose is Purpose.CONFIRM)
    assert [n for _, n in order[:4]] == [0, winner, winner, 0]


def test_the_same_history_gives_the_same_decision() -> None:
    sim = quiet(job=make_job(make_spec(budget=Budget(max_trials=20, max_seconds=1e6))))

    for _ in range(60):
        again = plan(sim.job, sim.history, sim.now)
        assert sim.step() == again
        if isinstance(again, Finish):
            break


def test_no_strategy_is_searched_twice() -> None:
    sim = quiet(job=make_job(make_spec(budget=Budget(max_trials=40, max_seconds=1e6))))

    sim.run()

    searched = [tuple(sorted(t.changes.items())) for t in sim.trials if t.purpose is Purpose.SEARCH]
    assert len(searched) == len(set(searched))


def test_higher_rungs_get_their_share_and_never_the_verdict() -> None:
    sim = quiet(job=make_job(make_spec(budget=Budget(max_trials=20, max_seconds=1e6))))

    advice = sim.run()

    assert isinstance(advice, Advice)
    searched = Counter(t.effect for t in sim.trials if t.purpose is Purpose.SEARCH)
    assert 1 <= searched[Effect.NUMERIC] <= 4
    assert 1 <= searched[Effect.CONVERGENCE] <= 4
    assert {"fp16_allreduce", "localsgd"}.isdisjoint(advice.changes)
    ladder = {rung.effect: rung for rung in advice.ladder}
    for effect, least in ((Effect.NUMERIC, 1.25), (Effect.CONVERGENCE, 1.5)):
        rung = ladder[effect]
        assert rung.gain is not None
        assert rung.gain.rounds >= 4
        assert rung.gain.ratio > least
        assert rung.caveat


def test_the_ladder_costs_at_most_a_third_of_the_blocks_before_the_verdict() -> None:
    sim = SimulatedCluster(make_job(), speed=faster_with_small_buckets, seed=3)

    sim.run()

    confirm = {t.number: t.effect for t in sim.trials if t.purpose is Purpose.CONFIRM}
    rounds: dict[int, list[Effect | None]] = {}
    for block in confirm_blocks(sim):
        rounds.setdefault(block.round or 0, []).append(confirm.get(block.trial_number))
    undecided = [parts for parts in rounds.values() if Effect.EXACT in parts]
    assert undecided
    for parts in undecided:
        assert len({part for part in parts if part not in {None, Effect.EXACT}}) <= 1


@pytest.mark.parametrize("max_seconds", [20, 60, 150, 400, 900])
def test_the_time_budget_is_a_hard_stop_and_an_unconfirmed_result_no_gain(max_seconds: float) -> None:
    spec = make_spec(budget=Budget(max_trials=200, max_seconds=max_seconds))
    sim = quiet(job=make_job(spec))

    advice = sim.run()

    spent = sum(
        (s.ended_at - s.started_at).total_seconds() for s in sim.sessions if s.ended_at and s.started_at
    )
    assert spent <= max_seconds * 1.05 + 2
    assert isinstance(advice, Advice)
    if advice.verdict is Verdict.CHANGE:
        assert advice.gain is not None
        assert advice.gain.rounds >= 4
        assert advice.gain.sessions >= 2
    else:
        assert advice.headline.startswith("No reliable gain: keep your defaults.")


def test_a_usual_budget_leaves_time_to_confirm() -> None:
    sim = quiet(job=make_job(make_spec(budget=Budget(max_trials=200, max_seconds=400))))

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.CHANGE


def test_a_job_fails_when_the_budget_does_not_hold_the_baseline() -> None:
    sim = quiet(job=make_job(make_spec(budget=Budget(max_seconds=1))))

    decision = sim.run()

    assert isinstance(decision, Fail)
    assert "raise the budget" in decision.because


def test_nothing_to_search_ends_with_keep_and_the_reasons() -> None:
    facts = make_facts(nodes=1, world_size=2)
    computing = tuple(name for name, knob in CATALOGUE.items() if knob.part is not Part.COMMUNICATION)
    spec = make_spec(nodes=1, allow=Effect.CONVERGENCE, freeze=computing)
    job = make_job(spec, facts=facts, cluster=make_cluster(cpus=1, nodes=1))
    sim = quiet(job=job, exposed=0.005)

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.KEEP
    assert "dropped with its reason" in advice.headline
    reasons = {d.knob: d.reason for d in advice.dropped}
    assert "could not bring 2 %" in reasons["fuse_grad_size_in_MB"]
    assert len(sim.sessions) == 1


def test_a_strategy_that_kills_its_session_is_not_tried_again() -> None:
    def fault(_session: int, _ordinal: int, changes: Changes) -> Outcome | None:
        return Outcome.OUT_OF_MEMORY if changes.get("use_hierarchical_allreduce") else None

    sim = quiet(session_fault=fault)

    advice = sim.run()

    assert isinstance(advice, Advice)
    failed = [t for t in sim.trials if t.outcome is Outcome.OUT_OF_MEMORY]
    assert failed
    assert advice.verdict is Verdict.CHANGE
    assert "use_hierarchical_allreduce" not in advice.changes


def test_a_finalist_that_fails_leaves_its_place_to_the_next() -> None:
    def fault(session: int, _ordinal: int, changes: Changes) -> Outcome | None:
        return (
            Outcome.HUNG
            if session > 0 and changes.get("fuse_grad_size_in_MB") == 4.0 and len(changes) == 1
            else None
        )

    sim = quiet(session_fault=fault)

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.changes != {"fuse_grad_size_in_MB": 4.0}
    assert advice.verdict is Verdict.CHANGE


def test_a_lost_session_is_launched_again_and_its_round_measured_as_a_whole() -> None:
    def fault(session: int, ordinal: int, _changes: Changes) -> Outcome | None:
        return Outcome.LOST if session == 1 and ordinal == 2 else None

    sim = quiet(session_fault=fault)

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.CHANGE
    assert sim.sessions[1].state is SessionState.LOST
    first = [b.session_id for b in sim.blocks if b.round == first_confirm_round(sim)]
    assert first.count("s2") >= 2


def test_five_lost_sessions_in_a_row_end_the_job() -> None:
    sim = quiet(launch_fault=lambda *_: Outcome.LOST)

    decision = sim.run()

    assert isinstance(decision, Fail)
    assert "advisor-agent doctor" in decision.because
    assert len(sim.sessions) == 5


@pytest.mark.parametrize(
    ("outcome", "advice"),
    [(Outcome.OUT_OF_MEMORY, "batch size"), (Outcome.CRASHED, "by hand"), (Outcome.HUNG, "hang_timeout_s")],
)
def test_a_baseline_that_fails_twice_ends_the_job_with_what_to_do(outcome: Outcome, advice: str) -> None:
    sim = quiet(session_fault=lambda *_: outcome)

    decision = sim.run()

    assert isinstance(decision, Fail)
    assert advice in decision.because
    assert f"It ended as {outcome.value}." in decision.because
    assert len(sim.sessions) == 2


def test_a_script_too_short_for_a_block_ends_the_job_with_its_steps() -> None:
    sim = quiet(steps_per_session=12)

    decision = sim.run()

    assert isinstance(decision, Fail)
    assert "only 12 steps" in decision.because
    assert "needs 26" in decision.because
    assert len(sim.sessions) == 2


@pytest.mark.parametrize("blocks", [1, 2, 3, 5])
def test_a_script_that_ends_by_itself_is_launched_until_everything_is_measured(blocks: int) -> None:
    spec = make_spec(budget=Budget(max_trials=6, max_seconds=1e6))
    sim = quiet(job=make_job(spec), steps_per_session=26 * blocks + 10)

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.CHANGE
    assert advice.gain is not None
    assert advice.gain.sessions >= 2


def test_a_block_that_needs_a_relaunch_is_measured_in_a_session_launched_with_it() -> None:
    def alter(changes: Changes, session: object, result: object) -> object:
        needs = bool(changes.get("fuse_grad_size_in_MB")) and not session.cold  # type: ignore[attr-defined]
        return result.model_copy(  # type: ignore[attr-defined]
            update={"relaunch_needed": "DDP's reducer could not be rebuilt.", "step_time_s": ()}
            if needs
            else {}
        )

    spec = make_spec(knobs=("fuse_grad_size_in_MB",), budget=Budget(max_trials=3, max_seconds=1e6))
    sim = quiet(job=make_job(spec), alter=alter)

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.CHANGE
    timed = [b for b in sim.blocks if b.plan.overrides and b.result and not b.result.relaunch_needed]
    sessions = {s.id: s for s in sim.sessions}
    assert timed
    assert all(sessions[b.session_id].cold == b.plan.overrides for b in timed)


def test_cold_knobs_are_compared_across_fresh_sessions() -> None:
    facts = make_facts(backend="nccl")
    spec = make_spec(
        knobs=("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"), budget=Budget(max_trials=3, max_seconds=1e6)
    )
    sim = quiet(
        job=make_job(spec, facts=facts),
        speed=lambda changes: 1.2 if changes.get("NCCL_SOCKET_NTHREADS") == 4 else 1.0,
    )

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.CHANGE
    assert advice.changes["NCCL_SOCKET_NTHREADS"] == 4
    for session in sim.sessions:
        for block in (b for b in sim.blocks if b.session_id == session.id):
            assert block.plan.overrides == session.cold
    rounds = {s.id: {b.round for b in confirm_blocks(sim) if b.session_id == s.id} for s in sim.sessions}
    assert all(len(held) <= 1 for held in rounds.values())


def test_a_launch_that_dies_of_its_cold_knobs_ends_that_trial_only() -> None:
    facts = make_facts(backend="nccl")
    sim = quiet(
        job=make_job(make_spec(budget=Budget(max_trials=8, max_seconds=1e6)), facts=facts),
        launch_fault=lambda _index, cold: Outcome.CRASHED if cold else None,
    )

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.CHANGE
    assert sum(bool(s.cold) for s in sim.sessions) == 1


def test_an_unsteady_block_is_extended_once_with_twice_the_steps() -> None:
    def alter(changes: Changes, _session: object, result: object) -> object:
        if not changes or changes != next(t.changes for t in sim.trials if t.purpose is Purpose.SEARCH):
            return result
        times = tuple(0.1 * (2.0 - i / result.steps) for i in range(result.steps))  # type: ignore[attr-defined]
        return result.model_copy(update={"step_time_s": times})  # type: ignore[attr-defined]

    sim = quiet(alter=alter)

    sim.run()

    trial = next(t for t in sim.trials if t.purpose is Purpose.SEARCH)
    plans = [b.plan for b in sim.blocks if b.trial_number == trial.number]
    assert [p.min_steps for p in plans] == [24, 48]
    assert plans[1].target_s == 2 * plans[0].target_s
    assert trial.outcome is Outcome.FINISHED


def test_blocks_hold_whole_periods() -> None:
    sim = quiet()

    sim.run()

    for block in sim.blocks:
        period = period_of(block.plan.overrides)
        assert block.plan.min_steps % period == 0
        assert block.plan.warmup_steps % period == 0
        assert block.plan.max_steps >= block.plan.min_steps


def test_the_search_stops_when_nothing_improves() -> None:
    sim = quiet(job=make_job(make_spec(budget=Budget(max_trials=200, max_seconds=1e6))), speed=lambda _: 1.0)

    sim.run()

    assert sum(t.purpose is Purpose.SEARCH for t in sim.trials) < 40


def test_a_session_that_is_not_running_has_nothing_decided() -> None:
    sim = quiet()
    sim.step()
    sim.sessions[-1] = sim.sessions[-1].model_copy(update={"state": SessionState.ENDING})

    assert isinstance(plan(sim.job, sim.history, sim.now), Wait)


def test_orders_fit_the_state_of_the_session() -> None:
    sim = quiet()

    sim.run()

    assert {type(d) for d in sim.decisions} == {Launch, Measure, EndSession, Finish}
