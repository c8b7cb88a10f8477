"""What the storage promises, on SQLite and on PostgreSQL alike."""

import json
import threading
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta, timezone
from functools import partial

import pytest

from advisor.errors import InvalidRequest, LostRace, Unavailable
from advisor.protocol.asked.jobs import Job, JobState, Stage
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.messages import MemberState
from advisor.protocol.measured.telemetry import TelemetrySample
from advisor.protocol.measured.trials import (
    Block,
    BlockPlan,
    BlockState,
    EarlierJob,
    JobHistory,
    Outcome,
    Purpose,
    Session,
    SessionState,
    Trial,
    TrialState,
)
from advisor.protocol.nodes.cluster import Cluster
from advisor.protocol.views import EventKind, JobQuery, Role
from advisor.storage import Database, UnitOfWork
from advisor.storage.database import Database as DatabaseDoor
from advisor.storage.repositories.blocks import MAX_QUARANTINED, Blocks
from advisor.storage.repositories.known_blocks import KnownBlocks
from advisor.storage.repositories.records import Logs, Telemetry
from tests.unit.services.scripted_tuning import ScriptedTuning, make_facts, make_node, make_result, make_spec

NOW = datetime(2026, 1, 1, 12, 30, 0, 123456, tzinfo=UTC)


def make_job(job_id: str = "j1") -> Job:
    return Job(id=job_id, spec=make_spec(), state=JobState.QUEUED, created_at=NOW)


def make_session(session_id: str = "s1", job_id: str = "j1", generation: int = 1) -> Session:
    return Session(
        id=session_id,
        job_id=job_id,
        generation=generation,
        state=SessionState.ASSEMBLING,
        cold={"nccl_comm_num": 2},
        created_at=NOW,
    )


def make_block(block_id: str = "b1", ordinal: int = 0) -> Block:
    plan = BlockPlan(block_id=block_id, trial_number=0, overrides={"fuse_grad_size_in_MB": 8.0, "amp": True})
    return Block(
        id=block_id,
        session_id="s1",
        trial_number=0,
        ordinal=ordinal,
        race=1 + ordinal,
        state=BlockState.ISSUED,
        plan=plan,
        issued_at=NOW,
    )


def add_running_session(work: UnitOfWork) -> None:
    work.jobs.add(make_job())
    work.jobs.start("j1", Cluster(nodes=(make_node("one"),)), NOW)
    work.agents.add("a1", "one", make_node("one"), NOW)
    work.sessions.add(make_session())
    work.members.add("s1", "a1", 0)
    work.members.renew("s1", "a1", 1, MemberState.READY)
    work.sessions.offer_rendezvous("s1", 1, "host:1")
    assert work.sessions.start("s1", 1, NOW)


def test_job_comes_back_as_it_was_stored(database: Database) -> None:
    job = make_job().model_copy(
        update={"facts": make_facts(), "baseline": {"a": True, "b": 1, "c": 1.0, "d": "x"}}
    )
    with database.begin() as work:
        work.jobs.add(job)
    with database.read() as work:
        stored = work.jobs.get("j1")
    assert stored is not None
    assert stored == job
    assert [type(value) for value in stored.baseline.values()] == [bool, int, float, str]
    assert Job.model_validate_json(stored.model_dump_json()) == job


def test_moments_are_kept_in_utc_and_naive_ones_are_refused(database: Database) -> None:
    there = NOW.astimezone(timezone(timedelta(hours=5)))
    with database.begin() as work:
        work.jobs.add(make_job().model_copy(update={"created_at": there}))
        stored = work.jobs.get("j1")
    assert stored is not None
    assert stored.created_at == NOW
    assert stored.created_at.tzinfo is UTC
    with pytest.raises(Exception, match="naive"), database.begin() as work:
        work.jobs.add(make_job("j2").model_copy(update={"created_at": NOW.replace(tzinfo=None)}))


def test_text_may_hold_whatever_a_script_wrote(database: Database) -> None:
    with database.begin() as work:
        work.jobs.add(make_job())
        work.logs.append("j1", "s1", "one", "a\x00b \x1b[31m ü 🦊 '; DROP TABLE jobs; --")
        (chunk,) = work.logs.after("j1", 0, 10)
        assert chunk.text.startswith("a\ufffdb")
        assert work.jobs.get("no\x00such") is None


def test_number_that_does_not_fit_is_an_invalid_request(database: Database) -> None:
    with pytest.raises(InvalidRequest), database.begin() as work:
        work.jobs.page(JobQuery(), 10, 10**30)


def test_transaction_that_an_exception_leaves_is_rolled_back(database: Database) -> None:
    def add_twice() -> None:
        with database.begin() as work:
            work.jobs.add(make_job())
            work.jobs.add(make_job())

    with pytest.raises(LostRace):
        add_twice()
    with database.read() as work:
        assert work.jobs.get("j1") is None


def test_job_moves_only_from_the_states_it_may_start_from(database: Database) -> None:
    with database.begin() as work:
        work.jobs.add(make_job())
        assert not work.jobs.move("j1", JobState.CANCELLED, "", since=(JobState.CANCELLING,), now=NOW)
        assert work.jobs.move(
            "j1", JobState.FAILED, "No.", since=(JobState.QUEUED,), now=NOW, stage=Stage.DONE
        )
        assert not work.jobs.move(
            "j1", JobState.RUNNING, "", since=(JobState.QUEUED, JobState.RUNNING), now=NOW
        )
        assert work.jobs.start("j1", Cluster(), NOW) is None
        job = work.jobs.get("j1")
    assert job is not None
    assert (job.state, job.state_reason, job.finished_at) == (JobState.FAILED, "No.", NOW)


def test_sentence_without_end_is_cut(database: Database) -> None:
    with database.begin() as work:
        work.jobs.add(make_job())
        work.events.append("j1", EventKind.JOB, "and so on " * 10_000, NOW)
        assert [len(event.sentence) for event in work.events.after("j1", 0, 9)] == [4000]


def test_generations_and_event_numbers_only_grow(database: Database) -> None:
    with database.begin() as work:
        work.jobs.add(make_job())
        generations = [work.jobs.start("j1", Cluster(), NOW) for _ in range(3)]
        for number in range(3):
            work.events.append("j1", EventKind.JOB, f"Number {number}.", NOW)
        events = work.events.after("j1", 1, 10)
        job = work.jobs.get("j1")
    assert generations == [1, 2, 3]
    assert [event.seq for event in events] == [2, 3]
    assert job is not None
    assert job.version == 3


def test_second_live_session_of_a_job_is_refused(database: Database) -> None:
    with database.begin() as work:
        work.jobs.add(make_job())
        work.sessions.add(make_session())
    with pytest.raises(LostRace), database.begin() as work:
        work.sessions.add(make_session("s2", generation=2))
    with database.begin() as work:
        assert work.sessions.close(
            "s1", 1, SessionState.LOST, Outcome.LOST, "", log_tail="", total_steps=0, now=NOW
        )
        work.sessions.add(make_session("s2", generation=2))
        assert (live := work.sessions.live_of("j1")) is not None
        assert live.id == "s2"


def test_strategies_of_earlier_jobs_are_chosen_once(database: Database) -> None:
    first = EarlierJob(
        job_id="old", changes={"amp": True}, ratio=1.5, likeness=0.9, because="the same gradients"
    )
    with database.begin() as work:
        work.jobs.add(make_job())
        assert work.jobs.earlier("j1") is None
        assert work.jobs.choose_earlier("j1", (first,))
        assert not work.jobs.choose_earlier("j1", ())
        assert work.jobs.earlier("j1") == (first,)


def test_only_finished_jobs_with_advice_are_looked_at(database: Database) -> None:
    with database.begin() as work:
        for number in (1, 2, 3):
            work.jobs.add(make_job(f"j{number}"))
        for job_id in ("j1", "j2"):
            work.jobs.move(job_id, JobState.FINISHED, "", since=(JobState.QUEUED,), now=NOW)
            job = work.jobs.get(job_id)
            assert job is not None
            work.advice.put(ScriptedTuning().advise(job, JobHistory(), NOW), NOW)
        assert [job.id for job, _ in work.jobs.finished_with_advice("j3", 9)] == ["j2", "j1"]
        assert [advice.job_id for _, advice in work.jobs.finished_with_advice("j2", 9)] == ["j1"]
        assert len(work.jobs.finished_with_advice("j3", 1)) == 1


def test_agent_holds_one_live_place_at_most(database: Database) -> None:
    with database.begin() as work:
        work.agents.add("a1", "one", make_node("one"), NOW)
        for number in (1, 2):
            work.jobs.add(make_job(f"j{number}"))
            work.sessions.add(make_session(f"s{number}", f"j{number}"))
        work.members.add("s1", "a1", 0)
    with pytest.raises(LostRace), database.begin() as work:
        work.members.add("s2", "a1", 0)
    with database.begin() as work:
        work.members.release("s1")
        work.members.add("s2", "a1", 0)


def test_session_has_one_issued_block_at_most(database: Database) -> None:
    with database.begin() as work:
        add_running_session(work)
        work.blocks.issue("j1", make_block())
    with pytest.raises(LostRace), database.begin() as work:
        work.blocks.issue("j1", make_block("b2", 1))


def test_session_starts_only_when_its_gang_is_complete(database: Database) -> None:
    with database.begin() as work:
        work.jobs.add(make_job())
        work.sessions.add(make_session())
        for number in (1, 2):
            work.agents.add(f"a{number}", f"agent {number}", make_node("n"), NOW)
            work.members.add("s1", f"a{number}", number - 1)
        work.members.renew("s1", "a1", 1, MemberState.READY)
        assert work.sessions.offer_rendezvous("s1", 1, "host:1")
        assert not work.sessions.offer_rendezvous("s1", 1, "host:2")
        assert not work.sessions.start("s1", 1, NOW)
        work.members.renew("s1", "a2", 1, MemberState.READY)
        assert not work.sessions.start("s1", 2, NOW)
        assert work.sessions.start("s1", 1, NOW)
        assert not work.sessions.start("s1", 1, NOW)
        session = work.sessions.get("s1")
    assert session is not None
    assert session.agents == ("agent 1", "agent 2")
    assert session.cold == {"nccl_comm_num": 2}


def test_lease_is_renewed_only_under_its_generation_and_its_state_never_goes_back(database: Database) -> None:
    with database.begin() as work:
        add_running_session(work)
        assert not work.members.renew("s1", "a1", 2, MemberState.RUNNING)
        assert work.members.renew("s1", "a1", 1, MemberState.RUNNING)
        assert work.members.renew("s1", "a1", 1, MemberState.READY)
        member = work.members.get("s1", "a1")
        assert member is not None
        assert member.state is MemberState.RUNNING
        assert work.members.leave("s1", "a1", Outcome.CRASHED, "Why.", "tail", 7, heard_at=NOW)
        assert not work.members.leave("s1", "a1", Outcome.FINISHED, "Other.", heard_at=NOW)
        assert not work.members.renew("s1", "a1", 1, MemberState.RUNNING)


def test_leases_are_those_of_live_sessions_and_their_members(database: Database) -> None:
    with database.begin() as work:
        add_running_session(work)
        work.agents.add("a2", "two", make_node("two"), NOW)
        work.members.add("s1", "a2", 1)
        work.agents.add("a3", "three", make_node("three"), NOW)
        work.jobs.add(make_job("j2"))
        work.sessions.add(make_session("s2", "j2"))
        work.members.add("s2", "a3", 0)
        assert work.sessions.is_holding("j1")
        leases = {lease.agent_id: lease for lease in work.members.leases()}
        assert leases == {
            "a1": ("s1", "j1", "running", "a1", "ready"),
            "a2": ("s1", "j1", "running", "a2", "preparing"),
            "a3": ("s2", "j2", "assembling", "a3", "preparing"),
        }
        # While a gang assembles an agent may still be on its way; in a session that has begun it is missed.
        assert [leases[agent_id].is_awaited for agent_id in ("a1", "a2", "a3")] == [False, False, True]
        work.members.release("s1")
        assert [lease for lease in work.members.leases() if lease.session_id == "s1"] == [
            ("s1", "j1", "running", None, "")
        ]
        for session_id in ("s1", "s2"):
            work.sessions.close(
                session_id,
                1,
                SessionState.LOST,
                Outcome.CRASHED,
                "Why.",
                log_tail="",
                total_steps=0,
                now=NOW,
            )
        assert work.members.leases() == []
        assert not work.sessions.is_holding("j1")


def test_result_is_accepted_once_and_only_under_its_generation(database: Database) -> None:
    block, result = make_block(), make_result()
    summary = ScriptedTuning().summarise(result)
    with database.begin() as work:
        add_running_session(work)
        work.blocks.issue("j1", block)
        assert not work.blocks.accept(block, 2, result, summary, "sha", NOW)
        assert work.blocks.accept(block, 1, result, summary, "sha", NOW)
        assert not work.blocks.accept(block, 1, result, summary, "sha", NOW)
        assert work.blocks.accepted_sha256("b1") == "sha"
        stored = work.blocks.get("b1")
    assert stored is not None
    assert (stored.state, stored.result, stored.summary) == (BlockState.DONE, result, summary)
    assert stored.plan == block.plan


def test_result_for_a_block_that_was_given_up_is_refused_and_can_be_quarantined_twice(
    database: Database,
) -> None:
    block, result = make_block(), make_result()
    with database.begin() as work:
        add_running_session(work)
        work.blocks.issue("j1", block)
        assert work.blocks.void("b1", "Its session ended.", NOW)
        assert not work.blocks.accept(block, 1, result, None, "sha", NOW)
        for _ in range(2):
            work.blocks.quarantine("s1", "b1", "a1", 1, result, "sha", "Too late.", NOW)
        assert work.blocks.quarantined("b1") == ["Too late."]


def test_quarantine_keeps_an_agents_latest_results_within_its_limits(database: Database) -> None:
    result = make_result()
    size = len(json.dumps(asdict(result)))
    with database.begin() as work:
        blocks = Blocks(work.connection, KnownBlocks(), max_chars=3 * size)
        blocks.quarantine("s1", "other", "a2", 1, result, "sha", "Another agent's.", NOW)
        for number in range(5):
            at = NOW + timedelta(seconds=number)
            blocks.quarantine("s1", f"b{number}", "a1", 1, result, "sha", "Too late.", at)
        kept = [number for number in range(5) if blocks.quarantined(f"b{number}")]
        assert kept == [2, 3, 4]
        assert blocks.quarantined("other")
        tight = Blocks(work.connection, KnownBlocks(), max_chars=1)
        tight.quarantine("s1", "large", "a1", 1, result, "sha", "Too late.", NOW + timedelta(seconds=9))
        assert [bool(tight.quarantined(name)) for name in ("large", "b4", "other")] == [True, False, True]
        for number in range(MAX_QUARANTINED + 5):
            at = NOW + timedelta(seconds=10 + number)
            work.blocks.quarantine("s2", f"c{number}", "a1", 1, result, "sha", "Too late.", at)
        assert sum(bool(work.blocks.quarantined(f"c{number}")) for number in range(MAX_QUARANTINED + 5)) == (
            MAX_QUARANTINED
        )


def test_trial_closes_once(database: Database) -> None:
    trial = Trial(number=0, purpose=Purpose.SEARCH, changes={"amp": True}, because="Why not.", created_at=NOW)
    with database.begin() as work:
        work.jobs.add(make_job())
        work.trials.add("j1", trial)
        assert work.trials.of_job("j1") == (trial,)
        work.trials.close("j1", 0, Outcome.CRASHED, "It fell over.", NOW, "tail")
        (closed,) = work.trials.of_job("j1")
        ran = trial.model_copy(update={"changes": Changes({"nccl_comm_num": 2}), "effect": Effect.EXACT})
        work.trials.close("j1", 0, Outcome.FINISHED, "What ran is the rest.", NOW, ran=ran)
        (rest,) = work.trials.of_job("j1")
    assert (closed.state, closed.outcome, closed.log_tail) == (TrialState.CLOSED, Outcome.CRASHED, "tail")
    assert (rest.changes, rest.effect, rest.outcome) == (ran.changes, ran.effect, Outcome.FINISHED)


def test_queued_and_running_jobs_may_lack_a_session(database: Database) -> None:
    with database.begin() as work:
        for number in (1, 2, 3, 4):
            work.jobs.add(make_job(f"j{number}"))
        work.jobs.start("j3", Cluster(), NOW)
        work.sessions.add(make_session(job_id="j1"))
        work.jobs.move("j4", JobState.CANCELLED, "", since=(JobState.QUEUED,), now=NOW)
        assert [job.id for job in work.jobs.without_session()] == ["j2", "j3"]
        newest = work.jobs.page(JobQuery(), 2, None)
        assert [job.id for _, job in newest] == ["j4", "j3"]
        assert [
            job.id for _, job in work.jobs.page(JobQuery(state=(JobState.QUEUED,)), 9, newest[-1][0])
        ] == ["j2", "j1"]


def test_log_drops_its_oldest_chunks_and_keeps_its_numbers(database: Database) -> None:
    with database.begin() as work:
        work.jobs.add(make_job())
        logs = Logs(work.connection, max_chars=100)
        for number in range(30):
            logs.append("j1", "s1", "one", f"{number:010d}")
        chunks = logs.after("j1", 0, 100)
    assert sum(len(chunk.text) for chunk in chunks) <= 100
    assert chunks[-1].seq == 30
    assert [chunk.seq for chunk in chunks] == list(range(chunks[0].seq, 31))


def test_telemetry_is_bounded_and_thinned_out(database: Database) -> None:
    with database.begin() as work:
        add_running_session(work)
        telemetry = Telemetry(work.connection, max_samples=10)
        points = [(float(n), TelemetrySample(age_s=0, cpu=n / 20)) for n in range(20)]
        assert telemetry.add("s1", "a1", points[:8]) == 8
        assert [point.offset_s for point in telemetry.of_session("s1", 4)] == [0, 2, 4, 6]
        assert [point.offset_s for point in telemetry.between("s1", 2.5, 4)] == [3, 4]
        # Ten have room: of twenty every second one stays, over the whole session.
        assert telemetry.add("s1", "a1", points[8:]) == 6
        assert [point.offset_s for point in telemetry.of_session("s1", 99)] == list(range(0, 20, 2))
        assert [point.offset_s for point in telemetry.of_session("s1", 5)] == [0, 4, 8, 12, 16]
        assert telemetry.add("s1", "a1", [(20.0, points[0][1])]) == 1
        assert [point.offset_s for point in telemetry.of_session("s1", 99)] == [0, 4, 8, 12, 16, 20]


def test_token_is_found_and_says_when_it_was_revoked(database: Database) -> None:
    with database.begin() as work:
        work.agents.add("a1", "one", make_node("n"), NOW)
        work.tokens.add("t1", Role.AGENT, "one", "hash", NOW, "a1")
        found = work.tokens.secret_of("t1")
        assert found is not None
        assert (found[0], found[1].agent, found[2]) == ("hash", "one", "a1")
        assert work.tokens.revoke("t1", NOW)
        assert not work.tokens.revoke("t1", NOW)
        found = work.tokens.secret_of("t1")
        assert found is not None
        assert found[1].revoked_at == NOW
        assert work.tokens.secret_of("t2") is None


def test_token_of_two_uses_is_used_up_by_two(database: Database) -> None:
    with database.begin() as work:
        work.tokens.add("t1", Role.AGENT, "", "hash", NOW, uses=2)
        work.tokens.add("t2", Role.AGENT, "", "hash", NOW)
        assert [work.tokens.use_up("t1", NOW) for _ in range(3)] == [True, True, False]
        assert [work.tokens.use_up("t2", NOW) for _ in range(3)] == [True, True, True]


def test_token_says_when_it_was_last_used(database: Database) -> None:
    def tell(token_id: str) -> datetime | None:
        with database.read() as work:
            return {token.id: token.last_used_at for token in work.tokens.page(9)}[token_id]

    later = NOW + timedelta(hours=1)
    with database.begin() as work:
        work.tokens.add("t1", Role.VIEWER, "", "hash", NOW)
        work.tokens.add("t2", Role.AGENT, "", "hash", NOW)
    assert tell("t1") is None
    for moment in (later, NOW):
        with database.begin() as work:
            work.tokens.mark_used("t1", moment)
            assert not work.tokens.have_changed, "nobody is let in or out by it"
    assert tell("t1") == later
    with database.begin() as work:
        work.tokens.use_up("t2", later)
    assert tell("t2") == later


def test_agents_own_token_was_used_when_the_agent_was_seen_and_not_after_it_ended(database: Database) -> None:
    seen, ended = NOW + timedelta(hours=2), NOW + timedelta(hours=1)
    with database.begin() as work:
        work.agents.add("a1", "one", make_node("n"), NOW)
        for token in ("old", "own"):
            work.tokens.add(token, Role.AGENT, "one", "hash", NOW, "a1")
        work.tokens.revoke("old", ended)
        work.agents.see("a1", seen)
        used = {token.id: token.last_used_at for token in work.tokens.page(9)}
    assert used == {"old": ended, "own": seen}


def test_token_expires_at_the_earliest_of_two_moments(database: Database) -> None:
    later, latest = NOW + timedelta(hours=1), NOW + timedelta(hours=2)
    with database.begin() as work:
        work.tokens.add("t1", Role.VIEWER, "", "hash", NOW)
        for moment in (latest, later, latest):
            work.tokens.expire("t1", moment)
        found = work.tokens.secret_of("t1")
        assert found is not None
        assert found[1].expires_at == later


def test_two_transactions_cannot_both_accept(database: Database) -> None:
    """The race that a lease alone does not decide: the statement's own condition does."""
    with database.begin() as work:
        add_running_session(work)
    block = make_block()
    for number in range(10):
        fresh = block.model_copy(update={"id": f"b{number}", "ordinal": number})
        with database.begin() as work:
            work.blocks.issue("j1", fresh)
        accepted = race(partial(_accept, database, fresh))
        assert sorted(accepted) == [False, True]


def test_two_transactions_cannot_both_take_an_agent(database: Database) -> None:
    with database.begin() as work:
        work.agents.add("a1", "one", make_node("one"), NOW)
        for number in (0, 1):
            work.jobs.add(make_job(f"j{number}"))

    def take(who: int) -> bool:
        try:
            with database.begin() as work:
                (agent,) = work.agents.lock(["a1"])
                if agent.session_id is not None:
                    return False
                work.sessions.add(make_session(f"s{who}", f"j{who}"))
                work.members.add(f"s{who}", "a1", 0)
        except LostRace:
            return False
        return True

    assert sorted(race(take)) == [False, True]


def test_database_that_is_not_there_is_unavailable() -> None:
    for url in ("sqlite:////no/such/folder/advisor.db", "postgresql://127.0.0.1:1/none"):
        database = DatabaseDoor(url, lambda: "id")
        with pytest.raises(Unavailable):
            database.prove_ready()
        with pytest.raises(Unavailable), database.begin():
            pass


def _accept(database: Database, block: Block, who: int) -> bool:
    with database.begin() as work:
        return work.blocks.accept(block, 1, make_result(1.0 + who), None, f"sha{who}", NOW)


def race(attempt: Callable[[int], bool]) -> list[bool]:
    """Let two threads try the same thing at the same moment."""
    barrier, answers = threading.Barrier(2), []

    def run(who: int) -> None:
        barrier.wait()
        answers.append(attempt(who))

    threads = [threading.Thread(target=run, args=(who,)) for who in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers
