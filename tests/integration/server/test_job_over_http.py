"""A job's whole life over HTTP: agents that obey, answers that get lost, and servers that restart in the middle."""

from collections.abc import Callable
from dataclasses import asdict

import pytest

from advisor.protocol.asked.jobs import JobState
from advisor.protocol.measured.trials import BlockState, Outcome
from tests.integration.server.served import FakeAgent, Served, start_gang, wait_for
from tests.unit.services.scripted_tuning import ScriptedTuning, make_result, make_spec


def test_job_runs_from_submission_to_advice(server: Served) -> None:
    job = server.submit(nodes=2)
    one, two = FakeAgent(server, "one"), FakeAgent(server, "two")
    start_gang(one, two)
    leader, follower = (one, two) if one.place.node_rank == 0 else (two, one)  # type: ignore[union-attr]
    leader.hello()
    assert leader.measure_all() == 2
    assert follower.beat()["state"] == "ending"
    assert leader.end().status_code == 204
    assert follower.end("cancelled").status_code == 204
    finished = server.await_state(job.id, JobState.FINISHED)
    assert finished.facts is not None
    assert [node.hostname for node in finished.cluster.nodes] == ["one", "two"]
    advice = server.ask("GET", f"/jobs/{job.id}/advice").json()
    assert advice["verdict"] == "keep"
    exported = server.ask("GET", f"/jobs/{job.id}/strategy", params={"format": "json"}).json()
    assert exported["filename"]
    file = server.ask("GET", f"/jobs/{job.id}/strategy", params={"format": "json", "download": 1})
    assert exported["filename"] in file.headers["content-disposition"]
    assert file.text == exported["content"]


def test_throughput_against_loss_is_told_while_the_job_runs(server: Served) -> None:
    job = server.submit()
    assert server.ask("GET", f"/jobs/{job.id}/pareto").json() == []
    agent = FakeAgent(server, "one")
    start_gang(agent)
    agent.report(agent.next()["race"])
    (point,) = server.ask("GET", f"/jobs/{job.id}/pareto").json()
    assert (point["trial_number"], point["throughput_ratio"], point["on_front"]) == (0, 1.0, True)
    assert server.ask("GET", "/jobs/none/pareto").status_code == 404


def test_a_forecast_is_refused_with_what_is_missing(server: Served) -> None:
    job = server.submit()
    unknown = server.ask("GET", f"/jobs/{job.id}/forecast", params={"nodes": 4})
    assert (unknown.status_code, unknown.json()["code"]) == (409, "no_forecast")
    assert "has not measured its baseline yet" in unknown.json()["detail"]
    wrong = server.ask("GET", f"/jobs/{job.id}/forecast", params={"rate": "fast"})
    assert wrong.status_code == 422
    assert "'fast' is not a rate" in wrong.json()["detail"]
    assert server.ask("GET", "/jobs/none/forecast").status_code == 404


def test_every_lost_answer_can_be_asked_for_again(server: Served) -> None:
    spec = make_spec().model_dump(mode="json")
    key = {"Idempotency-Key": "once"}

    def twice(send: Callable[[], object]) -> object:
        server.loses.left = 1
        send()
        assert server.loses.left == 0
        return send()

    created = twice(lambda: server.ask("POST", "/jobs", json=spec, headers=key))
    job_id = created.json()["id"]  # type: ignore[attr-defined]
    assert len(server.ask("GET", "/jobs").json()["items"]) == 1
    agent = FakeAgent(server, "one")
    agent.take_place()
    server.loses.left = 1
    server.ask("POST", f"/agents/{agent.id}/poll", agent.token)
    assert agent.poll() == agent.place
    agent.beat("ready")
    twice(lambda: agent.say("beat", state="ready"))
    while True:
        race = twice(lambda: agent.say("next")).json()["race"]  # type: ignore[attr-defined]
        if race is None:
            break
        answer = twice(lambda race=race: agent.report(race))  # type: ignore[misc]
        assert answer.status_code == 200  # type: ignore[attr-defined]
    ended = twice(agent.end)
    assert ended.status_code == 204  # type: ignore[attr-defined]
    server.await_state(job_id, JobState.FINISHED)
    history = server.history(job_id)
    assert [block.state for block in history.blocks] == [BlockState.DONE] * 2
    assert len(history.sessions) == 1


@pytest.mark.parametrize(("beat_s", "kept"), [(2.0, None), (8.0, "close")])
def test_connection_of_an_agent_that_beats_rarely_is_not_kept(
    start: Callable[..., Served], beat_s: float, kept: str | None
) -> None:
    server = start(beat_s=beat_s)
    server.submit()
    agent = FakeAgent(server, "one")
    agent.take_place()
    # Until its gang is complete an agent beats often.
    assert "connection" not in agent.say("beat", state="preparing").headers
    start_gang(agent)
    assert agent.say("beat", state="running").headers.get("connection") == kept


def test_restart_in_the_middle_keeps_results_and_sessions(start: Callable[..., Served]) -> None:
    first = start()
    job = first.submit()
    agent = FakeAgent(first, "one")
    start_gang(agent)
    race = agent.next()["race"]
    agent.report(race)
    in_flight = agent.next()["race"]
    first.stop()
    second = start()
    assert second.admin == first.admin
    agent.moved_to(second)
    assert agent.beat()["state"] == "running"
    assert agent.next()["race"] == in_flight
    assert agent.report(race).status_code == 200
    assert agent.report(in_flight).status_code == 200
    assert agent.measure_all() == 0
    agent.end()
    second.await_state(job.id, JobState.FINISHED)
    assert [block.state for block in second.history(job.id).blocks] == [BlockState.DONE] * 2


def test_silent_agent_loses_its_session_and_its_zombie_is_told_so(start: Callable[..., Served]) -> None:
    server = start(lease_s=0.3, grace_s=0.3)
    job = server.submit()
    agent = FakeAgent(server, "one")
    start_gang(agent)
    race = agent.next()["race"]
    lost = wait_for(
        lambda: s if (s := server.history(job.id).sessions[0]).state.is_final else None, "the session is lost"
    )
    assert lost.outcome is Outcome.LOST
    assert "one" in lost.reason
    assert agent.next()["end_because"] == lost.reason
    for reply in (agent.say("beat", state="running"), agent.end()):
        assert (reply.status_code, reply.json()["code"]) == (409, "stale_session")
    late = agent.report(race)
    assert (late.status_code, late.json()["code"]) == (409, "result_quarantined")
    zombie = agent.place
    assert zombie is not None
    assert agent.take_place().generation > zombie.generation


def test_cancel_reaches_the_agents_and_refuses_the_late_result(server: Served) -> None:
    job = server.submit()
    agent = FakeAgent(server, "one")
    start_gang(agent)
    race = agent.next()["race"]
    assert server.ask("POST", f"/jobs/{job.id}:cancel").json()["state"] == "cancelling"
    assert agent.beat()["state"] == "ending"
    assert agent.next()["end_because"] == "The job was cancelled."
    assert agent.report(race).status_code == 409
    agent.end("cancelled")
    assert server.job(job.id).state is JobState.CANCELLED
    assert server.ask("POST", f"/jobs/{job.id}:cancel").status_code == 200


def test_agent_touches_no_session_but_its_own(server: Served) -> None:
    server.submit()
    one = FakeAgent(server, "one")
    start_gang(one)
    other = FakeAgent(server, "two")
    other.place = one.place
    race = one.next()["race"]
    for reply in (
        other.say("beat", state="running"),
        other.say("next"),
        other.end(),
        other.say("trouble", code="x", sentence="No."),
    ):
        assert (reply.status_code, reply.json()["code"]) == (409, "stale_session")
    foreign = other.report(race)
    assert (foreign.status_code, foreign.json()["code"]) == (409, "result_quarantined")
    poll = server.ask("POST", f"/agents/{one.id}/poll", other.token)
    assert poll.status_code == 403
    assert one.report(race).status_code == 200


def test_report_of_more_than_any_race_has_is_refused_and_nothing_of_it_is_kept(server: Served) -> None:
    server.submit()
    agent = FakeAgent(server, "one")
    start_gang(agent)
    race = agent.next()["race"]
    result = asdict(make_result(0.1))
    names = [arm["block_id"] for arm in race["arms"]]
    for wrong in (
        {str(n): result for n in range(65)},
        {"b" * 101: result},
        {names[0]: result, "b" * 9000: result},
    ):
        refused = agent.say(f"races/{names[0]}", results=wrong)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_result")
    refused = agent.say(f"races/{'r' * 101}", results={names[0]: result})
    assert refused.status_code == 422
    path = f"/sessions/{'s' * 101}/races/{names[0]}"
    body = {"generation": 1, "results": {names[0]: result}}
    assert server.ask("POST", path, agent.token, json=body).status_code == 422
    with server.app.state.context.database.read() as work:
        assert all(not work.blocks.quarantined(name) for name in ("0", "b" * 101, "b" * 9000, *names))
    assert agent.report(race).status_code == 200


def test_token_of_the_first_registration_ends_with_the_second(server: Served) -> None:
    first = FakeAgent(server, "one")
    second = FakeAgent(server, "one")
    assert second.id == first.id
    assert server.ask("POST", f"/agents/{first.id}/poll", first.token).status_code == 401
    assert second.poll() is None


def test_different_report_is_told_apart(server: Served) -> None:
    server.submit()
    agent = FakeAgent(server, "one")
    start_gang(agent)
    race = agent.next()["race"]
    first = agent.report(race)
    assert agent.report(race).json() == first.json()
    other = agent.report(race, 0.5)
    assert (other.status_code, other.json()["code"]) == (409, "result_differs")


@pytest.mark.parametrize("wrong", [{"step_time_s": [1e99]}, {"step_time_s": [-1.0]}, {"wall_s": 1e99}])
def test_number_that_no_measurement_gives_is_refused(server: Served, wrong: dict[str, object]) -> None:
    server.submit()
    agent = FakeAgent(server, "one")
    start_gang(agent)
    race = agent.next()["race"]
    reply = agent.report(race, **wrong)
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_result")


def test_planner_of_several_launches_goes_on_after_a_crash(start: Callable[..., Served]) -> None:
    server = start(tuning=ScriptedTuning([{"fuse_grad_size_in_MB": 8.0}, {"fuse_grad_size_in_MB": 4.0}]))
    job = server.submit()
    agent = FakeAgent(server, "one")
    start_gang(agent)
    agent.report(agent.next()["race"])
    assert agent.next()["race"]["arms"][-1]["trial_number"] == 1
    agent.end("out_of_memory", "A rank ran out of memory.")
    start_gang(agent)
    assert agent.measure_all() == 1
    agent.end()
    server.await_state(job.id, JobState.FINISHED)
    outcomes = [trial.outcome for trial in server.history(job.id).trials]
    assert outcomes == [Outcome.FINISHED, Outcome.OUT_OF_MEMORY, Outcome.FINISHED]


def test_blocks_get_the_utilisation_of_their_window(server: Served) -> None:
    job = server.submit()
    agent = FakeAgent(server, "one")
    start_gang(agent)
    race = agent.next()["race"]
    busy = {"age_s": 0.0, "cpu": 0.9, "session_cpu": 0.75}
    agent.beat(telemetry={"samples": [busy]})
    agent.report(race)
    agent.beat(telemetry={"samples": [busy | {"age_s": 3600.0, "session_cpu": 0.1}]}, log="Hello.\n")
    (block,) = server.history(job.id).blocks
    assert block.utilisation == pytest.approx(0.75)
    points = server.ask("GET", f"/jobs/{job.id}/telemetry").json()
    assert sorted(point["sample"]["session_cpu"] for point in points) == [0.1, 0.75]
    page = server.ask("GET", f"/jobs/{job.id}/logs").json()
    assert [chunk["text"] for chunk in page["items"]] == [*(f"{line}\n" for line in agent.told), "Hello.\n"]
    assert (
        server.ask("GET", f"/jobs/{job.id}/logs", params={"after": page["next_after"]}).json()["items"] == []
    )
