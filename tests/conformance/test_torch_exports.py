"""The files that carry the runtime, started by the real torchrun on unchanged scripts, judged by what torch did."""

import functools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from advisor.exporters import export, list_at_work
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value

pytestmark = [pytest.mark.conformance, pytest.mark.distributed, pytest.mark.timeout(600)]
SCRIPT = Path(__file__).with_name("train_unchanged.py")
STEPS = ("--steps", "30")
TIMEOUT_S = 240
LAYER = (300 * 300 + 300) * 4
"""Gradient bytes of one of the script's six layers."""
Advise = Callable[..., tuple[Advice, Job]]


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def torchrun() -> tuple[str, ...]:
    launcher = (sys.executable, "-m", "torch.distributed.run")
    return (*launcher, "--nproc-per-node", "2", "--master-port", str(find_free_port()))


def run(command: tuple[str, ...], folder: Path, environment: Mapping[str, str]) -> dict[str, object]:
    """Run to the end and return the script's report."""
    done = subprocess.run(
        command, cwd=folder, env={**environment, "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "NOT in force" not in done.stderr
    reports = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert len(reports) == 1, done.stdout
    return json.loads(reports[0].removeprefix("REPORT "))


def write_files(advise: Advise, changes: Mapping[str, Value], folder: Path, *command: str) -> None:
    advice, job = advise(changes, command=command, working_dir=str(folder))
    for info in list_at_work(job):
        name, content = info.filename, export(advice, job, info.name).data
        (folder / name).write_bytes(content)


def run_bundle(advise: Advise, changes: Mapping[str, Value], folder: Path, environment: Mapping[str, str],
               script: Path = SCRIPT, arguments: tuple[str, ...] = STEPS) -> dict[str, object]:  # fmt: skip
    """Start run.sh as its reader would: the archive stands before the launch command."""
    write_files(advise, changes, folder, *torchrun(), str(script), *arguments)
    return run(("bash", str(folder / "run.sh")), folder, environment)


def run_in_place(advise: Advise, changes: Mapping[str, Value], folder: Path, environment: Mapping[str, str],
                 script: Path = SCRIPT, arguments: tuple[str, ...] = STEPS) -> dict[str, object]:  # fmt: skip
    """Put the archive before the script's name: each rank is started by it."""
    write_files(advise, changes, folder, "torchrun", "train.py")
    archive = str(folder / "fleet_advisor_runtime.pyz")
    return run((*torchrun(), archive, str(script), *arguments), folder, environment)


@pytest.fixture(scope="module")
def as_it_stands(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, object]]:
    """Give a script's report without any strategy; each is launched once."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}

    @functools.cache
    def report_of(script: Path, *arguments: str) -> dict[str, object]:
        return run((*torchrun(), str(script), *arguments), tmp_path_factory.mktemp("plain"), environment)

    return report_of


@pytest.mark.parametrize("through", [run_bundle, run_in_place])
def test_a_strategy_is_in_force_in_ranks_without_the_package(
    through, advise, tmp_path, clean_environment, as_it_stands
) -> None:
    plain = as_it_stands(SCRIPT, *STEPS)
    changes = {
        "fuse_grad_size_in_MB": 0.6, "last_comm_group_size_MB": 0.25, "num_threads": 2,
        "num_iteration_per_drop_scope": 100,
    }  # fmt: skip
    arguments = (*STEPS, "--positional")
    report = through(advise, changes, tmp_path, clean_environment, arguments=arguments)
    assert plain["buckets"] == [3 * LAYER, 3 * LAYER]
    assert report["buckets"] == [LAYER, 2 * LAYER, 2 * LAYER, LAYER]
    assert report["threads"] == 2
    assert report["collects_after"] != plain["collects_after"]
    assert report["sum"] == pytest.approx(plain["sum"], rel=1e-6)
    assert all(report["agreed"])
    assert (report["argv"], report["folder"]) == (list(arguments), str(SCRIPT.parent))
    assert report["advisors"] == []


@pytest.mark.parametrize("through", [run_bundle, run_in_place])
def test_a_kept_baseline_leaves_the_script_alone(
    through, advise, tmp_path, clean_environment, as_it_stands
) -> None:
    report, plain = through(advise, {}, tmp_path, clean_environment), as_it_stands(SCRIPT, *STEPS)
    assert report["buckets"] == plain["buckets"]
    assert report["hook"] == plain["hook"]
    assert report["sum"] == plain["sum"]


def test_what_no_setting_says_is_reduced_and_computed_by_the_runtime(
    advise, tmp_path, clean_environment, as_it_stands
) -> None:
    changes = {
        "nccl_comm_num": 2, "fuse_grad_size_in_MB": 0.5, "fp16_allreduce": True, "fp16_allreduce_dtype": "bf16",
        "amp": True,
    }  # fmt: skip
    report, plain = run_in_place(advise, changes, tmp_path, clean_environment), as_it_stands(SCRIPT, *STEPS)
    assert plain["hook"] != report["hook"] != ""
    assert report["sum"] != plain["sum"]
    assert report["sum"] == pytest.approx(plain["sum"], rel=1e-2)
    assert all(report["agreed"])


def test_local_sgd_averages_every_k_steps(advise, tmp_path, clean_environment) -> None:
    changes = {"localsgd": True, "localsgd_k_steps": 4, "localsgd_begin_step": 1}
    report = run_bundle(advise, changes, tmp_path, clean_environment)
    apart = [step for step, agreed in enumerate(report["agreed"]) if not agreed]
    assert apart
    assert not report["agreed"][-1] or not report["agreed"][-2], "to the end"


def test_a_sharded_model_gathers_its_parameters_once_a_step(
    advise, tmp_path, clean_environment, as_it_stands
) -> None:
    script = SCRIPT.with_name("shard_unchanged.py")
    changes = {"sharding_stage": 2, "num_threads": 2}
    report = run_in_place(advise, changes, tmp_path, clean_environment, script, ())
    plain = as_it_stands(script)
    assert (plain["gathers_per_step"], report["gathers_per_step"]) == (6, 3)
    assert report["sum"] == pytest.approx(plain["sum"], rel=1e-6)
    assert report["threads"] == 2
