"""A job from its submission to its end, told to the services by agents that obey."""

from dataclasses import replace
from typing import Any

import pytest

from advisor.errors import AdviceNotReady, IdempotencyConflict, InvalidJob, JobIsFinal, LostRace, StaleSession
from advisor.protocol.asked.jobs import Budget, JobState, Measurement, Stage
from advisor.protocol.measured.messages import ENDED_ELSEWHERE, Assignment, HelloReport, MemberState, Trouble
from advisor.protocol.measured.trials import BlockState, Outcome, SessionState, TrialState
from advisor.services import jobs
from advisor.services.answers import advice
from advisor.services.measuring import sessions
from advisor.services.measuring.races import Quarantined
from advisor.storage import UnitOfWork
from advisor.tuning.decisions import Decision
from tests.unit.services.scripted_tuning import ScriptedTuning, make_facts, make_result, make_spec
from tests.unit.services.world import ADA, World


def sentences(world: World, job_id: str) -> str:
    with world.database.read() as work:
        return "\n".join(event.sentence for event in jobs.list_events(work, job_id, 0, 1000))


def test_job_finishes_with_advice_when_everything_is_measured(world: World) -> None:
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    assert world.measure(place, agent) == [{}]
    assert world.measure(place, agent) == [{"fuse_grad_size_in_MB": 8.0}]
    assert world.next(place, agent).end_because
    world.end(place, agent)
    world.keep_up()
    finished = world.job(job.id)
    assert (finished.state, finished.stage) == (JobState.FINISHED, Stage.DONE)
    history = world.history(job.id)
    assert [trial.outcome for trial in history.trials] == [Outcome.FINISHED, Outcome.FINISHED]
    assert [session.outcome for session in history.sessions] == [Outcome.FINISHED]
    with world.database.read() as work:
        assert advice.get_advice(work, job.id).headline == finished.state_reason
    assert "submitted" in sentences(world, job.id)


def test_advice_is_refused_while_the_job_runs(world: World) -> None:
    job = world.submit()
    with world.database.read() as work, pytest.raises(AdviceNotReady):
        advice.get_advice(work, job.id)


def test_job_says_what_it_waits_for_when_agents_are_missing(world: World) -> None:
    job = world.submit(nodes=2)
    world.register("one")
    world.keep_up()
    version = world.job(job.id).version
    assert "Waiting for 2 idle agents: 1 connected, 1 idle" in world.job(job.id).state_reason
    world.keep_up()
    assert world.job(job.id).version == version


def test_gang_launches_when_every_member_is_ready(world: World) -> None:
    world.submit(nodes=2)
    one, two = world.register("one"), world.register("two")
    world.keep_up()
    first, second = world.poll(one), world.poll(two)
    assert first is not None
    assert second is not None
    assert {first.node_rank, second.node_rank} == {0, 1}
    assert world.beat(first, one, MemberState.READY).rendezvous is None
    reply = world.beat(second, two, MemberState.READY)
    assert (reply.state, reply.rendezvous) == (SessionState.RUNNING, "127.0.0.1:29500")
    assert world.beat(first, one).rendezvous == "127.0.0.1:29500"


def test_large_job_is_not_starved_by_small_ones(world: World) -> None:
    one, two = world.register("one"), world.register("two")
    small = world.submit(name="small")
    (place,) = world.start_session(one)
    large = world.submit(nodes=2, name="large")
    late = world.submit(name="late")
    world.poll(two)
    world.keep_up()
    assert f"kept for job {large.id}" in world.job(late.id).state_reason
    world.cancel(small.id)
    world.end(place, one, Outcome.CANCELLED)
    world.poll(one)
    world.keep_up()
    assert world.job(large.id).state is JobState.RUNNING


def test_job_that_can_never_be_served_lets_others_pass(world: World) -> None:
    agent = world.register("one")
    world.submit(nodes=5)
    small = world.submit()
    world.start_session(agent)
    assert world.job(small.id).state is JobState.RUNNING


def test_next_repeats_the_race_until_it_is_reported(world: World) -> None:
    world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    assert world.next(place, agent) == world.next(place, agent)


def test_same_report_gets_the_same_answer_and_another_is_quarantined(world: World) -> None:
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    race = world.begin(place, agent)
    answer = world.report(place, agent, race)
    assert world.report(place, agent, race) == answer
    other = world.report(place, agent, race, make_result(0.2))
    assert isinstance(other, Quarantined)
    assert other.differs
    (block,) = world.history(job.id).blocks
    assert block.result == make_result()


def test_zombie_of_an_older_generation_is_refused_and_its_result_kept(world: World) -> None:
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    race = world.begin(place, agent)
    world.wait(36)
    world.keep_up()
    assert world.history(job.id).sessions[0].state is SessionState.LOST
    with pytest.raises(StaleSession):
        world.beat(place, agent)
    assert isinstance(world.report(place, agent, race), Quarantined)
    with world.database.read() as work:
        assert len(work.blocks.quarantined(race.race_id)) == 1
    world.poll(agent)
    (again,) = world.start_session(agent)
    assert again.generation == place.generation + 1
    assert world.history(job.id).blocks[0].state is BlockState.VOID


def test_session_lives_while_every_member_beats_and_is_lost_when_one_is_silent(world: World) -> None:
    job = world.submit(nodes=2)
    one, two = world.register("one"), world.register("two")
    places = world.start_session(one, two)
    for _ in range(5):
        world.wait(20)
        world.beat(places[0], one)
        world.beat(places[1], two)
        world.keep_up()
    assert world.history(job.id).sessions[0].state is SessionState.RUNNING
    for _ in range(2):
        world.wait(18)
        world.beat(places[0], one)
        world.keep_up()
    session = world.history(job.id).sessions[0]
    assert session.state is SessionState.LOST
    assert session.outcome is Outcome.LOST
    assert "two" in session.reason


def test_gang_that_does_not_assemble_is_lost_after_a_minute(world: World) -> None:
    job = world.submit(nodes=2)
    one, two = world.register("one"), world.register("two")
    world.keep_up()
    place = world.poll(one)
    assert place is not None
    world.poll(two)
    for _ in range(4):
        world.wait(16)
        if world.history(job.id).sessions[0].state is SessionState.ASSEMBLING:
            world.beat(place, one, MemberState.READY)
            world.keep_up()
    session = world.history(job.id).sessions[0]
    assert session.state is SessionState.LOST
    assert "two" in session.reason


def test_restart_gives_live_leases_new_time(world: World) -> None:
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    world.wait(600)
    world.restart()
    world.keep_up()
    world.wait(50)
    world.keep_up()
    assert world.beat(place, agent).state is SessionState.RUNNING
    assert world.history(job.id).live_session() is not None


def test_configuration_that_crashes_closes_its_trial_and_the_search_goes_on(world: World) -> None:
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    world.measure(place, agent)
    world.begin(place, agent)
    world.end(place, agent, Outcome.OUT_OF_MEMORY, "A rank ran out of memory.")
    world.keep_up()
    trial = world.history(job.id).trials[1]
    assert (trial.state, trial.outcome) == (TrialState.CLOSED, Outcome.OUT_OF_MEMORY)
    assert trial.outcome_reason == "A rank ran out of memory."


def test_lost_infrastructure_leaves_the_trial_open(world: World) -> None:
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    world.measure(place, agent)
    world.next(place, agent)
    world.end(place, agent, Outcome.LOST, "The agent lost the server.")
    assert world.history(job.id).trials[1].state is TrialState.OPEN
    world.poll(agent)
    (again,) = world.start_session(agent)
    assert world.begin(again, agent).arms[0].trial_number == 1


def test_most_telling_outcome_of_a_gang_wins_whoever_reports_first(world: World) -> None:
    job = world.submit(nodes=2)
    one, two = world.register("one"), world.register("two")
    places = world.start_session(one, two)
    world.measure(places[0], one)
    world.next(places[0], one)
    world.end(places[0], one, Outcome.CRASHED, "The connection was reset.")
    assert world.beat(places[1], two).state is SessionState.ENDING
    world.end(places[1], two, Outcome.OUT_OF_MEMORY, "A rank ran out of memory.")
    history = world.history(job.id)
    assert history.sessions[0].outcome is Outcome.OUT_OF_MEMORY
    assert history.trials[1].outcome is Outcome.OUT_OF_MEMORY


def test_of_nodes_that_crashed_the_one_that_ended_first_is_told_and_not_its_victim(world: World) -> None:
    job = world.submit(nodes=2)
    one, two = world.register("one"), world.register("two")
    places = world.start_session(one, two)
    world.measure(places[0], one)
    world.end(places[0], one, Outcome.CRASHED, f"{ENDED_ELSEWHERE}: RuntimeError: Connection closed by peer.")
    world.beat(places[1], two)
    world.end(
        places[1], two, Outcome.CRASHED, "The script crashed after 9 steps: KeyError: 'x' (train.py:3)."
    )

    assert "KeyError" in world.history(job.id).sessions[0].reason


def test_fatal_trouble_fails_the_job_with_its_sentence(world: World) -> None:
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    trouble = Trouble(code="no_ddp", sentence="The script builds no DistributedDataParallel.")
    with world.work() as work:
        sessions.hear_trouble(work, place.session_id, agent, trouble, world.now)
    assert world.beat(place, agent).state is SessionState.ENDING
    world.end(place, agent, Outcome.CRASHED)
    world.keep_up()
    failed = world.job(job.id)
    assert (failed.state, failed.state_reason) == (JobState.FAILED, trouble.sentence)
    assert failed.stage is Stage.PROBE
    assert world.history(job.id).sessions[0].reason == trouble.sentence


def test_trouble_that_is_not_fatal_allows_another_launch(world: World) -> None:
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    trouble = Trouble(code="script_ended", sentence="The script ended by itself.", fatal=False)
    with world.work() as work:
        sessions.hear_trouble(work, place.session_id, agent, trouble, world.now)
    world.end(place, agent)
    world.keep_up()
    assert world.job(job.id).state is JobState.RUNNING
    assert len(world.history(job.id).sessions) == 2


def test_cancel_waits_until_every_rank_is_gone_and_refuses_the_late_result(world: World) -> None:
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    race = world.begin(place, agent)
    assert world.cancel(job.id).state is JobState.CANCELLING
    assert world.cancel(job.id).state is JobState.CANCELLING
    assert world.beat(place, agent).state is SessionState.ENDING
    assert isinstance(world.report(place, agent, race), Quarantined)
    assert world.next(place, agent).end_because == "The job was cancelled."
    world.end(place, agent, Outcome.CANCELLED)
    world.end(place, agent, Outcome.CANCELLED)
    assert world.job(job.id).state is JobState.CANCELLED
    assert world.history(job.id).trials[0].outcome is Outcome.CANCELLED


def test_result_that_came_before_the_cancel_is_kept(world: World) -> None:
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    world.measure(place, agent)
    world.cancel(job.id)
    world.end(place, agent, Outcome.CANCELLED)
    assert [block.state for block in world.history(job.id).blocks] == [BlockState.DONE]


def test_cancel_of_a_queued_job_is_immediate_and_of_a_final_one_refused(world: World) -> None:
    job = world.submit()
    assert world.cancel(job.id).state is JobState.CANCELLED
    agent = world.register("one")
    other = world.submit()
    (place,) = world.start_session(agent)
    trouble = Trouble(code="no_ddp", sentence="No.")
    with world.work() as work:
        sessions.hear_trouble(work, place.session_id, agent, trouble, world.now)
    world.end(place, agent)
    world.keep_up()
    with pytest.raises(JobIsFinal):
        world.cancel(other.id)


def test_cancelled_gang_that_never_took_up_its_place_is_freed_by_its_next_question(world: World) -> None:
    job = world.submit()
    agent = world.register("one")
    world.keep_up()
    world.cancel(job.id)
    assert world.job(job.id).state is JobState.CANCELLING
    assert world.poll(agent) is None
    assert world.job(job.id).state is JobState.CANCELLED


def test_agent_that_starts_again_ends_the_session_it_held(world: World) -> None:
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    assert world.register("one") == agent
    session = world.history(job.id).sessions[0]
    assert (session.state, session.outcome) == (SessionState.ENDED, Outcome.LOST)
    world.end(place, agent, Outcome.LOST)


def test_node_that_says_gone_in_a_beat_can_still_say_how_it_ended(world: World) -> None:
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    assert world.beat(place, agent, MemberState.GONE).state is SessionState.ENDING
    world.end(place, agent, Outcome.CRASHED, "Exit status 1.")
    session = world.history(job.id).sessions[0]
    assert (session.outcome, session.reason) == (Outcome.CRASHED, "Exit status 1.")


def test_node_that_says_gone_and_nothing_else_is_not_waited_for_long(world: World) -> None:
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    world.beat(place, agent, MemberState.GONE)
    world.wait(6)
    world.keep_up()
    assert world.history(job.id).sessions[0].state is SessionState.ENDED


def test_hello_of_the_first_session_stands(world: World) -> None:
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    for baseline in ({"fuse_grad_size_in_MB": 25.0}, {"fuse_grad_size_in_MB": 1.0}):
        report = HelloReport(generation=place.generation, facts=make_facts(), baseline=baseline)
        with world.work() as work:
            sessions.hear_hello(work, place.session_id, agent, report, world.now)
    learnt = world.job(job.id)
    assert learnt.facts == make_facts()
    assert learnt.baseline == {"fuse_grad_size_in_MB": 25.0}


def test_session_of_a_script_that_was_edited_is_not_held_against_earlier_ones(world: World) -> None:
    job = world.submit()
    agent = world.register("one")

    def launch(**sources: str) -> Assignment:
        (place,) = world.start_session(agent)
        facts = make_facts().model_copy(update={"sources": sources})
        with world.work() as work:
            hello = HelloReport(generation=place.generation, facts=facts, baseline={})
            sessions.hear_hello(work, place.session_id, agent, hello, world.now)
        return place

    first = launch(train="1", net="1")
    world.end(first, agent, Outcome.LOST)
    # A file that only one of them loaded tells nothing.
    same = launch(train="1", late="1")
    assert world.beat(same, agent).state is SessionState.RUNNING
    world.end(same, agent, Outcome.LOST)
    other = launch(train="1", net="2")
    assert world.beat(other, agent).state is SessionState.ENDING
    world.end(other, agent)
    world.keep_up()
    failed = world.job(job.id)
    assert failed.state is JobState.FAILED
    assert "net changed" in failed.state_reason
    assert "--new" in failed.state_reason


class _Broken(ScriptedTuning):
    """Raises where a strategy is looked for: only in the whole search, or in the quick one too."""

    def __init__(self, quick_too: bool) -> None:
        super().__init__()
        self.quick_too = quick_too

    def plan(self, *known: Any, quick: bool = False) -> Decision:
        """Raise, or decide by the script."""
        if self.quick_too or not quick:
            raise ZeroDivisionError("secret detail")
        return super().plan(*known)


def test_planner_that_raises_gives_way_to_the_quick_one(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """One defect must not cost what was measured so far: nobody is there to restart a tuning that runs by itself."""
    world.tuning = _Broken(quick_too=False)
    job = world.submit()
    agent = world.register("one")
    (place,) = world.start_session(agent)
    assert world.measure(place, agent) == [{}]
    assert world.job(job.id).state is JobState.RUNNING
    (record, *_) = [record for record in caplog.records if "planner failed" in record.message]
    assert job.id in record.message
    assert record.exc_info is not None
    with world.database.read() as work:
        told = [event.sentence for event in jobs.list_events(work, job.id, 0, 1000)]
    (sentence, *_) = [sentence for sentence in told if "simpler suggestion" in sentence]
    assert "ZeroDivisionError" in sentence
    assert "secret" not in sentence


def test_planner_that_raises_even_in_a_hurry_fails_the_job_and_says_so(world: World) -> None:
    """Nothing simpler is left to ask, and the same history would raise for ever."""
    world.tuning = _Broken(quick_too=True)
    job = world.submit()
    world.keep_up()
    failed = world.job(job.id)
    assert failed.state is JobState.FAILED
    assert "ZeroDivisionError" in failed.state_reason
    assert "secret" not in failed.state_reason


def test_idempotency_key_gives_the_same_job_and_refuses_another_one(world: World) -> None:
    with world.work() as work:
        first = jobs.submit_job(work, make_spec(name="a"), ADA, "key", world.now)
        assert jobs.submit_job(work, make_spec(name="a"), ADA, "key", world.now).id == first.id
        assert (
            jobs.submit_job(
                work, make_spec(name="a"), replace(ADA, token_id="her other token"), "key", world.now
            ).id
            != first.id
        )
        with pytest.raises(IdempotencyConflict):
            jobs.submit_job(work, make_spec(name="b"), ADA, "key", world.now)


def test_every_broken_rule_of_a_specification_is_named() -> None:
    spec = make_spec(
        knobs=("fuse_grad_size_in_MB",),
        freeze=("fuse_grad_size_in_MB",),
        budget=Budget(max_seconds=1e308),
        measurement=Measurement(min_steps=50, max_steps=10),
        hang_timeout_s=1e300,
        seed=2**70,
    )
    with pytest.raises(InvalidJob) as caught:
        jobs.check_spec(spec)
    for word in ("min_steps", "fuse_grad_size_in_MB", "max_seconds", "hang_timeout_s", "seed"):
        assert word in str(caught.value)


def test_sampler_whose_packages_the_server_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "find_spec", lambda _: None)
    jobs.check_spec(make_spec(sampler="TPESampler"))
    with pytest.raises(InvalidJob, match=r"CmaEsSampler needs cmaes on the server: pip install"):
        jobs.check_spec(make_spec(sampler="CmaEsSampler"))


def test_sampler_of_the_hub_is_refused_unless_the_owner_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec(sampler="hub:auto_sampler")
    monkeypatch.setattr(jobs, "find_spec", lambda _: None)
    jobs.refuse_hub(make_spec(sampler="TPESampler"), "")
    with pytest.raises(InvalidJob, match=r"has not allowed: start it with ADVISOR_HUB_SAMPLERS=github"):
        jobs.refuse_hub(spec, "")
    with pytest.raises(InvalidJob, match=r"pip install optunahub there"):
        jobs.refuse_hub(spec, "github")
    with pytest.raises(ValueError, match=r"give one of TPESampler, .*hub:"):
        make_spec(sampler="hub:../evil")


def test_write_that_lost_a_race_for_an_agent_changes_nothing(world: World) -> None:
    job = world.submit()
    agent = world.register("one")
    world.start_session(agent)

    def take_again(work: UnitOfWork) -> None:
        session = work.sessions.live_of(job.id)
        assert session is not None
        other = session.model_copy(update={"id": "another", "generation": 99})
        work.sessions.add(other)

    with pytest.raises(LostRace), world.work() as work:
        take_again(work)
    assert len(world.history(job.id).sessions) == 1
