"""Races as the services keep them: accepted as a whole or not at all, exactly once, and blamed on nobody by guess."""

from dataclasses import replace
from typing import Any

import pytest

from advisor.errors import InvalidResult
from advisor.protocol.base import Value
from advisor.protocol.gains import say_smallest_gain
from advisor.protocol.measured.messages import Assignment, RaceReport
from advisor.protocol.measured.trials import BlockState, Outcome, RacePlan, TrialState
from advisor.protocol.views import EventFacts
from advisor.services import jobs
from advisor.services.measuring import races
from advisor.services.measuring.races import Accepted, Quarantined
from advisor.tuning.decisions import Decision, Race
from tests.unit.services.scripted_tuning import ScriptedTuning, make_result
from tests.unit.services.world import World

SIZES: list[dict[str, Value]] = [{"fuse_grad_size_in_MB": float(size)} for size in (1, 2, 4)]


def begin_race(world: World, beside: int = 2) -> tuple[str, str, Assignment, RacePlan]:
    """A job that has measured its baseline, and its first race of strategies."""
    world.tuning = ScriptedTuning(SIZES, beside)
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    world.measure(place, agent)
    return job.id, agent, place, world.begin(place, agent)


def states(world: World, job_id: str) -> list[BlockState]:
    return [block.state for block in world.history(job_id).blocks]


def send(world: World, place: Assignment, agent: str, race_id: str, report: RaceReport) -> object:
    return races.report_race(
        world.database, world.tuning, place.session_id, race_id, agent, report, world.now
    )


class AnnouncingTuning(ScriptedTuning):
    """A planner that knows what the budget can find."""

    def plan(self, *asked: Any, **how: Any) -> Decision:
        """Return the same, with the smallest gain."""
        decision = super().plan(*asked, **how)
        return replace(decision, smallest_gain=0.021) if isinstance(decision, Race) else decision


def test_smallest_gain_that_the_budget_can_find_is_told_as_data_too(world: World) -> None:
    world.tuning = AnnouncingTuning()
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    world.begin(place, agent)
    with world.database.read() as work:
        told = [event for event in jobs.list_events(work, job.id, 0, 100) if event.facts is not None]
        assert work.events.facts_of(job.id) == [EventFacts(smallest_gain=0.021)]
    assert [(event.facts, event.sentence) for event in told] == [
        (EventFacts(smallest_gain=0.021), say_smallest_gain(0.021))
    ]


def test_race_numbers_its_arms_and_shares_rules_when_it_is_begun(world: World) -> None:
    job_id, _, _, race = begin_race(world)
    assert [arm.overrides for arm in race.arms] == [{}, SIZES[0], SIZES[1]]
    assert len({arm.rules for arm in race.arms}) == 1
    probe, *arms = world.history(job_id).blocks
    assert [(b.race, b.arm, b.ordinal, b.id) for b in arms] == [
        (2, place_, 1 + place_, race.arms[place_].block_id) for place_ in range(3)
    ]
    assert (probe.race, probe.arm) == (1, 0)
    assert race.race_id == arms[0].id


def test_next_gives_the_same_race_until_it_is_reported(world: World) -> None:
    _, agent, place, race = begin_race(world)
    assert world.begin(place, agent) == race
    world.report(place, agent, race)
    assert [arm.overrides for arm in world.begin(place, agent).arms] == [{}, SIZES[2]]


def test_all_arms_are_accepted_together_and_held_against_the_first(world: World) -> None:
    job_id, agent, place, race = begin_race(world)
    answer = world.report(place, agent, race, [make_result(t) for t in (0.1, 0.2, 0.05)])
    assert isinstance(answer, Accepted)
    assert answer.reply.race_id == race.race_id
    blocks = world.history(job_id).blocks[1:]
    assert {block.state for block in blocks} == {BlockState.DONE}
    assert [block.result.step_time_s[0] for block in blocks if block.result] == [0.1, 0.2, 0.05]
    outcomes = [trial.outcome for trial in world.history(job_id).trials]
    assert outcomes == [None, Outcome.FINISHED, Outcome.FINISHED]


@pytest.mark.parametrize("kept", [1, 2])
def test_report_that_lacks_an_arm_counts_for_none(world: World, kept: int) -> None:
    job_id, agent, place, race = begin_race(world)
    some = {arm.block_id: make_result() for arm in race.arms[:kept]}
    refused = send(world, place, agent, race.race_id, RaceReport(generation=1, results=some))
    assert isinstance(refused, Quarantined)
    assert "each arm" in refused.sentence
    assert states(world, job_id)[1:] == [BlockState.ISSUED] * 3
    assert isinstance(world.report(place, agent, race), Accepted)


def test_report_of_an_arm_of_another_race_counts_for_none(world: World) -> None:
    job_id, agent, place, race = begin_race(world)
    results = {arm.block_id: make_result() for arm in race.arms} | {"elsewhere": make_result()}
    assert isinstance(
        send(world, place, agent, race.race_id, RaceReport(generation=1, results=results)), Quarantined
    )
    assert states(world, job_id)[1:] == [BlockState.ISSUED] * 3


def test_race_named_by_another_arm_than_its_first_is_unknown(world: World) -> None:
    _, agent, place, race = begin_race(world)
    results = {arm.block_id: make_result() for arm in race.arms}
    answer = send(world, place, agent, race.arms[1].block_id, RaceReport(generation=1, results=results))
    assert isinstance(answer, Quarantined)
    assert not answer.differs


def test_one_implausible_arm_refuses_the_whole_report_and_keeps_nothing(world: World) -> None:
    job_id, agent, place, race = begin_race(world)
    results = [make_result(), make_result(-1.0), make_result()]
    with pytest.raises(InvalidResult):
        world.report(place, agent, race, results)
    with pytest.raises(InvalidResult, match="segments"):
        world.report(place, agent, race, [make_result(), make_result(segments=(2, 2)), make_result()])
    with world.database.read() as work:
        assert all(work.blocks.quarantined(arm.block_id) == [] for arm in race.arms)
    assert states(world, job_id)[1:] == [BlockState.ISSUED] * 3


def test_repeated_report_gets_the_same_answer_and_another_one_is_kept_apart(world: World) -> None:
    job_id, agent, place, race = begin_race(world)
    results = [make_result(0.1), make_result(0.2), make_result(0.3)]
    answer = world.report(place, agent, race, results)
    assert world.report(place, agent, race, results) == answer
    other = world.report(place, agent, race, [*results[:2], make_result(0.4)])
    assert isinstance(other, Quarantined)
    assert other.differs
    with world.database.read() as work:
        assert [len(work.blocks.quarantined(arm.block_id)) for arm in race.arms] == [1, 1, 1]
    last = world.history(job_id).blocks[-1].result
    assert last is not None
    assert last.step_time_s[0] == 0.3


def test_session_that_dies_in_a_race_of_several_strategies_blames_nobody(world: World) -> None:
    job_id, agent, place, _ = begin_race(world)
    world.end(place, agent, Outcome.OUT_OF_MEMORY, "A rank ran out of memory.")
    history = world.history(job_id)
    assert states(world, job_id)[1:] == [BlockState.VOID] * 3
    assert [trial.state for trial in history.trials] == [TrialState.OPEN] * 3
    assert history.sessions[0].outcome is Outcome.OUT_OF_MEMORY


def test_strategy_that_raced_the_baseline_alone_is_to_blame_when_its_session_dies(world: World) -> None:
    job_id, agent, place, race = begin_race(world, beside=1)
    assert len(race.arms) == 2
    world.end(place, agent, Outcome.CRASHED, "A rank crashed.")
    baseline, strategy = world.history(job_id).trials
    assert (baseline.outcome, strategy.outcome) == (None, Outcome.CRASHED)
    assert strategy.outcome_reason == "A rank crashed."
    assert states(world, job_id)[1:] == [BlockState.VOID] * 2


def test_lost_session_blames_nobody_however_few_raced(world: World) -> None:
    job_id, agent, place, _ = begin_race(world, beside=1)
    world.end(place, agent, Outcome.LOST, "The agent lost the server.")
    assert [trial.state for trial in world.history(job_id).trials] == [TrialState.OPEN] * 2


def test_arm_that_fails_is_closed_and_the_others_of_its_race_count(world: World) -> None:
    job_id, agent, place, race = begin_race(world)
    world.report(place, agent, race, [make_result(), make_result(diverged=True), make_result()])
    outcomes = [trial.outcome for trial in world.history(job_id).trials[1:]]
    assert outcomes == [Outcome.DIVERGED, Outcome.FINISHED]


def test_finished_trial_races_again_and_can_fail_then(world: World) -> None:
    world.tuning = ScriptedTuning([SIZES[0], SIZES[0]], 1)
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    for _ in range(2):
        world.measure(place, agent)
    assert world.history(job.id).trials[1].outcome is Outcome.FINISHED
    again = world.begin(place, agent)
    assert again.arms[1].trial_number == 1
    world.report(place, agent, again, [make_result(), make_result(diverged=True)])
    trial = world.history(job.id).trials[1]
    assert (trial.state, trial.outcome) == (TrialState.CLOSED, Outcome.DIVERGED)
    assert [block.race for block in world.history(job.id).blocks if block.trial_number == 1] == [2, 3]


def test_trial_that_finished_again_keeps_its_first_end(world: World) -> None:
    world.tuning = ScriptedTuning([SIZES[0], SIZES[0]], 1)
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    for _ in range(2):
        world.measure(place, agent)
    first = world.history(job.id).trials[1].finished_at
    world.wait(5)
    world.measure(place, agent)
    assert world.history(job.id).trials[1].finished_at == first


def test_race_whose_ranks_drifted_apart_is_accepted_and_told(world: World) -> None:
    job_id, agent, place, race = begin_race(world)
    drifted = make_result(drifted="Rank 1's parameters differ.")
    assert isinstance(world.report(place, agent, race, drifted), Accepted)
    with world.database.read() as work:
        told = [event.sentence for event in work.events.after(job_id, 0, 100)]
    assert any("Nothing of it counts: Rank 1's parameters differ." in sentence for sentence in told)


def test_agent_of_another_session_cannot_report_a_race(world: World) -> None:
    _, _, place, race = begin_race(world)
    stranger = world.register("two")
    assert isinstance(world.report(place, stranger, race), Quarantined)
