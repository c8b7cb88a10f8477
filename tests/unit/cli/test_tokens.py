"""`advisor token`: what the options become, and what is not sent at all."""

import pytest

from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_server import BIRTH, FakeServer


def test_options_of_a_new_token_are_sent(server: FakeServer, run: Run) -> None:
    result = run("token", "create", "--role", "agent", "--uses", "1", "--expires", "1.5h", "--team", "vision")
    assert (result.exit_code, result.stdout) == (0, "adv_agent_t2_new\n")
    assert server.tokens_wanted == [
        ("/tokens", {"role": "agent", "label": "", "team": "vision", "expires_s": 5400.0, "uses": 1})
    ]


def test_rotation_leaves_an_hour_unless_told_otherwise(server: FakeServer, run: Run) -> None:
    assert run("token", "rotate", "t1").stdout == "adv_agent_t2_new\n"
    assert run("token", "rotate", "t1", "--grace", "2d", "--expires", "30m").exit_code == 0
    assert server.tokens_wanted == [
        ("/tokens/t1:rotate", {"grace_s": 3600.0, "expires_s": None}),
        ("/tokens/t1:rotate", {"grace_s": 172_800.0, "expires_s": 1800.0}),
    ]


@pytest.mark.parametrize(
    "words", [("--expires", "soon"), ("--expires", "1"), ("--role", "viewer", "--uses", "1"), ("--uses", "0")]
)
def test_option_that_makes_no_sense_is_refused_here(
    server: FakeServer, run: Run, words: tuple[str, ...]
) -> None:
    assert run("token", "create", *words).exit_code == 2
    assert server.tokens_wanted == []


def test_agent_is_readmitted_by_its_name(server: FakeServer, run: Run) -> None:
    node = {"hostname": "n", "cpu_count": 1, "memory_bytes": 1}
    at = BIRTH.isoformat()
    server.agents = [
        {"id": "a7", "name": "one", "node": node, "state": "revoked", "last_seen_at": at, "last_seen_s": 1.0}
    ]
    assert run("token", "readmit", "one").exit_code == 0
    assert server.tokens_wanted == [("/agents/a7:readmit", {})]
    result = run("token", "readmit", "two")
    assert result.exit_code == 102
    assert "no agent two" in result.stderr
