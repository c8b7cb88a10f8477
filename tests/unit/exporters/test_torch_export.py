"""The PyTorch files: what they set, and that they are correct Python for any strategy."""

import copy
import dataclasses
import io
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.exporters import export
from advisor.exporters.torch.ddp_plan import EXPRESSED, plan_ddp
from advisor.protocol.answers.advice import Provenance
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.knob import Knob


def values_of(knob: Knob) -> st.SearchStrategy:
    if knob.kind is bool:
        return st.booleans()
    if knob.choices:
        return st.sampled_from(knob.choices)
    return st.integers(knob.low, knob.high) if knob.kind is int else st.floats(knob.low, knob.high)


CHANGES = st.fixed_dictionaries({}, optional={name: values_of(CATALOGUE[name]) for name in EXPRESSED})


@dataclasses.dataclass
class Output:
    """What a model may return."""

    first: Any
    others: list[Any]


def make_replica(model: Any) -> Any:
    """Give a module around `model`, as DistributedDataParallel is one."""
    torch = pytest.importorskip("torch")

    class Replica(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = model

        def forward(self, *args: Any) -> Any:
            return self.module(*args)

    return Replica()


def names_in(content: str) -> set[str]:
    """The names of a file's code, as its compiled form holds them; comments do not count."""
    names: set[str] = set()
    stack = [compile(content, "exported.py", "exec")]
    while stack:
        code = stack.pop()
        names |= {*code.co_names, *code.co_varnames}
        stack += [constant for constant in code.co_consts if hasattr(constant, "co_names")]
    return names


@settings(max_examples=60, deadline=None)
@given(changes=CHANGES, backend=st.sampled_from(["gloo", "nccl"]))
def test_any_strategy_gives_python_that_compiles(changes, backend, advise) -> None:
    advice, job = advise(changes, backend=backend, world_size=8)
    for name in ("pytorch", "wrapper"):
        file = export(advice, job, name)
        assert {"wrap"} <= names_in(file.content) if name == "pytorch" else {"main"} <= names_in(file.content)


def test_the_files_are_clean_for_the_linter(advise, tmp_path: Path) -> None:
    cases = (
        {},
        {"fuse_grad_size_in_MB": 50.0, "num_threads": 4, "FLAGS_fraction_of_gpu_memory_to_use": 0.9},
        {"nccl_comm_num": 2, "fp16_allreduce": True, "use_hierarchical_allreduce": True},
        {"localsgd": True, "localsgd_k_steps": 4, "num_iteration_per_drop_scope": 10},
        {"fp16_allreduce": True},
        {"amp": True, "fuse_grad_size_in_MB": 50.0},
        {"dgc": True},
        {"sync_batch_norm": True, "fuse_bn_act_ops": True, "cudnn_exhaustive_search": True},
        {"fuse_elewise_add_act_ops": True, "amp": True},
    )
    for number, changes in enumerate(cases):
        for name in ("pytorch", "wrapper", "paddle-python"):
            (tmp_path / f"case{number}_{name.replace('-', '_')}.py").write_text(
                export(*advise(changes), name).content
            )
    ruff = [sys.executable, "-m", "ruff"]
    for arguments in (
        ["check", "--isolated", "--select", "E9,F,I", "--line-length", "120"],
        ["format", "--check", "--diff", "--isolated", "--line-length", "120"],
    ):
        done = subprocess.run(
            [*ruff, *arguments, "--no-cache", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_buckets_keep_the_measured_first_bucket(advise) -> None:
    plan = plan_ddp(*advise({"fuse_grad_size_in_MB": 50.0}))
    assert (plan.bucket_mb, plan.first_bucket_mb) == (50.0, 1.0)
    content = export(*advise({"fuse_grad_size_in_MB": 50.0}), "pytorch").content
    assert 'arguments["bucket_cap_mb_list"] = [FIRST_BUCKET_MB, BUCKET_MB]' in content


def test_equal_buckets_need_the_public_argument_only(advise) -> None:
    content = export(
        *advise({"fuse_grad_size_in_MB": 8.0, "last_comm_group_size_MB": 8.0}), "pytorch"
    ).content
    assert 'arguments["bucket_cap_mb"] = 8.0' in content
    assert "FIRST_BUCKET_MB" not in content


def test_ddps_own_buckets_are_asked_for_with_none(advise) -> None:
    advice, job = advise({"fuse_grad_size_in_MB": 25.0})
    content = export(advice, job, "pytorch").content
    assert 'arguments["bucket_cap_mb"] = None' in content


def test_fusion_off_gives_every_parameter_a_bucket(advise) -> None:
    plan = plan_ddp(*advise({"fuse_all_reduce_ops": False}))
    assert int(plan.bucket_mb * 2**20) == 1
    assert plan.bucket_mb == plan.first_bucket_mb


def test_what_did_not_change_is_the_scripts_own_business(advise) -> None:
    file = export(*advise({"num_threads": 4}), "wrapper")
    assert "torch.set_num_threads(4)" in file.content
    assert "DistributedDataParallel" not in file.content
    assert file.left["fuse_grad_size_in_MB"] == "Unchanged: as the script has it."
    assert file.provenance == {"num_threads": Provenance.MEASURED}


@pytest.mark.parametrize(
    ("backend", "wire", "stock"),
    [("nccl", "fp16", True), ("nccl", "bf16", True), ("gloo", "fp16", True), ("gloo", "bf16", False)],
)
def test_the_stock_hook_is_used_where_ddp_takes_it(backend, wire, stock, advise) -> None:
    changes = {"fp16_allreduce": True, "fp16_allreduce_dtype": wire}
    file = export(*advise(changes, backend=backend), "pytorch")
    assert (f"default_hooks.{wire}_compress_hook" in file.content) is stock
    assert (f"WIRE_DTYPE = torch.{'bfloat16' if wire == 'bf16' else 'float16'}" in file.content) is not stock
    assert any("Stock PyTorch has no such reduction over gloo" in text for text in file.warnings) is not stock


def test_one_nccl_communicator_is_synchronous_by_itself(advise) -> None:
    nccl = export(*advise({"sync_nccl_allreduce": True}, backend="nccl"), "pytorch")
    assert "one after another by itself" in nccl.left["sync_nccl_allreduce"]
    assert "Reduction" not in names_in(nccl.content)
    assert (
        "IN_ORDER = True" in export(*advise({"sync_nccl_allreduce": True}, backend="gloo"), "pytorch").content
    )


def test_two_levels_use_the_ranks_of_a_node_when_none_are_given(advise) -> None:
    plan = plan_ddp(*advise({"use_hierarchical_allreduce": True}, nodes=2, world_size=8))
    assert plan.inner_ranks == 4


@pytest.mark.parametrize("name", ["pytorch", "wrapper"])
def test_memory_is_reserved_on_the_models_own_device(name, advise) -> None:
    content = export(*advise({"FLAGS_fraction_of_gpu_memory_to_use": 0.9}, backend="nccl"), name).content
    assert "MEMORY_FRACTION = 0.9" in content
    assert f"reserve_memory({'ddp' if name == 'pytorch' else 'self'})" in content


def test_local_sgd_offers_what_to_call_after_a_step(advise) -> None:
    file = export(*advise({"localsgd": True, "localsgd_k_steps": 4}), "pytorch")
    assert "after_step" in names_in(file.content)
    assert "Call after_step(ddp) after every optimizer.step()." in file.content
    assert file.provenance["localsgd_begin_step"] is Provenance.CARRIED
    assert any("hold different parameters" in sentence for sentence in file.warnings)


@pytest.mark.parametrize("changes", [{"fp16_allreduce": True}, {"dgc": True}, {"localsgd": True}])
def test_gradients_stay_among_the_ranks_of_the_model(changes, advise) -> None:
    pytest.importorskip("torch")
    space: dict[str, Any] = {}
    exec(compile(export(*advise(changes, backend="nccl"), "pytorch").content, "f.py", "exec"), space)
    group, given = object(), []

    class Replica:
        process_group = group

        def register_comm_hook(self, state: Any, hook: Any) -> None:
            given.append(getattr(state, "process_group", state))

    space["install_hook"](Replica())
    assert given == [group]


def test_local_sgd_counts_steps_and_not_the_backwards_of_one(advise) -> None:
    torch = pytest.importorskip("torch")
    space: dict[str, Any] = {}
    changes = {"localsgd": True, "localsgd_k_steps": 2, "localsgd_begin_step": 2}
    exec(compile(export(*advise(changes), "pytorch").content, "f.py", "exec"), space)
    reduced = []
    space["default_hooks"] = SimpleNamespace(allreduce_hook=lambda group, bucket: reduced.append(bucket))
    bucket = SimpleNamespace(buffer=lambda: torch.ones(1))
    averager = SimpleNamespace(step=0, process_group=None)
    for averager.step in (0, 0, 1, 1, 2):
        space["reduce_bucket"](averager, bucket)
    assert len(reduced) == 4


def test_garbage_of_old_objects_is_collected_too(advise, tmp_path: Path) -> None:
    """Cycles that outlived two young collections are the old generation's: an epoch's model, a loader's workers."""
    script = """
import torch, weakref
exec(compile(open({file!r}).read(), "ddp_strategy.py", "exec"))
prepare_process()
optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
class Epoch:
    def __init__(self):
        self.itself, self.many = self, [[self] for _ in range(20_000)]
kept = []
for _ in range(20):
    epoch = Epoch()
    kept.append(weakref.ref(epoch))
    for _ in range(10):
        optimizer.step()
assert sum(reference() is not None for reference in kept) < 15
"""
    content = export(*advise({"num_iteration_per_drop_scope": 2}), "pytorch").content
    file = tmp_path / "ddp_strategy.py"
    file.write_text(content)
    subprocess.run([sys.executable, "-c", script.format(file=str(file))], check=True, timeout=120)


def test_what_pytorch_lacks_is_said(advise) -> None:
    file = export(*advise({"enable_inplace": True, "NCCL_SOCKET_NTHREADS": 4}), "pytorch")
    assert (
        file.unmapped["enable_inplace"]
        == "PyTorch has nothing like it: reuse an input's memory for the output."
    )
    assert "env or torchrun export" in file.unmapped["NCCL_SOCKET_NTHREADS"]


@pytest.mark.parametrize("name", ["pytorch", "env", "nccl"])
def test_what_a_plugin_chooses_is_for_the_launch_script(name: str, advise) -> None:
    file = export(*advise({"nccl_tuner_allreduce": "ring/simple", "num_threads": 2}), name)
    assert "FLEET_NCCL" not in file.content
    assert "nccl_tuner_allreduce" in file.unmapped
    if name != "nccl":
        assert "use the torchrun export (run.sh)" in file.unmapped["nccl_tuner_allreduce"]


def test_a_communicators_own_settings_are_variables_and_a_line_of_torchs(advise) -> None:
    changes = {"NCCL_MIN_CTAS": 8, "NCCL_CGA_CLUSTER_SIZE": 2}
    for name in ("env", "nccl"):
        content = export(*advise(changes), name).content
        assert "NCCL_MIN_CTAS=8" in content
        assert "NCCL_CGA_CLUSTER_SIZE=2" in content
    unmapped = export(*advise(changes), "pytorch").unmapped
    assert "options.config.min_ctas = 8; options.config.max_ctas = 64;" in unmapped["NCCL_MIN_CTAS"]
    assert "options.config.cga_cluster_size = 2;" in unmapped["NCCL_CGA_CLUSTER_SIZE"]


def test_mixed_precision_runs_the_forward_in_bf16_and_hands_float32_back(advise, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    space: dict[str, Any] = {}
    exec(compile(export(*advise({"amp": True}), "pytorch").content, "ddp_strategy.py", "exec"), space)
    inner, seen = torch.nn.Linear(4, 4), []
    inner.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    ddp = make_replica(torch.nn.Sequential(inner))
    space["mix_precision"](ddp)
    assert ddp(torch.ones(2, 4)).dtype is torch.float32
    ddp.eval()(torch.ones(2, 4))
    assert seen == [torch.bfloat16, torch.float32]
    found = space["to_float32"](Output(torch.ones(1, dtype=torch.bfloat16), [torch.ones(1).bfloat16()]))
    assert (found.first.dtype, found.others[0].dtype) == (torch.float32, torch.float32)


@pytest.mark.parametrize("changes", [{"amp": True}, {"fuse_elewise_add_act_ops": True}])
def test_a_copy_of_the_model_computes_with_its_own_parameters(changes, advise, monkeypatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "compile", lambda call, **_: lambda *args: call(*args))
    space: dict[str, Any] = {}
    exec(compile(export(*advise(changes), "pytorch").content, "ddp_strategy.py", "exec"), space)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    ddp = make_replica(space.get("prepare_model", lambda model, _: model)(model, None))
    space.get("mix_precision", lambda ddp: None)(ddp)
    for copied in (copy.deepcopy(ddp), copy.deepcopy(ddp.module)):
        with torch.no_grad():
            for parameter in copied.parameters():
                parameter.zero_()
        assert not copied(torch.ones(2, 4)).any()
    torch.save(ddp.module, io.BytesIO())


def test_what_plain_pytorch_takes_only_by_hand_is_said(advise) -> None:
    merged = plan_ddp(*advise({"gradient_merge": True, "gradient_merge_k_steps": 4}))
    assert "Apply by hand: of every 4 steps" in merged.unmapped["gradient_merge"]
    assert "loss divided by 4" in merged.unmapped["gradient_merge_k_steps"]
    assert (
        "* 2), at most 16"
        in plan_ddp(*advise({"adaptive_localsgd": True, "adaptive_localsgd_init_k_steps": 2})).unmapped[
            "adaptive_localsgd"
        ]
    )
    assert "GradScaler" in plan_ddp(*advise({"amp": True, "amp_dtype": "fp16"})).unmapped["amp"]
    assert "can block gloo" in plan_ddp(*advise({"dgc": True})).unmapped["dgc"]
    content = export(*advise({"dgc": True, "dgc_rank": 4}, backend="nccl"), "wrapper").content
    assert "matrix_approximation_rank=4" in content
    assert "powerSGD_hook" in names_in(content)


def test_a_model_is_synchronised_and_compiled_with_the_parameters_and_names_it_has(advise) -> None:
    torch = pytest.importorskip("torch")
    space: dict[str, Any] = {}
    changes = {"sync_batch_norm": True, "fuse_bn_act_ops": True, "cudnn_exhaustive_search": True}
    content = export(*advise(changes, backend="nccl"), "pytorch").content
    exec(compile(content, "ddp_strategy.py", "exec"), space)
    assert "    torch.backends.cudnn.benchmark = True\n" in content
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    before = {name: id(tensor) for name, tensor in model.named_parameters()}
    group = object()
    prepared = space["prepare_model"](model, group)
    assert type(prepared[1]) is torch.nn.SyncBatchNorm
    assert prepared[1].process_group is group, "the model's own ranks, which may be a part of the job's"
    assert {name: id(tensor) for name, tensor in prepared.named_parameters()} == before
    assert prepared._compiled_call_impl is not None, (
        "the compiled call stands in the module itself, not around it"
    )


def test_small_buckets_of_a_compiled_model_are_ones_that_torch_takes(advise, monkeypatch) -> None:
    """DDPOptimizer refuses a model whose first bucket, 1 MiB by default, is larger than the others."""
    dist = pytest.importorskip("torch").distributed
    monkeypatch.setattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 2**20)
    space: dict[str, Any] = {}
    changes = {"fuse_grad_size_in_MB": 0.5, "last_comm_group_size_MB": 0.5, "fuse_bn_act_ops": True}
    exec(compile(export(*advise(changes), "pytorch").content, "ddp_strategy.py", "exec"), space)
    arguments: dict[str, Any] = {}
    space["adjust_arguments"](arguments)
    assert arguments == {"bucket_cap_mb": 0.5}
    assert dist._DEFAULT_FIRST_BUCKET_BYTES == 2**19


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"fuse_grad_size_in_TFLOPS": 5.0},
            "bucket_cap_mb_list (torch 2.12) that holds the bytes of 5 layers",
        ),
        ({"fuse_all_optimizer_ops": True}, "build the optimizers with fused=True"),
        ({"num_iteration_per_run": 10}, "the one of 10 steps before"),
    ],
)
def test_what_has_no_place_outside_the_script_is_left_to_its_owner(changes, sentence, advise) -> None:
    plan = plan_ddp(*advise(changes))
    assert plan.is_empty
    assert sentence in plan.unmapped[next(iter(changes))]
