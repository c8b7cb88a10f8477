"""What Paddle does with the fields that we write and with those that we do not: programs and groups, not loaded files.

Every field is put into a strategy alone (with the switch it belongs to), and both versions say what became of it.
Fields that need GPUs to be seen are held to nothing.
"""

import functools
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from advisor.exporters import export
from advisor.protocol.base import Value
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.paddle import VERSIONS, Reach, reach_of

pytestmark = pytest.mark.conformance
INSPECTOR = Path(__file__).with_name("inspect_paddle.py")
TIMEOUT_S = 240
ALONE = "without_graph_optimization: false\n"
LOCAL, ADAPTIVE = f"{ALONE}localsgd: true\n", f"{ALONE}adaptive_localsgd: true\n"
BESIDE = {
    "localsgd": ALONE, "localsgd_k_steps": LOCAL, "localsgd_begin_step": LOCAL, "adaptive_localsgd": ALONE,
    "adaptive_localsgd_init_k_steps": ADAPTIVE, "adaptive_localsgd_begin_step": ADAPTIVE,
    "gradient_merge": "gradient_merge_configs { k_steps: 4 }\n", "gradient_merge_k_steps": "gradient_merge: true\n",
    "gradient_merge_avg": "gradient_merge: true\ngradient_merge_configs { k_steps: 4 }\n",
    "last_comm_group_size_MB": "fuse_grad_size_in_MB: 1\n",
    "amp_dynamic_loss_scaling": "amp: true\n", "amp_init_loss_scaling": "amp: true\n",
    "hierarchical_allreduce_inter_nranks": "use_hierarchical_allreduce: true\n",
}  # fmt: skip
"""What has to stand beside a field for it to mean anything; it is in the control as well."""
VALUES: dict[str, Value] = {
    "fuse_grad_size_in_MB": 1, "fuse_grad_size_in_num": 2, "last_comm_group_size_MB": 0.3, "localsgd_k_steps": 4,
    "localsgd_begin_step": 5, "adaptive_localsgd_init_k_steps": 4, "adaptive_localsgd_begin_step": 5,
    "gradient_merge_k_steps": 4, "amp_init_loss_scaling": 1024.0, "nccl_comm_num": 2,
    "hierarchical_allreduce_inter_nranks": 2,
}  # fmt: skip
UNSEEN = {
    "nccl_comm_num", "sync_nccl_allreduce", "fuse_grad_size_in_TFLOPS", "cudnn_exhaustive_search", "amp", "dgc",
    "conv_workspace_size_limit", "cudnn_batchnorm_spatial_persistent", "fuse_bn_act_ops", "fuse_relu_depthwise_conv",
    "fuse_broadcast_ops", "enable_inplace", "enable_backward_optimizer_op_deps", "cache_runtime_context",
    "enable_sequential_execution", "auto", "a_sync", "gradient_merge_avg", "amp_dynamic_loss_scaling",
    "amp_init_loss_scaling",
}  # fmt: skip
"""Fields whose effect is on GPUs, in the executor or in other models: read in Paddle's sources."""


def inspect(
    python: Path, mode: str, paths: list[Path], folder: Path, environment: Mapping[str, str]
) -> list[dict[str, Any]]:
    asked, answered = folder / f"asked-{mode}.json", folder / f"answered-{mode}.json"
    asked.write_text(json.dumps([str(path) for path in paths]))
    launch = [
        "-m",
        "paddle.distributed.launch",
        "--nproc_per_node",
        "2",
        "--backend",
        "gloo",
        "--log_dir",
        str(folder),
    ]
    words = [
        str(python),
        *(launch if mode == "dynamic" else []),
        str(INSPECTOR),
        mode,
        str(asked),
        str(answered),
    ]
    done = subprocess.run(
        words,
        cwd=folder,
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(answered.read_text())


def spell(knob: str, value: Value) -> str:
    *block, name = str(CATALOGUE[knob].paddle_field).split(".")
    line = f"{name}: {str(value).lower() if isinstance(value, bool) else value}"
    return f"{block[0]} {{ {line} }}\n" if block else f"{line}\n"


def choose_value(knob: str) -> Value:
    default = CATALOGUE[knob].default
    # Paddle's own defaults: the documents' are others for some.
    if isinstance(default, bool):
        on = {"fuse_all_reduce_ops", "sync_nccl_allreduce", "gradient_merge_avg", "amp_dynamic_loss_scaling"}
        return knob not in on
    return VALUES.get(knob, 20)


@pytest.fixture(scope="module")
def seen(
    paddle_python: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Mapping[str, tuple[Any, Any]]]:
    """Give what a version makes of each field: (with it, the control without it), each (static, dynamic)."""

    @functools.cache
    def look(version: str) -> Mapping[str, tuple[Any, Any]]:
        folder = tmp_path_factory.mktemp(f"paddle-{version}")
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("FLAGS_", "PADDLE_", "OMP_"))
        }
        knobs = [
            name for name in CATALOGUE
            if reach_of(name, version) is not Reach.ABSENT and name not in {"auto", "a_sync"}
        ]  # fmt: skip
        texts = {}
        for knob in knobs:
            texts[knob] = BESIDE.get(knob, "") + spell(knob, choose_value(knob))
            texts[f"{knob} control"] = BESIDE.get(knob, "") or "a_sync: false\n"
        paths = []
        for name, text in texts.items():
            paths.append(folder / f"{name.replace(' ', '-')}.prototxt")
            paths[-1].write_text(text)
        python = paddle_python(version)
        both = [inspect(python, mode, paths, folder, environment) for mode in ("static", "dynamic")]
        by_name = dict(zip(texts, zip(*both, strict=True), strict=True))
        return {knob: (by_name[knob], by_name[f"{knob} control"]) for knob in knobs}

    return look


@pytest.mark.parametrize("version", VERSIONS)
def test_every_field_reaches_as_far_as_we_say(version: str, seen) -> None:
    wrong = {}
    for knob, ((static, dynamic), (static_control, dynamic_control)) in seen(version).items():
        acts = (static != static_control, dynamic != dynamic_control)
        claimed = {
            Reach.STATIC: (True, False), Reach.DYNAMIC: (False, True), Reach.UNREAD: (False, False),
            Reach.FLAG: (False, False), Reach.ALWAYS: (True, True),
        }[reach_of(knob, version)]  # fmt: skip
        is_harmful = knob == "fp16_allreduce" or "error" in static
        if knob not in UNSEEN and not is_harmful and acts != claimed:
            wrong[knob] = (acts, claimed, static, static_control)
    assert not wrong


@pytest.mark.parametrize("version", VERSIONS)
def test_what_we_call_harmful_is(version: str, seen) -> None:
    static, control = (found[0]["operators"] for found in seen(version)["fp16_allreduce"])
    assert control["all_reduce"] == 2
    assert "all_reduce" not in static, "gradients are cast and reduced by nobody"
    for knob in ("localsgd", "adaptive_localsgd"):
        found = seen(version)[knob][0][0]
        assert ("error" in found) == (version == "3.3.1"), found


def test_the_loss_scale_is_the_programs(seen) -> None:
    """Of 2.6.2: 3.3.1 builds no static program with amp. In the dynamic graph fleet hands both to its GradScaler."""
    (static, _), (control, _) = seen("2.6.2")["amp_dynamic_loss_scaling"]
    assert "update_loss_scaling" in control["operators"]
    assert "update_loss_scaling" not in static["operators"]
    (first, _), (usual, _) = seen("2.6.2")["amp_init_loss_scaling"]
    assert any("1024" in str(constant) for constant in first["constants"])
    assert any("32768" in str(constant) for constant in usual["constants"])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["paddle", "paddle-python"])
def test_exported_buckets_and_merges_are_those_of_the_program_and_of_the_ranks(
    name: str, version: str, advise, paddle_python, clean_environment, tmp_path
) -> None:
    changes: dict[str, dict[str, Value]] = {
        "as it stands": {},
        "buckets": {"fuse_grad_size_in_MB": 1.0, "last_comm_group_size_MB": 1.0},
        "alone": {"fuse_all_reduce_ops": False},
        "layers": {"fuse_grad_size_in_TFLOPS": 2.0, "fuse_grad_size_in_MB": 64.0},
        "layers only": {"fuse_grad_size_in_TFLOPS": 1.0},
        "layers without fusion": {"fuse_grad_size_in_TFLOPS": 2.0, "fuse_all_reduce_ops": False},
        "merged": {"gradient_merge": True, "gradient_merge_k_steps": 4},
    }
    if version == "2.6.2":
        changes["local"] = {"localsgd": True, "localsgd_k_steps": 4}
    paths = []
    for label, changed in changes.items():
        advice, job = advise(changed)
        # The inspector's static model: 10 gradients.
        facts = job.facts.model_copy(
            update={
                "parameter_tensors": 10,
                "gradient_bytes": 5 * 2**20,
                "layers": 5,
                "optimizers": ("Momentum",),
            }
        )
        file = export(advice, job.model_copy(update={"facts": facts}), name, version)
        paths.append(tmp_path / f"{label.replace(' ', '-')}-{file.filename}")
        paths[-1].write_text(file.content)
    python = paddle_python(version)
    static = dict(zip(changes, inspect(python, "static", paths, tmp_path, clean_environment), strict=True))
    dynamic = dict(zip(changes, inspect(python, "dynamic", paths, tmp_path, clean_environment), strict=True))
    reduced = {
        label: found["operators"]["all_reduce"] for label, found in static.items() if "operators" in found
    }
    assert reduced["as it stands"] == 2
    assert reduced["buckets"] == 5, "two of ten gradients each: 1 of 5 MB"
    assert reduced["alone"] == reduced["layers without fusion"] == 10
    assert (reduced["layers"], reduced["layers only"]) == (3, 5), "four and two gradients each"
    assert static["merged"]["operators"]["conditional_block"] == 1
    if version == "2.6.2":
        assert static["local"]["operators"]["conditional_block"] == 3
    assert len(dynamic["as it stands"]["groups"]) < len(dynamic["buckets"]["groups"])
    assert dynamic["as it stands"]["groups"] == dynamic["alone"]["groups"]
    assert len(dynamic["as it stands"]["groups"]) < len(dynamic["layers only"]["groups"])
    assert dynamic["buckets"]["sum"] == pytest.approx(dynamic["as it stands"]["sum"], rel=1e-6)
