"""The commands against a pretended server: what goes to stdout, what to stderr, and the exit code."""

import json
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.cells import cell_len

from advisor import __version__
from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.program import build_app
from advisor.cli.screen import Screen
from advisor.cli.tuning.job_spec import WantedJob
from advisor.cli.tuning.tune_anywhere import tune_anywhere
from advisor.protocol.answers.forecast import Forecast
from advisor.protocol.asked.jobs import Continuation, JobSpec, JobState, Priority
from advisor.protocol.gains import say_smallest_gain, spell_gain
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.training.workload import Workload
from advisor.protocol.views import EventFacts, EventKind, LogChunk
from advisor.tuning.history.study import place_study

from .advices import a_change, undecided
from .conftest import Run
from .fake_server import BIRTH, FakeServer


def words_of(text: str) -> str:
    return " ".join(text.split())


def test_jobs_lists_names_and_states(server: FakeServer, run: Run) -> None:
    server.add_job("aaa1", JobState.FINISHED, "bert [base]")
    server.add_job("bbb2", JobState.RUNNING)
    server.advice = a_change()
    result = run("jobs", TTY_COMPATIBLE="1", COLUMNS="80")
    assert result.exit_code == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", result.stdout)
    assert "bert [base]" in shown
    assert "running:" in shown
    assert "measuring your settings" in words_of(shown)
    assert spell_gain(server.advice.gain.ratio) in shown
    assert all(cell_len(line) <= 80 for line in shown.splitlines())


def test_jobs_are_as_many_as_were_asked_for_wherever_pages_end(server: FakeServer, run: Run) -> None:
    for number in range(5):
        server.add_job(f"job{number}", JobState.FINISHED)
    server.page_of = 2
    for limit, listed in ((4, 4), (20, 5)):
        told = json.loads(run("jobs", "--json", "--limit", str(limit)).stdout)
        assert len({job["id"] for job in told["items"]}) == listed


def test_jobs_in_a_pipe_are_tab_separated_values_and_gains_are_figures(server: FakeServer, run: Run) -> None:
    server.add_job("aaa1", JobState.FINISHED, "a\tname\nof two lines")
    server.add_job("bbb2", JobState.RUNNING)
    server.advice = a_change()
    gain = server.advice.gain
    header, *lines = [line.split("\t") for line in run("jobs").stdout.splitlines()]
    rows = {line[0]: dict(zip(header, line, strict=True)) for line in lines}
    assert rows["aaa1"]["name"] == "a name of two lines"
    assert float(rows["aaa1"]["gain_low"]) == pytest.approx(gain.low, abs=1e-4)
    assert (rows["bbb2"]["state"], rows["bbb2"]["gain"]) == ("running", "")
    listed = {job["id"]: job["gain"] for job in json.loads(run("jobs", "--json").stdout)["items"]}
    assert listed["bbb2"] is None
    assert (listed["aaa1"]["ratio"], listed["aaa1"]["high"]) == (gain.ratio, gain.high)


def test_jobs_as_json_is_nothing_but_json(server: FakeServer, run: Run) -> None:
    server.add_job("aaa1")
    assert [job["id"] for job in json.loads(run("jobs", "--json").stdout)["items"]] == ["aaa1"]


def test_no_jobs_says_how_to_make_one(run: Run) -> None:
    result = run("jobs")
    assert result.stdout == ""
    assert "advisor tune --" in result.stderr


@pytest.mark.parametrize(
    ("reference", "found"), [("aaa1", "aaa1"), ("b", "bbb2"), ("vit", "aaa1"), ("last", "bbb2")]
)
def test_job_is_meant_by_id_prefix_name_or_last(
    server: FakeServer, run: Run, reference: str, found: str
) -> None:
    server.add_job("aaa1", name="vit")
    server.add_job("bbb2", name="bert")
    assert json.loads(run("show", reference, "--json").stdout)["id"] == found


def test_ambiguous_and_unknown_jobs_are_not_found(server: FakeServer, run: Run) -> None:
    server.add_job("abc1")
    server.add_job("abd2")
    ambiguous, unknown = run("show", "ab"), run("show", "zz")
    assert (ambiguous.exit_code, unknown.exit_code) == (102, 102)
    assert "abd2, abc1" in ambiguous.stderr
    assert "`advisor jobs` lists them" in unknown.stderr


@pytest.mark.parametrize(
    ("end", "code"), [(JobState.FINISHED, 0), (JobState.FAILED, 100), (JobState.CANCELLED, 103)]
)
def test_watch_follows_to_the_end_and_exits_with_it(
    server: FakeServer, run: Run, end: JobState, code: int
) -> None:
    server.add_job("aaa1", JobState.RUNNING)
    server.lives["aaa1"] = [JobState.RUNNING, end]
    server.add_event("aaa1", "Trial 1 begins: a rule of thumb.")
    result = run("watch", "aaa1", "-v")
    assert result.exit_code == code
    assert "1:05  Trial 1 begins: a rule of thumb." in result.stderr
    assert f"train: {end}." in result.stdout


def test_watch_as_json_gives_one_event_a_line(server: FakeServer, run: Run) -> None:
    server.add_job("aaa1", JobState.FINISHED)
    server.add_event("aaa1", "One.")
    server.add_event("aaa1", "Two.")
    lines = run("watch", "aaa1", "--json").stdout.splitlines()
    assert [json.loads(line)["sentence"] for line in lines] == ["One.", "Two."]


def test_watch_outlives_a_server_that_restarts(server: FakeServer, run: Run) -> None:
    server.add_job("aaa1", JobState.FINISHED)
    server.add_event("aaa1", "One.")
    job_seen = server.answer

    def drop_after_the_list(*request: object) -> object:
        server.answer = job_seen  # type: ignore[method-assign]
        server.drops = 2
        return job_seen(*request)  # type: ignore[arg-type]

    server.answer = drop_after_the_list  # type: ignore[method-assign, assignment]
    result = run("watch", "aaa1", "-v")
    assert result.exit_code == 0
    assert "trying again" in result.stderr
    assert "One." in result.stderr


def test_cancel_asks_the_server(server: FakeServer, run: Run) -> None:
    server.add_job("aaa1", JobState.RUNNING)
    assert "train: cancelled" in run("cancel", "last").stdout
    assert server.cancelled == ["aaa1"]


def test_logs_print_what_the_processes_wrote(server: FakeServer, run: Run) -> None:
    server.add_job("aaa1", JobState.FINISHED)
    server.logs["aaa1"] = [LogChunk(seq=1, session_id="s", agent="a", text="epoch 1\n")]
    assert run("logs", "aaa1").stdout == "epoch 1\n"
    assert run("logs", "aaa1", "--follow").stdout == "epoch 1\n"


def test_logs_of_one_rank_are_its_own_lines(server: FakeServer, run: Run) -> None:
    server.add_job("aaa1", JobState.FINISHED)
    texts = ("launching\n[rank 1] one\n[rank 11] eleven\n", "[rank 0] zero\n", "[rank 1] one more\n")
    server.logs["aaa1"] = [
        LogChunk(seq=seq, session_id="s", agent="a", text=text) for seq, text in enumerate(texts, start=1)
    ]
    assert run("logs", "aaa1", "--rank", "1").stdout == "one\none more\n"
    assert "[rank 11] eleven" in run("logs", "aaa1").stdout


def test_advice_before_the_end_is_not_finished(server: FakeServer, run: Run) -> None:
    server.add_job("aaa1", JobState.RUNNING)
    result = run("advice", "aaa1")
    assert result.exit_code == 101
    assert "Error: The job is not finished." in result.stderr
    assert "What to do: Wait for it." in result.stderr


def test_advice_as_json_is_the_advice(server: FakeServer, run: Run) -> None:
    server.add_job("aaa1", JobState.FINISHED)
    server.advice = a_change()
    told = json.loads(run("advice", "aaa1", "--json").stdout)
    assert (told["schema_version"], told["verdict"]) == (1, "change")
    shown = run("advice", "aaa1").stdout
    assert "RESULT  at least +5.9 %" in shown
    assert "advisor export aaa1 -o advisor-train && bash advisor-train/run.sh" in shown
    assert "What to change, and why" in run("advice", "aaa1", "-v").stdout


def test_export_writes_the_bundle_into_a_directory(server: FakeServer, run: Run, tmp_path: Path) -> None:
    server.add_job("aaa1", JobState.FINISHED, "my run/2")
    server.advice = a_change()
    result = run("export", "aaa1")
    assert result.exit_code == 0, result.stderr
    written = {path.name for path in (tmp_path / "advisor-my-run-2").iterdir()}
    assert written == {"strategy.json", "run.sh", "fleet_advisor_runtime.pyz", "report.html"}
    assert {Path(line).name for line in result.stdout.splitlines()} == written


def test_export_of_one_format_goes_to_stdout_or_where_it_is_wanted(
    server: FakeServer, run: Run, tmp_path: Path
) -> None:
    server.add_job("aaa1", JobState.FINISHED)
    server.advice = a_change()
    assert run("export", "aaa1", "--format", "json").stdout == "{}\n"
    assert run("export", "aaa1", "-f", "json", "-o", "mine.json").stdout == "mine.json\n"
    assert run("export", "aaa1", "-f", "json", "-o", "there").stdout == "there/strategy-json\n"
    assert (tmp_path / "mine.json").read_text() == (tmp_path / "there" / "strategy-json").read_text() == "{}"


def test_export_of_an_undecided_job_says_that_the_file_holds_the_settings_as_they_are(
    server: FakeServer, run: Run
) -> None:
    server.add_job("aaa1", JobState.FINISHED)
    server.advice = undecided()
    told = run("export", "aaa1", "-f", "json", "-o", "mine.json")
    assert told.stdout == "mine.json\n"
    held = "Verdict: undecided. mine.json is the baseline: it sets nothing that the script does not do."
    assert held in words_of(told.stderr)
    assert undecided().what_to_do in words_of(told.stderr)
    server.advice = a_change()
    assert run("export", "aaa1", "-f", "json", "-o", "mine.json").stderr == ""


@pytest.mark.parametrize("name", ["paddle-transpiler", "nccl"])
def test_a_file_that_would_carry_no_change_is_not_written(
    server: FakeServer, run: Run, tmp_path: Path, name: str
) -> None:
    server.add_job("aaa1", JobState.FINISHED)
    server.advice = a_change().model_copy(update={"changes": Changes({"num_threads": 2})})
    told = run("export", "aaa1", "--format", name, "--output", "there.txt")
    assert told.exit_code == Exit.INVALID_SPEC
    assert "would carry 0 of 1 changes (num_threads)" in told.stderr
    assert "`advisor export aaa1` writes the files that carry some" in words_of(told.stderr)
    assert not (tmp_path / "there.txt").exists()
    assert "!" in run("export", "aaa1", "--format", name, "--diff").stdout


def test_predict_asks_for_the_cluster_and_says_how_sure_it_is(server: FakeServer, run: Run) -> None:
    server.add_job("aaa1", JobState.FINISHED)
    server.forecast = Forecast(
        nodes=8, bits_per_s=25e9, batch=2.0, changes={"fuse_grad_size_in_MB": 8.0}, step_time_s=0.08,
        baseline_step_time_s=0.1, samples_per_s=1600.0, low=1400.0, high=1800.0, scaling_efficiency=0.9,
        caveat="A prediction.",
    )  # fmt: skip
    told = run("predict", "aaa1", "--nodes", "8", "--rate", "25gbit", "--batch", "2")
    assert told.exit_code == 0, told.stderr
    assert server.asked_forecast == {"nodes": "8", "rate": "25gbit", "batch": "2.0"}
    assert (
        "Predicted on 8 nodes with links of 25 Gbit/s, 2 times the batch: 1 600 samples/s (1 400 … 1 800)"
        in told.stdout
    )
    assert "80.0 ms; your settings 100.0 ms (+25.0 %)" in told.stdout
    assert "fuse_grad_size_in_MB = 8 MB" in told.stdout
    assert "A prediction." in told.stdout
    assert json.loads(run("predict", "aaa1", "--json").stdout)["nodes"] == 8


FIGURES = (
    "predict", "--nodes", "2", "--rate", "100mbit", "--variables", "256x1024,1024,1024x256,256", "--table", "20000x32",
    "--ids", "256", "--compute", "0.01",
)  # fmt: skip


def test_predict_compares_architectures_before_anything_was_measured(run: Run) -> None:
    told = run(*FIGURES)
    assert told.exit_code == 0, told.stderr
    steps = [line for line in told.stdout.splitlines() if line.startswith("  ")]
    same = [line for line in steps if "changes" not in line]
    assert [line.split("  ")[1] for line in same][-1] == "1 server apart"
    assert "Too near to tell: " in told.stdout
    setups = json.loads(run(*FIGURES, "--json").stdout)
    order = [
        (told["effect"] == "convergence", told["effect"] == "numeric", told["step_time_s"]) for told in setups
    ]
    assert order == sorted(order)
    assert {told["setup"]["architecture"] for told in setups} == {"servers", "collective", "hybrid"}


def test_predict_says_what_no_nodes_memory_holds(run: Run) -> None:
    huge = ("predict", "--nodes", "4", "--rate", "10gbit", "--variables", "64x64", "--table", "1000000000x16")
    told = run(*huge, "--ids", "4096")
    assert "a node holds 59.6 GiB at least" in told.stdout
    assert "give --memory" in told.stdout
    told = run(*huge, "--ids", "4096", "--memory", "10")
    assert told.exit_code == 0, told.stderr
    assert "8 servers apart" in told.stdout
    assert next(line for line in told.stdout.splitlines() if "no servers" in line).endswith("does not fit")


def test_predict_sums_several_trainers_of_a_node_up_first(run: Run) -> None:
    """The documents reduce inside a node before servers: then four servers are as fast as none."""
    told = run(
        "predict", "--nodes", "4", "--trainers", "32", "--rate", "25gbit", "--variables",
        "4096x4096,4096,4096x4096,4096", "--compute", "0.05",
    )  # fmt: skip
    first, second, third = told.stdout.splitlines()[:3]
    assert "no servers, summed in nodes first" in second
    assert "4 servers with the trainers, summed in nodes first" in third
    assert "against one server" in first
    assert "Too near to tell" in told.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "Name a JOB that was measured, or give --variables"),
        (("last", "--variables", "4x4"), "Name a JOB that was measured, or give --variables"),
        (("last", "--table", "4x4"), "go with --variables"),
        (("last", "--memory", "64"), "go with --variables"),
        (("--variables", "4x4"), "Give --rate"),
        (("--variables", "4y4", "--rate", "1gbit"), "'4y4' is no shape"),
        (("--variables", "4,variable0=4", "--rate", "1gbit"), "variable0 is given twice"),
        (("--variables", "@missing.txt", "--rate", "1gbit"), "missing.txt cannot be read"),
        (("--variables", "0x4", "--rate", "1gbit"), "'0x4' has 0 numbers"),
        (("--variables", "4", "--rate", "0gbit"), "carries nothing"),
        (("--variables", "4", "--rate", "1gbit", "--table", "3x4"), "--ids"),
        (("--variables", "4", "--rate", "1gbit", "--nodes", "4", "--trainers", "2"), "give a trainer to each node"),
        (("--variables", "4", "--rate", "1gbit", "--batch", "2"), "--batch is a multiple of a measured batch"),
    ],
)  # fmt: skip
def test_predict_says_what_is_wrong_about_figures(run: Run, words: tuple[str, ...], sentence: str) -> None:
    told = run("predict", *words)
    assert told.exit_code == 2
    assert sentence in " ".join(told.stderr.split())


def test_submit_dry_run_stores_nothing(server: FakeServer, run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("workload: {command: [torchrun, t.py]}\n")
    told = run("submit", "job.yaml", "--dry-run").stdout
    assert "valid job" in told
    assert "24 at most" in told
    assert "takes     30 min at most" in told
    assert "  fuse_grad_size_in_MB " in told
    assert "The smallest gain that the budget can find depends on" in words_of(told)
    assert json.loads(run("submit", "job.yaml", "--dry-run", "--json").stdout)["plan"]["most_trials"] == 24
    assert not server.jobs


def test_tune_detached_returns_at_once(server: FakeServer, run: Run) -> None:
    left = run("tune", "--detach", "--minutes", "2", "--", "torchrun", "t.py")
    assert left.stdout == "new-1\n"
    assert "advisor watch new-1" in left.stderr
    assert server.submitted[-1].budget.max_seconds == 120
    assert "needs a server" in run("tune", "--detach", "--", "torchrun", "t.py", ADVISOR_URL=None).stderr


def test_submit_takes_the_limits_of_tune_beside_the_file(
    server: FakeServer, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text("workload: {command: [torchrun, t.py]}\nbudget: {max_trials: 3}\n")
    limits = ("--minutes", "2", "--nodes", "2", "--allow", "numeric")
    assert run("submit", "job.yaml", "--detach", *limits).exit_code == 0
    spec = server.submitted[0]
    assert (spec.budget.max_trials, spec.budget.max_seconds, spec.nodes, spec.allow) == (3, 120, 2, "numeric")


def test_submit_says_where_and_how_soon_beside_what_the_file_says(
    server: FakeServer, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(
        "workload: {command: [torchrun, t.py]}\npool: cpu\nlabels: {project: bert}\nwithin: room\n"
    )
    words = [
        "--priority",
        "low",
        "--pool",
        "gpu",
        "--needs",
        "disk=nvme",
        "--needs",
        "rack=7",
        "--label",
        "ticket=9",
    ]
    assert run("submit", "job.yaml", "--detach", *words).exit_code == 0
    (spec,) = server.submitted
    assert (spec.priority, spec.pool, spec.within) == (Priority.LOW, "gpu", "room")
    assert spec.needs == {"disk": "nvme", "rack": "7"}
    assert spec.labels == {"project": "bert", "ticket": "9"}
    wrong = run("submit", "job.yaml", "--detach", "--needs", "rack")
    assert (wrong.exit_code, "Write it as --needs rack=7" in words_of(wrong.stderr)) == (3, True)


def test_tune_on_this_machine_chooses_among_no_nodes() -> None:
    wanted = WantedJob(JobSpec(workload=Workload(command=("torchrun", "t.py")), needs={"rack": "7"}))
    with pytest.raises(CommandFailed, match="choose among the nodes of a server"):
        tune_anywhere(wanted, None, lambda *_: None, {}, Screen())


def test_submit_detached_prints_the_id(server: FakeServer, run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: mine\n")
    result = run("submit", "job.yaml", "--detach", "--", "torchrun", "--nproc-per-node", "2", "t.py")
    assert result.stdout == "new-1\n"
    assert server.submitted[0].workload.command == ("torchrun", "--nproc-per-node", "2", "t.py")


def test_tune_on_a_server_shows_the_advice_and_writes_its_files(
    server: FakeServer, run: Run, tmp_path: Path
) -> None:
    server.advice = a_change()
    server.lives["new-1"] = [JobState.RUNNING, JobState.FINISHED]
    result = run(
        "tune", "--output", "out", "torchrun", "--nproc-per-node", "2", "train.py", "--name", "theirs"
    )
    assert result.exit_code == 0, result.stderr
    assert server.submitted[0].workload.command[-2:] == ("--name", "theirs")
    assert "bash out/run.sh  " in result.stdout
    assert json.loads((tmp_path / "out" / "strategy.json").read_text())


def test_tune_measures_nothing_where_it_could_not_write_its_files(
    server: FakeServer, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "run.sh").write_text("echo mine\n")
    (tmp_path / "notes").write_text("mine too\n")
    for output, reason in (
        ("mine", "mine holds a run.sh that is not of an export."),
        ("notes", "is not a directory."),
    ):
        result = run("tune", "--output", output, "torchrun", "--nproc-per-node", "2", "train.py")
        assert (result.exit_code, server.submitted) == (2, []), result.stderr
        assert f"--output {output}: " in result.stderr
        assert reason in result.stderr


def test_tune_again_resumes_the_same_unfinished_job_unless_new(server: FakeServer, run: Run) -> None:
    server.advice = a_change()
    server.lives["new-1"] = [JobState.RUNNING, JobState.CANCELLED]
    assert run("tune", "--", "torchrun", "train.py").exit_code == 103
    again = server.add_job("half", JobState.RUNNING, spec=server.submitted[0])
    server.lives[again.id] = [JobState.FINISHED]
    result = run("tune", "--json", "--", "torchrun", "train.py")
    assert "Resuming job half" in result.stderr
    assert json.loads(result.stdout)["verdict"] == "change"
    assert len(server.submitted) == 1


def test_quiet_tune_prints_the_answer_and_nothing_else(server: FakeServer, run: Run) -> None:
    server.advice = a_change()
    server.lives["new-1"] = [JobState.RUNNING, JobState.FINISHED]
    result = run("tune", "-q", "--", "torchrun", "train.py")
    assert result.stdout.strip().startswith("RESULT")
    assert result.stderr == ""


def test_quiet_tells_errors_all_the_same(run: Run) -> None:
    assert "Error: " in run("tune", "-q", "--knob", "nothing", "--", "torchrun", "train.py").stderr


def test_new_submits_although_the_same_job_is_unfinished(server: FakeServer, run: Run) -> None:
    server.lives["new-1"] = [JobState.RUNNING, JobState.CANCELLED]
    run("tune", "--", "torchrun", "train.py")
    server.add_job("half", JobState.RUNNING, spec=server.submitted[0])
    server.lives["new-2"] = [JobState.CANCELLED]
    run("tune", "--new", "--", "torchrun", "train.py")
    assert len(server.submitted) == 2
    assert not server.cancelled


def test_watch_tells_a_stage_a_line_and_what_the_budget_can_find(server: FakeServer, run: Run) -> None:
    server.add_job("aaa1", JobState.RUNNING)
    server.lives["aaa1"] = [JobState.RUNNING, JobState.RUNNING, JobState.RUNNING, JobState.FINISHED]
    for _ in range(2):
        server.add_event("aaa1", "Rank 1 on one works 3 ms longer in each step.", EventKind.SESSION)
        facts = EventFacts(smallest_gain=0.02)
        server.add_event("aaa1", "Whatever this says, it is told.", EventKind.JOB, facts)
        server.add_event("aaa1", say_smallest_gain(0.03), EventKind.JOB)
    server.add_event("aaa1", "A similar job.", EventKind.JOB, EventFacts(earlier=("old",)))
    told = run("watch", "aaa1").stderr.splitlines()
    assert [line.split("  ", 1)[1] for line in told if "baseline" in line] == [
        "baseline   starting your script as it stands"
    ]
    assert sum("Whatever this says, it is told." in line for line in told) == 1
    assert sum("A similar job." in line for line in told) == 1
    assert not any("This budget can find" in line for line in told)
    assert not any("Rank 1" in line for line in told)
    assert max(map(len, told)) < 100


def test_continue_gives_an_ended_job_more_and_shows_its_answer(server: FakeServer, run: Run) -> None:
    server.advice = undecided()
    server.add_job("aaa1", JobState.FINISHED)
    server.add_job("bbb2", JobState.FINISHED)
    server.lives["bbb2"] = [JobState.RUNNING, JobState.FINISHED]
    result = run("tune", "--continue", "last", "--minutes", "2", "--trials", "6")
    assert result.exit_code == 0, result.stderr
    assert server.continued == {"bbb2": Continuation(more_seconds=120, more_trials=6)}
    assert "Continuing job bbb2 (train) with 2 min more: what it has measured is kept." in result.stderr
    assert "DO      advisor tune --continue job-1 --minutes 10" in result.stdout
    assert not server.submitted


def test_continue_without_minutes_takes_what_the_advice_says(server: FakeServer, run: Run) -> None:
    server.advice = undecided()
    server.add_job("aaa1", JobState.FINISHED)
    server.lives["aaa1"] = [JobState.FINISHED]
    run("tune", "--continue", "aaa1")
    server.advice = None
    server.add_job("bbb2", JobState.CANCELLED)
    server.lives["bbb2"] = [JobState.CANCELLED]
    run("tune", "--continue", "bbb2")
    assert [more.more_seconds for more in server.continued.values()] == [600, 300]


def test_continue_of_a_job_that_has_not_ended_goes_on_without_adding(server: FakeServer, run: Run) -> None:
    server.advice = a_change()
    server.add_job("aaa1", JobState.RUNNING)
    server.lives["aaa1"] = [JobState.FINISHED]
    result = run("tune", "--continue", "aaa1", "--minutes", "5")
    assert "Resuming job aaa1" in result.stderr
    assert not server.continued


@pytest.mark.parametrize(
    "words",
    [
        ["--continue", "aaa1", "--", "torchrun", "t.py"],
        ["--continue", "aaa1", "--resume", "aaa1"],
        ["--continue", "aaa1", "--minutes", "-5"],
    ],
)
def test_continue_refuses_what_does_not_go_together(server: FakeServer, run: Run, words: list[str]) -> None:
    server.add_job("aaa1", JobState.FINISHED)
    assert run("tune", *words).exit_code == 2
    assert not server.continued


def test_same_command_resumes_a_job_that_was_continued(server: FakeServer, run: Run) -> None:
    server.lives["new-1"] = [JobState.CANCELLED]
    run("tune", "--minutes", "2", "--", "torchrun", "train.py")
    spec = server.submitted[0]
    larger = spec.model_copy(update={"budget": spec.budget.model_copy(update={"max_seconds": 420})})
    server.add_job("more", JobState.RUNNING, spec=larger, continued_at=(BIRTH,))
    server.lives["more"] = [JobState.CANCELLED]
    assert "Resuming job more" in run("tune", "--minutes", "2", "--", "torchrun", "train.py").stderr
    assert len(server.submitted) == 1


def test_failed_tune_shows_the_reason_and_where_to_look(server: FakeServer, run: Run) -> None:
    server.add_job("aaa1", JobState.FAILED, state_reason="The script uses no DistributedDataParallel.")
    result = run("tune", "--resume", "aaa1")
    assert result.exit_code == 100
    assert "The script uses no DistributedDataParallel." in words_of(result.stderr)
    assert "advisor logs aaa1" in result.stderr


def test_tune_without_a_command_is_a_usage_error(run: Run) -> None:
    assert run("tune").exit_code == 2
    assert run("tune", "--nodes", "0", "--", "torchrun", "t.py").exit_code == 2


def test_tune_asks_a_server_for_a_testbed_and_a_built_in_workload(server: FakeServer, run: Run) -> None:
    server.lives["new-1"] = [JobState.CANCELLED]
    run("tune", "--testbed", "nodes=3,rate=200mbit", "--workload", "vgg16", "--", "--batch", "4")
    spec = server.submitted[0]
    assert (spec.name, spec.nodes, str(spec.testbed)) == ("vgg16", 3, "nodes=3,rate=200mbit")
    assert spec.workload.command[:3] == ("torchrun", "--nproc-per-node", "2")
    assert spec.workload.command[3].endswith("vgg16.py")
    assert spec.workload.command[4:] == ("--batch", "4")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--testbed", "nodes=2,rate=1gbit,delay=5ms", "--", "torchrun", "t.py"], "delay=5ms"),
        (
            ["--testbed", "nodes=2,rate=1gbit", "--local-agents", "3", "--", "torchrun", "t.py"],
            "--local-agents 3",
        ),
        (["--testbed", "nodes=2,rate=1gbit", "--nodes", "4", "--", "torchrun", "t.py"], "nodes is 4"),
        (["--nproc-per-node", "4", "--", "torchrun", "t.py"], "--nproc-per-node 4"),
        (["--workload", "resnet51"], "'resnet51'"),
    ],
)
def test_tune_refuses_what_does_not_go_together(
    server: FakeServer, run: Run, words: list[str], named: str
) -> None:
    result = run("tune", *words)
    assert result.exit_code in {2, 3}
    assert named in words_of(result.stderr)
    assert "What to do:" in result.stderr
    assert not server.submitted


def test_workloads_lists_scripts_that_are_there(run: Run) -> None:
    items = json.loads(run("workloads", "--json", ADVISOR_URL=None).stdout)["items"]
    assert {item["name"] for item in items} == {"resnet50", "vgg16", "encoder", "decoder", "wide_and_deep"}
    assert all(Path(item["script"]).is_file() and item["purpose"] for item in items)


def test_every_way_to_start_a_workload_is_one_that_tune_takes(run: Run, server: FakeServer) -> None:
    items = json.loads(run("workloads", "--json").stdout)["items"]
    starts = [shlex.split(item["start"]) for item in items]
    for _, command, *words in starts:
        told = run(command, "--detach", *words)
        assert told.exit_code == 0, (words, told.stderr)


def test_unreachable_server_says_what_to_do(run: Run) -> None:
    result = run("jobs", ADVISOR_URL="http://127.0.0.1:9")
    assert result.exit_code == 5
    assert "No answer from the server at http://127.0.0.1:9" in result.stderr
    assert "What to do:" in result.stderr


def test_no_server_at_all_says_what_to_do(run: Run) -> None:
    result = run("jobs", ADVISOR_URL=None)
    assert result.exit_code == 5
    assert "advisor serve" in result.stderr


def test_wrong_token_is_not_allowed(run: Run) -> None:
    result = run("jobs", ADVISOR_TOKEN="adv_viewer_x_y")
    assert result.exit_code == 4
    assert "ADVISOR_TOKEN" in result.stderr


def test_problem_in_json_mode_is_json_on_stderr(server: FakeServer, run: Run) -> None:
    server.problems["/jobs"] = (500, {"code": "broken", "detail": "Out of luck.", "hint": "Try again."})
    result = run("jobs", "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert json.loads(result.stderr) == {
        "code": "internal", "detail": "Out of luck.", "hint": "Try again.", "details": "",
    }  # fmt: skip


def test_answer_of_another_version_is_explained(server: FakeServer, run: Run) -> None:
    server.problems["/jobs"] = (200, {"something": "else"})
    result = run("jobs")
    assert result.exit_code == 1
    assert "different versions" in result.stderr


def test_knobs_lists_the_catalogue_without_a_server(run: Run) -> None:
    listed = json.loads(run("knobs", "--json", "--all", ADVISOR_URL=None).stdout)["items"]
    assert {"fuse_grad_size_in_MB", "amp"} <= {knob["name"] for knob in listed}
    assert "fuse_grad_size_in_MB" in run("knobs", ADVISOR_URL=None).stdout


def test_one_knob_is_told_whole_whatever_its_case(run: Run) -> None:
    told = words_of(run("knobs", "fuse_grad_size_in_mb", ADVISOR_URL=None).stdout)
    for words in (
        "fuse_grad_size_in_MB",
        "default 32 MB",
        "0.0625 … 1024 MB",
        "same results",
        "between two steps",
    ):
        assert words in told
    assert json.loads(run("knobs", "amp", "--json", ADVISOR_URL=None).stdout)["name"] == "amp"


def test_version_is_an_option_too(run: Run) -> None:
    assert run("--version").stdout == f"fleet-advisor {__version__}\n"


def test_every_command_has_help_and_no_surprising_name() -> None:
    app = build_app()
    named = {command.name for command in app.registered_commands} | {
        group.name for group in app.registered_groups
    }
    assert named == {
        "tune", "serve", "submit", "jobs", "show", "watch", "logs", "cancel", "advice", "export", "doctor",
        "knobs", "version", "token", "admin", "agents", "diagnose", "testbed", "workloads", "predict", "run",
        "verify", "pause", "resume", "prioritise", "extend", "clone", "archive", "delete", "login", "logout",
        "report", "repeat", "slurm", "ray", "race", "study", "lab", "mcp", "skill", "calibrate",
    }  # fmt: skip
    assert all(command.callback and command.callback.__doc__ for command in app.registered_commands)


@pytest.mark.parametrize(("host", "is_told"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_study_says_who_can_read_it(
    server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch, host: str, is_told: bool
) -> None:
    page = SimpleNamespace(run_server=lambda *_, **__: None)
    monkeypatch.setitem(sys.modules, "optuna_dashboard", page)
    told = run("study", "--host", host).stderr.replace("\n", " ")
    assert ("reads every job: this page asks for no token" in told) is is_told


def test_study_of_a_job_says_its_address(
    server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = SimpleNamespace(run_server=lambda *_, **__: None)
    monkeypatch.setitem(sys.modules, "optuna_dashboard", page)
    server.lives["new-1"] = [JobState.CANCELLED]
    run("tune", "--minutes", "0.3", "--", "torchrun", "t.py")
    assert f"http://127.0.0.1:8080{place_study('new-1')}" in run("study", "last").stderr.replace("\n", "")


def test_spec_survives_the_way_over_http(server: FakeServer, run: Run) -> None:
    server.lives["new-1"] = [JobState.CANCELLED]
    run("tune", "--minutes", "0.3", "--", "torchrun", "t.py")
    assert JobSpec.model_validate_json(server.submitted[0].model_dump_json()) == server.submitted[0]


def test_what_a_job_is_called_does_not_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "\x1b]0;PWN\x07\x1b[31mRED\x9b2J\u202e"
    screen = Screen()
    for write in (screen.show, screen.tell, screen.warn, screen.print_list):
        write(name)
    screen.explain(CommandFailed(Exit.INTERNAL, name, hint=name, details=name))
    screen.print_json({"name": name})
    screen.json = True
    screen.explain(CommandFailed(Exit.INTERNAL, name))
    out, err = capsys.readouterr()
    assert not re.search("[\x1b\x07\x9b\u202e]", out + err)
    assert "RED" in out
