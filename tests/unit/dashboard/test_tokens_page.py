"""The page of tokens: for administrators only, and the one place where a new token can be read, once."""

import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape

import pytest
from starlette.testclient import TestClient

from advisor.protocol.views import NewToken, Role
from advisor.services.tokens import create_token
from tests.samples.stored import NOW, Stories, read_words

SignIn = Callable[[str], TestClient]
ADMIN = "adv_admin_1_x"
CHANGES = ("/tokens", "/tokens/many/rotate", "/tokens/many/revoke")


def read_form_key(page: str) -> str:
    return re.search(r'name="form_key" value="([^"]+)"', page).group(1)


def enter(sign_in: SignIn, token: str = ADMIN) -> tuple[TestClient, str]:
    client = sign_in(token)
    return client, read_form_key(client.get("/jobs").text)


def find_row(page: str, token_id: str) -> str:
    rows = re.findall(r"<tr.*?</tr>", page, re.S)
    return next(row for row in rows if f"<code>{token_id}</code>" in row)


@pytest.mark.parametrize("token", ["adv_viewer_3_x", "adv_submitter_2_x"])
def test_only_administrators_see_and_change_tokens(sign_in: SignIn, stories: Stories, token: str) -> None:
    client, form_key = enter(sign_in, token)
    before = stories.tokens()
    assert 'href="/tokens"' not in client.get("/jobs").text
    answer = client.get("/tokens")
    assert answer.status_code == 403
    assert "rack 7" not in answer.text
    for address in CHANGES:
        assert client.post(address, data={"form_key": form_key}).status_code == 403, address
    assert stories.tokens() == before


def test_form_without_its_key_changes_nothing(sign_in: SignIn, stories: Stories) -> None:
    client, _ = enter(sign_in)
    before = stories.tokens()
    for address in CHANGES:
        for key in ("", "of an earlier visit"):
            assert client.post(address, data={"form_key": key}).status_code == 403, address
    assert stories.tokens() == before


def test_list_says_whose_each_is_and_what_can_be_done_with_it(sign_in: SignIn) -> None:
    client, _ = enter(sign_in)
    page = client.get("/tokens").text
    assert '<a href="/tokens" aria-current="page">Tokens</a>' in page
    mine, old, many = (find_row(page, token_id) for token_id in ("1", "old", "many"))
    assert "you are signed in with it" in mine
    assert "you are signed out" in mine
    assert "you are signed" not in many
    assert "expired" in old
    assert "/tokens/old/revoke" in old
    assert "/rotate" not in old
    assert "for 3 more agents" in many
    assert "until 2026\u201111\u201119 12:00" in old, "a date is not folded at its hyphens"
    assert "/tokens/many/rotate" in many
    assert "node01" not in page
    agents = client.get("/tokens?of=agents").text
    assert "node01" in agents
    assert "/tokens/own/revoke" in agents
    assert "/tokens/own/rotate" not in agents
    assert "rack 7" not in agents


def test_list_says_when_each_was_last_used(sign_in: SignIn, stories: Stories) -> None:
    stories.source.change(lambda work: work.tokens.mark_used("many", NOW - timedelta(minutes=70)))
    client, _ = enter(sign_in)
    page = client.get("/tokens").text
    assert ">1 h ago</time>" in find_row(page, "many")
    assert "2026-11-20 10:50" in find_row(page, "many")
    assert "never" in find_row(page, "old")


def test_new_token_is_shown_once_with_how_it_is_used(sign_in: SignIn, stories: Stories) -> None:
    client, form_key = enter(sign_in)
    data = {"form_key": form_key, "role": "viewer", "label": " <b>ada</b> ", "team": "vision", "days": "7"}
    page = client.post("/tokens", data=data)
    assert page.status_code == 200
    (made,) = (token for token in stories.tokens().values() if token.id.startswith("new"))
    assert (made.role, made.label, made.team) == ("viewer", "<b>ada</b>", "vision")
    assert (made.expires_at - made.created_at).days == 7
    secret = re.search(rf"adv_viewer_{made.id}_[\w-]{{40,}}", page.text)[0]
    assert page.headers["cache-control"] == "no-store"
    assert "advisor login http://127.0.0.1:8765" in read_words(page.text)
    assert "<b>ada" not in page.text
    again = client.get("/tokens").text
    assert secret not in again
    assert find_row(again, made.id)


def test_token_for_agents_comes_with_the_agents_command(sign_in: SignIn, stories: Stories) -> None:
    client, form_key = enter(sign_in)
    data = {"form_key": form_key, "role": "agent", "uses": "4", "days": ""}
    page = client.post("/tokens", data=data).text
    assert "advisor-agent run --server http://127.0.0.1:8765 --token-file agent-token" in read_words(page)
    (made,) = (token for token in stories.tokens().values() if token.id.startswith("new"))
    assert (made.uses_left, made.expires_at) == (4, None)


@pytest.mark.parametrize(
    "wrong", [{"uses": "4"}, {"role": "root"}, {"days": "0"}, {"days": "nan"}, {"days": "1e9"}]
)
def test_wishes_that_mean_nothing_make_no_token(
    sign_in: SignIn, stories: Stories, wrong: dict[str, str]
) -> None:
    client, form_key = enter(sign_in)
    before = stories.tokens()
    assert client.post("/tokens", data={"form_key": form_key} | wrong).status_code == 422
    assert stories.tokens() == before


def test_rotated_token_ends_after_its_grace_and_the_new_one_is_shown(
    sign_in: SignIn, stories: Stories
) -> None:
    client, form_key = enter(sign_in)
    page = client.post("/tokens/3/rotate", data={"form_key": form_key, "hours": "2"}).text
    (made,) = (token for token in stories.tokens().values() if token.id.startswith("new"))
    assert made.label == "vic"
    assert re.search(rf"adv_viewer_{made.id}_[\w-]{{40,}}", page)
    assert stories.tokens()["3"].expires_at == NOW + timedelta(hours=2)
    client.post("/tokens/many/rotate", data={"form_key": form_key, "hours": "2"})
    assert stories.tokens()["many"].expires_at == NOW, "the two would let in more agents than the one was for"


def test_revoked_token_is_told_so_and_cannot_be_revoked_again(sign_in: SignIn, stories: Stories) -> None:
    client, form_key = enter(sign_in)
    page = client.post("/tokens/many/revoke", data={"form_key": form_key}).text
    assert stories.tokens()["many"].revoked_at is not None
    row = find_row(page, "many")
    assert "revoked" in row
    assert "<form" not in row
    assert client.post("/tokens/none/revoke", data={"form_key": form_key}).status_code == 404


def test_long_list_is_cut_into_pages(sign_in: SignIn, stories: Stories) -> None:
    for number in range(100):
        wanted, made_at = NewToken(role=Role.VIEWER), NOW - timedelta(hours=number + 1)
        stories.source.change(create_token, wanted, made_at)
    client, _ = enter(sign_in)
    page = client.get("/tokens").text
    assert "<code>new99</code>" not in page
    older = re.search(r'href="(/tokens\?of=&amp;cursor=[^"]+)"', page).group(1)
    assert "<code>new99</code>" in client.get(unescape(older)).text
