"""What went wrong in services like this one, each record a test that it does not here."""

import ast
import itertools
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from advisor.exporters.formats import FORMATS
from advisor.serving import configure_server, run_server
from advisor.settings import Settings
from tests.integration.server.served import Served
from tests.integration.server.visitors import (
    EVERYBODY,
    KINDS,
    METHODS,
    PEOPLE,
    ROUTES,
    Visitors,
    find_pages,
    list_routes,
)

ROOT = Path(__file__).parents[3]
BROWSERS = ("Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0", "curl/8.9.1", "")
GUARDED = [name.split()[1] for name, allowed in ROUTES.items() if allowed != EVERYBODY]
"""The room that posts, whose own tests show that it connects to what it judged."""
CLIENTS = ("advisor/here/", "advisor/client/", "advisor/cli/", "advisor/local/")
"""Rooms of the package that run on a person's machine: these may connect to the server that the person names."""


def test_cve_2023_48022_job_interface_without_authentication(server: Served, tmp_path: Path) -> None:
    """Ray: whoever reached the port ran code. Here beyond loopback nothing starts unprotected, and no switch exists."""
    for host in ("0.0.0.0", "::", "", "10.0.0.1", "head.example"):
        with pytest.raises(ValueError, match="unencrypted"):
            run_server(Settings(data_dir=tmp_path, host=host))
    assert not [name for name in Settings.model_fields if re.search(r"auth|insecure|anonymous|disable", name)]
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        assert "--insecure" not in page.read_text(), page.name
    reply = server.ask("POST", "/jobs", "", json={"workload": {"command": ["torchrun", "x.py"]}})
    assert reply.status_code == 401


def test_cve_2025_62593_names_rebound_to_loopback(visitors: Visitors) -> None:
    """Ray told browsers by their User-Agent. Here the Host decides, on loopback too, whatever the browser says."""
    before = visitors.look()
    for name, agent in itertools.product(ROUTES, BROWSERS):
        method, template = name.split()
        headers = {
            "Host": "evil.test",
            "User-Agent": agent,
            "Authorization": f"Bearer {visitors.server.admin}",
            "Cookie": f"advisor={visitors.cookies['admin']}",
        }
        reply = visitors.server.http.request(method, visitors.fill(template), headers=headers)
        assert (reply.status_code, reply.json()["code"]) == (421, "wrong_host"), name
    assert visitors.look() == before


@pytest.mark.parametrize(
    "headers",
    [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "http://evil.test"}],
)
def test_cve_2026_27482_guard_that_forgot_a_method(visitors: Visitors, headers: dict[str, str]) -> None:
    """Ray guarded POST and PUT, and forgot DELETE. Here harmless methods are named, and all others are guarded."""

    @find_pages(visitors.server.app).api_route("/later", methods=list(METHODS))
    def later() -> str:
        return "changed"

    before = visitors.look()
    pages = sorted({name.split()[1] for name in ROUTES if "/api/v1" not in name and "/docs" not in name})
    for method in ("POST", "PUT", "PATCH", "DELETE", "PROPFIND"):
        for template in ("/later", *pages):
            reply = visitors.ask("admin", method, template, headers)
            expected = {403} if template == "/later" and method in METHODS else {403, 404, 405}
            assert reply.status_code in expected, (method, template, reply.status_code)
    assert visitors.look() == before
    assert visitors.ask("admin", "DELETE", "/later").status_code == 200


def test_cve_2023_48023_server_that_fetches_addresses(
    visitors: Visitors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's log proxy fetched any address. Here no route takes one, and nothing that is sent makes a connection."""
    schemas = visitors.server.app.openapi()["components"]["schemas"]
    fields = {field for schema in schemas.values() for field in schema.get("properties", ())}
    assert not {field for field in fields if re.search(r"url|uri|proxy|callback|fetch", field)} - {"prefetch"}
    called: list[Any] = []
    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, lambda *words, **named: called.append(words))
    for name, allowed in ROUTES.items():
        for kind in [kind for kind in KINDS if kind in allowed]:
            visitors.ask(kind, *name.split())
    assert not called


def test_cve_2026_7724_address_that_is_looked_up_twice() -> None:
    """Prefect checked a webhook's address, then looked it up again. This server posts to nobody."""
    for path in (ROOT / "advisor").rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(CLIENTS):
            continue
        imported = {
            (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
        }
        reaching = {
            "httpx",
            "requests",
            "aiohttp",
            "urllib3",
            "urllib.request",
            "http.client",
            "socket",
            "smtplib",
        }
        assert not imported & reaching, name


def test_cve_2023_6019_argument_that_reached_a_shell(visitors: Visitors) -> None:
    """Ray put `format` into a shell. Here no shell is started anywhere, and formats are names of a list."""
    job = visitors.stage.job.id
    for wrong in ("py-spy;id", "$(id)", "`id`", "| id", "../pytorch", "pytorch\x00"):
        reply = visitors.server.ask("GET", f"/jobs/{job}/strategy", params={"format": wrong})
        assert reply.status_code in {409, 422}, wrong
    for path in (*(ROOT / "advisor").rglob("*.py"), *(ROOT / "agent").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                assert not [key for key in node.keywords if key.arg == "shell"], path
                assert not re.fullmatch(
                    r"os\.(system|popen)|subprocess\.(getoutput|getstatusoutput)|asyncio\.create_subprocess_shell",
                    ast.unparse(node.func),
                ), path


def test_cve_2026_3514_path_that_ends_like_a_public_one(visitors: Visitors) -> None:
    """Prefect let in every path that ended in `health`. Here each route asks for itself, whatever its end."""
    ends = ("livez", "readyz", "health", "ready", "docs", "openapi.json", "login", "static/advisor.css")
    for end in ends:
        for path in (
            f"/api/v1/jobs/{end}", f"/api/v1/jobs/x%2F{end}", f"/api/v1/jobs/{visitors.job_id}/{end}",
            f"/api/v1/jobs;/{end}", f"/{end}/../api/v1/jobs", f"/{end}/%2e%2e/api/v1/jobs", f"/api/v1/jobs?/{end}",
            f"/api/v1/jobs#/{end}", f"/api/v1/agents/{end}", f"/jobs/{end}", f"/jobs/{visitors.job_id}/log?/{end}",
            f"//api/v1/jobs/{end}", f"/api/v1//jobs/{end}", f"/API/v1/jobs/{end}",
        ):  # fmt: skip
            reply = visitors.server.http.get(path, follow_redirects=False)
            to_login = reply.status_code == 303 and reply.headers["location"].startswith("/login")
            assert reply.status_code in {401, 404, 405} or to_login, (path, reply.status_code)


def test_cve_2026_7723_socket_without_authentication(visitors: Visitors) -> None:
    """Prefect's websocket asked for nothing. Here there is none, and every stream stands on the list of routes."""
    app = visitors.server.app
    # Both fail where a route is neither a request's nor a mount.
    listed = {name for name, _ in (*list_routes(app.routes), *list_routes(find_pages(app).routes))}
    assert configure_server(app, visitors.server.settings).ws == "none"
    streams = {name for name in listed if name.endswith(("/stream", "/live"))}
    assert streams == {"GET /api/v1/jobs/{job_id}/events/stream", "GET /jobs/{job_id}/live"}
    assert all(ROUTES[name] == set(PEOPLE) for name in streams)
    for template in GUARDED:
        with (
            pytest.raises((WebSocketDenialResponse, WebSocketDisconnect)),
            visitors.server.http.websocket_connect(visitors.fill(template)),
        ):
            pytest.fail(f"{template} took a websocket")


@pytest.mark.parametrize(
    "path",
    [
        "..%2f..%2fpyproject.toml", "%2e%2e/%2e%2e/pyproject.toml", "%2fetc%2fpasswd.css", "..%5c..%5cpyproject.toml",
        "advisor.css%00.svg", "....//....//pyproject.toml", "%2e%2e%2ftemplates%2fbase.html",
        "x/../../templates/base.html",
    ],
)  # fmt: skip
def test_optuna_6432_path_that_leads_out_of_its_folder(visitors: Visitors, path: str) -> None:
    """Optuna's artifacts left their folder. Here names of files are the server's own, and static ones stay inside."""
    for folder in ("static", "plotly", "docs/static"):
        reply = visitors.server.http.get(f"/{folder}/{path}")
        assert reply.status_code == 404, reply.status_code
        assert "[project]" not in reply.text
        assert "<html" not in reply.text or "There is no page" in reply.text
    job = visitors.stage.job.id
    for wanted in (f"/api/v1/jobs/{job}/strategy?format={path}", f"/api/v1/jobs/{path}/strategy?format=json"):
        reply = visitors.server.http.get(wanted, headers={"Authorization": f"Bearer {visitors.server.admin}"})
        assert reply.status_code in {404, 409, 422}, wanted
    assert all(re.fullmatch(r"\w[\w.-]*", info.filename) for info in FORMATS.values())


def test_pytorch_ranks_talk_unprotected_and_only_where_they_are_told_to() -> None:
    """PyTorch's ranks ask nobody who they are: the documentation says so, and nothing listens everywhere."""
    page = re.sub(r"\s+", " ", (ROOT / "docs/security.md").read_text())
    assert "neither authenticated nor encrypted" in page
    for path in (ROOT / "agent").rglob("*.py"):
        assert not re.search(r"(?<![\d.])0\.0\.0\.0", path.read_text()), path
        assert "grpc" not in path.read_text(), path
