"""Pages in a real Chromium with data that nobody drew them for: long words, every failure, no trial, and hundreds."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from advisor.protocol.asked.jobs import JobState, Stage
from advisor.protocol.measured.trials import JobHistory, Outcome, SessionState
from tests.samples.job import make_agents, make_running_story
from tests.samples.stored import NOW, Stories

from .conftest import await_fit

pytestmark = pytest.mark.browser

WIDTHS = (360, 768, 1440)
"""Each page is opened in the least one and made wider."""
WORD = "a_word_without_an_end_" * 6
HIDDEN_TEXT = """
    [...document.querySelectorAll("main .chip, main .button, main td, main h1")].filter((part) => {
        const box = part.getBoundingClientRect();
        return part.checkVisibility() && !part.closest(".scroller") && (box.left < 0 || box.right > innerWidth + 0.5);
    }).map((part) => part.textContent)
"""
OVERLAPS = """
    [...document.querySelectorAll("main tr")].flatMap((row) => {
        const parts = [...row.querySelectorAll(".chip, .num:not(:has(.chip, .clip))")].map((part) => {
            const words = document.createRange();
            words.selectNodeContents(part);
            return [part.textContent, words.getBoundingClientRect()];
        }).filter(([, box]) => box.width);
        return parts.flatMap(([a, one], at) => parts.slice(at + 1).filter(([, two]) =>
            one.left < two.right - 1 && two.left < one.right - 1 && one.top < two.bottom - 1 && two.top < one.bottom - 1
        ).map(([b]) => `${a} on ${b}`));
    })
"""


def tell_unusual_jobs(stories: Stories) -> None:
    """Tell of a job where everything failed, one without a trial, and one with 500, owned by long names."""
    running = make_running_story(NOW)
    first, trial = running.history.trials[:2]
    failed = tuple(
        trial.model_copy(
            update={
                "number": number,
                "outcome": outcome,
                "outcome_reason": WORD,
                "because": WORD,
                "log_tail": WORD,
            }
        )
        for number, outcome in enumerate(Outcome, start=1)
    )
    ended = {"state": SessionState.ENDED, "reason": WORD, "because": WORD, "ended_at": NOW}
    launches = tuple(
        running.history.sessions[0].model_copy(
            update={**ended, "id": f"s{n}", "generation": n, "outcome": outcome}
        )
        for n, outcome in enumerate(Outcome, start=1)
    )
    history = running.history.model_copy(update={"trials": (first, *failed), "sessions": launches})
    many = tuple(trial.model_copy(update={"number": number}) for number in range(1, 500))
    jobs = {
        "failed": (history, {"state": JobState.FAILED, "state_reason": WORD}),
        "none": (JobHistory(), {"state": JobState.QUEUED, "stage": Stage.PROBE}),
        "many": (
            running.history.model_copy(update={"trials": (first, *many)}),
            {"state": JobState.CANCELLING},
        ),
    }
    spec = running.job.spec.model_copy(update={"name": WORD[:100]})
    for name, (told, changes) in jobs.items():
        job = running.job.model_copy(update={"id": name, "spec": spec, "owner": WORD, **changes})
        stories.tell(replace(running, job=job, history=told))
    stories.connect(agent.model_copy(update={"name": f"{WORD} {agent.name}"}) for agent in make_agents(NOW))


@pytest.fixture(scope="module")
def unusual_file(told_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = shutil.copy(told_file, tmp_path_factory.mktemp("unusual") / "advisor.db")
    stories = Stories(path)
    tell_unusual_jobs(stories)
    stories.close()
    return path


@pytest.fixture
def stories(unusual_file: Path, tmp_path: Path) -> Iterator[Stories]:
    stories = Stories(shutil.copy(unusual_file, tmp_path / "told.db"))
    yield stories
    stories.close()


def test_no_page_is_widened_and_nothing_lies_on_anything_else(visit: Callable) -> None:
    visitor = visit().sign_in("adv_admin_1_x")
    for path in (
        "/jobs", "/jobs/failed", "/jobs/failed/trials", "/jobs/failed/trials/3", "/jobs/failed/log", "/jobs/none",
        "/jobs/failed/compare?trials=0,1,2", "/jobs/none/trials", "/jobs/none/explore", "/jobs/none/log",
        "/jobs/many/trials", "/jobs/many/explore", "/agents", "/compare?jobs=failed,none,sample",
    ):  # fmt: skip
        visitor.page.set_viewport_size({"width": WIDTHS[0], "height": 800})
        page = visitor.go(path)
        page.evaluate("for (const part of document.querySelectorAll('.actions details')) part.open = true")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            await_fit(page, width)
            assert page.evaluate(HIDDEN_TEXT) == [], (path, width)
            assert page.evaluate(OVERLAPS) == [], (path, width)
    assert visitor.complaints == []


def test_phone_shows_every_view_of_a_job_at_once(visit: Callable) -> None:
    visitor = visit(viewport={"width": 360, "height": 800}).sign_in()
    for view in ("", "/trials", "/explore", "/what-if", "/log", "/export"):
        page: Page = visitor.go(f"/jobs/sample{view}")
        tabs = page.locator(".tabs a").all()
        assert tabs, view
        for tab in tabs:
            expect(tab).to_be_in_viewport(ratio=1)


def test_copied_command_is_the_one_that_is_shown(visit: Callable) -> None:
    page: Page = visit(viewport={"width": 360, "height": 800}).sign_in().go("/jobs/sample")
    command = "bash advisor-sample/run.sh"
    assert page.locator("#verdict-command").text_content().splitlines()[1] == command
    # A word of a command is not folded behind its hyphens.
    words = page.locator("#verdict-command span").all()
    assert [word.text_content() for word in words][-1] == "advisor-sample/run.sh"
    for word in words:
        assert word.bounding_box()["height"] < 30, word.text_content()
