"""What an account says of a training: the dearest findings, no second told twice, and nothing of a clean one."""

import pytest

from advisor.protocol.answers.diagnosed import Diagnosed, describe_diagnosed, diagnose_launch, write_markdown
from advisor.protocol.measured.results import BlockResult, LateRank, Phases
from advisor.protocol.nodes.cluster import DeviceKind
from advisor.protocol.training.workload import HostRead, WorkloadFacts
from tests.unit.tuning.simulated_cluster import make_job

COMMAND = ("torchrun", "--nproc-per-node", "2", "train.py")
CLEAN = Phases(forward_s=0.03, backward_s=0.06, exposed_comm_s=0.001, optimizer_s=0.01)
FACTS = WorkloadFacts(
    backend="gloo", device=DeviceKind.CPU, world_size=2, local_world_size=2, gradient_bytes=1 << 20,
    parameter_tensors=4, layers=2, batch_size_per_rank=8, microbatches_per_step=1, exchanges_per_step=1,
)  # fmt: skip


def tell(phases: Phases = CLEAN, late: LateRank | None = None, **facts: object) -> Diagnosed:
    node = make_job().cluster.nodes[0].model_copy(update={"cpu_count": 2})
    result = BlockResult(
        steps=40, step_time_s=(phases.total_s(),) * 40, samples_per_step=16, wall_s=40 * phases.total_s(),
        phases=phases, late=late,
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
    ("loader", "told"),
    [
        (None, "read ahead"),
        ({"num_workers": 0}, "num_workers=1"),
        ({"num_workers": 1}, "more workers than cores do not help"),
    ],
)
def test_remedy_of_slow_reading_fits_the_loader(loader: dict[str, int] | None, told: str) -> None:
    (found,) = tell(Phases(**{**CLEAN.__dict__, "data_wait_s": 0.05}), dataloader=loader).found
    assert told in found.remedy


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
