"""A link signs in once and for a while, into the visit that its token opens."""

from datetime import timedelta
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from advisor.services.visits import LASTS, make_link, take_link
from tests.samples.stored import NOW, Clock, Stories


@pytest.fixture
def browsers(stories: Stories, clock: Clock, tmp_path: Path):
    """A new browser each time, on one server."""
    (tmp_path / "admin-token").write_text("adv_admin_1_x\n")
    pages = stories.build_pages(lambda secret: take_link(tmp_path, secret, clock()))
    return lambda: TestClient(pages, base_url="http://127.0.0.1:8765")


def test_a_link_signs_one_browser_in_and_leads_to_its_page(browsers, tmp_path: Path) -> None:
    secret = make_link(tmp_path, NOW)
    first, second = browsers(), browsers()
    came = first.get(f"/enter/{secret}?next=/jobs/busy", follow_redirects=False)
    assert (came.status_code, came.headers["location"]) == (303, "/jobs/busy")
    assert "httponly" in came.headers["set-cookie"].lower()
    assert first.get("/jobs/busy", follow_redirects=False).status_code == 200
    assert first.get(f"/enter/{secret}?next=/jobs/busy", follow_redirects=False).status_code == 303, (
        "still in"
    )
    late = second.get(f"/enter/{secret}", follow_redirects=False)
    assert late.status_code == 401
    assert "The link has been used, or is older than ten minutes." in late.text
    assert second.get("/jobs", follow_redirects=False).status_code == 303


def test_a_link_leads_to_no_other_site(browsers, tmp_path: Path) -> None:
    came = browsers().get(
        f"/enter/{make_link(tmp_path, NOW)}?next=https://evil.example", follow_redirects=False
    )
    assert came.headers["location"] == "/jobs"


def test_a_link_ends_by_itself_and_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "admin-token").write_text("adv_1")
    secret, other = make_link(tmp_path, NOW), make_link(tmp_path, NOW)
    for file in (tmp_path / "sign-in-links").iterdir():
        assert file.stat().st_mode & 0o777 == 0o600
        assert secret not in file.name
    assert take_link(tmp_path, secret, NOW + LASTS) is None
    make_link(tmp_path, NOW + LASTS + timedelta(seconds=1))
    assert take_link(tmp_path, other, NOW) is None, "its file is gone"
    assert len(list((tmp_path / "sign-in-links").iterdir())) == 1


@pytest.mark.parametrize("secret", ["", "nothing", "../admin-token", "x" * 10_000])
def test_what_is_no_link_opens_nothing(tmp_path: Path, secret: str) -> None:
    (tmp_path / "admin-token").write_text("adv_1")
    assert take_link(tmp_path, secret, NOW) is None
    assert (tmp_path / "admin-token").exists()
