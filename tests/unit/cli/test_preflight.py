"""What is refused, or warned of, before anything is started for a job."""

import sys
from pathlib import Path

import pytest

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.tuning.preflight import check_here, warn_of_stray_options, warn_of_undeclared
from advisor.cli.tuning.strategy_files import require_room
from advisor.cli.tuning.unread_knobs import refuse_unread
from advisor.protocol.asked.jobs import JobSpec
from advisor.protocol.training.workload import Workload, WorkloadKind


def specify(folder: Path, words: list[str], kind: WorkloadKind = WorkloadKind.PYTORCH) -> JobSpec:
    return JobSpec(workload=Workload(kind=kind, command=tuple(words), working_dir=str(folder)))


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("train.py", "import paddle\n", [sys.executable, "train.py", "--lr", "1"]),
        ("train.py", "", [sys.executable, "-m", "paddle.distributed.launch", "train.py"]),
        ("start.sh", "exec fleetrun train.py\n", ["bash", "start.sh"]),
    ],
)
def test_a_paddle_training_is_refused_with_the_command_to_type(
    name: str, source: str, words: list[str], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(source)
    with pytest.raises(CommandFailed) as refused:
        check_here(specify(tmp_path, words), {})
    assert refused.value.exit_code is Exit.INVALID_SPEC
    assert "trains with PaddlePaddle" in refused.value.what
    assert refused.value.hint.startswith(f"advisor tune --kind paddle -- {words[0]} ")
    check_here(specify(tmp_path, words, WorkloadKind.PADDLE), {})


def make_launcher(folder: Path, name: str, first_line: str) -> str:
    path = folder / name
    path.write_text(f"{first_line}\n")
    path.chmod(0o755)
    return str(path)


def test_a_python_without_torch_is_named_before_it_is_launched(tmp_path: Path) -> None:
    bare = make_launcher(tmp_path, "python3", f'#!/bin/sh\nexec {sys.executable} -I -S "$@"')
    for source, is_refused in (("from mine import net\n", True), ("import subprocess\n", False)):
        (tmp_path / "train.py").write_text(source)
        if is_refused:
            with pytest.raises(CommandFailed, match=f"{bare} has no torch"):
                check_here(specify(tmp_path, [bare, "train.py"]), {})
        else:
            check_here(specify(tmp_path, [bare, "train.py"]), {})
    torchrun = make_launcher(tmp_path, "torchrun", f"#!{bare}")
    with pytest.raises(CommandFailed, match="has no torch"):
        check_here(specify(tmp_path, [torchrun, "--nproc-per-node", "2", "train.py"]), {})


@pytest.mark.parametrize(
    ("source", "beside", "hint"),
    [
        ("", "", 'ask for it in the script: fleet_advisor.knob("micro", TODAY)'),
        ("parser.add_argument('--micro', default=2)", "", "train.py takes --micro: write it in the command"),
        ("batch = fleet_advisor.knob('micro', 2)", "", None),
        ("import settings", "micro = int(os.environ['ADVISOR_KNOB_micro'])", None),
    ],
)
def test_an_own_knob_that_nothing_reads_is_refused_with_the_remedy(
    source: str, beside: str, hint: str | None, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "settings.py").write_text(beside)
    command = ("torchrun", "train.py")
    workload = Workload(command=command, working_dir=str(tmp_path), own=("micro=1,2:exact",))
    spec = JobSpec(workload=workload)
    if hint is None:
        refuse_unread(spec, tmp_path / "train.py")
        return
    with pytest.raises(CommandFailed, match="micro stands nowhere in the command") as refused:
        refuse_unread(spec, tmp_path / "train.py")
    assert hint in refused.value.hint


@pytest.mark.parametrize(
    ("words", "source", "told"),
    [
        (["--minutes", "3"], "", "--minutes stands behind the script"),
        (["--lr", "1", "--min-gain=0.1"], "", "--min-gain=0.1 stands behind the script"),
        (["--minutes", "3"], "parser.add_argument('--minutes')", ""),
        (["--block-seconds", "3"], "def main(block_seconds): ...", ""),
        (["--seed", "3", "minutes"], "", ""),
    ],
)
def test_options_that_went_behind_the_script_are_told_unless_it_knows_them(
    words: list[str], source: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(source)
    spec = specify(tmp_path, ["torchrun", "--nproc-per-node", "2", "train.py", *words])
    warned = warn_of_stray_options(spec, {"--minutes", "--min-gain", "--block-seconds"})
    assert told in warned
    assert bool(told) == bool(warned)


@pytest.mark.parametrize("place", ["/proc/advisor", "/dev/null/advisor", "/sys/x/y"])
def test_a_directory_that_takes_no_file_is_refused_at_once_for_root_too(place: str) -> None:
    with pytest.raises(CommandFailed) as refused:
        require_room(Path(place))
    assert f"--output {place}: " in refused.value.what


def test_looking_for_room_leaves_nothing_behind(tmp_path: Path) -> None:
    require_room(tmp_path / "new" / "deeper")
    assert list(tmp_path.iterdir()) == []


def test_knobs_of_ones_own_that_nothing_declares_are_told() -> None:
    def warn(*own: str, **fields: object) -> str:
        workload = Workload(command=("torchrun", "t.py", "--batch", "4", "--ac", "none"), own=own)
        return warn_of_undeclared(JobSpec.model_validate({"workload": workload, **fields}))

    assert warn("batch=1,2", "ac=none,full").startswith(
        "Nothing says that the mathematics stays with another batch or ac"
    )
    assert warn("batch=1,2:exact") == ""
    assert warn("batch=1,2", allow="convergence", from_checkpoint=True) == ""


def test_variables_in_front_of_the_launcher_are_not_taken_for_it(tmp_path: Path) -> None:
    launcher = make_launcher(tmp_path, "start-training", "#!/bin/sh")
    check_here(specify(tmp_path, ["FORCE_TORCHRUN=1", launcher, "x.yaml"]), {})
    check_here(specify(tmp_path, [f"PATH={tmp_path}", "start-training", "x.yaml"]), {})
