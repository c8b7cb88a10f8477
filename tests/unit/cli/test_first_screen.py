"""The first screen: short, bound first, and one line that says what to do, for every verdict."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from advisor.answers.answer import Use, make_answer
from advisor.cli.tuning.usage import describe_use
from advisor.cli.views.advice_view import format_advice
from advisor.cli.views.first_screen import render_first_screen
from advisor.exporters.own_lines import OwnLine
from advisor.protocol.answers.advice import Action, Advice, Interval
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.telemetry import FlagKind, NodeFlag
from advisor.protocol.nodes.cluster import Cluster, Node
from advisor.protocol.training.workload import WorkloadKind

from .advices import a_change, a_keep, unconfirmed, undecided
from .fake_server import FakeServer

USE = Use(
    "bash advisor-train/run.sh",
    "3 of 3 changes; your script stays as it is",
    (OwnLine(text="DDP(…, bucket_cap_mb=8)", knobs=("fuse_grad_size_in_MB",)),),
)


def words_of(advice: Advice, use: Use | None = None) -> str:
    return " ".join(format_advice(advice, 100, use=use).split())


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("make", [a_change, a_keep, undecided, unconfirmed])
def test_answer_fits_one_screen(make: Callable[[], Advice], width: int) -> None:
    lines = format_advice(make(), width, use=USE).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= 20
    assert lines[1].startswith("RESULT  ")
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("width", [80, 100])
def test_a_price_tells_what_a_million_samples_cost_at_each_rate(width: int) -> None:
    priced = a_change().model_copy(update={"price_per_hour": 2.5})
    lines = format_advice(priced, width, use=USE).splitlines()
    assert max(map(len, lines)) <= width
    told = "0.438 for a million samples, 0.404 as advised, at 2.5 an hour"
    assert told in [line.strip() for line in lines]
    assert f"It costs {told}." in " ".join(format_advice(priced, 120, verbose=True).split())
    assert "for a million" not in words_of(a_change())


def test_joules_stand_beside_the_rates_where_they_were_measured() -> None:
    told = "4.21 J a sample, 3.1 as advised"
    measured = a_change().model_copy(update={"joules_before": 4.21, "joules_after": 3.1})
    assert told in [line.strip() for line in format_advice(measured, 100, use=USE).splitlines()]
    assert f"Its devices use {told}." in " ".join(format_advice(measured, 120, verbose=True).split())
    assert " J a sample" not in words_of(a_change())


def test_job_of_nodes_goes_on_by_the_command_that_put_it_there() -> None:
    on_ray = Use(tune="ray tune --nodes=2 --state kept", before="ADVISOR_DATA_DIR=kept ")
    command = "advisor ray tune --nodes=2 --state kept --continue job-1 --minutes 10"
    assert f"DO {command}" in words_of(undecided(), on_ray)
    assert "MORE ADVISOR_DATA_DIR=kept advisor advice job-1 -v" in words_of(undecided(), on_ray)
    assert command in format_advice(undecided(), 200, verbose=True, use=on_ray)
    by_hand = Use(tune="tune --here --state kept")
    assert "--continue job-1 --minutes 10" in words_of(undecided(), by_hand)
    assert "on every node, as before; goes on where it stood" in words_of(undecided(), by_hand)


def test_change_leads_with_the_bound_and_says_how_to_use_it() -> None:
    text = words_of(a_change(), USE)
    assert text.startswith(
        "RESULT at least +5.9 %, most likely +8.4 % (95 % CI +5.9 … +10.7 %, 2 launches) yours 1 586"
    )
    assert "DO DDP(…, bucket_cap_mb=8) saves 9.2 ms (7.1 … 11.3) a step" in text
    assert "all bash advisor-train/run.sh 3 of 3 changes; your script stays as it is" in text
    assert "All keep the mathematics exact." in text
    grouped = tuple(reason.model_copy(update={"effect": None}) for reason in a_change().reasons)
    said = words_of(a_change().model_copy(update={"reasons": grouped}), USE)
    assert "DO DDP(…, bucket_cap_mb=8) known with the others" in said
    assert "█ network 14.2→3.1 ▓ backward 87.1→86.5" in text
    assert "fuse_grad_size_in_MB" not in text, "Fleet's names are told under -v"
    assert "pays back after 3.9 h of training" in text
    assert "--allow numeric measured 1.42x, but changes rounding" in text
    assert "advisor advice job-1 -v" in text


def test_a_network_that_could_not_be_measured_is_told_beside_the_parts() -> None:
    told = "The network's share could not be measured; backward includes it"
    change = a_change()
    unknown = replace(change.phases_after, exposed_comm_s=None)
    assert told in words_of(unconfirmed())
    assert told in words_of(change.model_copy(update={"phases_after": unknown}))
    assert told not in words_of(change) + words_of(undecided())


def test_stalls_that_the_result_leaves_out_are_told_beside_it() -> None:
    change = a_change()
    within = change.model_copy(update={"total_ratio": 1.09})
    assert "stalls" not in words_of(within)
    beyond = change.model_copy(update={"total_ratio": 2.5})
    assert "Slow steps are drawn in full; the result takes them for the machine's." in words_of(beyond)


@pytest.mark.parametrize(
    ("ratio", "low", "high", "is_offered"),
    [
        (1.42, 1.38, 1.46, True),
        (6.0, 2.9, 79.0, True),
        (2.1, 0.0, 1e3, False),
        (1.05, 1.04, 1.06, False),
        (1.42, 1.01, 2.0, False),
        (0.9, 0.8, 0.98, False),
    ],
)
def test_rung_is_offered_only_where_it_is_known_to_be_better_than_the_answer(
    ratio: float, low: float, high: float, is_offered: bool
) -> None:
    advice = a_change()
    gain = Interval(ratio=ratio, low=low, high=high, rounds=4, sessions=2)
    rung = advice.ladder[0].model_copy(update={"gain": gain})
    text = words_of(advice.model_copy(update={"ladder": (rung,)}))
    assert ("--allow numeric" in text) == is_offered
    assert "1000x" not in text


def test_files_that_hold_the_script_as_it_stands_say_so_on_the_screen() -> None:
    tried = Changes({"num_threads": 1})
    advice = undecided().model_copy(update={"candidate": tried})
    usage = describe_use(advice, FakeServer().add_job("aaa1"), Path("out"), is_written=True)
    assert f"out holds your settings, not {tried.describe()}: that is not proven" in words_of(advice, usage)


def test_bound_without_a_likeliest_value_tells_the_bound_alone() -> None:
    gain = Interval(ratio=15.0, low=2.9, high=79.0, rounds=4, sessions=2)
    text = words_of(a_change().model_copy(update={"gain": gain}))
    assert text.startswith(
        "RESULT at least 2.9x faster, measured too roughly to say how much more: more minutes"
    )
    assert "15x" not in text
    assert "79x" not in text


def test_wide_interval_says_what_narrows_it() -> None:
    wide = a_change().gain
    assert wide is not None
    gain = wide.model_copy(update={"ratio": 3.1, "low": 1.8, "high": 5.4})
    text = words_of(a_change().model_copy(update={"gain": gain}))
    assert "RESULT at least 1.8x faster, most likely 3.1x " in text
    assert "(95 % CI 1.8x … 5.4x, 2 launches; wide: more minutes narrow it)" in text


def test_change_that_rounds_otherwise_asks_for_a_comparison_of_accuracy() -> None:
    changes = {"fp16_allreduce": True}
    text = words_of(a_change().model_copy(update={"changes": changes, "reasons": ()}), USE)
    assert "16-bit gradient reduction changes rounding." in text
    assert "Compare the accuracy of one full training" in text


def test_keep_says_to_change_nothing() -> None:
    text = words_of(a_keep())
    assert text.startswith(
        "RESULT keep your settings: the strategy that looked best, num_threads 2, brings less than 2 %"
    )
    assert "DO Change nothing." in text
    assert "DO bash" not in text


@pytest.mark.parametrize("make", [undecided, unconfirmed])
def test_undecided_says_how_to_continue(make: Callable[[], Advice]) -> None:
    text = words_of(make())
    assert "DO advisor tune --continue job-1 --minutes 10" in text
    assert "enough to find gains from 2.1 % on" in text
    assert "DO bash" not in text


def test_faster_strategy_of_unverified_accuracy_is_not_advised() -> None:
    told = {"action": Action.CHECK_ACCURACY, "what_to_do": "Keep your settings until one full training did."}
    text = words_of(undecided().model_copy(update=told))
    assert "DO Keep your settings until one full training did." in text


def test_lagging_rank_is_named_once() -> None:
    flag = NodeFlag(agent="one", kind=FlagKind.STRAGGLER, sentence="Rank 1 on one works 3 ms longer.")
    diagnosis = a_change().diagnosis.model_copy(update={"flags": (flag, flag)})
    text = words_of(a_change().model_copy(update={"diagnosis": diagnosis}))
    assert text.count("Rank 1 on one works 3 ms longer.") == 1


def test_markup_in_a_sentence_is_printed_as_it_stands() -> None:
    assert "[bold]rank[/bold]" in words_of(a_keep().model_copy(update={"headline": "Use [bold]rank[/bold]."}))


@pytest.mark.parametrize(("noise", "is_told"), [(None, False), (0.01, False), (0.04, True), (0.92, True)])
def test_noise_that_could_hide_the_gain_stands_beside_it(noise: float | None, is_told: bool) -> None:
    text = words_of(a_change().model_copy(update={"launch_noise": noise}))
    assert ("The baseline alone varied by" in text) is is_told
    if noise == 0.92:
        assert "The baseline alone varied by 92 % from launch to launch" in text.partition("STEP")[0]


def test_noise_beside_a_gain_that_is_much_larger_is_left_to_the_report() -> None:
    change = a_change()
    assert change.gain is not None
    gain = change.gain.model_copy(update={"ratio": 3.1, "low": 2.8, "high": 3.4})
    assert "varied by" not in words_of(change.model_copy(update={"launch_noise": 0.05, "gain": gain}))


def test_what_would_stop_a_training_is_watched_first() -> None:
    uneven = "Rank 1 reads 3 batches an epoch and rank 0 5: the others would wait."
    assert f"CAREFUL {uneven}" in words_of(a_keep().model_copy(update={"watch": (uneven,)}))


def test_use_names_the_file_and_how_many_changes_it_carries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    job = FakeServer().add_job("aaa1")
    told = describe_use(a_change(), job, Path("out"), is_written=True)
    assert told.command == "bash out/run.sh"
    assert told.note.endswith("of 3 changes; your script stays as it is")
    assert describe_use(a_change(), job, Path("out dir"), is_written=False).command == (
        "advisor export aaa1 -o 'out dir' && bash 'out dir/run.sh'"
    )
    assert describe_use(a_keep(), job, Path("out"), is_written=True).command == ""
    spread = job.model_copy(update={"spec": job.spec.model_copy(update={"nodes": 2})})
    told = describe_use(a_change(), spread, Path("out"), is_written=True)
    assert told.note.endswith("; on each of 2 nodes, with NODE_RANK and MASTER_ADDR set")
    node = Node(hostname="here", cpu_count=2, memory_bytes=2**30)
    here = spread.model_copy(update={"cluster": Cluster(nodes=(node, node))})
    assert describe_use(a_change(), here, Path("out"), is_written=True).note.endswith(
        "; starts all 2 nodes here"
    )


@pytest.mark.parametrize("is_written", [True, False])
def test_every_command_says_where_the_advisor_is_that_is_not_on_the_path(
    monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir("/")
    program = Path(sys.executable).with_name("advisor")
    told = describe_use(a_change(), FakeServer().add_job("aaa1"), Path("out"), is_written=is_written)
    assert f"PYTHON={sys.executable.lstrip('/')} bash out/run.sh" in told.command
    assert (Path("/") / told.program) == program
    assert is_written or told.command.startswith(f"{told.program} export aaa1")
    assert f"{told.program} advice job-1 -v" in words_of(a_change(), told)
    assert f"DO {told.program} tune --continue job-1" in words_of(undecided(), told)


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
    assert told.command == "load out/strategy.prototxt into fleet's DistributedStrategy"
    assert told.note.endswith("; set yourself: num_threads")
    assert not told.lines


@pytest.mark.parametrize("width", [60, 80, 120])
def test_command_to_paste_is_one_line_in_a_terminal_of_any_width(width: int) -> None:
    command = "PYTHON=/home/ada/projects/environments/advisor/bin/python bash advisor-train/run.sh"
    lines = format_advice(a_change(), width, use=Use(command, "3 of 3 changes")).splitlines()
    assert [line for line in lines if line.startswith(f"DO      {command}")]
    continued = format_advice(
        undecided(), width, use=Use(program="/home/ada/projects/environments/bin/advisor")
    )
    assert (
        "\nDO      /home/ada/projects/environments/bin/advisor tune --continue job-1 --minutes 10"
        in continued
    )


def test_saving_of_changes_that_only_go_back_together_is_told_once() -> None:
    change = a_change()
    shared = change.reasons[0].effect
    reasons = tuple(reason.model_copy(update={"effect": shared}) for reason in change.reasons)
    lines = (
        OwnLine(text="DDP(…)", knobs=("fuse_grad_size_in_MB",)),
        OwnLine(text="N=2", knobs=("nccl_comm_num",)),
    )
    text = words_of(change.model_copy(update={"reasons": reasons}), replace(USE, lines=lines))
    assert (
        "DO DDP(…) saves 9.2 ms (7.1 … 11.3) a step, with the others N=2 known with the others only" in text
    )


def test_largest_saving_comes_first_and_three_lines_are_told() -> None:
    change = a_change()
    effect = change.reasons[0].effect
    assert effect is not None
    savings = {"fuse_grad_size_in_MB": 0.001, "nccl_comm_num": 0.05, "sync_nccl_allreduce": 0.02}
    reasons = tuple(
        reason.model_copy(update={"effect": effect.model_copy(update={"saved_s": savings[reason.knob]})})
        for reason in change.reasons
    )
    named = (*savings, "num_threads")
    lines = tuple(OwnLine(text=f"set {name}", knobs=(name,)) for name in named)
    text = words_of(change.model_copy(update={"reasons": reasons}), replace(USE, lines=lines))
    places = [
        text.find(f"set {name}") for name in ("nccl_comm_num", "sync_nccl_allreduce", "fuse_grad_size_in_MB")
    ]
    assert -1 < places[0] < places[1] < places[2]
    assert "set num_threads" not in text


def test_screen_that_says_all_there_is_to_say_is_still_one_screen() -> None:
    change = a_change()
    flags = tuple(
        NodeFlag(
            agent=f"n{at}", kind=FlagKind.STRAGGLER, sentence=f"Rank {at} works 3 ms longer than others."
        )
        for at in range(2)
    )
    told = change.model_copy(
        update={
            "diagnosis": change.diagnosis.model_copy(update={"flags": flags}),
            "watch": ("Rank 1 reads 3 batches an epoch and rank 0 reads 5: the others would wait.",),
            "launch_noise": 0.06, "left": Changes({"num_iteration_per_drop_scope": 30}),
        }
    )  # fmt: skip
    assert len(format_advice(told, 80, use=replace(USE, page="advisor-train/report.html")).splitlines()) <= 20


def test_what_minus_v_tells_as_well_goes_first_where_one_screen_cannot_hold_all() -> None:
    answer = make_answer(a_change(), USE)
    long = " ".join(["Your settings run at 25 and at 160 samples/s in one launch."] * 6)
    text = Console(width=80)
    with text.capture() as shown:
        text.print(
            render_first_screen(replace(answer, moods=long, first=long[:100], left="garbage collected every"))
        )
    lines = shown.get().splitlines()
    assert len(lines) <= 20
    told = [line[:7].strip() for line in lines]
    assert [label for label in told if label] == ["FIRST", "RESULT", "MOODS", "DO", "all", "COST", "MORE"]
