"""A strategy that somebody wants measured again: it races next, once, and changes no trial but its own."""

from datetime import timedelta

from advisor.protocol.asked.jobs import Budget, Stage
from advisor.protocol.measured.trials import BlockState, Outcome, Purpose, Trial
from advisor.tuning.decisions import Race
from advisor.tuning.history.budget import limit_new_s
from advisor.tuning.history.record import Record
from tests.unit.tuning.simulated_cluster import QUIET, SimulatedCluster, make_job, make_spec


def search_a_little() -> tuple[SimulatedCluster, Trial]:
    """A job in the middle of its search, and a trial that its search has measured."""
    budget = Budget(max_trials=8, max_seconds=600.0)
    knobs = ("fuse_grad_size_in_MB", "num_threads")
    sim = SimulatedCluster(job=make_job(make_spec(budget=budget, knobs=knobs)), noise=QUIET)
    while not any(t.outcome is Outcome.FINISHED for t in sim.trials):
        sim.step()
    return sim, next(t for t in sim.trials if t.outcome is Outcome.FINISHED)


def ask_again(sim: SimulatedCluster, trial: Trial) -> None:
    sim.now += timedelta(seconds=1)
    sim.trials[trial.number] = trial.model_copy(update={"asked_again_at": sim.now})


def count_blocks(sim: SimulatedCluster, trial: Trial) -> int:
    return sum(block.trial_number == trial.number for block in sim.blocks)


def test_it_races_the_baseline_next_and_once() -> None:
    sim, trial = search_a_little()
    blocks, trials = count_blocks(sim, trial), len(sim.trials)
    ask_again(sim, trial)
    decision = sim.step()
    assert isinstance(decision, Race)
    assert decision.stage is Stage.SEARCH
    assert [arm.changes for arm in decision.arms] == [{}, trial.changes]
    assert "somebody asked for it" in decision.because
    assert (count_blocks(sim, trial), len(sim.trials)) == (blocks + 1, trials)
    assert not sim.history.awaits_repeat(sim.trials[trial.number])
    following = sim.step()
    assert not isinstance(following, Race) or "somebody asked" not in following.because


def test_job_goes_on_to_a_verdict_from_races_of_its_own() -> None:
    sim, trial = search_a_little()
    ask_again(sim, trial)
    sim.run()
    verdict = [t for t in sim.trials if t.purpose is Purpose.CONFIRM]
    assert verdict
    repeated = [race for race in sim.races if "somebody asked for it" in race.because]
    assert len(repeated) == 1
    assert repeated[0].stage is Stage.SEARCH


def test_race_that_was_lost_is_repeated_and_given_up_after_three() -> None:
    sim, trial = search_a_little()
    ask_again(sim, trial)
    asked = sim.trials[trial.number]
    for lost in range(3):
        assert sim.history.awaits_repeat(asked), lost
        block = next(b for b in sim.blocks if b.trial_number == trial.number)
        sim.blocks.append(block.model_copy(update={"state": BlockState.VOID, "issued_at": sim.now}))
    assert not sim.history.awaits_repeat(asked)


def test_race_that_was_under_way_when_it_was_asked_for_does_not_count() -> None:
    sim, trial = search_a_little()
    earlier = [b.issued_at for b in sim.blocks if b.trial_number == trial.number]
    ask_again(sim, trial)
    assert max(earlier) < sim.now
    assert sim.history.awaits_repeat(sim.trials[trial.number])


def test_search_whose_time_is_spent_does_not_take_the_verdicts() -> None:
    sim, trial = search_a_little()
    ask_again(sim, trial)
    record = Record(sim.job, sim.history, sim.now)
    sim.now += timedelta(seconds=limit_new_s(record) - record.spent_s)
    assert Record(sim.job, sim.history, sim.now).remaining_s > 0
    sim.run()
    assert sim.races_of(Stage.CONFIRM)
    assert not any("somebody asked for it" in race.because for race in sim.races)
