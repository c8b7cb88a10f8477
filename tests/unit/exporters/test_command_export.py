"""`run.sh` of a command workload, run by a real shell: the program gets the values as it got them in trials."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.answers.report import export_bundle
from advisor.exporters import ExportError, export
from advisor.protocol.answers.advice import Provenance
from advisor.protocol.training.own_knobs import OwnKnob
from advisor.protocol.training.workload import WorkloadKind

SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"


def run(script: str, folder: Path, **environment: str) -> tuple[list[str], dict[str, str]]:
    path = folder / "run.sh"
    path.write_text(script)
    shown = subprocess.run(
        ["bash", str(path), "last word"], capture_output=True, text=True, check=True, timeout=60,
        env={"PATH": "/usr/bin:/bin", **environment},
    )  # fmt: skip
    return json.loads(shown.stdout)


def test_the_command_is_started_with_the_advised_values_in_it(advise, tmp_path) -> None:
    command = (sys.executable, "-c", SHOW, "--bucket=${fuse_grad_size_in_MB:-0.5}MB", "--half", "${fp16_allreduce}",
               "--rank", "${node_rank}/${nodes}", "it's ${HOME}".replace("${", "$${"))  # fmt: skip
    made = advise({"fuse_grad_size_in_MB": 4.0}, command=command, kind=WorkloadKind.COMMAND)
    file = export(*made, "command")
    words, environment = run(file.content, tmp_path, NODE_RANK="1")
    assert words == ["--bucket=4MB", "--half", "0", "--rank", "1/1", "it's ${HOME}", "last word"]
    assert "ADVISOR_STRATEGY" not in environment
    assert set(file.provenance) == {"fuse_grad_size_in_MB", "fp16_allreduce"}


def test_what_the_program_reads_itself_stands_in_its_environment(advise, tmp_path) -> None:
    command = (sys.executable, "-c", SHOW, "${strategy_file}")
    made = advise({"num_threads": 4}, command=command, kind=WorkloadKind.COMMAND,
                  knobs={"num_threads": 2, "NCCL_SOCKET_NTHREADS": 8})  # fmt: skip
    words, environment = run(export(*made, "command").content, tmp_path)
    values = {"num_threads": 4, "NCCL_SOCKET_NTHREADS": 8}
    assert json.loads(environment["ADVISOR_STRATEGY"]) == values
    assert json.loads(Path(words[0]).read_text()) == values
    assert (environment["ADVISOR_KNOB_num_threads"], environment["NCCL_SOCKET_NTHREADS"]) == ("4", "8")


OWN = (
    OwnKnob(name="stage", values=(3, 1), at="config.json:zero.stage", baseline=3),
    OwnKnob(name="overlap", values=("false", "true"), at="config.json:zero.overlap", baseline="false"),
    OwnKnob(name="rate", values=(1, 2), at="other.yaml:rate", baseline=1),
)


@pytest.mark.parametrize("kind", [WorkloadKind.COMMAND, WorkloadKind.PYTORCH])
def test_the_program_reads_a_changed_copy_of_its_file_as_in_trials(advise, tmp_path, kind) -> None:
    path, given = tmp_path / "config.json", {"zero": {"stage": 3, "overlap": False}, "micro": 8}
    path.write_text(json.dumps(given))
    command = (sys.executable, "-c", SHOW, "--config=config.json", "other.yaml")
    made = advise({"stage": 1, "overlap": "true", "rate": 2}, command=command, kind=kind, own=OWN,
                  working_dir=str(tmp_path))  # fmt: skip
    file = export(*made, "command" if kind is WorkloadKind.COMMAND else "torchrun")
    # The runtime of the other kind starts a training; here its command is started alone.
    script = re.sub(r"exec .* -- ", "exec ", file.content).replace("[[ -f $runtime ]]", "true")
    words, _ = run(script, tmp_path, PYTHON=sys.executable)
    copy = Path(words[0].removeprefix("--config="))
    assert words[1:] == ["other.yaml", "last word"]
    assert json.loads(copy.read_text()) == {"zero": {"stage": 1, "overlap": True}, "micro": 8}
    assert copy.name == "config.json"
    assert json.loads(path.read_text()) == given
    assert file.provenance.keys() == {"stage", "overlap"}
    assert "Write rate = 2 into other.yaml yourself" in file.unmapped["rate"]


def test_a_file_without_the_key_starts_nothing(advise, tmp_path) -> None:
    (tmp_path / "config.json").write_text("{}")
    command = (sys.executable, "-c", SHOW, "config.json")
    made = advise(
        {"stage": 1}, command=command, kind=WorkloadKind.COMMAND, own=OWN[:1], working_dir=str(tmp_path)
    )
    with pytest.raises(subprocess.CalledProcessError) as failed:
        run(export(*made, "command").content, tmp_path, PYTHON=sys.executable)
    assert "config.json has no key zero.stage, in which the strategy has 1" in failed.value.stderr


def test_a_bundle_holds_only_what_can_apply_the_strategy(advise) -> None:
    command = advise({"num_threads": 4}, command=("train", "${num_threads}"), kind=WorkloadKind.COMMAND)
    paddle = advise({"fuse_grad_size_in_MB": 4.0}, command=("python", "train.py"), kind=WorkloadKind.PADDLE)
    assert set(export_bundle(*command)) == {"strategy.json", "run.sh", "report.html"}
    assert set(export_bundle(*paddle)) == {
        "strategy.json", "strategy.prototxt", "paddle_strategy.py", "report.html",
    }  # fmt: skip
    with pytest.raises(
        ExportError, match="Format runtime cannot apply the strategy of a command workload: choose"
    ):
        export(*command, "runtime")


def test_what_was_timed_in_paddle_itself_is_measured_there(advise) -> None:
    made = advise({"fuse_grad_size_in_MB": 4.0}, command=("python", "train.py"), kind=WorkloadKind.PADDLE)
    file = export(*made, "paddle")
    assert file.provenance["fuse_grad_size_in_MB"] is Provenance.MEASURED
    assert "fuse_grad_size_in_MB: 4  # timed" in file.content
