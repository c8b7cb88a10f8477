"""Signing in: the server and its token are remembered for whoever signed in, and for that server only."""

import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from advisor.cli.login import apply_login, config_path
from advisor.cli.program import build_app
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_server import TOKEN, FakeServer


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return config_path({"XDG_CONFIG_HOME": str(tmp_path / "config")})


def sign_in(server: FakeServer, tmp_path: Path, token: str) -> object:
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "NO_COLOR": "1", "ADVISOR_URL": ""}
    return CliRunner().invoke(build_app(), ["login", f"{server.url}/"], input=f"{token}\n", env=environment)


def test_signed_in_person_needs_no_variables_and_the_token_is_theirs_alone(
    server: FakeServer, run: Run, tmp_path: Path, config: Path
) -> None:
    signed = sign_in(server, tmp_path, TOKEN)
    assert signed.exit_code == 0, signed.stderr
    assert TOKEN not in signed.output
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    apply_login(environment)
    assert (environment["ADVISOR_URL"], environment["ADVISOR_TOKEN"]) == (server.url, TOKEN)
    assert run("logout").exit_code == 0
    assert not config.exists()
    assert "nothing to forget" in run("logout").stderr


@pytest.mark.parametrize(
    "own",
    [
        {"ADVISOR_URL": "http://other"},
        {"ADVISOR_URL": ""},
        {"ADVISOR_TOKEN": "mine"},
        {"ADVISOR_TOKEN_FILE": "f"},
    ],
)
def test_environment_wins_and_no_other_server_gets_the_token(
    server: FakeServer, tmp_path: Path, own: dict[str, str]
) -> None:
    sign_in(server, tmp_path, TOKEN)
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "config"), **own}
    apply_login(environment)
    assert environment.get("ADVISOR_TOKEN", "") != TOKEN
    assert own.items() <= environment.items()


def test_token_that_the_server_refuses_is_not_kept(server: FakeServer, tmp_path: Path, config: Path) -> None:
    refused = sign_in(server, tmp_path, "adv_wrong")
    assert refused.exit_code == 4
    assert not config.exists()
    assert sign_in(server, tmp_path, "").exit_code == 2


def test_file_that_is_broken_says_how_to_mend_it_and_login_still_works(
    server: FakeServer, run: Run, tmp_path: Path, config: Path
) -> None:
    config.parent.mkdir(parents=True)
    config.write_text("url = 3 4")
    broken = run("jobs", ADVISOR_URL=None)
    assert broken.exit_code == 2
    assert "advisor login URL" in broken.stderr
    assert sign_in(server, tmp_path, TOKEN).exit_code == 0
