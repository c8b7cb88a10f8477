"""The planner's course through a whole job, race by race, and how it meets failures."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from advisor.protocol.answers.advice import Advice, Verdict
from advisor.protocol.asked.jobs import Budget, Stage
from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect, Part
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.changes import Changes, period_of
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import BlockState, EarlierJob, Outcome, Purpose, Session, SessionState
from advisor.protocol.nodes.cluster import DeviceKind
from advisor.protocol.training.workload import Workload
from advisor.tuning.decisions import EndSession, Fail, Finish, Launch, Race, Wait
from advisor.tuning.history.budget import plan_verdict
from advisor.tuning.history.record import Record
from advisor.tuning.planner import plan
from advisor.tuning.search import search
from advisor.tuning.search.sampler import Suggestion

from .simulated_cluster import (
    QUIET,
    START,
    Noise,
    SimulatedCluster,
    make_cluster,
    make_facts,
    make_job,
    make_spec,
)

SMALL: dict[str, Value] = {"fuse_grad_size_in_MB": 4.0}
STEADY = Noise(step=0.02, correlation=0.2, arm=0.002, session=0.02, launch=0.003, drift=0.001, spikes=0.0)


def faster_with_small_buckets(changes: Changes) -> float:
    speed = 1.10 if float(changes.get("fuse_grad_size_in_MB", 25.0)) < 8 else 1.0
    speed *= 1.3 if changes.get("fp16_allreduce") else 1.0
    return speed * (1.6 if changes.get("localsgd") else 1.0)


def quiet(seconds: float = 600, trials: int = 8, spec: dict[str, object] | None = None, **fields: object
          ) -> SimulatedCluster:  # fmt: skip
    budget = Budget(max_trials=trials, max_seconds=seconds)
    job = make_job(make_spec(**{"budget": budget, **(spec or {})}))
    values: dict[str, object] = {"job": job, "speed": faster_with_small_buckets, "noise": QUIET}
    return SimulatedCluster(**{**values, **fields})  # type: ignore[arg-type]


def only_buckets(seconds: float = 600, trials: int = 6, **fields: object) -> SimulatedCluster:
    """A job that can vary buckets and threads only: quick to plan."""
    spec: dict[str, object] = {"knobs": ("fuse_grad_size_in_MB", "num_threads")}
    return quiet(seconds, trials, spec, **fields)


@cache
def usual() -> tuple[SimulatedCluster, Advice]:
    """A whole job on a machine with usual noise, where small buckets bring 10 %."""
    sim = quiet(900, 12, noise=STEADY, seed=1)
    advice = sim.run()
    assert isinstance(advice, Advice)
    return sim, advice


def searched(sim: SimulatedCluster) -> set[str]:
    return {b.session_id for b in sim.blocks if sim.trials[b.trial_number].purpose is Purpose.SEARCH}


def confirmed(sim: SimulatedCluster) -> list[str]:
    found = [b.session_id for b in sim.blocks if sim.trials[b.trial_number].purpose is Purpose.CONFIRM]
    return list(dict.fromkeys(found))


def spent_s(sim: SimulatedCluster) -> float:
    spans = [(s.started_at, s.ended_at or sim.now) for s in sim.sessions if s.started_at]
    return sum((end - start).total_seconds() for start, end in spans)


# --- a whole job -------------------------------------------------------------------------------------


def test_smallest_gain_is_told_with_the_races_before_any_strategy_was_measured() -> None:
    sim, _ = usual()
    told = [race.smallest_gain for race in sim.races]
    assert told[0] is None, "of the probe nothing is known yet"
    first = next(place for place, gain in enumerate(told) if gain is not None)
    assert 0 < (told[first] or 0) < 1
    assert set(told[first + 1 :]) == {None}


def test_standing_is_the_searchs_choice_and_then_the_interval_that_the_answer_tells() -> None:
    sim, advice = usual()
    told = [race.standing for race in sim.races]
    assert told[0] is None, "nothing was raced"
    searched = [one for one in told if one is not None and not one.is_confirmed]
    assert searched
    assert all(0.0 < (one.chance or 0.0) <= 1.0 for one in searched)
    last = next(one for one in reversed(told) if one is not None)
    assert last.is_confirmed
    assert last.gain.low < last.gain.ratio < last.gain.high
    assert sim.trials[last.trial_number].changes == advice.changes


def test_a_job_without_sessions_is_launched() -> None:
    sim = quiet(job=make_job(facts=None, baseline={}))

    decision = plan(sim.job, sim.history, START)

    assert isinstance(decision, Launch)
    assert decision.cold == {}
    assert decision.stage is Stage.PROBE


def test_a_whole_job_finds_the_gain_and_says_so() -> None:
    _, advice = usual()

    assert advice.verdict is Verdict.CHANGE
    assert advice.gain is not None
    assert advice.gain.low < 1.10 < advice.gain.high
    assert advice.gain.low > 1.0
    assert float(advice.changes["fuse_grad_size_in_MB"]) < 8
    assert "fuse_grad_size_in_MB" in advice.headline


def test_stages_follow_each_other_and_never_come_back() -> None:
    sim, _ = usual()
    order = list(Stage)

    places = [order.index(decision.stage) for decision in sim.decisions]

    assert places == sorted(places)
    assert {type(d) for d in sim.decisions} == {Launch, Race, EndSession, Finish}


def test_the_probe_is_one_race_of_the_baseline_alone_and_only_it_calibrates() -> None:
    sim, _ = usual()

    first, *rest = sim.races

    assert first.stage is Stage.PROBE
    assert [dict(arm.changes) for arm in first.arms] == [{}]
    assert first.rules.calibrate
    assert first.rules.ceiling
    assert not any(race.rules.calibrate or race.rules.ceiling for race in rest)


def test_every_race_of_the_search_holds_the_baseline_first_and_three_strategies_at_most() -> None:
    sim, _ = usual()

    for race in sim.races_of(Stage.SEARCH):
        assert race.arms[0].purpose is Purpose.BASELINE
        assert 1 <= len(race.arms) - 1 <= 3
        assert len({str(dict(arm.changes)) for arm in race.arms}) == len(race.arms)
    assert max(len(race.arms) for race in sim.races_of(Stage.SEARCH)) == 4


def test_races_are_numbered_through_the_job() -> None:
    sim, _ = usual()

    assert [race.number for race in sim.races] == list(range(1, len(sim.races) + 1))


def test_the_verdict_takes_fresh_launches_of_one_race_of_two_arms_each() -> None:
    sim, advice = usual()

    launches = confirmed(sim)

    assert len(launches) >= 2
    assert not searched(sim) & set(launches)
    for launch in launches:
        winner = [race for race in sim.arms_in(launch) if race[1][0].plan.overrides == advice.changes]
        assert len(winner) == 1
        assert winner[0][0][0].plan.overrides == {}
    assert advice.gain is not None
    assert advice.gain.sessions == len(launches)


def test_only_races_of_the_search_may_end_early_or_give_arms_up() -> None:
    sim, _ = usual()

    for race in sim.races:
        searching = race.stage is Stage.SEARCH
        assert (race.rules.give_up_ratio is not None) == searching
        if race.stage is Stage.CONFIRM:
            assert race.rules.target_error is None


def test_races_hold_whole_periods_of_their_arms() -> None:
    sim, _ = usual()

    assert any(period_of(arm.changes) > 1 for race in sim.races for arm in race.arms)
    for race in sim.races:
        period = max(period_of(arm.changes) for arm in race.arms)
        assert race.rules.min_steps % period == 0
        assert race.rules.segment_steps % period == 0
        assert race.rules.max_steps >= race.rules.min_steps
        assert race.stage is not Stage.SEARCH or period == 1 or race.rules.min_steps < 12 * period


def test_a_strategy_races_again_under_the_trial_that_it_has() -> None:
    sim, _ = usual()

    strategies = [tuple(sorted(t.changes.items())) for t in sim.trials if t.purpose is Purpose.SEARCH]

    assert len(strategies) == len(set(strategies))


def test_higher_rungs_get_their_share_and_never_the_verdict() -> None:
    sim, advice = usual()

    effects = [t.effect for t in sim.trials if t.purpose is Purpose.SEARCH]
    assert 1 <= effects.count(Effect.NUMERIC) <= 4
    assert 1 <= effects.count(Effect.CONVERGENCE) <= 4
    assert {"fp16_allreduce", "localsgd"}.isdisjoint(advice.changes)
    for effect, least in ((Effect.NUMERIC, 1.25), (Effect.CONVERGENCE, 1.5)):
        rung = next(rung for rung in advice.ladder if rung.effect is effect)
        assert rung.gain is not None
        assert rung.gain.ratio > least
        assert rung.caveat


def test_ladder_races_come_behind_the_winners_in_its_launches() -> None:
    sim, advice = usual()

    for launch in confirmed(sim):
        order = [race[1][0].plan.overrides for race in sim.arms_in(launch)]
        assert order[0] == advice.changes
        assert len(order) > 1


def test_the_same_history_gives_the_same_decision() -> None:
    sim = only_buckets(noise=STEADY)

    for _ in range(60):
        again = plan(sim.job, sim.history, sim.now)
        assert sim.step() == again
        if isinstance(again, Finish):
            return
    raise AssertionError("the job did not end")


def test_quick_suggestions_carry_a_job_to_its_verdict_too() -> None:
    advice = only_buckets(quick=True).run()

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.CHANGE


def test_a_session_that_is_not_running_has_nothing_decided() -> None:
    sim = quiet()
    sim.step()
    sim.sessions[-1] = sim.sessions[-1].model_copy(update={"state": SessionState.ENDING})

    assert isinstance(plan(sim.job, sim.history, sim.now), Wait)


# --- time --------------------------------------------------------------------------------------------


@cache
def limited(
    max_seconds: float, gain: float = 0.10, noise: float = 0.02
) -> tuple[SimulatedCluster, Advice | Fail]:
    sim = only_buckets(
        max_seconds,
        200,
        speed=lambda c: 1.0 + gain if c.get("fuse_grad_size_in_MB") == 4.0 else 1.0,
        noise=Noise(
            step=noise, correlation=0.2, arm=0.002, session=0.02, launch=0.003, drift=0.001, spikes=0.0
        ),
    )
    return sim, sim.run()


@pytest.mark.parametrize("max_seconds", [20, 45, 90, 180])
def test_the_time_budget_is_a_hard_stop(max_seconds: float) -> None:
    sim, advice = limited(max_seconds)

    assert spent_s(sim) <= max_seconds * 1.05 + 2
    assert isinstance(advice, Advice)
    if advice.verdict is Verdict.CHANGE:
        assert advice.gain is not None
        assert advice.gain.sessions >= 2


@pytest.mark.parametrize(("max_seconds", "gain"), [(60, 0.10), (120, 0.02), (180, 0.10)])
def test_a_job_ends_only_when_it_is_decided_or_its_budget_is_spent(max_seconds: float, gain: float) -> None:
    sim, advice = limited(max_seconds, gain, 0.05)

    assert isinstance(advice, Advice)
    if advice.verdict is Verdict.UNDECIDED:
        record = Record(sim.job, sim.history, sim.now)
        assert record.remaining_s < plan_verdict(record).launch_s


@pytest.mark.parametrize("max_seconds", [90, 180])
def test_the_verdicts_time_is_reserved_before_the_search_gets_any(max_seconds: float) -> None:
    sim, _ = limited(max_seconds)

    begin = next(i for i, d in enumerate(sim.decisions) if isinstance(d, Race) and d.stage is Stage.CONFIRM)
    number = sim.decisions[begin].number  # type: ignore[union-attr]
    at = next(b.issued_at for b in sim.blocks if b.race == number)
    blocks = tuple(b for b in sim.blocks if b.issued_at < at)
    sessions = tuple(s for s in sim.sessions if s.created_at < at)
    record = Record(sim.job, sim.history.model_copy(update={"blocks": blocks, "sessions": sessions}), at)
    reserve = plan_verdict(record)
    assert reserve.plan.launches >= 2
    assert record.remaining_s + record.startup_s >= 0.9 * reserve.total_s


def test_a_usual_budget_leaves_time_to_confirm() -> None:
    _, advice = limited(180)

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.CHANGE


def test_a_job_fails_when_the_budget_does_not_hold_the_baseline() -> None:
    decision = quiet(seconds=1).run()

    assert isinstance(decision, Fail)
    assert "give the job more time (--minutes)" in decision.because
    assert "Not even the script as it stands was measured" in decision.because


def test_a_decided_job_leaves_the_rest_of_its_budget_unspent() -> None:
    sim, advice = usual()

    assert advice.verdict is Verdict.CHANGE
    assert spent_s(sim) < 600


# --- nothing to find ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_equal_strategies_are_never_a_change(seed: int) -> None:
    sim = only_buckets(200, noise=STEADY, speed=lambda _: 1.0, seed=seed)

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.verdict in {Verdict.KEEP, Verdict.UNDECIDED}
    assert advice.changes == {}


def test_the_search_stops_when_nothing_improves() -> None:
    sim = only_buckets(100_000, 200, speed=lambda _: 1.0)

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.KEEP
    assert sum(t.purpose is Purpose.SEARCH for t in sim.trials) < 40


def test_nothing_to_search_ends_with_keep_and_the_reasons() -> None:
    facts = make_facts(nodes=1, world_size=2)
    computing = tuple(name for name, knob in CATALOGUE.items() if knob.part is not Part.COMMUNICATION)
    spec = make_spec(nodes=1, allow=Effect.CONVERGENCE, freeze=computing)
    job = make_job(spec, facts=facts, cluster=make_cluster(cpus=1, nodes=1))
    sim = quiet(job=job, exposed=0.005)

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.KEEP
    reasons = {d.knob: d.reason for d in advice.dropped}
    assert "could not bring 2 %" in reasons["fuse_grad_size_in_MB"]
    assert len(sim.sessions) == 1


def test_a_search_whose_every_strategy_was_given_up_goes_on_to_others() -> None:
    sim = only_buckets(400, 12, speed=lambda changes: 0.4 if changes else 1.0)

    advice = sim.run()

    assert isinstance(advice, Advice)
    outcomes = [t.outcome for t in sim.trials if t.purpose is Purpose.SEARCH]
    assert outcomes.count(Outcome.PRUNED) == len(outcomes) > 3
    assert advice.verdict is Verdict.KEEP
    assert advice.changes == {}


def test_the_one_strategy_that_is_not_slow_is_found_among_those_that_are() -> None:
    def speed(changes: Changes) -> float:
        size = float(changes.get("fuse_grad_size_in_MB", 25.0))
        return 1.0 if not changes else 1.2 if 8 < size < 25 and "num_threads" not in changes else 0.4

    sim = only_buckets(900, 16, speed=speed)

    advice = sim.run()

    assert isinstance(advice, Advice)
    first = sim.races_of(Stage.SEARCH)[0]
    numbers = {t.changes == dict(arm.changes) and t.outcome for t in sim.trials for arm in first.arms[1:]}
    assert numbers - {False} == {Outcome.PRUNED}, "the first race is to hold slow strategies only"
    assert advice.verdict is Verdict.CHANGE
    assert 8 < float(advice.changes["fuse_grad_size_in_MB"]) < 25


def test_strategies_that_are_the_baseline_in_force_are_never_advised() -> None:
    def alter(changes: Changes, _: Session, result: BlockResult) -> BlockResult:
        same = dict.fromkeys(changes, "One bucket holds all gradients, as in the baseline.")
        return replace(result, no_effect=same)

    sim = only_buckets(300, speed=lambda changes: 1.3 if changes else 1.0, alter=alter)

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.verdict is not Verdict.CHANGE
    assert advice.changes == {}
    assert {t.outcome for t in sim.trials if t.purpose is Purpose.SEARCH} == {Outcome.INEFFECTIVE}
    assert not confirmed(sim)


def test_arms_that_are_one_plan_in_force_are_raced_once() -> None:
    def alter(changes: Changes, _: Session, result: BlockResult) -> BlockResult:
        if changes.get("num_threads") == 2 and len(changes) == 2:
            return replace(result, same_as="b2", step_time_s=(), segments=(), steps=0)
        return result

    advice = only_buckets(alter=alter).run()

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.CHANGE
    assert "fuse_grad_size_in_MB" in advice.changes
    assert "num_threads" not in advice.changes


def test_a_value_on_which_nothing_acts_is_not_taken_again_and_the_rest_of_its_strategy_counts() -> None:
    refused = ("num_iteration_per_drop_scope", 30)

    def alter(changes: Changes, _: Session, result: BlockResult) -> BlockResult:
        if refused not in changes.items():
            return result
        consumed = {name: told for name, told in result.consumed.items() if name != refused[0]}
        return replace(result, consumed=consumed, not_consumed={refused[0]: "Too little memory is left."})

    sim = quiet(900, 12, {"allow": Effect.NUMERIC}, alter=alter)
    while len(sim.races) < 4:
        sim.step()

    arms = [[arm.changes for arm in race.arms] for race in sim.races]
    first = next(number for number, race in enumerate(arms) if any(refused in c.items() for c in race))
    assert not any(refused in c.items() for race in arms[first + 1 :] for c in race)
    together = next(c for c in arms[first] if refused in c.items())
    rest = Changes({n: v for n, v in together.items() if n != refused[0]})
    assert rest not in arms[first + 1], "it is measured already"
    [trial] = [trial for trial in sim.trials if trial.changes == rest]
    assert trial.outcome is Outcome.FINISHED
    later = [arm.because for race in sim.races[first + 1 :] for arm in race.arms]
    assert not any(
        refused[0] in because for because in later if because.startswith("Rules of thumb together")
    )


# --- going on ----------------------------------------------------------------------------------------


@cache
def continued() -> tuple[SimulatedCluster, Advice, Advice, int]:
    """A job whose first budget was too small for its noise, and the same with more."""
    noise = Noise(step=0.12, correlation=0.3, arm=0.002, session=0.02, launch=0.003, drift=0.001, spikes=0.02)
    sim = only_buckets(
        75, 3, noise=noise, seed=2, speed=lambda c: 1.06 if c.get("fuse_grad_size_in_MB") else 1.0
    )
    first = sim.run()
    assert isinstance(first, Advice)
    ended = len(sim.sessions)
    sim.resume(600)
    second = sim.run()
    assert isinstance(second, Advice)
    return sim, first, second, ended


def test_an_undecided_job_that_is_continued_goes_on_with_the_strategy_that_it_was_confirming() -> None:
    _, first, second, _ = continued()

    assert first.verdict is Verdict.UNDECIDED
    assert second.verdict is not Verdict.UNDECIDED
    assert second.candidate == first.candidate != {}


def test_a_continued_job_keeps_its_launches_and_adds_to_them() -> None:
    sim, first, second, ended = continued()

    assert first.gain is not None
    assert second.gain is not None
    assert second.gain.sessions > first.gain.sessions >= 1
    later = [b for b in sim.blocks if b.session_id in {s.id for s in sim.sessions[ended:]}]
    assert second.gain.sessions == len(confirmed(sim))
    assert later


def test_a_continued_job_that_was_decided_stays_decided_without_another_launch_of_the_verdict() -> None:
    sim, advice = usual()
    again = SimulatedCluster(sim.job, speed=sim.speed, noise=sim.noise, seed=sim.seed)
    again.trials, again.blocks, again.sessions = list(sim.trials), list(sim.blocks), list(sim.sessions)
    again.now = sim.now
    again.resume(300)

    second = again.run()

    assert isinstance(second, Advice)
    assert (second.verdict, second.changes) == (advice.verdict, advice.changes)


# --- earlier jobs ------------------------------------------------------------------------------------


def an_earlier_job(changes: dict[str, Value], likeness: float = 1.0) -> tuple[EarlierJob, ...]:
    because = "the same workload on the same cluster"
    return (EarlierJob(job_id="old", changes=changes, ratio=1.1, likeness=likeness, because=because),)


def test_what_an_identical_job_confirmed_is_in_the_first_race_and_ends_the_search() -> None:
    sim = only_buckets(900, 24, noise=STEADY, earlier=an_earlier_job(SMALL))

    advice = sim.run()

    assert isinstance(advice, Advice)
    (race,) = sim.races_of(Stage.SEARCH)
    assert SMALL in [dict(arm.changes) for arm in race.arms]
    assert advice.verdict is Verdict.CHANGE
    assert float(advice.changes["fuse_grad_size_in_MB"]) < 8
    assert "Job old searched this workload" in advice.search_ended_because
    assert spent_s(sim) < 250


def test_what_an_alike_job_confirmed_is_tried_first_and_ends_nothing() -> None:
    sim = only_buckets(900, 12, noise=STEADY, earlier=an_earlier_job(SMALL, likeness=0.8))

    sim.run()

    first, *rest = sim.races_of(Stage.SEARCH)
    assert SMALL in [dict(arm.changes) for arm in first.arms]
    assert rest


def test_what_an_identical_job_confirmed_but_brings_nothing_here_ends_nothing() -> None:
    sim = only_buckets(900, 12, earlier=an_earlier_job({"num_threads": 2}))

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert len(sim.races_of(Stage.SEARCH)) > 1
    assert float(advice.changes["fuse_grad_size_in_MB"]) < 8


# --- failures ----------------------------------------------------------------------------------------


def faulty(fault: Callable[[int, int, Changes], Outcome | None], **fields: object) -> SimulatedCluster:
    return only_buckets(1200, 8, session_fault=fault, **fields)


def test_suspects_of_a_fatal_race_race_alone_and_only_the_culprit_is_given_up() -> None:
    def fault(_session: int, _ordinal: int, changes: Changes) -> Outcome | None:
        return Outcome.OUT_OF_MEMORY if changes.get("num_threads") == 2 else None

    sim = faulty(fault)

    advice = sim.run()

    assert isinstance(advice, Advice)
    fatal = [race for race in sim.races if any(a.changes.get("num_threads") == 2 for a in race.arms)]
    assert len(fatal[0].arms) > 2
    together = {str(dict(arm.changes)) for arm in fatal[0].arms[1:]}
    assert not sim.races[2].arms[-1].changes, "the script alone gets past the step"
    alone = {str(dict(r.arms[1].changes)) for r in sim.races[3 : 3 + len(together)] if len(r.arms) == 2}
    assert alone == together
    for trial in sim.trials:
        culprit = trial.changes.get("num_threads") == 2
        assert (trial.outcome is Outcome.OUT_OF_MEMORY) == culprit
    assert advice.verdict is Verdict.CHANGE
    assert "num_threads" not in advice.changes


def test_a_strategy_that_fails_in_the_verdict_leaves_its_place_to_the_next() -> None:
    doomed: list[Changes] = []

    def fault(session: int, _ordinal: int, changes: Changes) -> Outcome | None:
        if session > 0 and changes and not doomed:
            doomed.append(changes)
        return Outcome.HUNG if session > 0 and changes in doomed else None

    sim = faulty(fault)

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.CHANGE
    assert advice.changes not in doomed


def test_a_lost_session_is_launched_again_and_its_race_run_as_a_whole() -> None:
    sim = faulty(lambda session, _ordinal, _changes: Outcome.LOST if session == 1 else None)

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.CHANGE
    assert sim.sessions[1].state is SessionState.LOST
    void = [b for b in sim.blocks if b.state is BlockState.VOID]
    assert {b.session_id for b in void} == {"s1"}
    assert {t.outcome for t in sim.trials if t.purpose is Purpose.SEARCH} == {Outcome.FINISHED}


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


def test_a_script_too_short_for_the_probe_ends_the_job_with_its_steps() -> None:
    sim = quiet(steps_per_session=11)

    decision = sim.run()

    assert isinstance(decision, Fail)
    assert "only 11 steps" in decision.because
    assert len(sim.sessions) == 2


@pytest.mark.parametrize("steps", [90, 140, 250])
def test_a_script_that_ends_by_itself_races_as_many_arms_as_it_has_steps_for(steps: int) -> None:
    sim = only_buckets(3000, 5, steps_per_session=steps)

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.CHANGE
    assert advice.gain is not None
    assert advice.gain.sessions >= 2
    seen = next(i for i, s in enumerate(sim.sessions) if s.total_steps)
    later = {s.id for s in sim.sessions[seen + 1 :]}
    void = [b for b in sim.blocks if b.session_id in later and b.state is BlockState.VOID]
    assert len(void) <= 4


def test_an_arm_that_needs_a_relaunch_is_raced_in_a_launch_of_its_own() -> None:
    def alter(changes: Changes, session: Session, result: BlockResult) -> BlockResult:
        if not changes.get("fuse_grad_size_in_MB") or session.cold:
            return result
        update = {"relaunch_needed": "The reducer could not be rebuilt.", "step_time_s": (), "segments": ()}
        return replace(result, **update)

    sim = quiet(3000, 3, {"knobs": ("fuse_grad_size_in_MB",)}, alter=alter)

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.CHANGE
    timed = [b for b in sim.blocks if b.plan.overrides and b.result and not b.result.relaunch_needed]
    sessions = {s.id: s for s in sim.sessions}
    assert timed
    assert all(sessions[b.session_id].cold == b.plan.overrides for b in timed)


def test_cold_knobs_are_compared_across_fresh_sessions_in_alternating_order() -> None:
    spec = make_spec(
        knobs=("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"), budget=Budget(max_trials=3, max_seconds=3000)
    )
    sim = SimulatedCluster(
        make_job(spec, facts=make_facts(backend="nccl")),
        speed=lambda changes: 1.2 if changes.get("NCCL_SOCKET_NTHREADS") == 4 else 1.0,
        noise=STEADY,
    )

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.CHANGE
    assert advice.changes["NCCL_SOCKET_NTHREADS"] == 4
    for session in sim.sessions:
        assert {str(b.plan.overrides) for b in sim.blocks if b.session_id == session.id} == {
            str(session.cold)
        }
    for race in sim.races:
        is_new = race.stage is Stage.SEARCH and bool(race.arms[0].changes)
        assert (race.rules.least_samples_per_s is not None) == is_new
    numbers = {t.number for t in sim.trials if t.purpose is Purpose.CONFIRM}
    pairs: dict[int, list[bool]] = {}
    for block in sim.blocks:
        if block.trial_number in numbers:
            pairs.setdefault(block.race or 0, []).append(bool(block.plan.overrides))
    assert len(pairs) >= 2
    assert all(sorted(pair) == [False, True] for pair in pairs.values())
    assert len({tuple(pair) for pair in pairs.values()}) == 2


def test_a_launch_for_costly_settings_measures_them_whatever_the_sampler_would_rather_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = Changes({"NCCL_BUFFSIZE": 2**20})

    def suggest(*_: object, price_s: Callable[[Changes], float], **__: object) -> list[Suggestion]:
        runs_cold = price_s(Changes()) > 3.0
        return [Suggestion(other, "It pays only now.", 0.02 if runs_cold else 0.0, repeat=not runs_cold)]

    monkeypatch.setattr(search, "suggest", suggest)
    facts = make_facts(backend="nccl", device=DeviceKind.CUDA, world_size=16, local_world_size=8)
    spec = make_spec(budget=Budget(max_trials=14, max_seconds=900))
    sim = SimulatedCluster(job=make_job(spec, facts=facts), noise=QUIET)
    while len(sim.sessions) < 3 and sim.settled is None:
        sim.step()

    costly = [session for session in sim.sessions[:2] if session.cold]
    assert costly
    assert all(any(block.session_id == session.id for block in sim.blocks) for session in costly)


def test_a_launch_that_dies_of_its_cold_knobs_ends_that_strategy_only() -> None:
    sim = quiet(1200, job=make_job(
        make_spec(budget=Budget(max_trials=8, max_seconds=1200)), facts=make_facts(backend="nccl")
    ), launch_fault=lambda _index, cold: Outcome.CRASHED if cold else None)  # fmt: skip

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.CHANGE
    assert sum(bool(s.cold) for s in sim.sessions) == 1


def test_a_value_of_the_users_own_that_its_launch_died_of_is_told() -> None:
    workload = Workload(command=("torchrun", "train.py", "--engine", "a"), own=("--engine=a,b:exact",))
    sim = only_buckets(
        1200,
        job=make_job(make_spec(workload=workload, knobs=("num_threads",), budget=Budget(max_seconds=1200))),
        launch_fault=lambda _index, cold: Outcome.CRASHED if cold.get("engine") == "b" else None,
    )

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert "engine b was not measured. It died at its launch." in advice.watch


@pytest.mark.parametrize(
    ("fits", "best"), [(8, {"micro": 8, "accumulate": 1}), (4, {"micro": 4, "accumulate": 2})]
)
def test_values_that_the_owner_named_are_raced_before_the_sampler_and_from_the_end_that_runs(
    fits: int, best: dict[str, int]
) -> None:
    workload = Workload(
        command=("torchrun", "train.py", "--micro", "2", "--accumulate", "4"),
        own=("--micro=1,2,4,8:exact", "--accumulate=1,2,4,8:exact"),
        require=("micro * accumulate == 8",),
    )
    sim = SimulatedCluster(
        make_job(make_spec(workload=workload, budget=Budget(max_seconds=150))),
        speed=lambda changes: 32.0 / (changes.get("accumulate", 4) * (6 + changes.get("micro", 2))),
        noise=QUIET,
        launch_fault=lambda _, cold: Outcome.OUT_OF_MEMORY if cold.get("micro", 2) > fits else None,
    )

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.CHANGE
    assert {name: advice.changes.get(name) for name in best} == best


def test_a_race_whose_ranks_drifted_apart_counts_for_nothing() -> None:
    def alter(changes: Changes, session: Session, result: BlockResult) -> BlockResult:
        drifted = "Rank 1's parameters differ." if session.id == "s1" else ""
        return replace(result, drifted=drifted)

    sim = only_buckets(900, alter=alter)

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.CHANGE
    assert advice.gain is not None
    assert "s1" in confirmed(sim)
    assert advice.gain.sessions == len(confirmed(sim)) - 1


# --- verifying ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gain", "verdict"), [(1.10, Verdict.CHANGE), (0.97, Verdict.KEEP)])
def test_a_job_that_verifies_a_strategy_races_it_and_nothing_else(gain: float, verdict: Verdict) -> None:
    sim = quiet(900, spec={"verify": SMALL}, speed=lambda changes: gain if changes else 1.0)
    advice = sim.run()

    assert isinstance(advice, Advice)
    assert (advice.verdict, advice.candidate) == (verdict, SMALL)
    assert advice.gain is not None
    assert advice.gain.low < gain < advice.gain.high
    assert {t.purpose for t in sim.trials} == {Purpose.BASELINE, Purpose.CONFIRM}
    assert "search" not in advice.headline
    assert "tried" not in advice.headline


@pytest.mark.parametrize(
    ("seconds", "startup_s", "stage"), [(180, 60.0, Stage.CONFIRM), (240, 118.0, Stage.SEARCH)]
)
def test_what_is_too_little_for_another_launch_is_spent_in_the_live_one(
    seconds: float, startup_s: float, stage: Stage
) -> None:
    sim = quiet(seconds, startup_s=startup_s, noise=STEADY, seed=2)
    advice = sim.run()

    assert isinstance(advice, Advice)
    assert spent_s(sim) > 0.9 * seconds
    last = sim.races[-1]
    assert (last.stage, "too few for another launch" in last.because) == (stage, True)
    assert len({b.session_id for b in sim.blocks if b.race in {last.number, last.number - 1}}) == 1
    if stage is Stage.SEARCH:
        assert "another launch takes 1" in advice.headline
        assert "s: 118 s until it trains, and then its race)" in advice.headline


def test_buckets_of_a_script_that_sums_in_sixteen_bits_are_verified_as_what_changes_rounding() -> None:
    facts = make_facts(gradient_dtype="bfloat16")
    spec = make_spec(budget=Budget(max_trials=8, max_seconds=900), verify=SMALL)
    sim = quiet(job=make_job(spec, facts=facts), speed=lambda changes: 1.1 if changes else 1.0)
    advice = sim.run()

    assert isinstance(advice, Advice)
    assert (advice.verdict, advice.changes) == (Verdict.CHANGE, SMALL)
    assert {t.effect for t in sim.trials if t.changes} == {Effect.NUMERIC}
    assert advice.catalogue.effect_of(advice.changes) is Effect.NUMERIC


def test_a_strategy_to_verify_that_crashes_is_said_to_have_crashed() -> None:
    def crash(_session: int, _race: int, changes: Changes) -> Outcome | None:
        return Outcome.CRASHED if changes else None

    sim = quiet(900, spec={"verify": SMALL}, session_fault=crash)
    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.headline == "Not decided: fuse_grad_size_in_MB 4 crashed."
    assert advice.what_to_do == "Change nothing."
    assert len(sim.sessions) == 2, "what crashed is launched again"


def test_what_is_exactly_alike_is_not_decided_where_any_gain_is_asked_for() -> None:
    still = Noise(step=0.0, correlation=0.0, arm=0.0, session=0.0, launch=0.0, drift=0.0, spikes=0.0)
    sim = quiet(300, spec={"verify": SMALL, "min_gain": 0.0}, speed=lambda _: 1.0, noise=still)
    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.UNDECIDED
    assert advice.gain is not None
    assert advice.gain.ratio == 1.0


def test_a_strategy_above_the_allowed_rung_is_not_verified() -> None:
    with pytest.raises(ValueError, match="allow numeric"):
        make_spec(verify={"fp16_allreduce": True})


def test_a_strategy_to_verify_whose_launches_never_begin_is_launched_twice() -> None:
    workload = Workload(command=("torchrun", "train.py", "--engine", "a"), own=("--engine=a,b:exact",))
    sim = quiet(
        900,
        spec={"workload": workload, "verify": {"engine": "b"}},
        launch_fault=lambda _index, cold: Outcome.CRASHED if cold else None,
    )

    advice = sim.run()

    assert isinstance(advice, Advice)
    assert advice.verdict is Verdict.UNDECIDED
    assert advice.headline.startswith("Not decided: engine b crashed at its launch")
    assert advice.what_to_do == "Change nothing."
    assert sum(bool(session.cold) for session in sim.sessions) == 2
