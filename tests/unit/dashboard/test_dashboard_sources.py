"""The contract of a source: the fake in memory and the real one over the services answer alike."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from memory_source import NOW, MemorySource

from advisor.dashboard.service_source import ServiceSource
from advisor.dashboard.source import Person, Source
from advisor.errors import AdviceNotReady, Forbidden, InvalidJob, JobNotFound, NoForecast, NotYourJob
from advisor.protocol.asked.jobs import Continuation, JobState
from advisor.protocol.measured.trials import JobHistory
from advisor.protocol.views import NewToken, Role
from advisor.services.jobs import submit_job
from advisor.services.timers import Timers
from advisor.services.tokens import authenticate, create_token
from advisor.storage import Database
from advisor.tuning.asked import PlannerTuning
from tests.samples.job import make_running_story

ADA = Person("ada", Role.SUBMITTER)


class Prepared:
    """A source that holds one queued job, and tokens of a person and of an agent."""

    def __init__(self, source: Source, job_id: str, person: str, agent: str) -> None:
        self.source = source
        self.job_id = job_id
        self.person = person
        self.agent = agent

    def sign_in(self) -> Person | None:
        """The person, as the pages know them."""
        assert self.source.open_visit("key", self.person)
        return self.source.find_visitor("key")


@pytest.fixture(params=["memory", "services"])
def prepared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Prepared]:
    story = make_running_story(NOW)
    if request.param == "memory":
        memory = MemorySource()
        memory.people = {"adv_submitter_1_x": Person("ada", Role.SUBMITTER)}
        job = story.job.model_copy(update={"state": JobState.QUEUED})
        memory.tell(type(story)(job, JobHistory(), None, story.events[:1], ()))
        yield Prepared(memory, job.id, "adv_submitter_1_x", "adv_agent_2_x")
        return
    numbers = iter(range(1000))
    database = Database(f"sqlite:///{tmp_path / 'advisor.db'}", lambda: f"id{next(numbers)}")
    database.migrate()
    with database.begin() as work:
        person = create_token(work, NewToken(role=Role.SUBMITTER, label="ada"), NOW)
        job = submit_job(work, story.job.spec, authenticate(work, person.token, NOW), None, NOW)
        agent = create_token(work, NewToken(role=Role.AGENT, label="node01"), NOW)
    yield Prepared(
        ServiceSource(database, lambda: NOW, PlannerTuning(), Timers()),
        job.id,
        person.token,
        agent.token,
    )
    database.close()


def test_people_are_known_by_their_token_and_agents_are_not_people(prepared: Prepared) -> None:
    source = prepared.source
    assert source.open_visit("hers", prepared.person)
    assert not source.open_visit("a node's", prepared.agent)
    assert not source.open_visit("nobody's", "")
    person = source.find_visitor("hers")
    assert person is not None
    assert (person.name, person.role) == ("ada", Role.SUBMITTER)
    assert [source.find_visitor(key) for key in ("a node's", "nobody's", "unknown")] == [None] * 3
    source.close_visit("hers")
    assert source.find_visitor("hers") is None


def test_job_is_listed_under_its_state(prepared: Prepared) -> None:
    source = prepared.source
    assert [job.id for job in source.list_jobs(None, 25, None).items] == [prepared.job_id]
    assert [job.id for job in source.list_jobs(JobState.QUEUED, 25, None).items] == [prepared.job_id]
    assert source.list_jobs(JobState.FAILED, 25, None).items == ()
    assert source.list_jobs(None, 25, None).next_cursor is None


def test_nothing_is_predicted_of_a_job_that_has_measured_nothing(prepared: Prepared) -> None:
    with pytest.raises(NoForecast):
        prepared.source.predict(prepared.job_id, 4, "10gbit", 1.0)


def test_new_job_has_a_story_but_no_measurement(prepared: Prepared) -> None:
    source = prepared.source
    assert source.history(prepared.job_id) == JobHistory()
    assert source.advice(prepared.job_id) is None
    events = source.events(prepared.job_id, 0, 500)
    assert [event.seq for event in events] == [1]
    assert not source.events(prepared.job_id, 1, 500)
    assert not source.log(prepared.job_id, 0, 200)


def test_unknown_job_is_an_error_everywhere(prepared: Prepared) -> None:
    source = prepared.source
    with pytest.raises(JobNotFound):
        source.cancel("none", ADA)
    for ask in (source.job, source.history, source.advice):
        with pytest.raises(JobNotFound):
            ask("none")
    for ask in (source.events, source.log):
        with pytest.raises(JobNotFound):
            ask("none", 0, 10)


def test_nothing_is_exported_before_there_is_an_advice(prepared: Prepared) -> None:
    name = prepared.source.export_formats()[0].name
    with pytest.raises(AdviceNotReady):
        prepared.source.export(prepared.job_id, name, None)


def test_job_of_somebody_else_is_neither_paused_nor_cancelled_nor_continued(prepared: Prepared) -> None:
    for stranger in (Person("bob", Role.SUBMITTER), Person("ada", Role.VIEWER)):
        with pytest.raises(NotYourJob):
            prepared.source.cancel(prepared.job_id, stranger)
        with pytest.raises(NotYourJob):
            prepared.source.pause(prepared.job_id, stranger)
        with pytest.raises(NotYourJob):
            prepared.source.continue_job(prepared.job_id, Continuation(more_seconds=60), stranger)
    assert prepared.source.job(prepared.job_id).state is JobState.QUEUED


def test_paused_job_goes_on(prepared: Prepared) -> None:
    assert prepared.source.pause(prepared.job_id, ADA).state is JobState.PAUSED
    assert prepared.source.resume(prepared.job_id, ADA).state is JobState.QUEUED


def test_cancelled_job_stops(prepared: Prepared) -> None:
    assert prepared.source.cancel(prepared.job_id, ADA).state in {JobState.CANCELLING, JobState.CANCELLED}
    assert prepared.source.job(prepared.job_id).state in {JobState.CANCELLING, JobState.CANCELLED}


def test_job_is_planned_without_being_stored_and_submitted_once(prepared: Prepared) -> None:
    source = prepared.source
    spec = source.job(prepared.job_id).spec
    ada = prepared.sign_in()
    assert ada is not None
    preview = source.preview(spec, ada)
    assert preview.plan.most_trials == spec.budget.max_trials
    assert len(source.list_jobs(None, 25, None).items) == 1
    first, again = (source.submit(spec, ada, "one click") for _ in range(2))
    assert first.id == again.id != source.submit(spec, ada, "another").id
    assert source.job(first.id).owner == "ada"
    with pytest.raises(Forbidden):
        source.submit(spec, Person("vic", Role.VIEWER), "a viewer's")


def test_job_that_breaks_a_rule_is_neither_planned_nor_stored(prepared: Prepared) -> None:
    source = prepared.source
    ada = prepared.sign_in()
    assert ada is not None
    spec = source.job(prepared.job_id).spec
    broken = spec.model_copy(update={"budget": spec.budget.model_copy(update={"max_seconds": 1e9})})
    with pytest.raises(InvalidJob):
        source.preview(broken, ada)
    with pytest.raises(InvalidJob):
        source.submit(broken, ada, "key")
    assert len(source.list_jobs(None, 25, None).items) == 1
