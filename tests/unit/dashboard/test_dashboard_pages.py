"""The pages over HTTP: what they show, whom they let in, and what they refuse."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from advisor.dashboard.pages.access import keep_local
from advisor.dashboard.rendering import find_web
from advisor.protocol.asked.jobs import JobState, Stage
from advisor.protocol.measured.trials import BlockState
from advisor.protocol.views import EventFacts, EventKind
from advisor.services.tokens import revoke_token
from tests.samples.stored import NOW, Stories, read_words

SignIn = Callable[[str], TestClient]
PAGES = (
    "/jobs", "/jobs?state=finished", "/jobs/busy", "/jobs/sample", "/jobs/sample/trials/5", "/jobs/busy/trials/10",
    "/jobs/sample/trials/6", "/jobs/busy/log", "/jobs/sample/log", "/jobs/sample/export", "/jobs/sample/trials",
    "/jobs/busy/trials?sort=-samples&state=ok&columns=number&columns=loss", "/jobs/sample/compare?trials=0,5",
    "/jobs/busy/compare?trials=0&trials=6&trials=9&trials=10", "/jobs/sample/explore", "/jobs/busy/explore",
    "/jobs/sample/what-if", "/jobs/busy/what-if", "/compare?jobs=sample,busy",
    "/jobs/sample/export?format=paddle&target=2.6.2", "/jobs/busy/export", "/agents", "/knobs",
)  # fmt: skip


def read_form_key(page: str) -> str:
    return re.search(r'name="form_key" value="([^"]+)"', page).group(1)


@pytest.mark.parametrize("address", PAGES)
def test_page_is_complete_and_loads_nothing_from_elsewhere(sign_in: SignIn, address: str) -> None:
    answer = sign_in("adv_viewer_3_x").get(address)
    assert answer.status_code == 200, answer.text
    assert answer.text.rstrip().endswith("</html>")
    # A link to the reader's own optuna-dashboard loads nothing.
    page = re.sub(r'<a href="http://127\.0\.0\.1:8080/dashboard/studies/\d+"', "", answer.text)
    assert not re.findall(r'(?:src|href|action)="(?:https?:)?//', page)
    assert not re.findall(r"<script>|<style|\sstyle=|\son[a-z]+=", strip_escaped(answer.text))
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"


def strip_escaped(page: str) -> str:
    """Leave out what training scripts wrote: it is escaped, which other tests look at."""
    return re.sub(r"<pre.*?</pre>", "", page, flags=re.S)


@pytest.mark.parametrize("address", [*PAGES, "/jobs/sample/export/file?format=torchrun"])
def test_page_asks_for_a_token_and_leads_back(client: TestClient, address: str) -> None:
    answer = client.get(address, follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/login?next=%2F")


def test_release_keeps_its_own_pages_while_another_is_installed_over_it(
    stories: Stories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = shutil.copytree(find_web(), tmp_path / "web")
    monkeypatch.setattr("advisor.dashboard.find_web", lambda: web)
    pages = stories.build_pages()
    for template in (web / "templates").rglob("*.html"):
        template.write_text("{{ what_the_next_release_knows }}")
    with TestClient(pages, base_url="http://127.0.0.1:8765") as client:
        assert client.get("/login").text.rstrip().endswith("</html>")


def test_signing_in_sets_a_cookie_that_scripts_cannot_read(client: TestClient) -> None:
    answer = client.post(
        "/login", data={"token": " adv_viewer_3_x ", "next": "/agents"}, follow_redirects=False
    )
    assert answer.headers["location"] == "/agents"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "adv_viewer" not in cookie


def test_cookie_is_secure_over_tls(client: TestClient) -> None:
    client.base_url = "https://127.0.0.1:8765"
    cookie = client.post("/login", data={"token": "adv_viewer_3_x"}, follow_redirects=False).headers[
        "set-cookie"
    ]
    assert cookie.startswith("__Host-advisor=")
    assert "Secure" in cookie
    assert "Domain" not in cookie


def test_unknown_token_is_refused(client: TestClient) -> None:
    answer = client.post("/login", data={"token": "adv_agent_9_x"})
    assert answer.status_code == 401
    assert "No person has this token." in answer.text
    assert "adv_agent_9_x" not in answer.text


def test_visit_ends_when_its_token_is_revoked(sign_in: SignIn, stories: Stories) -> None:
    client = sign_in("adv_viewer_3_x")
    stories.source.change(revoke_token, "3", NOW)
    assert client.get("/jobs", follow_redirects=False).status_code == 303


def test_signing_out_ends_the_visit(sign_in: SignIn) -> None:
    client = sign_in("adv_viewer_3_x")
    key, cookie = read_form_key(client.get("/jobs").text), client.cookies["advisor"]
    client.post("/logout", data={"form_key": key})
    client.cookies.set("advisor", cookie)
    assert client.get("/jobs", follow_redirects=False).status_code == 303


def test_submitter_cancels_a_job(sign_in: SignIn, stories: Stories) -> None:
    client = sign_in("adv_submitter_2_x")
    key = read_form_key(client.get("/jobs/busy").text)
    answer = client.post("/jobs/busy/cancel", data={"form_key": key}, follow_redirects=False)
    assert answer.headers["location"] == "/jobs/busy"
    assert stories.job("busy").state is JobState.CANCELLING


def test_submitter_has_a_trial_measured_again(sign_in: SignIn, stories: Stories) -> None:
    client = sign_in("adv_submitter_2_x")
    story = stories.told["busy"]
    job = story.job.model_copy(update={"stage": Stage.SEARCH})
    stories.tell(replace(story, job=job))
    address = "/jobs/busy/trials/5"
    page = client.get(address).text
    assert "Measure again" in page
    assert client.post(f"{address}/repeat", data={"form_key": "of nobody"}).status_code == 403
    asked = client.post(f"{address}/repeat", data={"form_key": read_form_key(page)}).text
    assert "It is to be measured again" in asked
    assert "Measure again" not in asked
    assert "data-live-url" in asked
    assert "takes part in every race" in client.get("/jobs/busy/trials/0").text
    stories.source.change(lambda work: work.jobs.set_stage("busy", Stage.CONFIRM))
    assert "the search was over before there was one" in client.get(address).text
    client.cookies.clear()
    assert "Measure again" not in sign_in("adv_viewer_3_x").get("/jobs/busy/trials/4").text


def test_trials_page_says_which_earlier_jobs_began_the_search(stories: Stories, sign_in: SignIn) -> None:
    client = sign_in("adv_viewer_3_x")
    assert "Where it began" not in client.get("/jobs/busy/trials").text
    facts = EventFacts(earlier=("old",))
    stories.source.change(
        lambda work: work.events.append(
            "busy", EventKind.JOB, "1 similar earlier job: old.", NOW, facts=facts
        )
    )
    assert "Where it began: 1 similar earlier job: old." in client.get("/jobs/busy/trials").text


def test_trial_that_is_measured_again_right_now_says_so_and_stays_live(
    stories: Stories, sign_in: SignIn
) -> None:
    story = stories.told["busy"]
    story = replace(story, job=story.job.model_copy(update={"stage": Stage.SEARCH}))
    done = next(block for block in story.history.blocks if block.trial_number == 5)
    more = done.model_copy(
        update={
            "id": "more",
            "state": BlockState.ISSUED,
            "result": None,
            "summary": None,
            "issued_at": NOW,
            "ordinal": 21,
        }
    )
    blocks = (*(block for block in story.history.blocks if block.id != "live"), more)
    stories.tell(replace(story, history=story.history.model_copy(update={"blocks": blocks})))
    client = sign_in("adv_submitter_2_x")
    page = client.get("/jobs/busy/trials/5").text
    assert "It is being measured again" in page
    assert "Measure again" not in page
    assert "data-live-url" in page
    stories.tell(replace(story, history=story.history.model_copy(update={"blocks": blocks[:-1]})))
    page = client.get("/jobs/busy/trials/5").text
    assert "Measure again" in page
    assert "data-live-url" not in page


def test_viewer_cannot_cancel(sign_in: SignIn, stories: Stories) -> None:
    client = sign_in("adv_viewer_3_x")
    page = client.get("/jobs/busy").text
    assert "/cancel" not in page
    answer = client.post("/jobs/busy/cancel", data={"form_key": read_form_key(page)})
    assert answer.status_code == 403
    assert stories.job("busy").state is JobState.RUNNING


def test_submitter_pauses_a_job_and_lets_it_go_on(sign_in: SignIn, stories: Stories) -> None:
    client = sign_in("adv_submitter_2_x")
    for change, state, other in (
        ("pause", JobState.PAUSED, "resume"),
        ("resume", JobState.RUNNING, "pause"),
    ):
        page = client.get("/jobs/busy").text
        assert f'action="/jobs/busy/{change}"' in page
        assert f'action="/jobs/busy/{other}"' not in page
        data = {"form_key": read_form_key(page)}
        answer = client.post(f"/jobs/busy/{change}", data=data, follow_redirects=False)
        assert answer.headers["location"] == "/jobs/busy"
        assert stories.job("busy").state is state
    viewer = sign_in("adv_viewer_3_x")
    page = viewer.get("/jobs/busy").text
    assert "/pause" not in page
    assert viewer.post("/jobs/busy/pause", data={"form_key": read_form_key(page)}).status_code == 403


def test_submitter_continues_a_job_that_has_ended(sign_in: SignIn, stories: Stories) -> None:
    client = sign_in("adv_submitter_2_x")
    page = client.get("/jobs/sample").text
    assert 'action="/jobs/sample/continue"' in page
    data = {"form_key": read_form_key(page), "minutes": "10"}
    answer = client.post("/jobs/sample/continue", data=data, follow_redirects=False)
    assert answer.headers["location"] == "/jobs/sample"
    before, after = stories.told["sample"].job, stories.job("sample")
    assert after.spec.budget.max_seconds - before.spec.budget.max_seconds == 600.0
    assert (after.state, after.continued_at) == (JobState.QUEUED, (NOW,))


@pytest.mark.parametrize("minutes", ["-1", "0", "1e9", "nan", "soon"])
def test_minutes_that_mean_nothing_are_refused(sign_in: SignIn, stories: Stories, minutes: str) -> None:
    client = sign_in("adv_submitter_2_x")
    data = {"form_key": read_form_key(client.get("/jobs/sample").text), "minutes": minutes}
    assert client.post("/jobs/sample/continue", data=data).status_code == 422
    assert stories.job("sample").state is JobState.FINISHED


def test_viewer_and_a_job_that_runs_cannot_be_continued(sign_in: SignIn, stories: Stories) -> None:
    viewer = sign_in("adv_viewer_3_x")
    page = viewer.get("/jobs/sample").text
    assert "/continue" not in page
    assert viewer.post("/jobs/sample/continue", data={"form_key": read_form_key(page)}).status_code == 403
    client = sign_in("adv_submitter_2_x")
    data = {"form_key": read_form_key(client.get("/jobs/busy").text)}
    assert client.post("/jobs/busy/continue", data=data).status_code == 409
    assert [stories.job(job_id).continued_at for job_id in ("sample", "busy")] == [(), ()]


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
    ],
)
def test_forms_from_other_sites_are_refused(
    sign_in: SignIn, stories: Stories, headers: dict[str, str]
) -> None:
    client = sign_in("adv_admin_1_x")
    key = read_form_key(client.get("/jobs/busy").text)
    for address in ("/jobs/busy/cancel", "/logout", "/theme", "/login"):
        assert client.post(address, data={"form_key": key}, headers=headers).status_code == 403
    assert stories.job("busy").state is JobState.RUNNING


def test_form_without_its_key_is_refused(sign_in: SignIn, stories: Stories) -> None:
    client = sign_in("adv_admin_1_x")
    for key in ("", "wrong", "schlüssel"):
        assert client.post("/jobs/busy/cancel", data={"form_key": key}).status_code == 403
    assert stories.job("busy").state is JobState.RUNNING


@pytest.mark.parametrize(
    "target",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "jobs",
        "/jobs\r\nx: y",
    ],
)
def test_sign_in_leads_nowhere_else(target: str) -> None:
    assert keep_local(target) == "/jobs"


def test_sign_in_leads_back_to_a_page_of_ours() -> None:
    assert keep_local("/jobs/a?x=1") == "/jobs/a?x=1"


def test_what_training_scripts_and_people_write_is_text(sign_in: SignIn, stories: Stories) -> None:
    story = stories.told["sample"]
    spec = story.job.spec.model_copy(update={"name": "<script>alert(1)</script>"})
    stories.tell(replace(story, job=story.job.model_copy(update={"spec": spec})))
    client = sign_in("adv_viewer_3_x")
    log = client.get("/jobs/busy/log").text
    assert "&lt;img src=x onerror=alert(1)&gt;" in log
    assert "<img src=x" not in log
    assert (
        "&lt;script&gt;alert(&#39;a training script wrote this&#39;)"
        in client.get("/jobs/sample/trials/6").text
    )
    export = client.get("/jobs/sample/export?format=torchrun").text
    assert "&lt;script&gt;alert(1)" in export.partition('id="file-title"')[2]
    assert "<script>alert(1)" not in export


def test_export_is_a_file_to_save(sign_in: SignIn) -> None:
    answer = sign_in("adv_viewer_3_x").get("/jobs/sample/export/file?format=torchrun")
    assert answer.headers["content-disposition"] == 'attachment; filename="run.sh"'
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_export_of_an_unknown_format_says_so(sign_in: SignIn) -> None:
    assert sign_in("adv_viewer_3_x").get("/jobs/sample/export/file?format=nope").status_code == 422
    answer = sign_in("adv_viewer_3_x").get("/jobs/sample/export/file?format=trianer")
    assert "did you mean trainer?" in answer.text


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("/nope", "There is no page"),
        ("/jobs/none", "There is no job none."),
        ("/jobs/sample/trials/99", "no trial 99"),
    ],
)
def test_missing_page_says_what_is_missing(sign_in: SignIn, address: str, sentence: str) -> None:
    answer = sign_in("adv_viewer_3_x").get(address)
    assert answer.status_code == 404
    assert sentence in answer.text
    assert "Sign out" in answer.text


def test_failing_server_shows_a_page_with_all_headers(
    sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the test's source is broken")

    client = sign_in("adv_viewer_3_x")
    monkeypatch.setattr("advisor.dashboard.pages.job.get_history", fail)
    answer = client.get("/jobs/sample")
    assert answer.status_code == 500
    assert "the test's source is broken" not in answer.text
    assert "default-src 'self'" in answer.headers["content-security-policy"]


def test_first_page_of_an_empty_server_says_what_to_type(sign_in: SignIn, stories: Stories) -> None:
    stories.forget("busy", "sample")
    page = sign_in("adv_viewer_3_x").get("/jobs").text
    assert "advisor tune -- torchrun" in read_words(page)
    assert "http://127.0.0.1:8765" in page


def test_pages_write_no_character_that_turns_or_hides_text(sign_in: SignIn, stories: Stories) -> None:
    foreign = "\x1b[31mred\x1b[0m \u202egnp.exe"
    story = stories.told["busy"]
    job = story.job.model_copy(update={"state_reason": foreign, "owner": foreign})
    event = story.events[0].model_copy(update={"sentence": foreign})
    trials = tuple(
        t.model_copy(update={"because": foreign, "log_tail": foreign}) for t in story.history.trials
    )
    history = story.history.model_copy(update={"trials": trials})
    stories.tell(replace(story, job=job, history=history, events=(event,)))
    client = sign_in("adv_viewer_3_x")
    for path in ("/jobs", "/jobs/busy", "/jobs/busy/log", "/jobs/busy/trials", "/jobs/busy/trials/6"):
        page = client.get(path).text
        assert "red gnp.exe" in page, path
        assert not set("\x1b\u202e") & set(page), path


def test_theme_is_kept_without_scripts(client: TestClient) -> None:
    client.post("/theme", data={"theme": "dark", "next": "/login"})
    assert 'data-theme="dark"' in client.get("/login").text
    client.post("/theme", data={"theme": '"><script>', "next": "/login"})
    assert 'data-theme="auto"' in client.get("/login").text


def test_static_files_need_no_token_and_may_be_kept(client: TestClient) -> None:
    for address in ("/static/advisor.js", "/static/advisor.css", "/static/mark.svg", "/plotly/plotly.min.js"):
        answer = client.get(address)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    assert client.get("/plotly/datasets/iris.csv.gz").status_code == 404


def test_live_stream_needs_a_token(client: TestClient) -> None:
    assert client.get("/jobs/busy/live").status_code == 401


def test_page_that_has_not_changed_is_not_sent_again(sign_in: SignIn, stories: Stories) -> None:
    client = sign_in("adv_viewer_3_x")
    first = client.get("/jobs/busy/log")
    has = {"if-none-match": first.headers["etag"]}
    again = client.get("/jobs/busy/log", headers=has)
    assert (again.status_code, again.content, again.headers["cache-control"]) == (304, b"", "no-store")
    stories.happen("busy", "trial", "Trial 11 began.")
    assert "Trial 11 began." in client.get("/jobs/busy/log", headers=has).text
    client.cookies.clear()
    assert client.get("/jobs/busy/log", headers=has, follow_redirects=False).status_code == 303
