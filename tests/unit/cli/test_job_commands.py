"""Finding and changing the jobs of a pretended server: what is asked of it, and what is printed."""

import json

from advisor.protocol.asked.jobs import Continuation, JobState

from .conftest import Run
from .fake_server import FakeServer


def test_look_up_of_one_job_asks_for_it_and_not_for_all(server: FakeServer, run: Run) -> None:
    for number in range(60):
        server.add_job(f"j{number:02}", name=f"name{number}")
    assert json.loads(run("show", "name3", "--json").stdout)["id"] == "j03"
    assert [sorted(asked) for asked in server.asked_jobs] == [["archived", "id"], ["archived", "name"]]


def test_jobs_are_listed_by_what_is_asked_for(server: FakeServer, run: Run) -> None:
    server.add_job("aaa1", JobState.FINISHED, "bert")
    words = "--state running --state queued --owner ada --name b* --label p=1 --label q --since 2026-11-20 --archived"
    result = run("jobs", *words.split())
    assert "No job fits" in result.stderr
    assert server.asked_jobs == [
        {
            "state": ["running", "queued"],
            "owner": ["ada"],
            "name": ["b*"],
            "label": ["p=1", "q"],
            "created_since": ["2026-11-20T00:00:00Z"],
            "archived": ["true"],
            "limit": ["20"],
        }
    ]
    assert "'soon' is no moment" in run("jobs", "--since", "soon").stderr


def test_paused_job_goes_on_with_the_command_that_made_it(server: FakeServer, run: Run) -> None:
    server.lives["new-1"] = [JobState.CANCELLED]
    run("tune", "--", "torchrun", "train.py")
    server.add_job("half", JobState.RUNNING, spec=server.submitted[0])
    assert "train: paused." in run("pause", "half").stdout
    server.lives["half"] = [JobState.CANCELLED]
    assert "Resuming job half" in run("tune", "--", "torchrun", "train.py").stderr
    assert (len(server.submitted), server.jobs["half"].state) == (1, JobState.CANCELLED)


def test_trial_is_measured_again(server: FakeServer, run: Run) -> None:
    server.add_job("half", JobState.RUNNING)
    assert "train measures trial 3 again" in run("repeat", "half", "3").stdout
    assert json.loads(run("repeat", "half", "4", "--json").stdout)["id"] == "half"
    assert server.repeated == [("half", "trials/3:repeat"), ("half", "trials/4:repeat")]
    assert run("repeat", "half", "nine").exit_code == 2


def test_prioritised_job_goes_on_with_the_command_that_made_it(server: FakeServer, run: Run) -> None:
    server.lives["new-1"] = [JobState.CANCELLED]
    run("tune", "--", "torchrun", "train.py")
    server.add_job("half", JobState.RUNNING, spec=server.submitted[0])
    assert run("prioritise", "half", "low").stdout == "train has priority low.\n"
    assert json.loads(run("prioritise", "half", "high", "--json").stdout)["spec"]["priority"] == "high"
    assert run("prioritise", "half", "urgent").exit_code == 2
    server.lives["half"] = [JobState.CANCELLED]
    assert "Resuming job half" in run("tune", "--", "torchrun", "train.py").stderr


def test_extend_adds_to_the_budget_and_returns(server: FakeServer, run: Run) -> None:
    server.add_job("aaa1", JobState.FINISHED)
    assert (
        json.loads(run("extend", "aaa1", "--minutes", "2", "--trials", "3", "--json").stdout)["id"] == "aaa1"
    )
    assert server.continued == {"aaa1": Continuation(more_seconds=120, more_trials=3)}
    assert run("resume", "aaa1").stdout.startswith("train: queued.")


def test_clone_prints_the_id_of_the_new_job(server: FakeServer, run: Run) -> None:
    server.add_job("aaa1", JobState.FINISHED)
    assert run("clone", "last").stdout == "aaa1-again\n"


def test_archived_job_is_still_found_by_its_name(server: FakeServer, run: Run) -> None:
    server.add_job("aaa1", JobState.FINISHED, name="vit")
    assert run("archive", "vit").stdout == "vit is archived.\n"
    assert "aaa1" not in run("jobs").stdout
    assert "aaa1" in run("jobs", "--archived").stdout
    assert run("archive", "vit", "--undo").stdout == "vit is listed again.\n"


def test_delete_asks_first(server: FakeServer, run: Run) -> None:
    server.add_job("aaa1", JobState.FINISHED)
    refused = run("delete", "aaa1")
    assert refused.exit_code != 0
    assert "Delete train (aaa1) and all that was measured for it?" in refused.stderr
    assert "aaa1" in server.jobs
    assert run("delete", "aaa1", "--yes").stdout == "train (aaa1) is deleted.\n"
    assert server.jobs == {}
