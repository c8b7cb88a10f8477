"""A job of hundreds of trials: no page of it is larger than people can load, and what is left out has a link."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from advisor.protocol.measured.trials import JobHistory
from tests.samples.job import Story, make_finished_story
from tests.samples.stored import NOW, Stories

pytestmark = pytest.mark.thorough

TRIALS = 700
LARGEST_PAGE = 400_000
"""Bytes, before they are compressed."""


def make_long(story: Story) -> Story:
    """The same job, its trials, blocks and events again and again."""
    history, events = story.history, list(story.events)
    trials, blocks = list(history.trials), list(history.blocks)
    own = {trial.number: [b for b in blocks if b.trial_number == trial.number][:2] for trial in trials}
    for number in range(len(trials), TRIALS):
        model = trials[1 + number % (len(history.trials) - 1)]
        trials.append(model.model_copy(update={"number": number}))
        blocks += [
            block.model_copy(
                update={"id": f"{block.id}-{number}", "trial_number": number, "ordinal": len(blocks) + place}
            )
            for place, block in enumerate(own[model.number], start=100)
        ]
        events += [
            story.events[number % len(story.events)].model_copy(update={"seq": len(events) + 1 + place})
            for place in range(2)
        ]
    longer = JobHistory(trials=tuple(trials), blocks=tuple(blocks), sessions=history.sessions)
    return replace(story, history=longer, events=tuple(events))


@pytest.fixture(scope="module")
def story() -> Story:
    return make_long(make_finished_story(NOW))


@pytest.fixture(scope="module")
def long_file(told_file: Path, tmp_path_factory: pytest.TempPathFactory, story: Story) -> Path:
    path = shutil.copy(told_file, tmp_path_factory.mktemp("long") / "advisor.db")
    stories = Stories(path)
    stories.tell(story)
    stories.close()
    return path


@pytest.fixture
def stories(long_file: Path) -> Iterator[Stories]:
    """All tests look at one file, and change nothing."""
    stories = Stories(long_file)
    yield stories
    stories.close()


@pytest.fixture
def long_job(story: Story, sign_in: Callable[[str], TestClient]) -> tuple[str, TestClient]:
    return f"/jobs/{story.job.id}", sign_in("adv_viewer_3_x")


@pytest.mark.parametrize(
    "view", ["", "/trials", "/trials?page=7", "/log", "/log?before=300", "/trials/699", "/export"]
)
def test_no_page_of_a_long_job_is_large(long_job: tuple[str, TestClient], view: str) -> None:
    address, client = long_job
    page = client.get(address + view)
    assert page.status_code == 200
    assert len(page.content) < LARGEST_PAGE


def test_every_trial_is_reached_by_links_alone(long_job: tuple[str, TestClient]) -> None:
    address, client = long_job
    seen: list[str] = []
    following: str | None = f"{address}/trials?sort=number"
    while following:
        page = client.get(following).text
        seen += [part.partition('"')[0] for part in page.split(f'href="{address}/trials/')[1:]]
        _, found, rest = page.partition('rel="next" href="')
        following = rest.partition('"')[0].replace("&amp;", "&") if found else None
    assert len(set(seen)) == TRIALS


def test_every_event_is_reached_by_links_alone(long_job: tuple[str, TestClient], story: Story) -> None:
    address, client = long_job
    told = 0
    following: str | None = f"{address}/log"
    while following:
        page = client.get(following).text
        told += page.partition('<div class="events"')[2].partition("</ol>")[0].count("<li><time")
        _, found, rest = page.partition('rel="prev" href="')
        following = rest.partition('"')[0].replace("&amp;", "&") if found else None
    assert told == len(story.events)
