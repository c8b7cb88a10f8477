"""The first screen: short, bound first, and one line that says what to do, for every verdict."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from advisor.cli.tuning.usage import describe_use
from advisor.cli.views.advice_view import format_advice
from advisor.protocol.answers.advice import Action, Advice, Verdict
from advisor.protocol.measured.telemetry import FlagKind, NodeFlag
from advisor.protocol.training.workload import WorkloadKind

from .advices import a_change, a_keep, of_an_older_version, unconfirmed, undecided
from .fake_server import FakeServer

USE = "bash advisor-train/run.sh"


def words_of(advice: Advice, usage: str = "") -> str:
    return " ".join(format_advice(advice, 100, usage=usage).split())


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("make", [a_change, a_keep, undecided, unconfirmed, of_an_older_version])
def test_answer_fits_one_screen(make: Callable[[], Advice], width: int) -> None:
    lines = format_advice(make(), width, usage=USE).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= 25
    assert lines[1].startswith("RESULT  ")
    assert all(line == line.rstrip() for line in lines)


def test_change_leads_with_the_bound_and_says_how_to_use_it() -> None:
    text = words_of(a_change(), USE)
    assert text.startswith(
        "RESULT at least +5.9 %, most likely +8.4 %: 1 586 → 1 719 samples/s (95 % CI +5.9 … +10.7 %)"
    )
    assert "WHY one step 161 → 150 ms: network 14.2 → 3.1" in text
    assert "fuse_grad_size_in_MB 32 MB 8 MB 9.2 ms (7.1 … 11.3)" in text
    assert "nccl_comm_num 1 2 not measured alone" in text
    assert "All keep the mathematics exact." in text
    assert f"USE IT {USE}" in text
    assert "pays back after 3.9 h of training" in text
    assert "--allow numeric measured 1.42x, but changes rounding" in text
    assert "advisor advice job-1 -v" in text


def test_stalls_that_the_result_leaves_out_are_told_beside_it() -> None:
    change = a_change()
    within = change.model_copy(update={"total_ratio": 1.09})
    assert "stalls" not in words_of(within)
    beyond = change.model_copy(update={"total_ratio": 2.5})
    assert (
        "WHY one step 161 → 150 ms (2.5x: RESULT counts a slow step as 1.5 usual ones at most)"
        in words_of(beyond)
    )


def test_wide_interval_says_what_narrows_it() -> None:
    wide = a_change().gain
    assert wide is not None
    gain = wide.model_copy(update={"ratio": 3.1, "low": 1.8, "high": 5.4})
    text = words_of(a_change().model_copy(update={"gain": gain}))
    assert "RESULT at least 1.8x faster, most likely 3.1x: " in text
    assert "(95 % CI 1.8x … 5.4x; wide: more minutes narrow it)" in text


def test_change_that_rounds_otherwise_asks_for_a_comparison_of_accuracy() -> None:
    changes = {"fp16_allreduce": True}
    text = words_of(a_change().model_copy(update={"changes": changes, "reasons": ()}), USE)
    assert "fp16_allreduce changes rounding." in text
    assert "TO DO Compare the accuracy of one full training" in text


def test_keep_says_to_change_nothing() -> None:
    text = words_of(a_keep())
    assert text.startswith("RESULT keep your settings: whatever the search found brings less than 2 %")
    assert "TO DO Change nothing." in text
    assert "USE IT" not in text
    assert "CHANGE" not in text


@pytest.mark.parametrize("make", [undecided, unconfirmed])
def test_undecided_says_how_to_continue(make: Callable[[], Advice]) -> None:
    text = words_of(make())
    assert "TO DO advisor tune --continue job-1 --minutes 10" in text
    assert "enough to find gains from 2.1 % on" in text
    assert "USE IT" not in text


def test_faster_strategy_of_unverified_accuracy_is_not_advised() -> None:
    told = {"action": Action.CHECK_ACCURACY, "what_to_do": "Keep your settings until one full training did."}
    text = words_of(undecided().model_copy(update=told))
    assert "TO DO Keep your settings until one full training did." in text


def test_advice_of_an_older_version_is_still_readable() -> None:
    assert of_an_older_version().verdict is Verdict.KEEP
    assert "RESULT no reliable gain: keep your defaults." in words_of(of_an_older_version())


def test_lagging_rank_is_named_once() -> None:
    flag = NodeFlag(agent="one", kind=FlagKind.STRAGGLER, sentence="Rank 1 on one works 3 ms longer.")
    diagnosis = a_change().diagnosis.model_copy(update={"flags": (flag, flag)})
    text = words_of(a_change().model_copy(update={"diagnosis": diagnosis}))
    assert text.count("Rank 1 on one works 3 ms longer.") == 1


def test_markup_in_a_sentence_is_printed_as_it_stands() -> None:
    assert "[bold]rank[/bold]" in words_of(a_keep().model_copy(update={"headline": "Use [bold]rank[/bold]."}))


def test_use_names_the_file_and_how_many_changes_it_carries() -> None:
    job = FakeServer().add_job("aaa1")
    told = describe_use(a_change(), job, Path("out"), is_written=True)
    assert told.startswith("bash out/run.sh   (")
    assert "of 3 changes; your script stays as it is)" in told
    assert describe_use(a_change(), job, Path("out"), is_written=False).startswith(
        "advisor export aaa1 -o out && bash out/run.sh"
    )
    assert describe_use(a_keep(), job, Path("out"), is_written=True) == ""
    spread = job.model_copy(update={"spec": job.spec.model_copy(update={"nodes": 2})})
    told = describe_use(a_change(), spread, Path("out"), is_written=True)
    assert told.endswith("; on each of 2 nodes, NODE_RANK and MASTER_ADDR set)")


def test_use_says_where_the_advisor_is_that_is_not_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    told = describe_use(a_change(), FakeServer().add_job("aaa1"), Path("out"), is_written=True)
    assert told.startswith(f"ADVISOR={Path(sys.executable).with_name('advisor')} bash out/run.sh")


def test_use_names_what_the_file_cannot_carry() -> None:
    job = FakeServer().add_job("aaa1")
    spec = job.spec.model_copy(
        update={"workload": job.spec.workload.model_copy(update={"kind": WorkloadKind.PADDLE})}
    )
    change = a_change()
    more = {
        "changes": {**change.changes, "num_threads": 1},
        "strategy": {**change.strategy, "num_threads": 1},
    }
    told = describe_use(
        change.model_copy(update=more), job.model_copy(update={"spec": spec}), Path("out"), is_written=True
    )
    assert told.startswith("load out/strategy.prototxt into fleet's DistributedStrategy")
    assert told.endswith("Set yourself: num_threads.")
