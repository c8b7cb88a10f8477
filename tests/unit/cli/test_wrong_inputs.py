"""What a person types wrongly: each is answered before anything starts, in that person's words, with what to do."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from advisor.cli.program import COMMANDS, build_app
from advisor.protocol.asked.jobs import JobState
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_server import FakeServer

TORCHRUN = ("--", "torchrun", "--nproc-per-node", "2", "train.py")
HERE = {"ADVISOR_URL": None}
"""Without a server: everything would happen on this machine."""

WRONG: list[tuple[tuple[str, ...], dict[str, str | None], int, str, str]] = [
    # What was typed, the environment, the exit code, what is said, and what is advised.
    (("tune",), HERE, 2, "Give one of a launch command", "advisor tune -- torchrun"),
    (("tune", "--", "torchrun", "nosuch.py"), HERE, 3, "There is no script nosuch.py in", "full path"),
    (("tune", "--", "torchrun_", "train.py"), HERE, 3, "torchrun_ is not a program", "Activate the environment"),
    (("tune", "--", "train.py"), HERE, 3, "train.py is not a program", "advisor tune -- torchrun"),
    (("tune", "--", "python"), HERE, 3, "python", "advisor tune -- torchrun"),
    (("tune", "--nodes", "2", "--", "python", "train.py"), HERE, 3, "--nodes 2: python starts one process",
     "--nodes 2 -- torchrun --nproc-per-node 2 train.py"),
    (("tune", "--minutes", "-5", *TORCHRUN), HERE, 2, "'--minutes'", ""),
    (("tune", "--trials", "many", *TORCHRUN), HERE, 2, "'--trials'", ""),
    (("tune", "--allow", "everything", *TORCHRUN), HERE, 2, "'--allow'", ""),
    (("tune", "--max-device-hours", "0", *TORCHRUN), HERE, 3, "--max-device-hours 0: it has to be greater than 0",
     "advisor tune --help"),
    (("tune", "--block-seconds", "-1", *TORCHRUN), HERE, 3, "--block-seconds -1", "advisor tune --help"),
    (("tune", "--min-gain", "200", *TORCHRUN), HERE, 3, "--min-gain 200", "advisor tune --help"),
    (("tune", "--knob", "bucket_size", *TORCHRUN), HERE, 3, "did you mean fuse_grad_size_in_MB", "advisor knobs"),
    (("tune", "--knob", "micro=1,2", *TORCHRUN), HERE, 3, "--knob names what alone is searched, and takes no values",
     "--try 'micro=1,2'"),
    (("tune", "--knob", "num_threads=1,2", *TORCHRUN), HERE, 3, "takes no values", "--values num_threads=1,2"),
    (("tune", "--freeze", "num_thread", *TORCHRUN), HERE, 3, "did you mean num_threads", "advisor knobs"),
    (("tune", "--values", "fuse_grad_size_in_MB=abc", *TORCHRUN), HERE, 3, "abc",
     "advisor knobs fuse_grad_size_in_MB"),
    (("tune", "--values", "num_thread=1", *TORCHRUN), HERE, 3, "did you mean num_threads", "--values num_threads=1,2"),
    (("tune", "--label", "urgent", *TORCHRUN), HERE, 3, "--label urgent", "--label rack=7"),
    (("tune", "--pool", "a100", *TORCHRUN), HERE, 2, "choose among the nodes of a server", "ADVISOR_URL"),
    (("tune", "--nproc-per-node", "4", *TORCHRUN), HERE, 2, "belongs to --workload", "torchrun --nproc-per-node 2"),
    (("tune", "--workload", "resnet"), HERE, 3, "no built-in workload 'resnet'", "Choose one of"),
    (("tune", "--testbed", "nodes=two", *TORCHRUN), HERE, 3, "'nodes=two' does not describe a testbed", ""),
    (("submit", "job.yaml"), {}, 3, "job.yaml:3: budgets: there is no such field; did you mean budget?",
     "docs/job-file.md"),
    (("submit", "typo.yaml"), {}, 3, "typo.yaml:2: workload.comand: there is no such field; did you mean command?",
     "docs/job-file.md"),
    (("submit", "none.yaml"), {}, 3, "none.yaml cannot be read", "YAML"),
    (("knobs", "bucket_size"), HERE, 102, "There is no knob bucket_size", "fuse_grad_size_in_MB"),
    (("show", "nothing"), {}, 102, "There is no job nothing", "advisor jobs"),
    (("jobs",), {"ADVISOR_TOKEN": "adv_wrong"}, 4, "", "ADVISOR_TOKEN"),
    (("jobs",), {"ADVISOR_URL": "http://127.0.0.1:9"}, 5, "http://127.0.0.1:9", "advisor serve"),
    (("jobs", "--since", "soon"), {}, 2, "'soon' is no moment", ""),
    (("tunee",), HERE, 2, "Error: No such command 'tunee'. Did you mean 'tune'?", "advisor --help"),
    (("tune", "--minute", "2"), HERE, 2, "Error: No such option: --minute", "Did you mean --minutes?"),
    (("--minute",), HERE, 2, "Error: No such option: --minute", "advisor --help"),
    (("show",), {}, 2, "Error: Missing argument 'JOB'.", "advisor show --help"),
    (("token", "make"), {}, 2, "Error: No such command 'make'.", "advisor token --help"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "environment", "code", "said", "advised"), WRONG, ids=lambda value: str(value)[:60]
)
def test_wrong_input_is_answered_in_the_users_words(
    run: Run,
    tmp_path: Path,
    words: tuple[str, ...],
    environment: dict[str, str | None],
    code: int,
    said: str,
    advised: str,
) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('must not run')")
    (tmp_path / "job.yaml").write_text("workload:\n  command: torchrun train.py\nbudgets: {max_trials: 3}\n")
    (tmp_path / "typo.yaml").write_text("workload:\n  comand: torchrun train.py\n")
    result = run(*words, **environment)
    assert result.exit_code == code, result.stderr
    told = " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.stderr).split())
    assert said in told
    assert advised in told
    assert "budget." not in told
    assert not (tmp_path / "data" / "advisor.db").exists(), "something was started"
    assert_commands_parse(told)


def test_a_finished_job_cannot_be_cancelled_and_that_is_no_defect_of_ours(
    server: FakeServer, run: Run
) -> None:
    server.add_job("aaa1", JobState.FINISHED)
    server.problems["/jobs/aaa1:cancel"] = (
        409, {"code": "job_is_final", "detail": "Job aaa1 is finished already.", "hint": "More time makes it go on."},
    )  # fmt: skip
    result = run("cancel", "aaa1")
    assert result.exit_code == 3
    assert "finished already" in result.stderr


def assert_commands_parse(text: str) -> None:
    """Every command in quotes is one, and has the options that are written with it."""
    for line in re.findall(r"`advisor ([^`]+)`", text):
        name, *rest = line.split()
        if name == "--help":
            continue
        assert name in COMMANDS, line
        page = (
            CliRunner()
            .invoke(build_app([name]), [name, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
            .stdout
        )
        for option in (word for word in rest if word.startswith("--") and word != "--help"):
            assert option in page, line


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is not there")
@pytest.mark.parametrize("words", [("version",), ("knobs",), ("--help",), ("tune", "--help")])
def test_result_that_cannot_be_written_is_told_in_a_sentence(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "advisor", *words], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    told = done.stderr.decode()
    assert told.startswith("Error: The result cannot be written: No space left on device.")
    assert "Traceback" not in told


def test_port_that_is_taken_is_told_before_the_server_announces_itself(run: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run("serve", "--port", str(port), "--data-dir", str(tmp_path / "data"))
    assert refused.exit_code == 1
    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use." in " ".join(
        refused.stderr.split()
    )
    assert "Fleet Advisor on" not in refused.stderr


def test_server_without_a_directory_to_write_in_says_which(run: Run) -> None:
    Path("taken").write_text("")
    refused = run("serve", "--data-dir", "taken/data")
    assert refused.exit_code == 1
    said = " ".join(refused.stderr.split())
    assert "taken/data cannot be used: Not a directory." in said
    assert "--data-dir" in said
