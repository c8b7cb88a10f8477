"""What Paddle does with the fields that we write and with those that we do not: programs and groups, not loaded files.

Every field is put into a strategy alone (with the switch it belongs to), and both versions say what became of it.
Fields that need GPUs to be seen are held to nothing.
"""

import itertools
import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from advisor.exporters import export
from advisor.protocol.base import Value
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.paddle import VERSIONS, Reach, reach_of

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(900)]
INSPECTOR = Path(__file__).with_name("inspect_paddle.py")
TIMEOUT_S = 400
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
    "conv_workspace_size_limit", "cudnn_batchnorm_spatial_persistent", "fuse_bn_act_ops",
    "enable_inplace", "enable_backward_optimizer_op_deps", "cache_runtime_context",
    "enable_sequential_execution", "auto", "a_sync", "gradient_merge_avg", "amp_dynamic_loss_scaling",
    "amp_init_loss_scaling",
}  # fmt: skip
"""Fields whose effect is on GPUs, in the executor or in other models: read in Paddle's sources."""
CHANGES: dict[str, dict[str, Value]] = {
    "as it stands": {},
    "buckets": {"fuse_grad_size_in_MB": 1.0, "last_comm_group_size_MB": 1.0},
    "alone": {"fuse_all_reduce_ops": False},
    "layers": {"fuse_grad_size_in_TFLOPS": 2.0, "fuse_grad_size_in_MB": 64.0},
    "layers only": {"fuse_grad_size_in_TFLOPS": 1.0},
    "layers without fusion": {"fuse_grad_size_in_TFLOPS": 2.0, "fuse_all_reduce_ops": False},
    "merged": {"gradient_merge": True, "gradient_merge_k_steps": 4},
}
"""What is advised and exported."""


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


Seen = Mapping[str, tuple[dict[str, Any], dict[str, Any]]]
"""By a file's name, what the static program and the two ranks of the dynamic graph made of it."""


def write_fields(version: str, folder: Path) -> list[Path]:
    """Each field in a file of its own, and beside it the control without it."""
    texts = {}
    for knob in list_fields(version):
        texts[knob] = BESIDE.get(knob, "") + spell(knob, choose_value(knob))
        texts[f"{knob} control"] = BESIDE.get(knob, "") or "a_sync: false\n"
    for name, text in texts.items():
        (folder / f"{name}.prototxt").write_text(text)
    return [folder / f"{name}.prototxt" for name in texts]


def list_fields(version: str) -> list[str]:
    return [
        name for name in CATALOGUE
        if reach_of(name, version) is not Reach.ABSENT and name not in {"auto", "a_sync"}
    ]  # fmt: skip


def write_exports(version: str, folder: Path, advise: Callable) -> dict[str, list[Path]]:
    """The advised changes as each of the two formats gives them."""
    changes = CHANGES | ({"local": {"localsgd": True, "localsgd_k_steps": 4}} if version == "2.6.2" else {})
    written: dict[str, list[Path]] = {"paddle": [], "paddle-python": []}
    for label, changed in changes.items():
        advice, job = advise(changed)
        # The inspector's static model: 10 gradients.
        known = {
            "parameter_tensors": 10,
            "gradient_bytes": 5 * 2**20,
            "layers": 5,
            "optimizers": ("Momentum",),
        }
        facts = job.facts.model_copy(update=known)
        for name, paths in written.items():
            file = export(advice, job.model_copy(update={"facts": facts}), name, version)
            paths.append(folder / f"{label}{Path(file.filename).suffix}")
            paths[-1].write_text(file.content)
    return written


@pytest.mark.parametrize("version", VERSIONS)
def test_fields_and_exports_do_what_we_say_in_programs_and_ranks(
    version: str, advise, paddle_python, clean_environment, tmp_path: Path
) -> None:
    """All files of a version at once: Paddle is started twice for them."""
    exports = write_exports(version, tmp_path, advise)
    paths = [*write_fields(version, tmp_path), *itertools.chain(*exports.values())]
    both = [
        inspect(paddle_python(version), mode, paths, tmp_path, clean_environment)
        for mode in ("static", "dynamic")
    ]
    seen: Seen = dict(zip([path.name for path in paths], zip(*both, strict=True), strict=True))
    check_reach(version, seen)
    check_harmful(version, seen)
    check_lost_relu(seen)
    if version == "2.6.2":
        check_loss_scale(seen)
    for written in exports.values():
        check_export(version, {path.stem: seen[path.name] for path in written})


def check_reach(version: str, seen: Seen) -> None:
    """Every field reaches as far as we say."""
    wrong = {}
    for knob in list_fields(version):
        static, dynamic = seen[f"{knob}.prototxt"]
        static_control, dynamic_control = seen[f"{knob} control.prototxt"]
        acts = (static != static_control, dynamic != dynamic_control)
        claimed = {
            Reach.STATIC: (True, False), Reach.DYNAMIC: (False, True), Reach.UNREAD: (False, False),
            Reach.FLAG: (False, False), Reach.ALWAYS: (True, True),
        }[reach_of(knob, version)]  # fmt: skip
        is_harmful = knob == "fp16_allreduce" or "error" in static
        if knob not in UNSEEN and not is_harmful and acts != claimed:
            wrong[knob] = (acts, claimed, static, static_control)
    assert not wrong


def check_harmful(version: str, seen: Seen) -> None:
    """What we call harmful is."""
    assert seen["fp16_allreduce control.prototxt"][0]["operators"]["all_reduce"] == 2
    found = seen["fp16_allreduce.prototxt"][0]["operators"]
    assert "all_reduce" not in found, "gradients are cast and reduced by nobody"
    for knob in ("localsgd", "adaptive_localsgd"):
        found = seen[f"{knob}.prototxt"][0]
        assert ("error" in found) == (version == "3.3.1"), found


def check_lost_relu(seen: Seen) -> None:
    """The relu before a depthwise convolution leaves the program, and on a CPU nothing takes its place: the loss is
    another one. Were it the same, the fusion could be measured here.
    """
    (without, _), (fused, _) = (
        seen[f"fuse_relu_depthwise_conv{which}.prototxt"] for which in (" control", "")
    )
    assert without["operators"]["relu"] - fused["operators"]["relu"] == 1
    assert fused["loss"] != pytest.approx(without["loss"], rel=1e-3)
    broadcast = seen["fuse_broadcast_ops.prototxt"][0]
    assert broadcast["loss"] == without["loss"]


def check_loss_scale(seen: Seen) -> None:
    """It is the program's in 2.6.2: 3.3.1 builds no static program with amp, and in the dynamic graph fleet hands both
    to its GradScaler.
    """
    scaled, fixed = (
        seen[f"amp_dynamic_loss_scaling{which}.prototxt"][0]["operators"] for which in (" control", "")
    )
    assert "update_loss_scaling" in scaled
    assert "update_loss_scaling" not in fixed
    for which, scale in (("", "1024"), (" control", "32768")):
        constants = seen[f"amp_init_loss_scaling{which}.prototxt"][0]["constants"]
        assert any(scale in str(constant) for constant in constants)


def check_export(version: str, seen: Seen) -> None:
    """Exported buckets and merges are those of the program and of the ranks."""
    static, dynamic = ({label: found[mode] for label, found in seen.items()} for mode in (0, 1))
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
