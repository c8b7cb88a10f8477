"""Continuing a job over HTTP: it goes on with the same agent, once per key, and refuses what cannot go on."""

from dataclasses import asdict

from advisor.protocol.asked.jobs import JobState
from tests.integration.server.served import FakeAgent, Served, start_gang
from tests.unit.services.scripted_tuning import make_result

MORE = {"more_seconds": 60, "more_trials": 4}


def measure_all(agent: FakeAgent) -> int:
    """Run races until the server says that the session is over; return how many those were."""
    count, result = 0, asdict(make_result())
    while (race := agent.next()["race"]) is not None:
        results = {arm["block_id"]: result for arm in race["arms"]}
        assert agent.say(f"races/{race['arms'][0]['block_id']}", results=results).status_code == 200
        count += 1
    assert agent.end().status_code == 204
    return count


def test_finished_job_goes_on_when_it_is_continued_and_is_answered_anew(server: Served) -> None:
    job = server.submit()
    agent = FakeAgent(server, "one")
    start_gang(agent)
    assert measure_all(agent) == 2
    server.await_state(job.id, JobState.FINISHED)
    server.app.state.context.tuning.strategies.append({"fuse_grad_size_in_MB": 4.0})
    submitter, key = server.token("submitter", label="first admin"), {"Idempotency-Key": "more"}
    for _ in range(2):
        reply = server.ask("POST", f"/jobs/{job.id}:extend", submitter, json=MORE, headers=key)
        assert reply.status_code == 200, reply.text
    continued = server.job(job.id)
    assert continued.spec.budget.max_seconds == job.spec.budget.max_seconds + 60
    assert continued.spec.budget.max_trials == job.spec.budget.max_trials + 4
    assert len(continued.continued_at) == 1
    refused = server.ask("POST", f"/jobs/{job.id}:extend", json=MORE)
    assert (refused.status_code, refused.json()["code"]) == (409, "job_is_live")
    assert server.ask("GET", f"/jobs/{job.id}/advice").json()["code"] == "advice_not_ready"
    start_gang(agent)
    assert measure_all(agent) == 1
    server.await_state(job.id, JobState.FINISHED)
    assert server.ask("GET", f"/jobs/{job.id}/advice").json()["cost"]["trials"] == 3
    events = server.ask("GET", f"/jobs/{job.id}/events").json()["items"]
    assert any("gave the job 60 seconds and 4 strategies more" in event["sentence"] for event in events)


def test_what_cannot_go_on_is_refused_with_what_to_do(server: Served) -> None:
    job = server.submit()
    server.ask("POST", f"/jobs/{job.id}:cancel")
    reply = server.ask("POST", f"/jobs/{job.id}:extend", json=MORE)
    assert (reply.status_code, reply.json()["code"]) == (409, "nothing_to_continue")
    assert reply.json()["hint"] == "Submit the job again."
    assert server.ask("POST", "/jobs/none:extend", json=MORE).status_code == 404
    for body in ({}, {"more_seconds": 0}, {"more_seconds": 60, "more_trials": -1}, {"seconds": 60}):
        assert server.ask("POST", f"/jobs/{job.id}:extend", json=body).status_code == 422, body
