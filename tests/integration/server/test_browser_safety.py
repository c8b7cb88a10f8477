"""What a browser is told and asked: policies on every answer, the cookie of a visit, and the keys of forms."""

import base64
import hashlib
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from advisor.app import create_app
from advisor.settings import Settings
from tests.integration.server.served import Served
from tests.integration.server.visitors import PEOPLE, ROUTES, Visitors

PAGES = [name for name in ROUTES if not name.split()[1].startswith(("/api/v1", "/docs", "/metrics"))]
WITHOUT_KEY = {"/login", "/theme"}
"""There is no visit yet whose key a form could carry; the theme is no secret. The guard of other sites covers both."""


def read_policy(reply: Any) -> dict[str, list[str]]:
    """An answer's content security policy: the sources of each directive."""
    parts = [part.split() for part in reply.headers["content-security-policy"].split(";")]
    return {name: sources for name, *sources in parts}


def assert_is_safe(reply: Any, what: object) -> None:
    """An answer names its policy, and that lets no script run but files of ours and texts named by their hash."""
    policy = read_policy(reply)
    assert reply.headers["x-content-type-options"] == "nosniff", what
    assert policy["frame-ancestors"] == ["'none'"], what
    if "html" not in reply.headers.get("content-type", ""):
        return
    assert policy["default-src"] == ["'self'"], what
    assert policy["object-src"] == policy["base-uri"] == ["'none'"], what
    scripts = policy.get("script-src", policy["default-src"])
    inline = re.findall(r"<script>(.*?)</script>", reply.text, re.DOTALL)
    digests = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in inline}
    assert set(scripts) == {"'self'"} | {f"'sha256-{digest}'" for digest in digests}, what
    assert not re.search(r"<[a-z][^>]*\son[a-z]+=", reply.text), what


def test_every_answer_names_a_strict_policy(visitors: Visitors) -> None:
    for name in ROUTES:
        for kind in ("no token", "stranger", "admin"):
            assert_is_safe(visitors.ask(kind, *name.split()), (name, kind))
    http = visitors.server.http
    for path in (
        "/none",
        "/jobs/none",
        "/jobs/x/trials/y",
        "/api/v1/none",
        "/docs/static/none",
        "/static/none.js",
    ):
        for kind in ("no token", "admin"):
            headers = {"Cookie": f"advisor={visitors.cookies[kind]}"}
            assert_is_safe(http.get(path, headers=headers, follow_redirects=False), (path, kind))
    assert_is_safe(http.post("/login", data={"token": "wrong"}), "a refusal")
    assert_is_safe(http.post("/login", content=b"x" * 2**21), "too much")
    assert_is_safe(http.get("/jobs", headers={"Host": "evil.test"}), "another host")


def test_failure_of_the_server_names_a_strict_policy_too(tmp_path: Path) -> None:
    def broken() -> datetime:
        raise RuntimeError("this test's clock is broken")

    app = create_app(Settings(data_dir=tmp_path), clock=broken)
    client = TestClient(app, base_url="http://localhost", raise_server_exceptions=False)
    reply = client.get("/api/v1/jobs", headers={"Authorization": "Bearer adv_admin_id_x"})
    assert (reply.status_code, reply.json()["code"]) == (500, "internal_error")
    assert "clock" not in reply.text
    assert_is_safe(reply, "a failure")


def test_new_tokens_and_pages_are_kept_in_no_cache(visitors: Visitors) -> None:
    for name in (
        "POST /api/v1/tokens",
        "GET /api/v1/jobs",
        "GET /jobs",
        "GET /jobs/{job_id}/export",
        "GET /login",
    ):
        assert visitors.ask("admin", *name.split()).headers["cache-control"] == "no-store", name


@pytest.mark.parametrize(("scheme", "name"), [("http", "advisor"), ("https", "__Host-advisor")])
def test_cookie_of_a_visit_is_for_this_server_only(server: Served, scheme: str, name: str) -> None:
    reply = server.http.post(
        f"{scheme}://localhost/login", data={"token": server.admin}, follow_redirects=False
    )
    first, *flags = reply.headers["set-cookie"].split("; ")
    key = first.removeprefix(f"{name}=")
    assert len(key) >= 43
    assert key not in server.admin
    wanted = {
        "HttpOnly",
        "Path=/",
        "SameSite=strict",
        "Max-Age=43200",
        *(["Secure"] if scheme == "https" else []),
    }
    assert set(flags) == wanted


def test_cookie_planted_before_signing_in_is_never_taken_up(visitors: Visitors) -> None:
    headers = {"Cookie": "advisor=planted"}
    http = visitors.server.http
    reply = http.post(
        "/login", data={"token": visitors.server.admin}, headers=headers, follow_redirects=False
    )
    assert "planted" not in reply.headers["set-cookie"]
    http.cookies.clear()
    assert http.get("/jobs", headers=headers, follow_redirects=False).status_code == 303


def test_signing_in_again_ends_the_earlier_visit(visitors: Visitors) -> None:
    http, earlier = visitors.server.http, visitors.cookies["viewer"]
    headers = {"Cookie": f"advisor={earlier}"}
    token = visitors.tokens["viewer"]
    reply = http.post("/login", data={"token": token}, headers=headers, follow_redirects=False)
    assert earlier not in reply.headers["set-cookie"]
    http.cookies.clear()
    assert visitors.ask("viewer", "GET", "/jobs").status_code == 303


def test_visit_that_was_left_opens_nothing_with_its_old_cookie(visitors: Visitors) -> None:
    assert visitors.ask("admin", "GET", "/jobs").status_code == 200
    assert visitors.ask("admin", "POST", "/logout").status_code == 303
    for name in PAGES:
        if ROUTES[name] <= set(PEOPLE):
            assert visitors.ask("admin", *name.split()).status_code in {303, 401}, name


def test_every_form_carries_the_key_of_its_visit(visitors: Visitors) -> None:
    forms = []
    for name in PAGES:
        if name.startswith("GET ") and ROUTES[name] == set(PEOPLE):
            text = visitors.ask("admin", *name.split()).text
            forms += re.findall(r"<form\b[^>]*method=\"?post.*?</form>", text, re.DOTALL | re.IGNORECASE)
    actions = {re.search(r'action="([^"]*)"', form)[1]: form for form in forms}  # type: ignore[index]
    assert {"/logout", "/theme", f"/jobs/{visitors.job_id}/cancel"} <= actions.keys()
    for action, form in actions.items():
        assert action in WITHOUT_KEY or visitors.form_keys["admin"] in form, action


def test_every_form_without_its_visits_key_is_refused(visitors: Visitors) -> None:
    before, keys = visitors.look(), ("", "wrong", visitors.form_keys["owner"])
    for name in PAGES:
        method, template = name.split()
        if method != "GET" and template not in WITHOUT_KEY:
            for visitors.form_keys["admin"] in keys:
                assert visitors.ask("admin", method, template).status_code == 403, name
    assert visitors.look() == before


def test_token_made_and_revoked_on_its_page_opens_and_closes_the_api(visitors: Visitors) -> None:
    http, form = visitors.server.http, {"form_key": visitors.form_keys["admin"]}
    headers = {"Cookie": f"advisor={visitors.cookies['admin']}"}
    made = http.post("/tokens", data=form | {"role": "viewer"}, headers=headers)
    token = re.search(r"adv_viewer_[\w-]+", made.text)[0]
    assert token not in http.get("/tokens", headers=headers).text
    assert visitors.server.ask("GET", "/jobs", token).status_code == 200
    address = f"/tokens/{token.split('_')[2]}"
    rotated = http.post(f"{address}/rotate", data=form | {"hours": "0"}, headers=headers)
    fresh = re.search(r"adv_viewer_[\w-]+", rotated.text)[0]
    assert visitors.server.ask("GET", "/jobs", token).status_code == 401
    assert visitors.server.ask("GET", "/jobs", fresh).status_code == 200
    address = f"/tokens/{fresh.split('_')[2]}/revoke"
    assert http.post(address, data=form, headers=headers, follow_redirects=False).status_code == 303
    assert visitors.server.ask("GET", "/jobs", fresh).status_code == 401


@pytest.mark.parametrize("half", ["//[", "http://[x", "//]x["])
def test_half_an_address_is_no_failure(server: Served, half: str) -> None:
    http = server.http
    assert http.get("/login", params={"next": half}).status_code == 200
    assert (
        http.post("/theme", data={"theme": "dark", "next": half}, follow_redirects=False).headers["location"]
        == "/jobs"
    )
    assert http.post("/theme", data={"theme": "dark"}, headers={"Origin": half}).status_code == 403
