"""Finding jobs over HTTP: every filter, page by page, and filters that are none."""

import base64

import pytest

from tests.integration.server.served import Served


def list_ids(server: Served, **asked: object) -> list[str]:
    """The ids of every job that is listed, page by page."""
    ids: list[str] = []
    while True:
        page = server.ask("GET", "/jobs", params=asked).json()
        ids += [job["id"] for job in page["items"]]
        if page["next_cursor"] is None:
            return ids
        asked["cursor"] = page["next_cursor"]


def test_filters_hold_from_page_to_page(server: Served) -> None:
    wanted = [server.submit(name="wanted", labels={"project": "bert"}).id for _ in range(5)]
    others = [server.submit(name="other").id for _ in range(3)]
    server.ask("POST", f"/jobs/{wanted[0]}:cancel")
    assert list_ids(server, limit=3) == [*reversed(others), *reversed(wanted)]
    assert list_ids(server, name="want*", limit=2) == [*reversed(wanted)]
    assert list_ids(server, label="project=bert", state=["queued", "running"], limit=2) == wanted[:0:-1]
    assert list_ids(server, state=["queued", "cancelled"], name="wanted") == [*reversed(wanted)]
    assert list_ids(server, owner="nobody") == []
    submitted = server.job(others[0]).created_at.isoformat()
    assert list_ids(server, created_since=submitted) == [*reversed(others)]
    assert list_ids(server, created_until=submitted) == [*reversed(wanted)]


@pytest.mark.parametrize(
    "asked",
    [
        {"ownr": "ada"},
        {"state": "asleep"},
        {"created_since": "yesterday"},
        {"created_since": "2026-01-01T00:00:00"},
        {"created_since": "1767225600"},
        {"limit": 0},
        {"cursor": "x"},
    ],
)
def test_filter_that_is_none_is_refused_instead_of_listing_every_job(
    server: Served, asked: dict[str, object]
) -> None:
    reply = server.ask("GET", "/jobs", params=asked)
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")


@pytest.mark.parametrize(
    "labels", [{"": "x"}, {"a b": "x"}, {"a": "x" * 101}, {f"k{n}": "" for n in range(33)}]
)
def test_labels_are_few_and_short(server: Served, labels: dict[str, str]) -> None:
    spec = server.submit().spec.model_dump(mode="json") | {"labels": labels}
    assert server.ask("POST", "/jobs", json=spec).status_code == 422


@pytest.mark.parametrize(
    "query",
    [
        {"created_since": "0001-01-01T00:00:00+14:00"},
        {"created_until": "9999-12-31T23:59:59-14:00"},
        {"cursor": base64.urlsafe_b64encode(b"0001-01-01T00:00:00+14:00 x").decode()},
    ],
)
def test_moment_that_no_calendar_has_in_utc_is_refused(server: Served, query: dict[str, str]) -> None:
    for path in ("/jobs", "/tokens"):
        reply = server.ask("GET", path, params=query)
        assert reply.status_code in {200, 422}, reply.text
