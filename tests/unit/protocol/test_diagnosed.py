"""What an account says of a training: the dearest findings, no second told twice, and nothing of a clean one."""

import pytest

from advisor.protocol.answers.diagnosed import Diagnosed, describe_diagnosed, diagnose_launch, write_markdown
from advisor.protocol.answers.found import say_often
from advisor.protocol.measured.results import (
    BlockResult,
    Calibration,
    CollectiveCall,
    LateRank,
    LinkLevel,
    LinkTiming,
    Phases,
    Place,
)
from advisor.protocol.nodes.cluster import DeviceKind
from advisor.protocol.training.workload import DdpFacts, HostRead, Recomputed, WorkloadFacts
from tests.unit.tuning.simulated_cluster import make_job

COMMAND = ("torchrun", "--nproc-per-node", "2", "train.py")
CLEAN = Phases(forward_s=0.03, backward_s=0.06, exposed_comm_s=0.001, optimizer_s=0.01)
FACTS = WorkloadFacts(
    backend="gloo", device=DeviceKind.CPU, world_size=2, local_world_size=2, gradient_bytes=1 << 20,
    parameter_tensors=4, layers=2, batch_size_per_rank=8, microbatches_per_step=1, exchanges_per_step=1,
)  # fmt: skip


def tell(
    phases: Phases = CLEAN,
    late: LateRank | None = None,
    calls: tuple[CollectiveCall, ...] = (),
    calibration: Calibration | None = None,
    memory: tuple[int, int] = (0, 0),
    places: tuple[Place, ...] = (),
    **facts: object,
) -> Diagnosed:
    node = make_job().cluster.nodes[0].model_copy(update={"cpu_count": 2})
    result = BlockResult(
        steps=40, step_time_s=(phases.total_s(),) * 40, samples_per_step=16, wall_s=40 * phases.total_s(),
        phases=phases, late=late, collective_calls=calls, calibration=calibration,
        peak_memory_bytes=memory[0], room_bytes=memory[1], places=places,
    )  # fmt: skip
    return diagnose_launch(result, FACTS.model_copy(update=facts), node, COMMAND)


def test_a_clean_training_has_no_finding() -> None:
    told = tell()
    assert told.found == ()
    assert told.computing == pytest.approx(1 - 0.001 / 0.101)
    lines = describe_diagnosed(told, COMMAND)
    assert lines[0] == "2 ranks · 158 samples/s · step 101 ms (±0%) over 40 steps"
    assert lines[1].startswith("Nothing stands out: backward 60 ms")
    assert write_markdown(told).splitlines()[2].startswith("Nothing stands out")


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("data_wait_s", "input"), ("exposed_comm_s", "communication"), ("buffers_s", "buffers"),
        ("collectives_s", "collectives"), ("wait_s", "waiting"), ("own_code_s", "own_code"),
        ("evaluation_s", "evaluation"), ("garbage_s", "garbage"), ("stalls_s", "stalls"),
        ("compiling_s", "compiling"),
    ],
)  # fmt: skip
def test_each_part_of_the_account_is_a_finding_with_its_seconds(part: str, name: str) -> None:
    told = tell(Phases(**{**CLEAN.__dict__, part: 0.05}))
    assert [one.name for one in told.found] == [name]
    assert told.found[0].cost_s == pytest.approx(0.05)
    assert told.found[0].share == pytest.approx(0.05 / told.step_s)


def test_exchanges_in_every_micro_batch_are_the_accumulation_s() -> None:
    phases = Phases(**{**CLEAN.__dict__, "exposed_comm_s": 0.04})
    (found,) = tell(phases, microbatches_per_step=4, exchanges_per_step=4).found
    assert (found.name, found.saves_s) == ("accumulation", pytest.approx(0.03))
    assert "no_sync" in found.remedy
    (found,) = tell(phases, microbatches_per_step=4, exchanges_per_step=1).found
    assert (found.name, found.saves_s) == ("communication", pytest.approx(0.04))


def test_threads_beyond_the_cores_take_the_stalls_and_waits() -> None:
    phases = Phases(**{**CLEAN.__dict__, "stalls_s": 0.03, "wait_s": 0.02})
    (found,) = tell(phases, cpu_threads=2).found
    assert (found.name, found.cost_s) == ("threads", pytest.approx(0.05))
    assert found.remedy == "OMP_NUM_THREADS=1, before the launch command"
    (found,) = tell(phases, cpu_threads=2, sets_threads=True).found
    assert found.remedy == "torch.set_num_threads(1), in the script"
    assert {one.name for one in tell(phases, cpu_threads=1).found} == {"stalls", "waiting"}


def test_what_others_wait_for_a_late_rank_is_told_once() -> None:
    phases = Phases(**{**CLEAN.__dict__, "data_wait_s": 0.06})
    late = LateRank(rank=1, waited_s=0.05, part="data_wait_s", excess_s=0.055)
    first, second = tell(phases, late).found
    assert (first.name, second.name) == ("late_rank", "input")
    assert (first.cost_s, second.cost_s) == (pytest.approx(0.05), pytest.approx(0.01))


def test_a_line_that_reads_off_the_device_is_named() -> None:
    phases = Phases(**{**CLEAN.__dict__, "own_code_s": 0.03})
    read = HostRead(site="train.py:41", call="item", per_step=1.0, waited_s=0.03)
    (found,) = tell(phases, host_reads=(read,)).found
    assert (found.name, found.where) == ("host_read", "train.py:41")


@pytest.mark.parametrize(
    ("loader", "software", "told"),
    [
        (None, "", "read ahead"),
        ({"num_workers": 0}, "", "DataLoader(…, num_workers=1, persistent_workers=True)"),
        ({"num_workers": 1}, "", "more workers than cores do not help"),
        (
            {"num_workers": 0},
            "transformers",
            "TrainingArguments(…, dataloader_num_workers=1, dataloader_persistent_workers=True)",
        ),
    ],
)
def test_remedy_of_slow_reading_fits_the_loader_and_what_makes_it(
    loader: dict[str, int] | None, software: str, told: str
) -> None:
    phases = Phases(**{**CLEAN.__dict__, "data_wait_s": 0.05})
    (found,) = tell(phases, dataloader=loader, software={software: "5.0"} if software else {}).found
    assert told in found.remedy


@pytest.mark.parametrize(
    ("per_step", "told"),
    [(1.0, "once a step"), (4.0286, "4 times a step"), (2.4, "2.4 times a step"), (0.1, "once in 10 steps")],
)
def test_how_often_a_call_is_made_is_told_without_false_digits(per_step: float, told: str) -> None:
    assert say_often(per_step) == told


def test_a_step_of_seconds_and_a_rate_of_thousands_are_told_without_exponents() -> None:
    slow = tell(Phases(**{**CLEAN.__dict__, "data_wait_s": 1.2}))
    lines = describe_diagnosed(slow.model_copy(update={"rate": 34_712.0}), COMMAND)
    assert lines[0].startswith("2 ranks · 34 712 samples/s · step 1.3 s")
    assert lines[1].startswith("1    1.2 s")


@pytest.mark.parametrize(("workers", "told"), [(0, "num_workers=1,"), (1, "get_worker_info()")])
def test_workers_of_a_dataset_that_deals_out_its_samples_are_not_told_to_read_them_twice(
    workers: int, told: str
) -> None:
    phases = Phases(**{**CLEAN.__dict__, "data_wait_s": 0.05})
    loader = {"num_workers": workers, "iterable": True}
    (found,) = tell(phases, dataloader=loader, world_size=1, local_world_size=1).found
    assert told in found.remedy


@pytest.mark.parametrize(
    ("software", "told"),
    [("transformers", "TrainingArguments(…, eval_steps=…"), ("lightning", "Trainer(…, val_check_interval=…")],
)
def test_what_a_framework_does_by_itself_is_mended_by_its_own_arguments(software: str, told: str) -> None:
    phases = Phases(**{**CLEAN.__dict__, "evaluation_s": 0.05, "collectives_s": 0.02, "own_code_s": 0.01})
    fit, own = "train.py:20", "train.py:13"
    places = (
        Place("evaluation", fit, 0.5), Place("backward_s", fit, 0.3), Place("optimizer_s", fit, 0.1),
        Place("own_code_s", own, 0.1),
    )  # fmt: skip
    calls = (CollectiveCall("own", "all_reduce", fit, 1.0, 0.02, 8),)
    found = tell(phases, calls=calls, places=places, software={software: "5.0"}).found
    evaluation, gathered, callback = found
    assert (evaluation.where, gathered.where, callback.where) == (fit, fit, own)
    assert evaluation.remedy.startswith(told)
    assert "every 50 steps" not in gathered.remedy
    assert callback.remedy == "do it less often, or faster", "a line of the script's own"
    sharded = (CollectiveCall("sharded", "unshard", "", 8.0, 0.02, 8),)
    gathered = tell(
        phases, calls=sharded, places=places, software={software: "5.0"}, sharding="fully_shard"
    ).found[1]
    assert "reshard_after_forward" in gathered.remedy
    plain = tell(phases, calls=calls, places=places).found
    assert "every 50 steps" in plain[1].remedy
    assert "on a part of the data" in plain[0].remedy


def test_five_findings_at_most_dearest_first() -> None:
    parts = dict.fromkeys(
        ("data_wait_s", "buffers_s", "collectives_s", "wait_s", "own_code_s", "evaluation_s"), 0.05
    )
    told = tell(Phases(**{**CLEAN.__dict__, **parts, "garbage_s": 0.09}))
    assert len(told.found) == 5
    assert told.found[0].name == "garbage"
    lines = describe_diagnosed(told, COMMAND)
    assert len(lines) <= 20
    assert write_markdown(told).count("\n| ") == 6


def test_a_sharded_models_accumulation_is_told_with_the_memory_that_putting_it_off_takes() -> None:
    phases = Phases(forward_s=0.03, backward_s=0.03, collectives_s=0.04)
    sharded = {
        "sharding": "fully_shard",
        "shard_ranks": 4,
        "gradient_bytes": 8 << 20,
        "microbatches_per_step": 4,
    }
    first, second = tell(phases, exchanges_per_step=4, **sharded).found
    assert (first.name, first.cost_s, first.saves_s) == ("accumulation", 0.02, pytest.approx(0.015))
    assert "set_requires_gradient_sync(is_last)" in first.remedy
    assert "6 MiB more" in first.remedy
    assert (second.name, second.cost_s) == ("collectives", 0.02)
    (only,) = tell(phases, exchanges_per_step=1, **sharded).found
    assert (only.name, only.cost_s) == ("collectives", 0.04)


def test_collectives_are_told_by_line_and_only_what_they_take_without_waiting() -> None:
    phases = Phases(**{**CLEAN.__dict__, "collectives_s": 0.04})
    calls = (
        CollectiveCall("own", "all_reduce", "train.py:41", 1.0, 0.04, 4),
        CollectiveCall("sync_batch_norm", "all_gather", "train.py:9", 6.0, 0.02, 9000),
        CollectiveCall("sharded", "unshard", "train.py:9", 8.0, 0.019, 2**20),
        CollectiveCall("own", "all_gather_object", "train.py:50", 1.0, 0.001, 8),
    )
    loss, norms, rest = tell(phases, calls=calls).found
    assert (loss.name, loss.where, loss.cost_s) == ("collectives", "train.py:41", pytest.approx(0.02))
    assert loss.what.startswith("all_reduce() of 4 bytes, once a step")
    assert "every 50 steps" in loss.remedy
    assert (norms.name, norms.cost_s) == ("sync_batch_norm", pytest.approx(0.01))
    assert "6 times a step" in norms.what
    assert (rest.name, rest.where, rest.cost_s) == ("collectives", "", pytest.approx(0.01))
    sharded = tell(phases, calls=calls, sharding="fully_shard").found[-1]
    assert (sharded.what, sharded.cost_s) == (
        "the sharded model gathers parameters and reduces gradients, 8 times a step",
        pytest.approx(0.0095),
    )
    assert "reshard_after_forward=False" in sharded.remedy
    large = CollectiveCall("own", "all_to_all", "train.py:41", 2.0, 0.04, 2**20)
    [found] = tell(phases, calls=(large,)).found
    assert found.what.startswith("all_to_all() of 1 MiB, 2 times a step")
    assert "async_op" in found.remedy


def test_gradients_that_the_script_sends_itself_are_known_by_their_size() -> None:
    phases = Phases(forward_s=0.03, backward_s=0.03, optimizer_s=0.01, collectives_s=0.02, wait_s=0.01)
    each = CollectiveCall("own", "all_reduce", "train.py:41", 4.0, 0.015, 2**19, float(2**20))
    split = CollectiveCall("split", "wait_tensor", "train.py:30", 6.0, 0.005, 2**20, float(2**22))
    told = tell(phases, calls=(each, split), exchanges_by="calls of the script's own", exchanges_per_step=0)
    gradients, waiting, layers = told.found
    assert gradients.what.endswith("4 times a step: as many bytes as the gradients have, 1 MiB")
    assert gradients.remedy.startswith("DistributedDataParallel sends them in buckets")
    assert (waiting.name, layers.name, layers.where) == ("waiting", "split_layers", "")
    assert told.computing == pytest.approx(0.7)
    lines = describe_diagnosed(told, COMMAND)
    assert "Communication and waiting for other ranks take 30% of a step." in lines
    assert "The ranks exchange by calls of the script's own" in lines[-3]
    assert lines[-1].startswith("  advisor tune --minutes 10 --kind command --try ")
    assert lines[-1].endswith("-- torchrun --nproc-per-node 2 train.py")
    told = tell(
        phases, calls=(each,), exchanges_by="Megatron's own DistributedDataParallel", exchanges_per_step=0
    )
    assert "--overlap-grad-reduce" in told.found[0].remedy
    told = tell(phases, exchanges_by="DeepSpeed's engine", exchanges_per_step=0)
    assert told.found[0].what == "other collectives, with those of DeepSpeed's engine"
    assert told.found[0].remedy.startswith("the engine's own settings: larger buckets")
    line = describe_diagnosed(told, [*COMMAND, "--config", "zero.json"])[-1]
    assert "--knob-file 'zero.json:zero_optimization.stage=3,2,1:exact' --pattern 'CurrSamplesPerSec=" in line
    other = each.__class__("own", "all_reduce", "train.py:41", 4.0, 0.02, 2**19, float(2**21))
    told = tell(phases, calls=(other,), exchanges_by="calls of the script's own", exchanges_per_step=0)
    assert told.found[0].what.endswith("4 times a step: communication of the script's own")


@pytest.mark.parametrize(("nodes", "is_told"), [("1", False), ("2", True), ("1:4", True)])
def test_what_keeps_nodes_from_their_network_is_told_where_the_command_asks_for_several(
    nodes: str, is_told: bool
) -> None:
    off = "mlx5_0 is up, and NCCL would use TCP all the same: NCCL_IB_DISABLE=1 is set."
    node = make_job().cluster.nodes[0].model_copy(update={"network": (off,)})
    result = BlockResult(steps=40, step_time_s=(0.1,) * 40, samples_per_step=16, wall_s=4.0, phases=CLEAN)
    command = ("torchrun", f"--nnodes={nodes}", "train.py")
    lines = describe_diagnosed(diagnose_launch(result, FACTS, node, command), command)
    assert (f"Between nodes, which were not timed: {off}" in lines) is is_told


def test_a_search_in_vain_is_told_with_the_exchange_that_it_needs_and_no_second_twice() -> None:
    phases = Phases(**{**CLEAN.__dict__, "exposed_comm_s": 0.01})
    links = tuple(
        LinkTiming(LinkLevel.WORLD, 2, size, seconds) for size, seconds in ((8, 0.002), (2**20, 0.01))
    )
    told = tell(
        phases,
        calibration=Calibration(links=links),
        vain_search_s=0.001,
        ddp=DdpFacts(find_unused_parameters=True, built_at="train.py:12"),
        software={"transformers": "5.0", "accelerate": "1.0"},
    )
    communication, search = told.found
    assert (search.name, search.where) == ("unused_search", "train.py:12")
    assert search.cost_s == pytest.approx(0.003, abs=1e-4)
    assert search.remedy == "TrainingArguments(…, ddp_find_unused_parameters=False)"
    assert communication.cost_s + search.cost_s == pytest.approx(0.011)
    assert not [one for one in tell(phases).found if one.name == "unused_search"]


def test_activations_that_are_computed_again_are_told_with_their_line_and_the_memory_that_is_free() -> None:
    seen = Recomputed(per_step=12, seconds=0.04, site="model.py:41", kept_bytes=2 << 30)
    [found] = tell(recomputed=seen, step_time_s_hint=2 * CLEAN.total_s()).found
    assert (found.name, found.where) == ("recomputation", "model.py:41")
    # Steps of twice the pace of the first ones.
    assert found.cost_s == pytest.approx(0.02)
    assert "12 calls a step" in found.what
    assert "free" not in found.what
    assert found.remedy == (
        "block(x) in place of checkpoint(block, x); or unchanged: advisor tune races it (activation_checkpointing)"
    )
    [found] = tell(recomputed=seen, software={"transformers": "5.0"}, memory=(1 << 30, 5 << 30)).found
    assert found.what.endswith("kept they take about 2 GiB; 1 GiB of memory are in use, and 5 GiB free")
    assert found.remedy.startswith("TrainingArguments(…, gradient_checkpointing=False);")
    [found] = tell(recomputed=seen, software={"transformers": "5.23.0"}).found
    assert found.remedy.startswith("TrainingArguments(…, activation_checkpointing=False);")
    assert not tell(recomputed=seen.model_copy(update={"seconds": 0.002})).found


def test_memory_that_is_left_and_what_samples_cost_have_a_line_each_where_they_are_known() -> None:
    told = tell().model_copy(
        update={"peak_memory_bytes": 3 << 30, "room_bytes": 5 << 30, "power_w": 158.0, "price_per_hour": 1.0}
    )
    lines = describe_diagnosed(told, COMMAND)
    assert "The fullest rank used 3 GiB of memory at most, and 5 GiB stayed free for it" in lines
    assert any(line.startswith("158 W, 0.997 J a sample · 1.75 for a million samples") for line in lines)
    assert not [
        line for line in describe_diagnosed(tell(), COMMAND) if "free for it" in line or " W, " in line
    ]
