"""The export page: what a file changes of the script, and everything as one archive."""

import io
import zipfile
from collections.abc import Callable
from dataclasses import replace

from starlette.testclient import TestClient

from advisor.answers.report import export_bundle
from advisor.dashboard.views.job.advice import pack_files, view_difference
from advisor.exporters import export
from tests.samples.evidence import leave_undecided
from tests.samples.job import make_finished_story
from tests.samples.stored import NOW, Stories, read_words

SignIn = Callable[[str], TestClient]
STORY = make_finished_story(NOW)


def test_difference_names_what_a_format_changes_and_what_it_cannot_say(sign_in: SignIn) -> None:
    assert STORY.advice is not None
    lines = view_difference(STORY.advice, export(STORY.advice, STORY.job, "torchrun"))
    assert ("del", "-fuse_grad_size_in_MB = 25") in lines
    assert ("ins", "+fuse_grad_size_in_MB = 96") in lines
    nccl = view_difference(STORY.advice, export(STORY.advice, STORY.job, "nccl"))
    assert [tag for tag, line in nccl if "fuse_grad_size_in_MB" in line] == ["strong"]
    page = sign_in("adv_viewer_3_x").get("/jobs/sample/export").text
    assert "--- your script as it was measured" in page.partition('class="difference"')[2]


def test_export_of_an_undecided_job_says_that_its_files_hold_the_settings_as_they_are(
    sign_in: SignIn, stories: Stories
) -> None:
    assert STORY.advice is not None
    held = "strategy.json is the baseline: it sets nothing that the script does not do."
    client = sign_in("adv_viewer_3_x")
    assert held not in read_words(client.get("/jobs/sample/export?format=json").text)
    stories.tell(replace(STORY, advice=leave_undecided(STORY.advice)))
    page = read_words(client.get("/jobs/sample/export?format=json").text)
    assert f"Verdict: undecided. {held} Continue, nothing measured is lost" in page
    assert "Every knob of the advised strategy is in the file" not in page


def test_bundle_holds_every_file_and_the_report_is_saved_not_shown(sign_in: SignIn, stories: Stories) -> None:
    assert STORY.advice is not None
    files = export_bundle(STORY.advice, STORY.job)
    client = sign_in("adv_viewer_3_x")
    answer = client.get("/jobs/sample/export/bundle")
    assert answer.headers["content-disposition"] == 'attachment; filename="strategy-sample.zip"'
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == files
        assert archive.getinfo("run.sh").external_attr >> 16 == 0o755
    assert pack_files(files) == answer.content
    report = client.get("/jobs/sample/export/report")
    assert report.headers["content-type"] == "application/octet-stream"
    assert report.headers["content-disposition"].startswith("attachment")
    assert "What was tried" in report.text
    assert client.get("/jobs/busy/export/report").status_code == 409
    assert client.get("/jobs/busy/export/bundle").status_code == 409
