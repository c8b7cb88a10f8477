"""Hostile values in every field of every message: none is a failure of the server, is stored, or breaks a page."""

import itertools
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from advisor.api.strict_json import LARGEST_FLOAT, LARGEST_INTEGER
from tests.integration.server.served import Served
from tests.integration.server.stage import Stage

REFUSED = {
    "nan": "NaN",
    "infinity": "Infinity",
    "minus infinity": "-Infinity",
    "overflowing float": "1e999",
    "float beyond every quantity": "-1e101",
    "integer beyond 64 bits": str(LARGEST_INTEGER + 1),
    "integer of 400 digits": "1" + "0" * 400,
    "integer beyond Python's digits": "9" * 5000,
    "lone surrogate": r'"\ud800"',
    "lone surrogate in a name": r'{"\udfff": 1}',
    "lone surrogate in a list": r'["\ud83d\ude00", ["\uDC00"]]',
    "not UTF-8": "\ufffe",
    "no JSON": "}",
}
"""What no message may hold, wherever it stands in it."""
STRANGE = {
    "largest integer": str(LARGEST_INTEGER),
    "smallest integer": str(-LARGEST_INTEGER),
    "largest float": repr(LARGEST_FLOAT),
    "smallest float": repr(-LARGEST_FLOAT),
    "tiny float": "5e-324",
    "zero": "0",
    "minus one": "-1",
    "empty text": '""',
    "nul": r'"\u0000"',
    "whole surrogate pair": r'"\ud83d\ude00"',
    "number without end, as text": '"1e999"',
    "number of 400 digits, as text": json.dumps("9" * 400),
    "range without end": '"micro=1e-320..1e308:log"',
    "markup": json.dumps("</script><b>'\"{{7*7}}%s"),
    "long text": json.dumps("x" * 5000),
    "null": "null",
    "true": "true",
    "empty list": "[]",
    "empty object": "{}",
}
"""What a message may hold where its fields allow it."""


def list_places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of a document stand, the whole ones before their parts."""
    if path:
        yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield from list_places(part, (*path, name))


def put(document: Any, path: tuple[Any, ...], raw: str) -> bytes:
    """The document's JSON with a value whose JSON is written by hand."""
    copied = json.loads(json.dumps(document))
    inner = copied
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = "@here@"
    text = json.dumps(copied).replace('"@here@"', raw)
    return text.encode("utf-16" if raw == "\ufffe" else "utf-8")


def test_every_route_that_takes_a_document_is_on_the_stage(server: Served) -> None:
    routes = server.app.openapi()["paths"]
    taking = {
        f"{method.upper()} {path.removeprefix('/api/v1')}"
        for path, operations in routes.items()
        for method, operation in operations.items()
        if "requestBody" in operation
    }
    assert taking == Stage(server).documents.keys()


def test_value_that_cannot_be_kept_is_refused_everywhere(server: Served) -> None:
    stage = Stage(server)
    before = server.history(stage.job.id)
    for name, (*_, document) in stage.documents.items():
        places = list(list_places(document))
        for place, kind in itertools.product((places[0], places[-1]), REFUSED):
            reply = stage.send(name, put(document, place, REFUSED[kind]))
            assert reply.status_code == 422, (name, place, kind, reply.status_code, reply.text[:300])
            assert reply.json()["code"] == "invalid_request"
            assert len(reply.content) < 2000
    assert server.history(stage.job.id) == before
    stage.assert_everything_can_be_read()


@pytest.mark.parametrize("body", [b"}", b"[]", rb'{"\ud800": NaN}', b'{"name": 7}'])
def test_a_stranger_is_not_told_what_is_wrong_with_a_body(server: Served, body: bytes) -> None:
    stage = Stage(server)
    for name, (method, path, *_) in stage.documents.items():
        for token in ("", "adv_admin_0_0"):
            reply = server.ask(
                method, path, token, content=body, headers={"Content-Type": "application/json"}
            )
            # Of wrong tokens more than 30 within a minute are not looked at any more.
            assert reply.status_code in ({401} if token == "" else {401, 429}), (name, reply.text[:300])


@pytest.mark.parametrize("make", [json.dumps, lambda _: "true"], ids=["its text", "true"])
def test_what_is_no_number_is_refused_where_the_document_says_number(
    server: Served, make: Callable[[str], str]
) -> None:
    stage, tried = Stage(server), 0
    for name, (*_, document) in stage.documents.items():
        for place in list_places(document):
            number = document
            for part in place:
                number = number[part]
            # A knob may hold anything, as far as the message's form goes.
            if type(number) not in (int, float) or {"baseline", "changes", "values"} & set(place):
                continue
            reply = stage.send(name, put(document, place, make(str(number))))
            assert reply.status_code == 422, (name, place, reply.status_code, reply.text[:300])
            tried += 1
    assert tried > 20


@pytest.mark.parametrize("kind", STRANGE)
def test_strange_value_breaks_neither_an_answer_nor_a_page(server: Served, kind: str) -> None:
    """Each at every sixth place, the next one at the next places; `make fuzz` puts each everywhere."""
    stage, raw, first = Stage(server), STRANGE[kind], list(STRANGE).index(kind)
    for name, (*_, document) in stage.documents.items():
        places = list(list_places(document))
        for place in places if "SCHEMATHESIS_CASES" in os.environ else places[first % 6 :: 6]:
            reply = stage.send(name, put(document, place, raw))
            assert reply.status_code < 500, (name, place, reply.status_code, reply.text[:300])
    stage.assert_everything_can_be_read()


def test_number_of_the_last_event_may_be_anything(server: Served) -> None:
    stage = Stage(server)
    server.ask("POST", f"/jobs/{stage.job.id}:cancel")
    stage.agent.end()
    stage.assert_pages_can_be_read()
    for number in ("9" * 5000, "\u0663", "-1", "1e9", "²"):
        headers = {"Last-Event-ID": number.encode()}
        assert server.ask("GET", f"/jobs/{stage.job.id}/events/stream", headers=headers).status_code == 200
        assert server.http.get(f"/jobs/{stage.job.id}/live", headers=headers).status_code == 200


def test_form_in_a_character_set_of_half_characters_is_refused(server: Served) -> None:
    stage = Stage(server)
    stage.assert_pages_can_be_read()
    for path in ("/login", "/theme", "/logout", f"/jobs/{stage.job.id}/cancel"):
        for field in ("token", "next", "theme", "form_key"):
            reply = server.http.post(
                path,
                content=f'--b\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n+2AA-\r\n--b--\r\n',
                headers={"Content-Type": "multipart/form-data; boundary=b; charset=utf-7"},
                follow_redirects=False,
            )
            assert reply.status_code < 500, (path, field)


@pytest.mark.parametrize("pattern", ["(?P<step_time_s>a{1,4294967296})", "(?P<step_time_s>(1+)+)(?=x)"])
def test_pattern_that_is_not_linear_is_refused_over_http(server: Served, pattern: str) -> None:
    workload = {"kind": "command", "command": ["x", "${num_threads}"], "pattern": pattern}
    reply = server.ask("POST", "/jobs", json={"workload": workload})
    assert reply.status_code == 422
    assert "workload.pattern" in reply.json()["errors"][0]["field"]


def test_job_that_cannot_be_read_is_told_by_its_own_address_only(server: Served, tmp_path: Path) -> None:
    broken, sound = server.submit(), server.submit()
    with sqlite3.connect(tmp_path / "advisor.db") as connection:
        connection.execute("UPDATE jobs SET spec = '{}' WHERE id = ?", (broken.id,))
    assert [item["id"] for item in server.ask("GET", "/jobs").json()["items"]] == [sound.id]
    refused = server.ask("GET", f"/jobs/{broken.id}")
    assert (refused.status_code, refused.json()["code"]) == (409, "unreadable_record")
    assert "workload" in refused.json()["detail"]
    server.http.post("/login", data={"token": server.admin})
    for page, status in (("/jobs", 200), (f"/jobs/{broken.id}", 409), (f"/jobs/{sound.id}", 200)):
        assert server.http.get(page).status_code == status, page
