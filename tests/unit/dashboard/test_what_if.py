"""The what-if page: it asks the cost model what somebody types, and tells what is wrong by field."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from advisor.dashboard.views.job.forecasts import Cluster
from advisor.protocol.measured.trials import JobHistory
from advisor.services.answers.advice import predict
from tests.samples.job import Story
from tests.samples.stored import NOW, Stories

SignIn = Callable[[str], TestClient]


def test_typed_cluster_is_predicted_by_the_cost_model(sign_in: SignIn, stories: Stories) -> None:
    client = sign_in("adv_viewer_3_x")
    assert "rank 3 is late" in client.get("/jobs/sample/what-if?nodes=8").text
    for job_id in ("sample", "busy"):
        stories.tell(_without_late_rank(stories.told[job_id]))
        page = client.get(f"/jobs/{job_id}/what-if?nodes=8&rate=25gbit&batch=2").text
        answer = page.partition('id="asked"')[2].partition('id="forecasts"')[0]
        assert "8 nodes, links of 25 Gbit/s, 2 × the batch" in answer
        found = predict(stories.source.database, stories.source.tuning, job_id, 8, "25gbit", 2.0, NOW)
        assert found.caveat.split(".")[0] in answer
        assert f"/api/v1/jobs/{job_id}/forecast?nodes=8&amp;rate=25gbit&amp;batch=2" in answer
        assert 'name="nodes" inputmode="numeric" maxlength="20" placeholder="as measured" value="8"' in page
    assert "Your question" not in client.get("/jobs/sample/what-if").text


def _without_late_rank(story: Story) -> Story:
    blocks = [
        block.model_copy(update={"result": block.result and replace(block.result, late=None)})
        for block in story.history.blocks
    ]
    return replace(story, history=story.history.model_copy(update={"blocks": tuple(blocks)}))


@pytest.mark.parametrize(
    ("asked", "field", "sentence"),
    [
        ({"nodes": "0"}, "nodes", "A whole number from 1 to 4096."),
        ({"nodes": "²"}, "nodes", "A whole number from 1 to 4096."),
        ({"nodes": "9" * 5000}, "nodes", "A whole number from 1 to 4096."),
        ({"rate": "fast"}, "rate", "A number and kbit, mbit or gbit"),
        ({"rate": "0gbit"}, "rate", "Above 0"),
        ({"batch": "nan"}, "batch", "A number from 0.0625 to 64"),
        ({"batch": "65"}, "batch", "A number from 0.0625 to 64"),
    ],
)
def test_bad_value_is_told_beside_its_field(
    sign_in: SignIn, asked: dict[str, str], field: str, sentence: str
) -> None:
    read = Cluster.read({"nodes": "4", **asked} if field != "nodes" else asked)
    assert (list(read.problems), read.is_asked) == ([field], False)
    answer = sign_in("adv_viewer_3_x").get("/jobs/sample/what-if", params=asked)
    assert answer.status_code == 200
    assert sentence in answer.text.partition(f'id="problem-{field}"')[2].partition("</p>")[0]
    assert f'aria-describedby="problem-{field}"' in answer.text
    assert "Your question" not in answer.text


def test_job_that_knows_too_little_says_what_is_missing(sign_in: SignIn, stories: Stories) -> None:
    stories.tell(replace(stories.told["busy"], history=JobHistory()))
    page = sign_in("adv_viewer_3_x").get("/jobs/busy/what-if?nodes=4").text
    assert "has not measured its baseline yet" in page
