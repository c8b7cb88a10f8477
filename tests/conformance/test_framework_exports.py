"""Exports for frameworks, read by the frameworks themselves in two ranks: every setting acts, as the file says."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from advisor.exporters import export
from advisor.protocol.base import Value

from .conftest import HERE

pytestmark = [pytest.mark.conformance, pytest.mark.distributed, pytest.mark.timeout(600)]
SCRIPT = HERE / "train_with_framework.py"
TIMEOUT_S = 240
LAYER = (300 * 300 + 300) * 4
"""Gradient bytes of one of the script's six layers."""
COMMON: dict[str, Value] = {
    "fuse_grad_size_in_MB": 1.0,
    "last_comm_group_size_MB": 1.0,
    "gradient_merge": True,
    "gradient_merge_k_steps": 2,
    "amp": True,
}


def train(
    python: str, name: str, file: Path | None, environment: Mapping[str, str], archive: tuple[str, ...] = ()
) -> dict[str, Any]:
    words = [
        python,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        *archive,
        str(SCRIPT),
        name,
    ]
    variables = {
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "",
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [*words, *([str(file)] if file else [])], env={**environment, **variables}, capture_output=True, text=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = (line for line in done.stdout.splitlines() if "REPORT {" in line)
    return json.loads(line.partition("REPORT ")[2])


@pytest.fixture
def as_it_stands() -> Callable[[str], dict[str, Any]]:
    """Give what a framework does without any strategy."""
    return functools.partial(train, sys.executable, file=None, environment=os.environ)


@pytest.fixture
def check_runtime(advise, clean_environment, tmp_path) -> Callable[[str, dict[str, Any]], None]:
    """Have the runtime do what a framework has no settings for."""

    def check(name: str, plain: dict[str, Any]) -> None:
        changes = {"nccl_comm_num": 2, "fuse_grad_size_in_MB": 0.5, "num_threads": 2}
        for format_name in ("json", "runtime"):
            file = export(*advise(changes), format_name)
            (tmp_path / file.filename).write_bytes(file.data)
        archive = (str(tmp_path / "fleet_advisor_runtime.pyz"),)
        report = train(sys.executable, name, None, {**clean_environment, "STEPS": "24"}, archive)
        assert max(report["buckets"]) <= 2**19 + LAYER < max(plain["buckets"])
        assert report["hook"] != plain["hook"]
        assert report["threads"] == 2

    return check


def train_under(advise: Callable, name: str, changes: Mapping[str, Value], folder: Path, python: str = sys.executable,
                environment: Mapping[str, str] = os.environ) -> dict[str, Any]:  # fmt: skip
    advice, job = advise(changes)
    facts = job.facts.model_copy(update={"optimizers": ("AdamW",)})
    file = export(advice, job.model_copy(update={"facts": facts}), name)
    assert set(file.provenance) == set(changes), file.unmapped
    (folder / file.filename).write_text(file.content)
    return train(python, name, folder / file.filename, environment)


def test_trainer_does_what_its_arguments_say_and_the_runtime_the_rest(
    advise, as_it_stands, check_runtime, clean_environment, tmp_path
) -> None:
    plain = as_it_stands("trainer")
    assert (plain["fused"], plain["forwards_per_step"], plain["workers"]) == (True, 1, [0, None])
    changes = {
        **COMMON,
        "fuse_all_optimizer_ops": False,
        "loader_num_workers": 1,
        "loader_prefetch_factor": 3,
    }
    report = train_under(advise, "trainer", changes, tmp_path, environment=clean_environment)
    assert len(report["buckets"]) > len(plain["buckets"])
    assert max(report["buckets"]) <= 2**20 + LAYER
    assert report["forwards_per_step"] == 2
    assert (plain["dtypes"], report["dtypes"]) == (["float32"], ["bfloat16"])
    assert (report["fused"], report["workers"]) == (False, [1, 3])
    check_runtime("trainer", plain)


def test_accelerate_does_what_its_arguments_say_and_the_runtime_the_rest(
    advise, as_it_stands, check_runtime, clean_environment, tmp_path
) -> None:
    plain = as_it_stands("accelerate")
    assert plain["hook"] == ""
    changes = {**COMMON, "fp16_allreduce": True}
    report = train_under(advise, "accelerate", changes, tmp_path, environment=clean_environment)
    assert report["buckets"] == [3 * LAYER] * 2 or len(report["buckets"]) > len(plain["buckets"])
    assert report["forwards_per_step"] == 2
    assert (plain["dtypes"], report["dtypes"]) == (["float32"], ["bfloat16"])
    assert "fp16_compress_hook" in report["hook"]
    check_runtime("accelerate", plain)


def test_lightning_does_what_its_arguments_say_and_the_runtime_the_rest(
    advise, as_it_stands, check_runtime, clean_environment, tmp_path
) -> None:
    plain = as_it_stands("lightning")
    changes = {**COMMON, "last_comm_group_size_MB": 0.25}
    report = train_under(advise, "lightning", changes, tmp_path, environment=clean_environment)
    assert len(report["buckets"]) > len(plain["buckets"])
    assert report["buckets"][0] < report["buckets"][1], "the first bucket has a size of its own"
    assert report["forwards_per_step"] == 2
    assert (plain["dtypes"], report["dtypes"]) == (["float32"], ["bfloat16"])
    check_runtime("lightning", plain)


def test_deepspeed_does_what_its_configuration_says(
    advise, deepspeed_python, clean_environment, tmp_path
) -> None:
    plain = train(str(deepspeed_python), "deepspeed", None, clean_environment)
    assert {kind for _, kind in plain["reduced"]} == {"float32"}
    size = 0.4
    changes = {**COMMON, "fuse_grad_size_in_MB": size, "last_comm_group_size_MB": size, "fp16_allreduce": True,
               "fp16_allreduce_dtype": "bf16", "sharding_stage": 2}  # fmt: skip
    report = train_under(advise, "deepspeed", changes, tmp_path, str(deepspeed_python), clean_environment)
    assert report["stage"] == 2
    assert report["forwards_per_step"] == 2
    assert report["dtypes"] == ["bfloat16"]
    assert {kind for _, kind in report["reduced"]} == {"bfloat16"}
    assert max(numbers for numbers, _ in plain["reduced"]) == 6 * LAYER // 4
    assert max(numbers for numbers, _ in report["reduced"]) <= size * 2**20 / 4
