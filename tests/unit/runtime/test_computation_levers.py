"""The computation levers on real modules and optimizers; what needs a GPU stands on fakes of torch's own interfaces."""

from __future__ import annotations

import copy
import importlib
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")


def load(name: str) -> Any:
    return importlib.import_module(f"fleet_advisor_runtime.levers.{name}")


Training = load("lever").Training
CUDA, CPU = torch.device("cuda"), torch.device("cpu")
GIB = 2**30


def train_on(model: Any, *optimizers: Any) -> Any:
    """What levers act on, for one model in a stand-in for DistributedDataParallel."""
    return Training([SimpleNamespace(module=model, process_group="group of the model")], list(optimizers))


class Event:
    """A CUDA event by its own words: `query` says whether the device has passed it, `synchronize` waits."""

    made: list[Event] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.recorded = self.passed = False
        self.made.append(self)

    def record(self, stream: str) -> None:
        assert stream == "stream of cuda:3", "a context would be opened on another rank's GPU"
        self.recorded = True

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        assert self.recorded
        self.passed = True


def test_the_host_runs_ahead_of_a_slow_device_by_so_many_steps_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Event.made = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: f"stream of {device}")
    lever = load("computation.run_ahead").RunAhead(torch.device("cuda", 3), Event)
    training = Training([], [])
    assert lever.observe(training) == {"num_iteration_per_run": 100}
    lever.switch({"num_iteration_per_run": 3}, training)
    lever.begin_timing()
    for _ in range(10):
        lever.end_step(training)
    assert [event.passed for event in Event.made] == [True] * 7 + [False] * 3
    assert (
        lever.prove().consumed["num_iteration_per_run"]
        == "The host waited for the GPU 7 times in the timed steps."
    )
    lever.switch({}, training)
    assert not lever.is_on
    assert lever.prove().consumed == {}


def test_a_host_that_never_was_ahead_had_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: None)
    lever = load("computation.run_ahead").RunAhead(
        CUDA, lambda: SimpleNamespace(record=lambda stream: None, query=lambda: True)
    )
    lever.switch({"num_iteration_per_run": 1}, Training([], []))
    for _ in range(3):
        lever.end_step(Training([], []))
    assert "nothing to wait for" in lever.prove().no_effect["num_iteration_per_run"]


def test_batch_norm_is_synchronised_in_place_and_put_back() -> None:
    class Own(torch.nn.BatchNorm2d):
        """A subclass may compute something else."""

    model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), Own(4))
    x = torch.randn(2, 1, 8, 8)
    expected = model(x)
    lever, training = load("computation.sync_batch_norm").SyncBatchNormalization(CUDA), train_on(model)
    assert lever.list_refusals(training) == {}
    before = {name: (id(tensor), tensor.clone()) for name, tensor in model.state_dict(keep_vars=True).items()}
    lever.switch({"sync_batch_norm": True}, training)
    lever.begin_timing()
    assert [type(module).__name__ for module in model] == ["Conv2d", "SyncBatchNorm", "ReLU", "Own"]
    assert model[1].process_group == "group of the model"
    assert lever.prove().not_consumed["sync_batch_norm"].endswith("0 of them normalised batches.")
    lever.switch({"sync_batch_norm": True}, training)
    lever.begin_timing()
    model[1].num_batches_tracked.add_(1)  # as a step on a GPU does; torch has no such kernel for CPUs
    assert lever.prove().consumed["sync_batch_norm"].endswith("1 of them normalised batches.")
    model[1].num_batches_tracked.sub_(1)
    lever.switch({}, training)
    assert type(model[1]) is torch.nn.BatchNorm2d
    assert not hasattr(model[1], "process_group")
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert id(tensor) == before[name][0]
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize(
    ("device", "model", "sentence"),
    [
        (CPU, torch.nn.BatchNorm2d(2), "trains on CPU"),
        (CUDA, torch.nn.SyncBatchNorm(2), "synchronises its batch norm itself"),
        (CUDA, torch.nn.Linear(2, 2), "no BatchNorm1d, 2d or 3d layer"),
    ],
)
def test_batch_norm_that_cannot_be_synchronised_is_refused(device: Any, model: Any, sentence: str) -> None:
    refusals = (
        load("computation.sync_batch_norm").SyncBatchNormalization(device).list_refusals(train_on(model))
    )
    assert sentence in refusals["sync_batch_norm"]


def test_cudnn_searches_from_the_start_and_not_without_convolutions() -> None:
    convolutions = load("computation.convolutions")
    launched = load("launched")
    usual = torch.backends.cudnn.benchmark
    cold = {"cudnn_exhaustive_search": not usual}
    try:
        convolutions.set_search(cold)
        assert torch.backends.cudnn.benchmark is not usual
        evidence = launched.prove_launched(cold, "nccl", CUDA, [])
        assert set(evidence.consumed) == set(cold)
        torch.backends.cudnn.benchmark = usual
        evidence = launched.prove_launched(cold, "nccl", CUDA, [])
        assert "set it back" in evidence.not_consumed["cudnn_exhaustive_search"]
    finally:
        torch.backends.cudnn.benchmark = usual
    convolutions.set_search({})
    assert torch.backends.cudnn.benchmark is usual
    assert launched.observe_launched({})["cudnn_exhaustive_search"] is usual
    refused = {
        name: convolutions.refuse_convolutions(train_on(model), CUDA)
        for name, model in {"conv": torch.nn.Conv1d(1, 1, 1), "linear": torch.nn.Linear(1, 1)}.items()
    }
    assert refused["conv"] == {}
    assert set(refused["linear"]) == {"cudnn_exhaustive_search", "conv_workspace_size_limit"}


class Memory:
    """A GPU of 100 GiB and torch's allocator on it, of whose 30 GiB the training needs 20 all the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cap: float) -> None:
        self.cap, self.held, self.others, self.blocks = cap, 30 * GIB, 10 * GIB, []  # type: ignore[var-annotated]
        for name, answer in {
            "synchronize": lambda device: None,
            "empty_cache": self.empty,
            "memory_reserved": lambda device: self.held,
            "mem_get_info": lambda device: (100 * GIB - self.others - self.held, 100 * GIB),
            "get_per_process_memory_fraction": lambda device: self.cap,
            "set_per_process_memory_fraction": self.set_cap,
        }.items():
            monkeypatch.setattr(torch.cuda, name, answer)
        monkeypatch.setattr(torch, "empty", self.allocate)

    def empty(self) -> None:
        self.held = 20 * GIB

    def set_cap(self, cap: float, device: Any) -> None:
        assert isinstance(cap, float), "torch raises TypeError"
        self.cap = cap

    def allocate(self, size: int, dtype: Any, device: Any) -> None:
        if self.held + size > min(self.cap * 100 * GIB, 100 * GIB - self.others):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate.\nmore")
        self.blocks.append(size)
        self.held += size


FRACTION = "FLAGS_fraction_of_gpu_memory_to_use"


def test_memory_is_reserved_and_the_scripts_own_cap_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(monkeypatch, cap=0.4)
    lever, training = load("computation.memory_fraction").MemoryFraction(CUDA), Training([], [])
    lever.observe(training)
    lever.switch({FRACTION: 0.5}, training)
    [size] = memory.blocks
    assert memory.cap == 0.5
    assert 29 * GIB < size < 30 * GIB, "small tensors get memory of their own, below the cap"
    assert "capped at 50%" in lever.prove().consumed[FRACTION]
    memory.allocate(2**21, torch.uint8, CUDA)
    lever.switch({}, training)
    assert (memory.cap, memory.held) == (0.4, 20 * GIB)


def test_a_share_that_the_training_does_not_fit_in_is_refused_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = Memory(monkeypatch, cap=1.0)
    lever, training = load("computation.memory_fraction").MemoryFraction(CUDA), Training([], [])
    lever.observe(training)
    lever.switch({FRACTION: 0.3}, training)
    assert "The training holds 30.0 GiB" in lever.prove().not_consumed[FRACTION]
    assert (memory.cap, memory.held, memory.blocks) == (1.0, 30 * GIB, []), "nothing was touched"
    lever.switch({FRACTION: 0.5}, training)
    lever.switch({FRACTION: 0.3}, training)
    assert "The training holds 30.0 GiB" in lever.prove().not_consumed[FRACTION], "not what was reserved"
    assert memory.cap == 1.0


def test_memory_that_another_process_takes_first_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(monkeypatch, cap=1.0)
    lever, training = load("computation.memory_fraction").MemoryFraction(CUDA), Training([], [])
    lever.observe(training)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (70 * GIB, 100 * GIB))
    memory.others = 75 * GIB
    lever.switch({FRACTION: 0.5}, training)
    assert "CUDA out of memory" in lever.prove().not_consumed[FRACTION]
    assert memory.cap == 1.0
    assert lever.least_segment == 0


OPTIMIZERS = {
    "SGD": ({"lr": 0.1, "momentum": 0.9}, "_fused_sgd"),
    "Adam": ({"lr": 0.01}, "_fused_adam"),
    "AdamW": ({"lr": 0.01}, "_fused_adam"),
    "Adagrad": ({"lr": 0.01}, "_fused_adagrad"),
    "RMSprop": ({"lr": 0.01}, "_multi_tensor_rmsprop"),
    "Adamax": ({"lr": 0.01}, "_multi_tensor_adamax"),
    "RAdam": ({"lr": 0.01}, "_multi_tensor_radam"),
    "ASGD": ({"lr": 0.01}, "_multi_tensor_asgd"),
}


def make_steps(model: Any, optimizer: Any, steps: int) -> list[Any]:
    torch.manual_seed(1)
    for _ in range(steps):
        model(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in model.parameters()]


def build(name: str) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    return model, getattr(torch.optim, name)(model.parameters(), **OPTIMIZERS[name][0])


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_an_optimizer_is_fused_as_far_as_torch_can_and_put_back(name: str) -> None:
    plain, model = build(name), build(name)
    for steps in (3, 2, 1):
        expected = make_steps(*plain, steps)
    optimizer = model[1]
    make_steps(*model, 3)
    usual = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    lever, training = load("computation.optimizer_fusion").OptimizerFusion(), train_on(*model)
    assert lever.list_refusals(training) == {}
    assert lever.observe(training) == {"fuse_all_optimizer_ops": False}
    lever.switch({"fuse_all_optimizer_ops": True}, training)
    assert "ran 0 times" in lever.prove().not_consumed["fuse_all_optimizer_ops"]
    lever.switch({"fuse_all_optimizer_ops": True}, training)
    make_steps(*model, 2)
    sentence = lever.prove().consumed["fuse_all_optimizer_ops"]
    assert f".{OPTIMIZERS[name][1]} ran 2 times" in sentence
    lever.switch({}, training)
    assert {key: value for key, value in optimizer.param_groups[0].items() if key != "params"} == usual
    for found, tensor in zip(make_steps(*model, 1), expected, strict=True):
        torch.testing.assert_close(found, tensor, rtol=1e-4, atol=1e-6)
    assert lever.prove().consumed == {}


def test_sparse_gradients_are_left_to_foreach() -> None:
    table = torch.nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    lever, training = load("computation.optimizer_fusion").OptimizerFusion(), train_on(table, optimizer)
    lever.switch({"fuse_all_optimizer_ops": True}, training)
    table(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    assert "_multi_tensor_sgd ran 1 times" in lever.prove().consumed["fuse_all_optimizer_ops"]
    lever.switch({}, training)


def test_an_optimizer_of_the_script_or_without_another_implementation_is_refused() -> None:
    class Own(torch.optim.SGD):
        pass

    table = torch.nn.Embedding(10, 4, sparse=True)
    for optimizer in (Own(table.parameters(), lr=0.1), torch.optim.SparseAdam(list(table.parameters()))):
        refusals = (
            load("computation.optimizer_fusion").OptimizerFusion().list_refusals(train_on(table, optimizer))
        )
        assert type(optimizer).__name__ in refusals["fuse_all_optimizer_ops"]


def test_a_fused_optimizer_that_is_switched_off_lets_the_grad_scaler_unscale() -> None:
    model, _ = build("Adam")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    lever, training = load("computation.optimizer_fusion").OptimizerFusion(), train_on(model, optimizer)
    assert lever.observe(training) == {"fuse_all_optimizer_ops": True}
    assert optimizer._step_supports_amp_scaling
    lever.switch({"fuse_all_optimizer_ops": False}, training)
    assert not optimizer._step_supports_amp_scaling
    make_steps(model, optimizer, 1)
    assert "_single_tensor_adam ran 1 times" in lever.prove().consumed["fuse_all_optimizer_ops"]
    lever.switch({}, training)
    assert optimizer._step_supports_amp_scaling
    assert optimizer.param_groups[0]["fused"] is True


@pytest.mark.parametrize("own", [None, True])
def test_a_state_dict_says_what_the_scripts_own_optimizer_says(own: bool | None) -> None:
    (model, _), (plain, _) = build("Adam"), build("Adam")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=own)
    bare = torch.optim.Adam(plain.parameters(), lr=0.01, fused=own)
    lever, training = load("computation.optimizer_fusion").OptimizerFusion(), train_on(model, optimizer)
    lever.switch({"fuse_all_optimizer_ops": not own}, training)
    for trained in ((model, optimizer), (plain, bare)):
        make_steps(*trained, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    assert saved["param_groups"] == bare.state_dict()["param_groups"]
    # What it loads is the script's own; what is in force stays so.
    saved["param_groups"][0].update(lr=0.5, foreach=False, fused=False)
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert bool(optimizer.param_groups[0]["fused"]) is not bool(own)
    make_steps(model, optimizer, 1)
    assert " ran 3 times" in lever.prove().consumed["fuse_all_optimizer_ops"]
    assert optimizer.state_dict()["param_groups"] == saved["param_groups"]
    lever.switch({}, training)
    assert optimizer.state_dict()["param_groups"] == saved["param_groups"]
    assert not optimizer._optimizer_state_dict_post_hooks


MB = 2**20
LAYERS = [(0, 3 * MB), (0, MB), (1, 4 * MB), (1, MB), (2, 2 * MB), (3, 6 * MB)]
"""Layer and bytes of gradients in the order in which they become ready."""


@pytest.mark.parametrize(
    ("most", "first", "cap", "expected"),
    [
        (1, 100, 100, (4, 5, 2, 6)),
        (2, 100, 100, (9, 8)),
        (4, 100, 100, (17,)),
        (2, 4, 100, (4, 7, 6)),
        (3, 5, 5, (8, 9)),
    ],
)
def test_a_bucket_closes_at_its_bytes_or_before_one_layer_too_many(
    most: int, first: int, cap: int, expected: tuple[int, ...]
) -> None:
    plan = load("buckets.bucket_plan").BucketPlan(first * MB, cap * MB, most_layers=most)
    caps = load("buckets.layer_buckets").cap_by_layers(LAYERS, plan)
    assert tuple(size // MB for size in caps) == expected
    assert sum(caps) == sum(size for _, size in LAYERS)


ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


def test_settings_of_the_launch_are_proved_by_the_environment_and_its_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched = load("launched")
    monkeypatch.setenv(ALLOCATOR, "expandable_segments:True")
    monkeypatch.setenv("CUDNN_CONV_WSCAP_DBG", "4000")
    cold = {ALLOCATOR: "expandable_segments:True", "conv_workspace_size_limit": 4000, "NCCL_BUFFSIZE": 2**23}
    on_gpu = launched.prove_launched(cold, "nccl", CUDA, [])
    assert set(on_gpu.consumed) == {ALLOCATOR, "conv_workspace_size_limit"}
    assert on_gpu.consumed["conv_workspace_size_limit"].startswith("CUDNN_CONV_WSCAP_DBG=4000")
    assert "NCCL_BUFFSIZE is None" in on_gpu.not_consumed["NCCL_BUFFSIZE"]
    on_cpu = launched.prove_launched(cold, "gloo", CPU, [])
    assert set(on_cpu.not_consumed) == set(cold)


def test_what_the_job_sets_itself_is_its_baseline_or_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = load("launched")
    monkeypatch.setenv("NCCL_BUFFSIZE", "1048576")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    assert launched.observe_launched({})["NCCL_BUFFSIZE"] == 2**20
    assert launched.observe_launched({})["conv_workspace_size_limit"] == 65536
    assert "NCCL_BUFFSIZE" not in launched.observe_launched({"NCCL_BUFFSIZE": 2**20}), "that one is ours"
    assert launched.refuse_launched({})[ALLOCATOR].startswith("The job sets PYTORCH_ALLOC_CONF itself")
    assert ALLOCATOR not in launched.refuse_launched({ALLOCATOR: "max_split_size_mb:512"})


def test_settings_of_the_launch_are_proved_also_where_an_arm_asks_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    levers = load("registry").Levers(0, 1, 1, CPU, None, {"NCCL_BUFFSIZE": 2**23}, load("registry").Reading())
    monkeypatch.setenv("NCCL_BUFFSIZE", str(2**23))
    for asked in ({"NCCL_BUFFSIZE": 2**23}, {}):
        levers.switch(asked, Training([], []))
        assert "NCCL_BUFFSIZE=8388608 in the rank's" in levers.prove("nccl", []).consumed["NCCL_BUFFSIZE"]
    monkeypatch.delenv("NCCL_BUFFSIZE")
    levers.switch({"NCCL_BUFFSIZE": 2**23}, Training([], []))
    assert "NCCL_BUFFSIZE is None" in levers.prove("nccl", []).not_consumed["NCCL_BUFFSIZE"]


def test_choices_of_nccls_plugin_are_refused_and_proved_with_the_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched = load("launched")
    monkeypatch.setenv("FLEET_NCCL_ALLREDUCE", "ring/simple")
    monkeypatch.setenv("NCCL_TUNER_PLUGIN", "theirs.so")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 3))
    assert not set(launched.refuse_launched({})) & set(launched.TUNED), (
        "the job's own plugin is asked by ours"
    )
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 21, 5))
    refused = launched.refuse_launched({})
    assert set(refused) == {*launched.TUNED, "NCCL_CTA_POLICY"}
    assert "NCCL 2.21.5 hands a tuner plugin no table" in refused["nccl_tuner_allreduce"]
    found = launched.prove_launched({"nccl_tuner_allreduce": "ring/simple"}, "nccl", CUDA, [])
    assert "has not loaded the advisor's tuner plugin" in found.not_consumed["nccl_tuner_allreduce"]


@pytest.mark.parametrize(
    ("version", "own", "words"),
    [
        ((2, 26, 5), None, "NCCL 2.26.5 has no policy"),
        ((2, 27, 3), None, ""),
        ((2, 27, 3), "1", ""),
        ((2, 28, 9), "ZERO", "sets NCCL_CTA_POLICY=ZERO itself"),
        (None, None, ""),
    ],
)
def test_the_policy_of_thread_blocks_is_refused_where_nccl_has_none(
    version: tuple[int, ...] | None, own: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = load("launched")
    monkeypatch.delenv("NCCL_CTA_POLICY", raising=False)
    if own is not None:
        monkeypatch.setenv("NCCL_CTA_POLICY", own)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: version is not None)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: version)
    sentence = launched.refuse_launched({}).get("NCCL_CTA_POLICY", "")
    assert words in sentence
    assert bool(sentence) == bool(words)


def test_one_compilation_cannot_be_on_and_off_at_once() -> None:
    lever = load("computation.compilation").Compilation(CPU, None)
    training = Training([], [])
    lever.switch({"fuse_bn_act_ops": False}, training)
    assert lever.prove().consumed == {"fuse_bn_act_ops": "Off, like the baseline."}
    assert not lever.is_on
    lever.switch({"fuse_bn_act_ops": "yes"}, training)
    assert "neither true nor false" in lever.prove().not_consumed["fuse_bn_act_ops"]


def test_a_model_that_the_script_compiles_itself_is_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model.compile()
    lever = load("computation.compilation").Compilation(CPU, None)
    assert "compiles the model itself" in lever.list_refusals(train_on(model))["fuse_elewise_add_act_ops"]
    assert lever.observe(train_on(model)) == {"fuse_bn_act_ops": True, "fuse_elewise_add_act_ops": True}


def test_an_old_torch_that_hangs_when_it_compiles_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.1.2+cpu")
    refusals = (
        load("computation.compilation").Compilation(CPU, None).list_refusals(train_on(torch.nn.Linear(2, 2)))
    )
    assert "2.1.2+cpu was seen to hang" in refusals["fuse_elewise_add_act_ops"]


def test_a_machine_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    refusals = (
        load("computation.compilation").Compilation(CPU, None).list_refusals(train_on(torch.nn.Linear(2, 2)))
    )
    assert "install g++" in refusals["fuse_elewise_add_act_ops"]
