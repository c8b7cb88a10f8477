"""Every route, with every method and every kind of visitor: who is not named is kept out, and changes nothing."""

from typing import Any

from fastapi.routing import APIRoute
from starlette.routing import Mount

from advisor.api.strict_json import StrictRoute
from tests.integration.server.visitors import (
    EVERYBODY,
    KINDS,
    METHODS,
    NOBODY,
    PEOPLE,
    ROUTES,
    Visitors,
    compile_template,
    find_pages,
    is_of_the_api,
    list_routes,
)


def is_kept_out(kind: str, template: str, reply: Any) -> bool:
    """Whether this answer is the right refusal for who was asking."""
    status = reply.status_code
    if not is_of_the_api(template):
        signed_in = kind in PEOPLE
        to_login = status == 303 and reply.headers["location"].startswith("/login")
        return status == 403 if signed_in else to_login or (status == 401 and template.endswith("/live"))
    if kind in NOBODY and status != 403:
        return status == 401 and reply.headers["www-authenticate"] == "Bearer"
    if kind == "another agent" and "/sessions/" in template:
        return status == 409 and reply.json()["code"] in {"stale_session", "result_quarantined"}
    return status == 403


def test_every_route_is_listed(visitors: Visitors) -> None:
    app = visitors.server.app
    routes = [*list_routes(app.routes), *list_routes(find_pages(app).routes)]
    assert {name for name, _ in routes} == ROUTES.keys()
    assert len(routes) == len(ROUTES)
    for name, route in routes:
        if "/api/v1/" in name and "openapi.json" not in name:
            assert isinstance(route, StrictRoute), name
            assert route.include_in_schema, name
        assert isinstance(route, (APIRoute, Mount)) or "openapi.json" in name


def test_who_is_not_on_the_list_is_kept_out_and_changes_nothing(visitors: Visitors) -> None:
    before = visitors.look()
    let_in = []
    for name, allowed in ROUTES.items():
        method, template = name.split()
        for kind in [kind for kind in KINDS if kind not in allowed]:
            reply = visitors.ask(kind, method, template)
            if not is_kept_out(kind, template, reply):
                let_in.append((name, kind, reply.status_code, reply.text[:200]))
    assert not let_in
    assert visitors.look() == before


def test_who_is_on_the_list_is_let_in(visitors: Visitors) -> None:
    kept_out = []
    for name, allowed in ROUTES.items():
        method, template = name.split()
        for kind in [kind for kind in KINDS if kind in allowed]:
            reply = visitors.ask(kind, method, template)
            asks_for_more = name in {"POST /login", "GET /enter/{secret}"}
            refused = reply.status_code in {401, 403, 405} and not asks_for_more
            to_login = reply.headers.get("location", "").startswith("/login") and name != "POST /logout"
            if refused or to_login or reply.status_code >= 500:
                kept_out.append((name, kind, reply.status_code, reply.text[:200]))
    assert not kept_out


def test_method_that_a_route_does_not_have_opens_nothing(visitors: Visitors) -> None:
    before = visitors.look()
    opened = []
    for method in METHODS:
        taken = [compile_template(name.split()[1]) for name in ROUTES if name.startswith(f"{method} ")]
        for template in sorted({name.split()[1] for name in ROUTES}):
            # What is one route's other method may be another route's address.
            if any(pattern.fullmatch(visitors.fill(template)) for pattern in taken):
                continue
            # A method that is not there is no visitor's; HEAD is GET for whom that lets in.
            for kind in KINDS if method == "HEAD" else ("no token", "agent", "admin"):
                reply = visitors.ask(kind, method, template)
                may_look = method == "HEAD" and kind in ROUTES.get(f"GET {template}", set())
                shared = [header for header in reply.headers if header.startswith("access-control-")]
                if shared or not (reply.status_code in {404, 405} or may_look):
                    opened.append((method, template, kind, reply.status_code))
    assert not opened
    assert visitors.look() == before


def test_visit_ends_with_its_token_on_every_page(visitors: Visitors) -> None:
    token = visitors.server.token("admin")
    visitors.cookies["revoked"] = visitors.sign_in(token)
    assert visitors.ask_page("revoked", "GET", "/jobs").status_code == 200
    assert visitors.server.ask("DELETE", f"/tokens/{token.split('_')[2]}").status_code == 204
    for name, allowed in ROUTES.items():
        method, template = name.split()
        if allowed != EVERYBODY and not is_of_the_api(template):
            assert is_kept_out("revoked", template, visitors.ask_page("revoked", method, template)), name


def test_machines_and_spent_tokens_do_not_sign_in(visitors: Visitors) -> None:
    assert {kind for kind, cookie in visitors.cookies.items() if cookie} == set(PEOPLE)
