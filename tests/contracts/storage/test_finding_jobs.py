"""What a list of jobs can be asked for, on SQLite and on PostgreSQL alike."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from advisor.errors import LostRace
from advisor.protocol.asked.jobs import Job, JobState
from advisor.protocol.views import JobQuery
from advisor.services import jobs
from advisor.storage import Database
from tests.unit.services.scripted_tuning import make_spec

NOW = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)


def add_jobs(database: Database) -> None:
    """Four jobs an hour apart, told apart by everything that a list can be asked for."""
    jobs = (
        ("aa1", "ada", "train", {"project": "bert", "gpu": ""}, JobState.QUEUED),
        ("aa2", "ada", "train-large", {"project": "vgg"}, JobState.PAUSED),
        ("bb1", "bob", "Train", {"team": "bert"}, JobState.FINISHED),
        ("bb2", "bob", "tr%in", {}, JobState.RUNNING),
    )
    with database.begin() as work:
        for hour, (job_id, owner, name, labels, state) in enumerate(jobs):
            spec = make_spec(name=name, labels=labels)
            archived = NOW if job_id == "bb2" else None
            work.jobs.add(
                Job(
                    id=job_id,
                    spec=spec,
                    state=state,
                    owner=owner,
                    created_at=NOW + hour * HOUR,
                    archived_at=archived,
                )
            )


def test_a_page_ends_where_its_records_are_large_and_the_next_one_goes_on(database: Database) -> None:
    long = "x" * 1_500_000
    with database.begin() as work:
        for number in range(5):
            job = Job(id=f"j{number}", spec=make_spec(), state=JobState.QUEUED, created_at=NOW)
            work.jobs.add(job.model_copy(update={"state_reason": long if number else ""}))
    with database.read() as work:
        first = jobs.list_jobs(work, JobQuery())
        second = jobs.list_jobs(work, JobQuery(cursor=first.next_cursor))
    assert [job.id for job in first.items] == ["j4", "j3"]
    assert [job.id for job in second.items] == ["j2", "j1", "j0"]
    assert second.next_cursor is None


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, ["bb1", "aa2", "aa1"]),
        ({"archived": True}, ["bb2", "bb1", "aa2", "aa1"]),
        ({"owner": "ada"}, ["aa2", "aa1"]),
        ({"owner": "ad"}, []),
        ({"state": (JobState.QUEUED, JobState.FINISHED)}, ["bb1", "aa1"]),
        ({"name": "train"}, ["aa1"]),
        ({"name": "train*"}, ["aa2", "aa1"]),
        ({"name": "tr%*", "archived": True}, ["bb2"]),
        ({"name": "*"}, ["bb1", "aa2", "aa1"]),
        ({"id": "aa*"}, ["aa2", "aa1"]),
        ({"id": "aa1"}, ["aa1"]),
        ({"label": ("project",)}, ["aa2", "aa1"]),
        ({"label": ("project=bert",)}, ["aa1"]),
        ({"label": ("project=bert", "gpu=")}, ["aa1"]),
        ({"label": ("project=vgg", "gpu")}, []),
        ({"created_since": NOW + HOUR}, ["bb1", "aa2"]),
        ({"created_until": NOW + HOUR}, ["aa1"]),
        ({"owner": "ada", "state": (JobState.PAUSED,), "label": ("project",)}, ["aa2"]),
    ],
)
def test_list_holds_the_jobs_that_every_filter_fits(
    database: Database, wanted: dict[str, Any], found: list[str]
) -> None:
    add_jobs(database)
    with database.read() as work:
        assert [job.id for _, job in work.jobs.page(JobQuery(**wanted), 10, None)] == found


def test_job_is_paused_and_is_in_no_state_that_the_table_does_not_know(database: Database) -> None:
    add_jobs(database)
    with database.begin() as work:
        assert work.jobs.move("bb1", JobState.PAUSED, "Paused.", since=(JobState.FINISHED,), now=NOW)
    with pytest.raises(LostRace), database.begin() as work:
        work.connection.execute(text("UPDATE jobs SET state = 'asleep'"))
