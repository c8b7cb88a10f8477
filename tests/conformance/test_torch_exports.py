"""The PyTorch exports, launched by the real torchrun on an unchanged DDP script, judged by DDP's own log."""

import functools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from advisor.exporters import export, export_bundle
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value

pytestmark = [pytest.mark.conformance, pytest.mark.distributed]
ADVISOR = Path(sys.executable).with_name("advisor")
SCRIPT = Path(__file__).with_name("train_unchanged.py")
TIMEOUT_S = 180
LAYER = (300 * 300 + 300) * 4
"""Gradient bytes of one of the script's six layers."""
Advise = Callable[..., tuple[Advice, Job]]


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def torchrun(ranks: int) -> tuple[str, ...]:
    launcher = (sys.executable, "-m", "torch.distributed.run")
    return (*launcher, "--nproc-per-node", str(ranks), "--master-port", str(find_free_port()))


def run(command: tuple[str, ...], folder: Path, environment: Mapping[str, str]) -> dict[str, object]:
    """Run to the end and return the script's report."""
    done = subprocess.run(
        command, cwd=folder, env={**environment, "GLOO_SOCKET_IFNAME": "lo", "ADVISOR": str(ADVISOR)},
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "NOT in force" not in done.stderr
    reports = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert len(reports) == 1, done.stdout
    return json.loads(reports[0].removeprefix("REPORT "))


def run_bundle(
    advise: Advise,
    changes: Mapping[str, Value],
    folder: Path,
    environment: Mapping[str, str],
    ranks: int = 2,
    arguments: tuple[str, ...] = ("--steps", "30"),
) -> dict[str, object]:
    """Export for torchrun, save the files, and start run.sh as its reader would."""
    command = (*torchrun(ranks), str(SCRIPT), *arguments)
    advice, job = advise(changes, command=command, world_size=ranks, working_dir=str(folder))
    for name, content in export_bundle(advice, job).items():
        (folder / name).write_text(content)
    (folder / "run.sh").chmod(0o755)
    return run((str(folder / "run.sh"),), folder, environment)


def run_wrapped(
    advise: Advise, changes: Mapping[str, Value], folder: Path, environment: Mapping[str, str], ranks: int = 2
) -> dict[str, object]:
    """Export apply_strategy.py and put it before the script."""
    advice, job = advise(changes, world_size=ranks)
    file = export(advice, job, "wrapper")
    (folder / file.filename).write_text(file.content)
    return run(
        (*torchrun(ranks), str(folder / file.filename), str(SCRIPT), "--steps", "6"), folder, environment
    )


def run_snippet(
    advise: Advise, changes: Mapping[str, Value], folder: Path, environment: Mapping[str, str], ranks: int = 2
) -> dict[str, object]:
    """Export for PyTorch and let the script use the file's wrap()."""
    advice, job = advise(changes, world_size=ranks)
    file = export(advice, job, "pytorch")
    (folder / file.filename).write_text(file.content)
    command = (*torchrun(ranks), str(SCRIPT), "--steps", "6", "--wrap", str(folder / file.filename))
    return run(command, folder, environment)


@pytest.fixture(scope="module")
def run_plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, object]]:
    """Give the script's report without any strategy; launched once for each number of ranks."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}

    @functools.cache
    def report_for(ranks: int) -> dict[str, object]:
        return run((*torchrun(ranks), str(SCRIPT)), tmp_path_factory.mktemp("plain"), environment)

    return report_for


@pytest.fixture
def as_it_stands(run_plain: Callable[[int], dict[str, object]]) -> dict[str, object]:
    """The script's report on two ranks without any strategy."""
    return run_plain(2)


@pytest.mark.parametrize("through", [run_wrapped, run_snippet])
def test_buckets_have_the_measured_sizes(through, advise, tmp_path, clean_environment, as_it_stands) -> None:
    report = through(
        advise, {"fuse_grad_size_in_MB": 0.6, "last_comm_group_size_MB": 0.25}, tmp_path, clean_environment
    )
    assert as_it_stands["buckets"] == [3 * LAYER, 3 * LAYER]
    assert report["buckets"] == [LAYER, 2 * LAYER, 2 * LAYER, LAYER]
    assert report["sum"] == pytest.approx(as_it_stands["sum"], rel=1e-6)
    assert all(report["agreed"])


def test_a_bundle_passes_arguments_and_environment_through(advise, tmp_path, clean_environment) -> None:
    changes = {"num_threads": 2, "fuse_all_reduce_ops": False, "fuse_all_optimizer_ops": True}
    report = run_bundle(
        advise, changes, tmp_path, clean_environment, arguments=("--steps", "30", "--positional")
    )
    assert report["argv"] == ["--steps", "30", "--positional"]
    assert report["folder"] == str(SCRIPT.parent)
    assert report["threads"] == 2
    assert len(report["buckets"]) == 12


def test_a_kept_baseline_leaves_the_script_alone(advise, tmp_path, clean_environment, as_it_stands) -> None:
    report = run_bundle(advise, {}, tmp_path, clean_environment, arguments=("--steps", "6"))
    assert report["buckets"] == as_it_stands["buckets"]
    assert report["hook"] == as_it_stands["hook"]
    assert report["sum"] == as_it_stands["sum"]


@pytest.mark.parametrize(("wire", "hook"), [("fp16", "fp16_compress_hook"), ("bf16", "reduce_bucket")])
def test_gradients_travel_in_sixteen_bits(
    wire, hook, advise, tmp_path, clean_environment, as_it_stands
) -> None:
    changes = {"fp16_allreduce": True, "fp16_allreduce_dtype": wire}
    report = run_snippet(advise, changes, tmp_path, clean_environment)
    assert hook in str(report["hook"])
    assert report["sum"] != as_it_stands["sum"]
    assert report["sum"] == pytest.approx(as_it_stands["sum"], rel=1e-2)
    assert all(report["agreed"])


@pytest.mark.parametrize(
    ("changes", "ranks"),
    [
        ({"nccl_comm_num": 2, "fuse_grad_size_in_MB": 0.5}, 2),
        ({"sync_nccl_allreduce": True, "fuse_grad_size_in_MB": 0.5}, 2),
        (
            {
                "use_hierarchical_allreduce": True,
                "hierarchical_allreduce_inter_nranks": 2,
                "nccl_comm_num": 2,
            },
            4,
        ),
    ],
)
def test_the_exported_hook_averages_like_ddp(
    changes, ranks, advise, run_plain, tmp_path, clean_environment
) -> None:
    plain = run_plain(ranks)
    report = run_wrapped(advise, changes, tmp_path, clean_environment, ranks)
    assert "reduce_bucket" in str(report["hook"])
    assert report["sum"] == pytest.approx(plain["sum"], rel=1e-6)
    assert all(report["agreed"])


@pytest.mark.parametrize("through", [run_wrapped, run_snippet])
def test_garbage_is_collected_between_steps(
    through, advise, tmp_path, clean_environment, as_it_stands
) -> None:
    report = through(
        advise, {"num_iteration_per_drop_scope": 2, "num_threads": 2}, tmp_path, clean_environment
    )
    assert as_it_stands["collects_after"] < report["collects_after"] == 100_000
    assert report["threads"] == 2


def test_a_sharded_model_gathers_its_parameters_once_a_step(advise, tmp_path, clean_environment) -> None:
    file = export(*advise({"sharding_stage": 2, "num_threads": 2}), "fsdp")
    (tmp_path / file.filename).write_text(file.content)
    script = str(SCRIPT.with_name("shard_unchanged.py"))
    plain = run((*torchrun(2), script), tmp_path, clean_environment)
    report = run((*torchrun(2), script, str(tmp_path / file.filename)), tmp_path, clean_environment)
    assert (plain["gathers_per_step"], report["gathers_per_step"]) == (6, 3)
    assert report["sum"] == pytest.approx(plain["sum"], rel=1e-6)
    assert report["threads"] == 2


def test_a_sharded_model_gathers_and_reduces_as_the_file_says(advise, tmp_path, clean_environment) -> None:
    changes = {
        "sharding_gather_ranks": 2, "sharding_forward_prefetch": 2, "sharding_backward_prefetch": 3,
        "sharding_separate_reduction": True, "sharding_reduce_buffers": 2, "sharding_group_memory": True,
        "fp16_allreduce": True, "fp16_allreduce_dtype": "bf16",
    }  # fmt: skip
    advice, job = advise(changes)
    job = job.model_copy(update={"facts": job.facts.model_copy(update={"sharding": "fully_shard"})})
    file = export(advice, job, "fsdp")
    assert file.provenance.keys() == changes.keys()
    (tmp_path / file.filename).write_text(file.content)
    script = str(SCRIPT.with_name("shard_unchanged.py"))
    plain = run((*torchrun(4), script), tmp_path, clean_environment)
    report = run((*torchrun(4), script, str(tmp_path / file.filename)), tmp_path, clean_environment)
    assert (plain["over"], plain["most_ahead"], plain["shared"]) == ([4], 2, [True])
    assert (report["over"], report["most_ahead"], report["shared"]) == ([2, 4], 3, [False])
    assert (plain["formats"], report["formats"]) == (["torch.float32"], ["torch.bfloat16"])
    assert report["sum"] == pytest.approx(plain["sum"], rel=1e-2)


@pytest.mark.parametrize("through", [run_wrapped, run_snippet])
def test_local_sgd_averages_every_k_steps(through, advise, tmp_path, clean_environment) -> None:
    changes = {"localsgd": True, "localsgd_k_steps": 2, "localsgd_begin_step": 2}
    report = through(advise, changes, tmp_path, clean_environment)
    assert report["agreed"] == [True, True, False, True, False, True]


@pytest.mark.parametrize("through", [run_wrapped, run_snippet])
def test_forwards_run_in_bf16(through, advise, tmp_path, clean_environment, as_it_stands) -> None:
    report = through(advise, {"amp": True}, tmp_path, clean_environment)
    assert report["sum"] != as_it_stands["sum"]
    assert report["sum"] == pytest.approx(as_it_stands["sum"], rel=1e-2)
    assert all(report["agreed"])
