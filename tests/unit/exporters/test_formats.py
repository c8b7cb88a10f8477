"""The way from a format's name to a file, and the refusals on it."""

import re

import pytest
import yaml

from advisor.answers.report import export_bundle
from advisor.exporters import FORMATS, ExportError, choose_format, export, list_at_work
from advisor.exporters.formats import list_suitable
from advisor.protocol.answers.advice import Interval, Verdict
from advisor.protocol.answers.strategy_file import read_strategy_file
from advisor.protocol.training.workload import WorkloadKind

SUITABLE = [name for name, info in FORMATS.items() if WorkloadKind.PYTORCH in info.kinds]
"""Formats for the jobs that `advise` makes unless told otherwise."""
HEADED = [name for name in SUITABLE if name not in {"json", "runtime"}]
CHANGES = {"fuse_grad_size_in_MB": 50.0, "nccl_comm_num": 2, "num_threads": 4, "NCCL_SOCKET_NTHREADS": 4}


def test_the_formats_are_the_promised_ones() -> None:
    assert set(FORMATS) == {
        "json", "paddle", "paddle-python", "env", "nccl", "torchrun", "runtime", "command", "slurm",
        "kubernetes", "trainer", "accelerate", "lightning", "deepspeed", "paddle-servers", "paddle-transpiler",
    }  # fmt: skip


def test_what_a_bundle_holds_has_beside_it_what_it_needs() -> None:
    for made in FORMATS.values():
        assert set(made.bundled) <= set(made.kinds), made.name
        for kind in made.bundled:
            assert all(kind in FORMATS[needed].bundled for needed in made.needs), made.name


@pytest.mark.parametrize("name", SUITABLE)
def test_a_file_is_what_its_format_announces(name, advise) -> None:
    info, file = FORMATS[name], export(*advise(CHANGES), name)
    assert (file.format, file.filename, file.media_type) == (name, info.filename, info.media_type)
    assert set(file.provenance) <= set(info.knobs)
    assert file.target == (info.targets[0] if info.targets else "")
    assert all(needed in FORMATS for needed in file.needs)


@pytest.mark.parametrize("name", SUITABLE)
def test_every_change_is_either_set_or_said_to_be_impossible(name, advise) -> None:
    file = export(*advise(CHANGES), name)
    assert set(CHANGES) <= set(file.provenance) | set(file.unmapped)
    assert not set(file.provenance) & set(file.unmapped)
    assert not set(file.provenance) & set(file.left)


@pytest.mark.parametrize("name", SUITABLE)
def test_the_same_advice_gives_the_same_file(name, advise) -> None:
    assert export(*advise(CHANGES), name) == export(*advise(CHANGES), name)


@pytest.mark.parametrize("name", HEADED)
def test_every_head_has_gain_interval_and_job(name, advise) -> None:
    content = export(*advise(CHANGES), name).content
    assert (
        "at least +15.9 %, most likely +18.4 % (95 % CI +15.9 ... +20.7 %), 8 interleaved rounds in 2 launches"
        in content
    )
    assert "job job7 (demo), 2026-11-20 12:30 UTC" in content
    assert "torch 2.13.0" in content


@pytest.mark.parametrize("name", HEADED)
def test_a_kept_baseline_says_that_nothing_needs_to_change(name, advise) -> None:
    file = export(*advise({}), name)
    assert "nothing needs to change" in file.content
    assert set(file.provenance) <= {"a_sync"}
    assert not file.unmapped


def test_an_unknown_format_is_named_with_the_allowed_ones(advise) -> None:
    with pytest.raises(ExportError, match="There is no format 'yaml'; there are json, torchrun"):
        export(*advise({}), "yaml")
    with pytest.raises(ExportError, match=r"'trianer' \(did you mean trainer\?\)"):
        export(*advise({}), "trianer")


@pytest.mark.parametrize("name", ["paddle", "paddle-python"])
def test_an_unknown_target_is_named_with_the_allowed_ones(name, advise) -> None:
    with pytest.raises(ExportError, match=r"'1\.8' is no Paddle version .* 3\.3\.1 or 2\.6\.2"):
        export(*advise({}), name, "1.8")


def test_a_target_for_a_format_without_versions_is_refused(advise) -> None:
    with pytest.raises(ExportError, match=r"Format env has no target versions, but '2\.6\.2' was asked for"):
        export(*advise({}), "env", "2.6.2")


def test_a_bundle_of_a_plain_script_holds_what_starts_it_and_a_report(advise) -> None:
    bundle = export_bundle(*advise(CHANGES))
    assert set(bundle) == {"strategy.json", "run.sh", "fleet_advisor_runtime.pyz", "report.html"}
    report = bundle["report.html"].decode()
    assert "<code>DDP(…, bucket_cap_mb_list=[1, 50])</code>" in report, "a line for who owns the script"
    assert "bucket size<br>" in report
    assert "fuse_grad_size_in_MB</code></span></td><td>25</td><td><strong>50</strong>" in report
    assert "num_threads helped." in report
    assert not re.search(r"(src|href)=|https?:", report), "a page that opens without a network"
    assert set(export_bundle(*advise({}))) == {"strategy.json", "report.html"}, "nothing is advised"


def test_a_hostile_name_stays_inside_the_comments(advise) -> None:
    hostile = "x\n}\nimport os; os.abort()\n\u2028rm -rf ~\r\x85#<script>`$(reboot)`"
    advice, job = advise(CHANGES, name=hostile)
    bundle = export_bundle(advice, job)
    bundle |= {info.filename: export(advice, job, info.name).data for info in list_at_work(job)}
    for filename, data in bundle.items():
        if filename in {"strategy.json", "fleet_advisor_runtime.pyz"}:
            continue
        content = data.decode()
        if filename == "report.html":
            assert "<script>" not in content
            assert "&lt;script&gt;`$(reboot)`" in content, "text, neither a tag nor a placeholder"
            continue
        guilty = [
            line
            for line in content.splitlines()
            if "reboot" in line or "os.abort" in line or "rm -rf" in line
        ]
        assert guilty, filename
        if filename == "job.yaml":
            parts = list(yaml.safe_load_all(content))
            assert [part["kind"] for part in parts] == ["ConfigMap", "Service", "Job"]
            assert parts[0]["data"]["run.sh"] == bundle["run.sh"].decode()
            continue
        named = [line for line in guilty if line.startswith("#SBATCH --job-name=")]
        assert all(re.fullmatch(r"#SBATCH --job-name=[a-z0-9-]+", line) for line in named)
        assert all(line.startswith("# ") for line in guilty if line not in named), filename


def test_undecided_exports_the_baseline_exactly_as_keep_does_and_says_so(advise) -> None:
    keep, job = advise({})
    gain = Interval(ratio=3.4, low=0.9, high=12.0, rounds=4, sessions=2)
    more = f"Continue: `advisor tune --continue {job.id} --minutes 10`"
    told = {"verdict": Verdict.UNDECIDED, "gain": gain, "candidate": {"num_threads": 1}, "what_to_do": more}
    undecided = keep.model_copy(update=told)
    for info in list_suitable(job):
        if info.name in {
            "json",
            "kubernetes",
            "deepspeed",
            "runtime",
        }:  # they hold the answer itself, or none
            continue
        kept, opened = (export(advice, job, info.name).content.splitlines() for advice in (keep, undecided))
        assert [line for line in kept if not line.startswith("#")] == [
            line for line in opened if not line.startswith("#")
        ]
        head = "\n".join(opened)
        assert "Verdict: undecided. This file is the baseline" in head
        assert f"advisor tune --continue {job.id} --minutes 10" in head
        assert "Best strategy tried, not in this file: measured too roughly for a figure" in head
    file = read_strategy_file(export(undecided, job, "json").content)
    assert (file.verdict, file.changes) == (Verdict.UNDECIDED, {})


@pytest.mark.parametrize(
    ("kind", "facts", "name"),
    [
        (WorkloadKind.PYTORCH, {}, "torchrun"),
        (WorkloadKind.PYTORCH, {"sharding": "fully_shard"}, "torchrun"),
        (WorkloadKind.PYTORCH, {"software": {"pytorch_lightning": "2.5"}}, "lightning"),
        (WorkloadKind.PYTORCH, {"software": {"accelerate": "1", "transformers": "5"}}, "trainer"),
        (WorkloadKind.PYTORCH, {"backend": "nccl"}, "torchrun"),
        (WorkloadKind.COMMAND, {}, "command"),
        (WorkloadKind.PADDLE, {}, "paddle"),
    ],
)
def test_the_format_to_begin_with_is_that_of_the_library_at_work(kind, facts, name, advise) -> None:
    knobs = {"num_threads": 2} if kind is WorkloadKind.COMMAND else {}
    _, job = advise(CHANGES, kind=kind, knobs=knobs)
    assert job.facts is not None
    assert choose_format(job.model_copy(update={"facts": job.facts.model_copy(update=facts)})).name == name
    assert choose_format(job.model_copy(update={"facts": None})).name != "json"
