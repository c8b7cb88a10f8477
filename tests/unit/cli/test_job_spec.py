"""The job that options or a file describe."""

from pathlib import Path
from typing import Any

import pytest

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.tuning.built_in import find_script
from advisor.cli.tuning.filled_options import list_options
from advisor.cli.tuning.job_options import JobOptions, TuneOptions, read_testbed
from advisor.cli.tuning.job_spec import spec_from_file, spec_from_options
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.reach import list_given
from advisor.protocol.training.workload import WorkloadKind

COMMAND = ("torchrun", "--nproc-per-node", "2", "src/train.py", "--epochs", "3")


def test_options_left_alone_give_the_documented_defaults(tmp_path: Path) -> None:
    spec = spec_from_options(COMMAND, TuneOptions(), tmp_path)
    assert spec.name == "train"
    assert spec.workload.command == COMMAND
    assert spec.workload.working_dir == str(tmp_path)
    assert (spec.budget.max_trials, spec.budget.max_seconds, spec.measurement.block_s) == (24, 1800, 3.0)


def test_options_reach_the_spec_in_its_units(tmp_path: Path) -> None:
    options = TuneOptions(
        name="mine",
        nodes=2,
        allow=Effect.NUMERIC,
        trials=5,
        minutes=1.5,
        knob=["nccl_comm_num"],
        freeze=["num_threads"],
        samples_per_step=8,
        block_seconds=0.5,
        protect=[tmp_path / "runs"],
        min_gain=3,
        seed=7,
    )
    spec = spec_from_options(COMMAND, options, tmp_path)
    assert (spec.name, spec.nodes, spec.allow, spec.seed) == ("mine", 2, Effect.NUMERIC, 7)
    assert (spec.budget.max_trials, spec.budget.max_seconds, spec.measurement.block_s) == (5, 90, 0.5)
    assert (spec.knobs, spec.freeze) == (("nccl_comm_num",), ("num_threads",))
    assert (spec.workload.samples_per_step, spec.min_gain) == (8, 0.03)
    assert spec.workload.protect == (str(tmp_path / "runs"),)


def test_unknown_knob_and_impossible_budget_are_told_together(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed) as raised:
        spec_from_options(COMMAND, TuneOptions(knob=["warp_speed"], trials=0), tmp_path)
    assert raised.value.exit_code is Exit.INVALID_SPEC
    assert "warp_speed: no such knob" in raised.value.details
    assert "--trials 0: it has to be greater than or equal to 1" in raised.value.details


def test_file_takes_a_command_in_one_line_and_directories_relative_to_itself(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "workload:\n  command: torchrun --nproc-per-node 2 train.py\n  working_dir: code\nnodes: 2\n"
    )
    spec = spec_from_file(path, ())
    assert spec.workload.command == ("torchrun", "--nproc-per-node", "2", "train.py")
    assert spec.workload.working_dir == str(tmp_path / "code")
    assert (spec.name, spec.nodes) == ("train", 2)


def test_given_command_takes_the_place_of_the_files(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: big\n")
    spec = spec_from_file(path, COMMAND)
    assert (spec.name, spec.workload.command) == ("big", COMMAND)


@pytest.mark.parametrize("text", ["just words", "workload: [", "", "workload: {}", "workload: 3"])
def test_file_that_holds_no_job_is_an_invalid_spec(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(CommandFailed) as raised:
        spec_from_file(path, ())
    assert raised.value.exit_code is Exit.INVALID_SPEC


def test_misspelt_field_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("workload: {command: [torchrun, t.py]}\nbudgte: {max_trials: 3}\n")
    with pytest.raises(CommandFailed) as raised:
        spec_from_file(path, ())
    assert raised.value.details == f"{path}:2: budgte: there is no such field; did you mean budget?"


def test_testbed_of_the_options_gives_the_job_its_nodes(tmp_path: Path) -> None:
    spec = spec_from_options(COMMAND, TuneOptions(testbed="nodes=3,rate=1gbit"), tmp_path)
    assert (spec.nodes, spec.testbed) == (3, read_testbed("nodes=3,rate=1gbit"))


def test_file_names_a_testbed_and_a_built_in_workload(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "testbed: nodes=3,rate=200mbit\n"
        "workload:\n  built_in: resnet50\n  nproc_per_node: 4\n  arguments: --batch 16\n"
    )
    spec = spec_from_file(path, ())
    assert (spec.name, spec.nodes, str(spec.testbed)) == ("resnet50", 3, "nodes=3,rate=200mbit")
    script = str(find_script("resnet50"))
    assert spec.workload.command == ("torchrun", "--nproc-per-node", "4", script, "--batch", "16")


def test_file_with_an_unknown_workload_or_testbed_is_refused_with_what_exists(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("workload:\n  built_in: resnet51\n")
    with pytest.raises(CommandFailed, match="'resnet51'") as raised:
        spec_from_file(path, ())
    assert "resnet50" in raised.value.hint
    path.write_text("testbed: nodes=2,rate=fast\nworkload:\n  built_in: resnet50\n")
    with pytest.raises(CommandFailed, match="rate=fast") as raised:
        spec_from_file(path, ())
    assert raised.value.exit_code is Exit.INVALID_SPEC
    assert "1gbit" in raised.value.hint


def test_the_documented_command_job_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "commands.md").read_text()
    path = tmp_path / "job.yaml"
    path.write_text(page.split("```yaml\n")[1].split("```")[0])
    spec = spec_from_file(path, ())
    assert spec.workload.kind is WorkloadKind.COMMAND
    assert list_given(spec.workload) == {
        "fuse_grad_size_in_MB": 0.0625,
        "fp16_allreduce": False,
        "num_threads": 1,
    }


def test_the_options_of_a_command_workload_reach_the_job(tmp_path: Path) -> None:
    options = TuneOptions(
        kind=WorkloadKind.COMMAND, reads=["num_threads=4", "amp"], pattern="(?P<step_time_s>.)"
    )
    workload = spec_from_options(["train", "${nccl_comm_num:-2}"], options, tmp_path).workload
    assert workload.knobs == {"num_threads": 4, "amp": False}
    assert list_given(workload) == {"nccl_comm_num": 2, **workload.knobs}
    for wrong, sentence in (("nothing=1", "nothing: no such knob"), ("num_threads=0", "num_threads is 0")):
        with pytest.raises(CommandFailed, match=sentence):
            spec_from_options(["train"], TuneOptions(kind=WorkloadKind.COMMAND, reads=[wrong]), tmp_path)


def test_nodes_values_and_max_device_hours_reach_the_job(tmp_path: Path) -> None:
    options = TuneOptions(nodes=2, max_device_hours=1.5, values=["num_threads=1, 2", "amp=true"])
    spec = spec_from_options(COMMAND, options, tmp_path)
    assert (spec.nodes, spec.budget.max_device_hours) == (2, 1.5)
    assert spec.values == {"num_threads": (1, 2), "amp": (True,)}


@pytest.mark.parametrize("wrong", ["warp_speed=1", "num_threads", "num_threads=", "num_threads=many"])
def test_values_that_mean_nothing_are_refused_with_what_was_typed(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(CommandFailed, match="--values") as raised:
        spec_from_options(COMMAND, TuneOptions(values=[wrong]), tmp_path)
    assert raised.value.exit_code is Exit.INVALID_SPEC
    assert wrong in str(raised.value)


def test_what_is_typed_beside_a_file_takes_the_place_of_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "workload: {command: [torchrun, train.py]}\nnodes: 3\nbudget: {max_trials: 7, max_device_hours: 9}\n"
        "values: {num_threads: [1, 2], fuse_grad_size_in_MB: [4, 8]}\n"
    )
    as_written = spec_from_file(path, ())
    assert (as_written.nodes, as_written.budget.max_device_hours) == (3, 9)
    typed = JobOptions(nodes=2, max_device_hours=0.5, values=["num_threads=4"])
    spec = spec_from_file(path, (), typed)
    assert (spec.nodes, spec.budget.max_device_hours, spec.budget.max_trials) == (2, 0.5, 7)
    assert spec.values == {"num_threads": (4,), "fuse_grad_size_in_MB": (4.0, 8.0)}


def test_what_the_environment_hands_down_is_raced_away_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    [knob] = (
        knob
        for knob in spec_from_options(COMMAND, TuneOptions(inherited=True), tmp_path).workload.own
        if knob.variable == "TORCH_DISTRIBUTED_DEBUG"
    )
    assert (knob.own_value, knob.values, knob.effect) == ("inherited", ("inherited", "unset"), Effect.EXACT)
    assert not spec_from_options(COMMAND, TuneOptions(), tmp_path).workload.own


def test_impossible_nodes_and_hours_are_named(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed) as raised:
        spec_from_options(COMMAND, TuneOptions(nodes=0, max_device_hours=-1), tmp_path)
    assert "nodes" in raised.value.details
    assert "--max-device-hours -1: it has to be greater than 0" in raised.value.details


def test_a_wrong_option_beside_a_file_is_named_as_typed_and_a_wrong_line_as_written(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("workload: {command: [torchrun, train.py]}\nbudget: {max_trials: 0}\n")
    with pytest.raises(CommandFailed) as raised:
        spec_from_file(path, (), JobOptions(max_device_hours=-1, within="r a c k"))
    trials, hours, within = sorted(raised.value.details.splitlines(), key=lambda line: "--" in line)
    assert trials.startswith(f"{path}:2: budget.max_trials: ")
    assert hours.startswith("--max-device-hours -1: ") or within.startswith("--max-device-hours -1: ")
    assert any(line.startswith("--within r a c k: ") for line in (hours, within))


def test_every_option_fills_a_field_that_a_job_has(tmp_path: Path) -> None:
    body = spec_from_options(COMMAND, TuneOptions(), tmp_path).model_dump()
    for option in list_options(TuneOptions):
        held: Any = body
        for part in option.fills.field.split("."):
            assert part in held, option
            held = held[part]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("env", "A=1", "torchrun", "train.py"), "train"),
        (("env", "A=1", "-u", "torchrun"), "torchrun"),
        (("A=1", "python", "-m", "torch.distributed.run", "-m", "pkg.pretrain"), "pretrain"),
        (("python", "-m", "pkg.main"), "main"),
        (("/opt/bin/trainer", "--fast"), "trainer"),
    ],
)
def test_job_is_named_after_what_trains(command: tuple[str, ...], name: str) -> None:
    assert spec_from_options(command, TuneOptions(), Path("/srv")).name == name
