"""The form of a new job: wrong words are told beside their field, and right ones make the job that was planned."""

import json
import re
import shlex
from collections.abc import Callable
from html import unescape
from typing import get_args

import pytest
import yaml
from starlette.testclient import TestClient

from advisor.dashboard.views.job.new_job import Draft, place_refusal, read_draft, write_curl, write_yaml
from advisor.errors import InvalidJob
from advisor.protocol.asked.jobs import JobSpec, OptunaSampler
from advisor.services.jobs import check_spec
from tests.samples.stored import Stories

SignIn = Callable[[str], TestClient]
GOOD = {"command": "torchrun --nproc-per-node 8 'my train.py'", "working_dir": "/srv/train", "nodes": "2"}


def fill(**changes: object) -> Draft:
    return Draft(**{**GOOD, **changes})


def read_hidden(page: str, name: str) -> str:
    return re.search(f'name="{name}" value="([^"]+)"', page).group(1)


@pytest.mark.parametrize(
    ("changes", "place", "words"),
    [
        ({"command": ""}, "command", "Give the command as you type it"),
        ({"command": "torchrun 'train.py"}, "command", "quotation mark is open"),
        ({"command": '"" train.py'}, "command", "first word of the command is empty"),
        ({"working_dir": "train"}, "working_dir", "full path"),
        ({"nodes": "0"}, "nodes", "whole number from 1 to 1\u202f024"),
        ({"nodes": "1.5"}, "nodes", "whole number"),
        ({"nodes": "many"}, "nodes", "whole number"),
        ({"minutes": "nan"}, "minutes", "number from 1 to 43\u202f200"),
        ({"minutes": "1e9"}, "minutes", "number from 1"),
        ({"trials": ""}, "trials", "strategies that it may try"),
        ({"knobs": ("no_such_knob",)}, "knobs", "no such knob"),
        ({"allow": "everything"}, "allow", "exact"),
        ({"name": "x" * 101}, "name", "100"),
        ({"kind": "tensorflow"}, "", "pytorch"),
    ],
)
def test_wrong_word_is_told_beside_its_field(changes: dict[str, object], place: str, words: str) -> None:
    reading = read_draft(fill(**changes))
    assert reading.spec is None
    assert list(reading.problems) == [place]
    assert words in reading.problems[place]


def test_every_wrong_field_is_told_at_once() -> None:
    assert set(read_draft(Draft(nodes="x", minutes="", trials="0")).problems) == {
        "command", "working_dir", "nodes", "minutes", "trials",
    }  # fmt: skip


def test_refusal_of_the_server_stands_beside_its_field_in_the_words_of_the_form() -> None:
    draft = Draft(command="ssh node train", working_dir="/srv", minutes="43200", knobs=("num_threads",))
    spec = read_draft(draft).spec
    assert spec is not None
    long = spec.budget.model_copy(update={"max_seconds": 31 * 86400.0})
    with pytest.raises(InvalidJob) as refused:
        check_spec(spec.model_copy(update={"budget": long, "freeze": ("num_threads",), "name": "\x00"}))
    placed = place_refusal(refused.value)
    assert placed["minutes"] == "the time is more than 30 days."
    assert placed["command"].startswith("ssh starts processes that no agent can reach")
    assert placed[""].startswith("num_threads: in knobs and in freeze")
    assert placed[""].endswith("The job holds a NUL character, which no command line can carry.")
    assert place_refusal(InvalidJob("Signed by nobody.")) == {"": "Signed by nobody."}


def test_file_and_request_make_the_very_job() -> None:
    spec = read_draft(
        fill(name="O'Neil's: #1", knobs=("nccl_comm_num",), allow="numeric", minutes="7.5")
    ).spec
    assert spec is not None
    assert spec.workload.command[-1] == "my train.py"
    assert JobSpec.model_validate(yaml.safe_load(write_yaml(spec))) == spec
    words = shlex.split(write_curl(spec, "http://127.0.0.1:8765"))
    assert words[2] == "http://127.0.0.1:8765/api/v1/jobs"
    assert JobSpec.model_validate(json.loads(words[-1])) == spec


def test_knobs_of_ones_own_are_a_line_each() -> None:
    command = "torchrun train.py --micro 2 --acc 4"
    draft = fill(
        command=command, own="micro=1,2,4,8:exact\n\n acc=1..8:log:exact ", require="micro * acc == 8"
    )
    spec = read_draft(draft).spec
    assert spec is not None
    assert [(knob.name, knob.at, knob.own_value) for knob in spec.workload.own] == [
        ("micro", "--micro", 2), ("acc", "--acc", 4),
    ]  # fmt: skip
    assert spec.workload.require == ("micro * acc == 8",)
    assert JobSpec.model_validate(yaml.safe_load(write_yaml(spec))) == spec
    for wrong in ({"own": "micro"}, {"own": "--no=1,2"}, {"own": "micro=1,2", "require": "micro == 1"}):
        assert list(read_draft(fill(command=command, **wrong)).problems) == ["own"]


def test_sampler_of_optuna_is_chosen_in_the_form_and_the_own_one_comes_first(sign_in: SignIn) -> None:
    spec = read_draft(fill(sampler="CmaEsSampler")).spec
    assert spec is not None
    assert JobSpec.model_validate(yaml.safe_load(write_yaml(spec))).sampler == "CmaEsSampler"
    assert list(read_draft(fill(sampler="NoSampler")).problems) == ["sampler"]
    page = sign_in("adv_submitter_2_x").get("/jobs/new").text
    offered = re.findall(r"<option[^>]*>([^<]+)", page.partition('id="sampler"')[2].partition("</select>")[0])
    assert offered == ["FleetSampler, the advisor's own", *get_args(OptunaSampler)]


def test_plan_stores_nothing_and_submitting_twice_makes_one_job(sign_in: SignIn, stories: Stories) -> None:
    client = sign_in("adv_submitter_2_x")
    page = client.get("/jobs/new").text
    data = GOOD | {name: read_hidden(page, name) for name in ("form_key", "request_key")}
    plan = client.post("/jobs/new/plan", data=data)
    assert plan.status_code == 200
    assert "1 agent idle, 2 needed: it waits for 1 more." in plan.text
    assert "working_dir: /srv/train" in plan.text
    assert read_hidden(plan.text, "request_key") == data["request_key"]
    assert stories.count_jobs() == 2
    for _ in range(2):
        answer = client.post("/jobs/new", data=data, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/new0")
    assert stories.count_jobs() == 3
    assert client.get("/jobs/new0").status_code == 200


def test_what_was_typed_stays_and_is_text(sign_in: SignIn, stories: Stories) -> None:
    client = sign_in("adv_submitter_2_x")
    evil = "</textarea><script>alert(1)</script>'"
    data = {
        "form_key": read_hidden(client.get("/jobs/new").text, "form_key"),
        "command": evil,
        "nodes": '"><b>',
    }
    answer = client.post("/jobs/new", data=data)
    assert answer.status_code == 422
    assert evil in unescape(answer.text)
    assert "<script>alert" not in answer.text
    assert '"><b>' not in answer.text
    assert stories.count_jobs() == 2


def test_rule_of_the_server_is_told_in_the_form(sign_in: SignIn) -> None:
    client = sign_in("adv_submitter_2_x")
    key = read_hidden(client.get("/jobs/new").text, "form_key")
    page = client.post(
        "/jobs/new/plan", data=GOOD | {"form_key": key, "command": "srun torchrun train.py"}
    ).text
    assert "No plan yet" in page
    assert re.search(r'id="problem-command" data-live>srun starts processes that no agent can reach', page)


def test_viewer_has_no_form(sign_in: SignIn, stories: Stories) -> None:
    client = sign_in("adv_viewer_3_x")
    jobs = client.get("/jobs").text
    assert "/jobs/new" not in jobs
    assert client.get("/jobs/new").status_code == 403
    data = GOOD | {"form_key": read_hidden(jobs, "form_key")}
    for address in ("/jobs/new", "/jobs/new/plan"):
        assert client.post(address, data=data).status_code == 403
    assert stories.count_jobs() == 2


def test_form_of_another_visit_is_refused(sign_in: SignIn, stories: Stories) -> None:
    client = sign_in("adv_submitter_2_x")
    for address in ("/jobs/new", "/jobs/new/plan"):
        assert client.post(address, data=GOOD | {"form_key": "wrong"}).status_code == 403
    assert stories.count_jobs() == 2
