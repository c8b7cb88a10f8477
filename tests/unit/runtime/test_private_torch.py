"""A torch that lacks a private name: knobs are refused with a sentence, or the script is left alone with one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from tests.unit.runtime.lone_rank import open_lone_rank  # noqa: E402

loading = importlib.import_module("torch.utils.data.dataloader")


def load(name: str) -> Any:
    return importlib.import_module(f"fleet_advisor_runtime.{name}")


private_torch = load("private_torch")
bucket_plan, reducer = load("levers.buckets.bucket_plan"), load("levers.reduction.reducer")
registry, Training = load("levers.registry"), load("levers.lever").Training


@pytest.fixture
def ddp() -> Iterator[Any]:
    with open_lone_rank():
        yield DistributedDataParallel(torch.nn.Linear(4, 4))


def test_this_torch_lacks_nothing(ddp: Any) -> None:
    assert private_torch.explain_unusable([ddp]) is None
    assert reducer.explain_no_rebuild(ddp) is None
    assert private_torch.explain_no_compilation() is None
    loader = DataLoader([1, 2, 3], num_workers=2)
    assert private_torch.explain_unknown_loader(loader) is None
    for workers in (0, 1):
        assert private_torch.explain_unknown_iterator(iter(DataLoader([1, 2], num_workers=workers))) is None


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (DistributedDataParallel, "_register_builtin_comm_hook"),
        (dist, "_register_comm_hook"),
    ],
)
def test_knobs_of_buckets_are_refused_without_what_rebuilds_them(
    owner: Any, name: str, ddp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(owner, name)
    lever = load("levers.reduction.gradient_reduction").GradientReduction(0, 1, 1, torch.device("cpu"))
    training = Training([ddp], [])
    refusals = lever.list_refusals(training)
    assert set(bucket_plan.KNOBS) <= set(refusals)
    sentence = refusals["fuse_grad_size_in_MB"]
    assert f"torch {torch.__version__} has no " in sentence
    assert f"{name}, which the advisor needs to change buckets" in sentence
    assert "torch 2.1 to 2.15 has it." in sentence
    assert lever.observe(training) == {}


def test_a_script_that_ends_each_backward_itself_keeps_its_reducer(ddp: Any) -> None:
    """Torch 2.15: another reducer would end it unasked, and the script's finalize_backward() would fail."""
    ddp.require_manual_backward_finalization = True
    assert "finalize_backward(), which only the model's own reducer expects." in reducer.explain_no_rebuild(
        ddp
    )
    explain_no_pause = load("levers.reduction.reduction_proof").explain_no_pause
    assert "fails after one that reduced nothing" in explain_no_pause(Training([ddp], []))


def test_baseline_is_known_without_the_constant_of_the_first_bucket(
    ddp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = bucket_plan.observe_plan(ddp), bucket_plan.plan_for_argument(None)
    monkeypatch.delattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES")
    assert (bucket_plan.observe_plan(ddp), bucket_plan.plan_for_argument(None)) == known


@pytest.mark.parametrize("name", ["_get_ddp_logging_data", "_set_ddp_runtime_logging_sample_rate"])
def test_without_ddps_log_nothing_can_be_measured(
    name: str, ddp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(DistributedDataParallel, name)
    assert f"has no DistributedDataParallel.{name}, which" in private_torch.explain_unusable([ddp])


def test_without_the_ranks_store_nothing_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(dist.distributed_c10d, "_get_default_store")
    assert "let the ranks talk to each other" in private_torch.explain_unusable([])


def break_iterator(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Iterators are made without that attribute."""
    kind = loading._SingleProcessDataLoaderIter
    original = kind.__init__

    def build(self: Any, loader: Any) -> None:
        original(self, loader)
        delattr(self, name)

    monkeypatch.setattr(kind, "__init__", build)


@pytest.mark.parametrize("name", ["_BaseDataLoaderIter", "_DatasetKind", "_base_seed"])
def test_batches_come_and_knobs_of_reading_are_refused_with_unknown_iterators(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = DataLoader(list(range(6)), batch_size=2)
    original = DataLoader.__iter__
    if hasattr(loading, name):
        names = {**vars(loading)}
        names.pop(name)
        # The loader's own code goes on with what this module is asked for no more.
        monkeypatch.setattr(private_torch, "_import", lambda module: type("Module", (), names))
    else:
        break_iterator(monkeypatch, name)
    reading = load("loading.reading").Reading()
    assert [batch.tolist() for batch in reading.start_epoch(loader, original)] == [[0, 1], [2, 3], [4, 5]]
    lever = load("levers.computation.data_reading").DataReading(reading, torch.device("cpu"))
    refusals = lever.list_refusals(Training([], []))
    assert set(refusals) == set(lever.knobs)
    assert (
        f"{name}, which the advisor needs to read with other loader settings"
        in refusals["loader_num_workers"]
    )


def test_compilation_is_refused_without_what_it_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    config = importlib.import_module("torch._inductor.config")
    monkeypatch.setattr(
        private_torch, "COMPILE_THREADS", private_torch.Private(config.__name__, "_gone", "compile")
    )
    lever = load("levers.computation.compilation").Compilation(torch.device("cpu"), None)
    refusals = lever.list_refusals(Training([], []))
    assert "has no torch._inductor.config._gone, which" in refusals["fuse_elewise_add_act_ops"]


def test_whether_models_can_be_compiled_is_told_without_loading_inductor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its import takes each rank a second, in every trial."""
    home = private_torch.COMPILE_GRAPH.homes
    monkeypatch.delitem(sys.modules, home, raising=False)
    assert private_torch.explain_no_compilation() is None
    assert home not in sys.modules
    monkeypatch.setattr(
        private_torch, "COMPILE_GRAPH", private_torch.Private("torch._inductor.gone", "gone", "compile")
    )
    assert "has no torch._inductor.gone.gone, which" in private_torch.explain_no_compilation()


def test_mixed_precision_is_refused_without_what_scales_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "_foreach_norm")
    lever = load("levers.computation.mixed_precision").MixedPrecision(torch.device("cpu"))
    model = torch.nn.Linear(2, 2)
    training = Training([], [torch.optim.SGD(model.parameters(), 0.1)])
    assert "needs to look for overflows in gradients" in lever.list_refusals(training)["amp"]


def test_hooks_stay_out_of_compiled_code_without_torchs_private_decorator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(importlib.import_module("torch._compile"), "_disable_dynamo")
    compiled: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    hidden = load("untraced").untraced(lambda tensor: tensor.sin())
    torch.compile(lambda tensor: hidden(tensor) + 1, backend=keep)(torch.ones(2))
    assert not any("sin" in str(graph.code) for graph in compiled)


@pytest.mark.parametrize("defect", ["lacks the name", "has another one"])
def test_a_dynamo_that_skips_no_frames_is_imported_all_the_same(
    monkeypatch: pytest.MonkeyPatch, defect: str
) -> None:
    decorators = importlib.import_module("torch._dynamo.decorators")
    if defect == "lacks the name":
        monkeypatch.delattr(decorators, "skip")
    else:
        monkeypatch.setattr(decorators, "skip", lambda: 1 / 0)
    load("untraced").skip_frames(load("hooks"))


def test_properties_are_kept_out_of_compiled_code_too(monkeypatch: pytest.MonkeyPatch) -> None:
    skipped: list[Any] = []
    monkeypatch.setattr(importlib.import_module("torch._dynamo.decorators"), "skip", skipped.append)
    recorder = load("observe.recorder")
    load("untraced").skip_frames(recorder)
    assert {recorder.Recorder.is_in_backward.fget, recorder.Recorder.stop} <= set(skipped)


def test_a_missing_name_is_asked_for_in_vain_with_a_sentence() -> None:
    name = private_torch.Private("torch.nn", "_never", "do this", (2, 4))
    with pytest.raises(
        private_torch.Missing, match=r"has no torch\.nn\._never, .* torch 2\.4 to 2\.15 has it"
    ):
        name.of(object())
    with pytest.raises(private_torch.Missing):
        name.load()
    assert name.find(object(), 7) == 7
    assert name.find_loaded() is None


@pytest.mark.parametrize(
    ("version", "is_loaded", "hides"),
    [("2.2.2+cu121", True, True), ("2.2.2", False, False), ("2.3.0", True, False), ("2.13.0", True, False)],
)
def test_old_compilers_hide_the_steps_of_optimizers(
    version: str, is_loaded: bool, hides: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(private_torch, "is_dynamo_loaded", lambda: is_loaded)
    assert load("levers.computation.compilation").hides_optimizer_steps() is hides
