"""The presets that are shipped, and a user's own: what a job gets from them, and that their rules are the program's."""

import argparse
import importlib.util
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from advisor.cli.exits import CommandFailed
from advisor.cli.tuning.job_options import TuneOptions
from advisor.cli.tuning.job_spec import spec_from_options
from advisor.cli.tuning.preset import list_presets
from advisor.protocol.asked.jobs import JobSpec
from advisor.protocol.expressions import holds
from advisor.protocol.nodes.cluster import Cluster, Device, Node
from advisor.protocol.training.own_knob_texts import read_variants
from advisor.protocol.training.settling import settle
from advisor.protocol.training.workload import Workload, WorkloadKind
from advisor.tuning.space.space import Space
from agent.backends.results import Results
from tests.unit.tuning.search_space import make_facts, make_job, make_space

STAND_IN = Path(__file__).parents[2] / "integration" / "main_job" / "train_like_megatron.py"
MODEL = (
    "--num-layers", "6", "--hidden-size", "768", "--num-attention-heads", "12", "--seq-length", "16",
    "--micro-batch-size", "1", "--global-batch-size", "32", "--train-iters", "9",
)  # fmt: skip
TORCHRUN = ("torchrun", "--nproc-per-node", "8", "pretrain_gpt.py")
TP, PP, CP, MICRO = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "micro_batch_size",
)  # fmt: skip


def make_spec(*words: str, preset: str = "megatron", **typed: Any) -> JobSpec:
    return spec_from_options((*TORCHRUN, *words), TuneOptions(preset=preset, **typed), Path("/tmp"))


def make_ranks(spec: JobSpec, ranks: int, memory: int = 0) -> Space:
    devices = (Device(index=0, uuid="u", name="GPU", memory_bytes=memory),) if memory else ()
    node = Node(hostname="n", cpu_count=8, memory_bytes=2**36, devices=devices)
    facts = make_facts(world_size=ranks, local_world_size=ranks, nodes=1)
    return make_space(make_job(spec, cluster=Cluster(nodes=(node,)), facts=facts))


def settle_with(words: tuple[str, ...], changes: dict[str, Any]) -> tuple[str, ...]:
    workload = make_spec(*words).workload
    reread = Workload.model_validate_json(
        workload.model_dump_json(context={"with_secrets": True}), strict=True
    )
    assert reread == workload
    return settle(workload, changes).command[len(TORCHRUN) :]


def test_megatrons_rules_are_the_programs_own_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = importlib.util.spec_from_file_location("stand_in", STAND_IN)
    assert loaded is not None
    assert loaded.loader is not None
    module = importlib.util.module_from_spec(loaded)
    loaded.loader.exec_module(module)
    read = cast("Callable[[], argparse.Namespace]", module.read_arguments)
    monkeypatch.setenv("WORLD_SIZE", "8")
    spec = make_spec(*MODEL)
    composer = make_ranks(spec, 8).composer
    values = {knob.name: knob.values for knob in spec.workload.own}
    tried = set()
    for point in itertools.product(values[TP], values[PP], values[CP], values[MICRO]):
        changes = dict(zip((TP, PP, CP, MICRO), point, strict=True))
        composed = composer.compose(changes)
        monkeypatch.setattr(sys, "argv", list(settle(spec.workload, changes).command[3:]))
        try:
            read()
        except AssertionError:
            assert composed is None, changes
        else:
            assert composed is not None or not changes.items() - composer.own.items(), changes
        tried.add(composed is None)
    assert tried == {True, False}


def test_an_option_that_is_at_its_default_is_added_in_front_of_the_scripts_own() -> None:
    assert settle_with(MODEL, {TP: 1}) == MODEL
    assert settle_with(MODEL, {TP: 2}) == ("--tensor-model-parallel-size", "2", *MODEL)
    there = (*MODEL, "--tensor-model-parallel-size=4")
    assert settle_with(there, {TP: 1}) == (*MODEL, "--tensor-model-parallel-size=1")


def test_words_take_the_place_of_those_that_the_command_has() -> None:
    full = ("--recompute-granularity", "full", "--recompute-method=uniform", "--recompute-num-layers", "1")
    assert settle_with((*full, *MODEL), {"recompute": "full"}) == (*full, *MODEL)
    assert settle_with((*full, *MODEL), {"recompute": "none"}) == MODEL
    assert settle_with((*full, *MODEL), {}) == (*full, *MODEL)
    flags = ("--overlap-grad-reduce", "--use-distributed-optimizer")
    assert settle_with((*flags, *MODEL), {"exchange": "plain"}) == MODEL
    assert settle_with((*flags, *MODEL), {}) == (*flags, *MODEL), "none of the preset's: today's stay"
    by_blocks = (
        "--recompute-granularity",
        "full",
        "--recompute-method",
        "block",
        "--recompute-num-layers",
        "4",
    )
    recompute = next(k for k in make_spec(*by_blocks, *MODEL).workload.own if k.name == "recompute")
    assert (recompute.own_value, recompute.words["today"]) == ("today", by_blocks)
    assert settle_with((*by_blocks, *MODEL), {"recompute": "selective"}) == (
        *MODEL,
        "--recompute-granularity",
        "selective",
    )


def test_what_does_not_fit_into_the_gpus_is_not_tried() -> None:
    large = tuple("8192" if word == "768" else "64" if word == "12" else word for word in MODEL)
    composer = make_ranks(make_spec(*large, "--tensor-model-parallel-size", "8"), 8, memory=2**35).composer
    assert composer.compose({TP: 4}) == {TP: 4}, "4.0e9 parameters of 18 bytes: 18.1 GB on each of four"
    assert composer.compose({TP: 2, PP: 1, "exchange": "plain"}) is None
    assert composer.compose({TP: 2, PP: 1}) == {TP: 2, "exchange": "sharded"}, (
        "6 + 12 / 4 bytes: 18.1 GB again"
    )


def test_megatrons_own_line_is_read() -> None:
    spec = make_spec(*MODEL)
    results = Results(spec.workload.pattern)
    assert results.read_line(
        " [2026-08-22 15:22:22.000000] iteration       10/     100 | consumed samples:          320 | elapsed time per "
        "iteration (ms): 512.5 | throughput per GPU (TFLOP/s/GPU): 410.1 | learning rate: 1.500000E-04 | global batch "
        "size:    32 | lm loss: 1.023456E+01 | loss scale: 1.0 | grad norm: 2.1 | number of skipped iterations:   0 |"
    )
    [(step,)] = results.list_steps(0, 1)
    assert (step.time_s, step.samples, step.loss) == (0.5125, 32, 10.23456)
    assert spec.workload.kind is WorkloadKind.COMMAND


def test_torchtitans_options_have_to_stand_in_the_command() -> None:
    with pytest.raises(
        CommandFailed, match=r"no --parallelism.tensor_parallel_degree, --parallelism"
    ) as refused:
        make_spec("--training.local_batch_size", "2", preset="torchtitan")
    assert "has today" in refused.value.hint
    words = (
        "--parallelism.tensor_parallel_degree", "1", "--parallelism.data_parallel_replicate_degree", "1",
        "--parallelism.fsdp_reshard_after_forward", "default", "--training.local_batch_size", "2",
        "--parallelism.pipeline_parallel_degree=1", "--parallelism.context_parallel_degree=1",
        "--training.seq_len", "2048", "--training.global_batch_size", "32",
    )  # fmt: skip
    composer = make_ranks(make_spec(*words, preset="torchtitan"), 8).composer
    tp, local = "parallelism_tensor_parallel_degree", "training_local_batch_size"
    assert composer.compose({tp: 2}) == {tp: 2}
    assert composer.compose({local: 8}) == {local: 8, tp: 2}, "four data-parallel ranks of 8"
    assert composer.compose({tp: 8, "parallelism_data_parallel_replicate_degree": 2}) is None


def test_what_is_typed_takes_the_place_of_the_presets(tmp_path: Path) -> None:
    spec = make_spec(*MODEL, try_=["--micro-batch-size=1,16:exact"], require=[f"{TP} < 8"])
    assert [k.values for k in spec.workload.own if k.at == "--micro-batch-size"] == [(1, 16)]
    assert spec.workload.require[-1] == f"{TP} < 8"
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "workload: {own: ['--num-layers=6,12:exact'], require: ['num_layers * hidden_size < 10000']}\n"
    )
    spec = make_spec(*MODEL, preset=str(mine))
    assert [knob.name for knob in spec.workload.own] == ["num_layers"]
    assert holds(spec.workload.require[0], {"num_layers": 6, "hidden_size": 768})
    mine.write_text("workload: {owned: []}\n")
    with pytest.raises(CommandFailed, match="workload has owned"):
        make_spec(*MODEL, preset=str(mine))
    with pytest.raises(CommandFailed, match="cannot be read"):
        make_spec(*MODEL, preset="megatrn")


def test_each_preset_is_named_in_the_documents() -> None:
    page = (Path(__file__).parents[3] / "docs" / "own-knobs.md").read_text()
    assert list_presets() == [name for name in list_presets() if f"--preset {name}" in page]


@pytest.mark.parametrize(
    ("groups", "command", "today", "settled"),
    [
        # Words that are no options stand at the end, as before.
        (("a: ddp", "b: fsdp shard=2"), "t.py", "a", "t.py fsdp shard=2"),
        (("a: --x 1", "b: --x 2 --y 3"), "t.py --y 5", "a", "t.py --y 5 --x 2 --y 3"),
        (("a: --x 1", "b: --x 2 --y 3"), "t.py --y=3 --x 2 more", "b", "t.py --y=3 --x 2 more"),
        (("b: --x 2 --y 3", "a: --x 1", "c: "), "t.py --x 1 more", "a", "t.py more --x 2 --y 3"),
    ],
)
def test_a_variants_words(groups: tuple[str, ...], command: str, today: str, settled: str) -> None:
    workload = Workload(command=tuple(command.split()), own=(read_variants(groups),))
    assert workload.own[0].own_value == today
    assert " ".join(settle(workload, {"variant": "b"}).command) == settled
