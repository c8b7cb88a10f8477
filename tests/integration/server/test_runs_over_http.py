"""Real trainings report over HTTP: their latest window, and what became of their throughput as the job's events."""

from typing import Any

from tests.integration.server.served import Served

REPORT: dict[str, Any] = {
    "host": "gpu7",
    "ranks": 8,
    "step": 40,
    "step_s": 0.02,
    "samples_per_s": 410.0,
    "low": 400.0,
}


def test_reports_are_kept_and_an_alert_becomes_an_event(server: Served) -> None:
    job = server.submit()
    submitter = server.token("submitter", label=job.owner)
    path = f"/jobs/{job.id}/runs/0123456789abcdef"
    assert server.ask("GET", f"/jobs/{job.id}/runs").json() == {"items": []}
    first = server.ask("PUT", path, submitter, json=REPORT)
    assert first.status_code == 200, first.text
    slow = {
        **REPORT,
        "step": 90,
        "samples_per_s": 300.0,
        "event": "below",
        "sentence": "Throughput has fallen.",
    }
    server.ask("PUT", path, submitter, json=slow)
    server.ask("PUT", path, submitter, json={**REPORT, "step": 120, "samples_per_s": 310.0})
    (run,) = server.ask("GET", f"/jobs/{job.id}/runs").json()["items"]
    assert (run["host"], run["step"], run["is_below"]) == ("gpu7", 120, True), (
        "below until it is said to be back"
    )
    assert run["sentence"] == "Throughput has fallen."
    assert [point["samples_per_s"] for point in run["recent"]] == [410.0, 300.0, 310.0]
    server.ask("PUT", path, submitter, json={**REPORT, "event": "recovered", "sentence": "It is back."})
    (run,) = server.ask("GET", f"/jobs/{job.id}/runs").json()["items"]
    assert run["is_below"] is False
    events = server.ask("GET", f"/jobs/{job.id}/events").json()["items"]
    told = [event["sentence"] for event in events if event["kind"] == "production"]
    assert told == ["In production on gpu7: Throughput has fallen.", "In production on gpu7: It is back."]


def test_alert_that_is_reported_again_is_told_once(server: Served) -> None:
    job = server.submit()
    path = f"/jobs/{job.id}/runs/0123456789abcdef"
    fallen = {**REPORT, "step": 90, "event": "below", "sentence": "Throughput has fallen."}
    back = {**REPORT, "step": 140, "event": "recovered", "sentence": "It is back."}
    again = {**REPORT, "step": 190, "event": "below", "sentence": "It has fallen again."}
    for report in (REPORT, fallen, fallen, back, back, again):
        assert server.ask("PUT", path, json=report).is_success
    events = server.ask("GET", f"/jobs/{job.id}/events").json()["items"]
    told = [event["sentence"].partition(": ")[2] for event in events if event["kind"] == "production"]
    assert told == [report["sentence"] for report in (fallen, back, again)]


def test_what_is_no_report_is_refused_by_field(server: Served) -> None:
    job = server.submit()
    assert server.ask("PUT", f"/jobs/{job.id}/runs/XYZ", json=REPORT).status_code == 422
    assert server.ask("PUT", "/jobs/none/runs/0123456789abcdef", json=REPORT).status_code == 404
    for wrong in ({"ranks": 0}, {"step_s": 0}, {"event": "slow"}):
        reply = server.ask("PUT", f"/jobs/{job.id}/runs/0123456789abcdef", json={**REPORT, **wrong})
        assert reply.status_code == 422, wrong
        assert next(iter(wrong)) in reply.text
    newer = {**REPORT, "of_the_next_release": 1}
    assert server.ask("PUT", f"/jobs/{job.id}/runs/0123456789abcdef", json=newer).is_success
    viewer = server.token("viewer")
    assert server.ask("PUT", f"/jobs/{job.id}/runs/0123456789abcdef", viewer, json=REPORT).status_code == 403
