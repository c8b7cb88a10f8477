"""The checks of a GPU: what each expects, judged on given figures; how they run, and what is written of them."""

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from advisor.protocol.measured.results import BlockResult, Phases
from advisor.protocol.measured.telemetry import DeviceSample
from advisor.protocol.measured.trials import Outcome, RacePlan
from agent.devices.gpus import DeviceProcess, Reading
from tests.gpu import command
from tests.gpu.bench import Bench, Interrupted, Machine, Struck, Trained
from tests.gpu.catalogue import CHECKS
from tests.gpu.check import Check, Judgement, NotPossible, Status, choose_checks
from tests.gpu.nvidia_smi import read_smi
from tests.gpu.real_bench import RealBench
from tests.gpu.report import describe_outcomes
from tests.gpu.run_checks import NoCard, find_machine, open_bench, run_checks
from tests.gpu.trace import UnreadableTrace, read_trace, subtract
from tests.no_gpus import NoGpus

CARD = Machine("cuda", ("NVIDIA H100",), "580.1", "2.13.0", "13.0", "2.28.9", "91002", has_transformers=True)
SMI = "0, 97, 3000, 400.10, 1980, 60\n"
NVML = DeviceSample(
    index=0,
    busy=0.95,
    memory_bytes=3000 * 2**20,
    power_w=395.0,
    sm_clock_mhz=1975,
    temperature_c=61,
    sm_active=0.8,
)
MIB = 2**20


class GivenBench:
    """Answers with what it was given: launches in their order."""

    def __init__(self, *launches: Trained, machine: Machine = CARD, **given: Any) -> None:
        self.machine, self._launches, self._given = machine, list(launches), given
        self.asked: list[tuple[str, tuple[object, ...], tuple[RacePlan, ...]]] = []

    def train(
        self, script: str, arguments: Sequence[object], races: Sequence[RacePlan] = (), **_: Any
    ) -> Trained:
        self.asked.append((script, tuple(arguments), tuple(races)))
        return self._launches.pop(0)

    run_bare = train

    def run(
        self, words: Sequence[str], limit_s: float, variables: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        return self._given["ran"]

    @contextmanager
    def keep_busy(self, arguments: Sequence[object], seconds: float) -> Iterator[None]:
        yield

    def strike_agent(self, arguments: Sequence[object]) -> Struck:
        return self._given["struck"]

    def sample(self) -> Reading | None:
        readings = self._given.get("readings", [Reading((NVML,))])
        return readings.pop(0) if len(readings) > 1 else readings[0]

    def list_processes(self) -> tuple[DeviceProcess, ...]:
        return ()

    def ask_smi(self) -> str:
        return str(self._given.get("smi", SMI))

    def make_folder(self, name: str) -> Path:
        return Path("/nowhere")


def judge(name: str, bench: GivenBench) -> Judgement:
    [check] = choose_checks(CHECKS, name)
    return check.run(bench)


def measured(step_s: float = 0.01, **fields: Any) -> BlockResult:
    return BlockResult(steps=20, step_time_s=(step_s,) * 20, samples_per_step=8, wall_s=20 * step_s, **fields)


def trained(**results: BlockResult) -> Trained:
    return Trained(outcome=Outcome.FINISHED, results=results)


def traced(step_ms: float = 10.0, exposed_ms: float = 2.0) -> str:
    """A card's trace of 40 steps: 2 ms of forward, 3 of backward, what is communicated beyond it, 1 of optimizer."""
    events: list[dict[str, Any]] = []

    def add(category: str, name: str, start: float, length: float, **named: int) -> None:
        events.append(
            {"ph": "X", "cat": category, "name": name, "ts": start * 1e3, "dur": length * 1e3, "args": named}
        )

    def launch(name: str, launched: float, start: float, length: float) -> None:
        add("cuda_runtime", "cudaLaunchKernel", launched, 0.01, correlation=len(events))
        add("kernel", name, start, length, correlation=len(events) - 1)

    for step in range(40):
        host, card = step * step_ms, step * step_ms + 0.5
        add("user_annotation", "check.forward", host, 0.4)
        add("user_annotation", "check.optimizer", host + 1, 0.2)
        launch("gemm", host + 0.1, card, 2)
        launch("gemm", host + 0.6, card + 2, 3)
        launch("ncclDevKernel_AllReduce", host + 0.7, card + 4, 1 + exposed_ms)
        launch("multi_tensor_apply", host + 1.1, card + 5 + exposed_ms, 1)
    return json.dumps({"traceEvents": events})


def with_phases(exposed_s: float = 0.002, step_s: float = 0.01, **fields: float) -> BlockResult:
    phases = {
        "forward_s": 0.002,
        "backward_s": 0.005 - exposed_s,
        "optimizer_s": 0.001,
        "own_code_s": 0.002,
        **fields,
    }
    return measured(step_s, phases=Phases(exposed_comm_s=exposed_s, **phases))


# What each check expects.


def test_nvml_that_agrees_passes_and_that_disagrees_is_named() -> None:
    assert judge("nvml", GivenBench()).faults == []
    hot = NVML.model_copy(update={"power_w": 100.0, "memory_bytes": 3100 * MIB, "sm_active": 0.0})
    faults = " ".join(judge("nvml", GivenBench(readings=[Reading((hot,))])).faults)
    assert "power, W: NVML 100, nvidia-smi 400.1: they disagree" in faults
    assert "memory" in faults
    assert "GPM says" in faults
    assert "busy" not in faults
    late = GivenBench(readings=[None, None, Reading((NVML,))])
    assert judge("nvml", late).faults == [], "its reader may have to start first"
    assert judge("nvml", GivenBench(readings=[None])).faults == ["NVML did not answer while a card computed."]


def test_a_card_that_tells_less_leaves_that_out() -> None:
    told = judge("nvml", GivenBench(smi="0, [N/A], 3000, [Not Supported], 1980, 60", readings=[
        Reading((NVML.model_copy(update={"sm_active": None}),))]))  # fmt: skip
    assert told.faults == []
    assert len(told.left_out) == 3


def test_smi_answers_are_read_and_nonsense_is_refused() -> None:
    found = read_smi("0, 97, 3000, 400.10, 1980, 60\n1, 0, 4, [N/A], 210, 33\n")
    assert (found[0].busy, found[0].memory_bytes, found[1].power_w) == (0.97, 3000 * MIB, None)
    for nonsense in ("", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."):
        with pytest.raises(ValueError, match="nvidia-smi"):
            read_smi(nonsense)


def collectives(kept: int = 0, host_s: float = 0.0005, event_s: float = 0.05, right: bool = True) -> Trained:
    group = {"is_right": right, "is_configured": True, "group_bytes": 700 * MIB, "kept_bytes": kept}
    return Trained(notes={0: [{"host_s": host_s, "event_s": event_s}] * 3 + [group]})


def test_nccl_alone_and_in_pairs() -> None:
    assert judge("nccl", GivenBench(collectives(), collectives())).faults == []
    for bad, word in (
        ((collectives(kept=200 * MIB), collectives()), "keeps 200 MiB"),
        ((collectives(right=False), collectives()), "wrong sum"),
        ((collectives(), collectives(host_s=0.01)), "the host waited"),
        ((collectives(), collectives(event_s=0.0006)), "events do not show"),
    ):
        assert word in " ".join(judge("nccl", GivenBench(*bad)).faults)


def test_timing_holds_the_runtime_against_the_trace() -> None:
    found = replace(trained(baseline=with_phases()), trace=traced())
    assert judge("timing", GivenBench(found)).faults == []
    late = replace(trained(baseline=with_phases(forward_s=0.004)), trace=traced())
    [fault] = judge("timing", GivenBench(late)).faults
    assert fault == "forward: runtime 4.00 ms, trace 2.00 ms: 20% of the step apart, 10% allowed."


def test_diagnosis_tells_the_two_trainings_apart() -> None:
    talking = replace(trained(baseline=with_phases(0.0045)), trace=traced(exposed_ms=4.5))
    computing = replace(trained(baseline=with_phases(0.0002)), trace=traced(exposed_ms=0.2))
    assert judge("diagnosis", GivenBench(talking, computing)).faults == []
    blind = replace(talking, results={"baseline": with_phases(0.0001)})
    faults = judge("diagnosis", GivenBench(blind, computing)).faults
    assert "it is not taken for bound by communication" in faults[0]
    assert "by the runtime, 45.0% by the trace" in faults[1]


def test_trace_without_steps_is_refused() -> None:
    with pytest.raises(UnreadableTrace, match="no trace that can be read"):
        read_trace("", True, 3)
    with pytest.raises(UnreadableTrace, match="0 annotated steps after the first 40"):
        read_trace(traced(), True, 40)
    bare = {"traceEvents": [e for e in json.loads(traced())["traceEvents"] if e["cat"] != "kernel"]}
    with pytest.raises(UnreadableTrace, match="holds 0 kernels"):
        read_trace(json.dumps(bare), True, 3)


def test_subtracting_intervals() -> None:
    assert subtract([(0, 10)], [(2, 3), (5, 20)]) == [(0, 2), (3, 5)]
    assert subtract([(0, 1), (4, 6)], [(0.5, 5)]) == [(0, 0.5), (5, 6)]
    assert subtract([(0, 1)], []) == [(0, 1)]
    assert subtract([(1, 2)], [(0, 3)]) == []


def switched(ratio: float, wobble: float = 0.001) -> Trained:
    notes: list[dict[str, Any]] = [{"measured": True}]
    for stretch in range(80):
        is_on = stretch % 4 in (1, 2)
        noise = 1 + wobble * ((stretch // 2 % 5) - 2)
        notes.append({"on": is_on, "step_s": [0.005 * (ratio * noise if is_on else 1.0)] * 5})
    return Trained(outcome=Outcome.FINISHED, notes={0: notes})


def test_intrusion_is_judged_by_ratio_and_interval() -> None:
    assert judge("intrusion", GivenBench(switched(1.005))).faults == []
    assert "more than 1.01" in judge("intrusion", GivenBench(switched(1.02))).faults[0]
    [fault] = judge("intrusion", GivenBench(switched(1.0, wobble=0.06))).faults
    assert "not within" in fault


def test_trainer_is_held_against_itself() -> None:
    def times(step_s: float) -> Trained:
        return Trained(notes={0: [{"step_s": step_s}] * 60})

    assert judge("trainer", GivenBench(*map(times, (0.1, 0.1005, 0.1, 0.1005)))).faults == []
    assert "more than 1.01" in judge("trainer", GivenBench(*map(times, (0.1, 0.12, 0.1, 0.12)))).faults[0]
    with pytest.raises(NotPossible, match="transformers is not installed"):
        judge("trainer", GivenBench(machine=replace(CARD, has_transformers=False)))


def held(share: float, knobs: Mapping[str, str]) -> Trained:
    notes = {0: [{"reserved": 1, "total": 100}, {"reserved": 100 * share, "total": 100}]}
    results = {"before": measured(), "reserved": measured(consumed=dict(knobs)), "after": measured()}
    return replace(trained(**results), notes=notes)


def test_memory_fraction_is_what_was_asked() -> None:
    knobs = {"FLAGS_fraction_of_gpu_memory_to_use": "The allocator holds …"}
    assert judge("memory_fraction", GivenBench(held(0.3, knobs))).faults == []
    assert "50.0% under 30%" in judge("memory_fraction", GivenBench(held(0.5, knobs))).faults[0]
    assert "was not in force" in judge("memory_fraction", GivenBench(held(0.3, {}))).faults[0]


@pytest.mark.parametrize(
    ("name", "knob"),
    [("amp", "amp"), ("compile", "fuse_elewise_add_act_ops"), ("optimizer", "fuse_all_optimizer_ops")],
)
def test_levers_must_be_in_force(name: str, knob: str) -> None:
    fast = measured(0.005, consumed={knob: "it was"})
    assert judge(name, GivenBench(trained(baseline=measured(), tuned=fast))).faults == []
    idle = measured(0.005, not_consumed={knob: "nothing to fuse"})
    assert judge(name, GivenBench(trained(baseline=measured(), tuned=idle))).faults == [
        f"{knob} was not in force: nothing to fuse"
    ]


def test_amp_must_be_faster_and_finite() -> None:
    slow = measured(0.01, consumed={"amp": "it was"}, diverged=True)
    faults = judge("amp", GivenBench(trained(baseline=measured(), tuned=slow))).faults
    assert len(faults) == 2


def test_cudnn_from_the_start_against_toggled() -> None:
    knob = "cudnn_exhaustive_search"
    toggled = trained(baseline=measured(), toggled=measured(relaunch_needed="It is set at launch."))
    searching = trained(searching=measured(0.009, consumed={knob: "it was"}))
    assert judge("cudnn", GivenBench(toggled, searching)).faults == []
    live = trained(baseline=measured(), toggled=measured(consumed={knob: "it was"}))
    slower = trained(searching=measured(0.02, consumed={knob: "it was"}))
    faults = judge("cudnn", GivenBench(live, slower)).faults
    assert "switched live, where it does nothing" in faults[0]
    assert "× 2.000" in faults[1]


def test_snapshots_must_come_back_once_and_alike() -> None:
    def states(*ranks: str) -> Trained:
        notes = {rank: [{"digest": digest} for digest in digests] for rank, digests in enumerate(ranks)}
        return replace(trained(half=measured(consumed={"amp": "it was"})), notes=notes)

    assert judge("snapshots", GivenBench(states("abcdcef", "abcxcef"))).faults == []
    assert (
        "Rank 1 did not come back" in judge("snapshots", GivenBench(states("abcdcef", "abcxyef"))).faults[0]
    )
    assert "different states" in judge("snapshots", GivenBench(states("abcdcef", "abzdzef"))).faults[0]
    assert judge("snapshots", GivenBench(states("aaaaaaa", "aaaaaaa"))).faults


def test_full_memory_must_be_refused_and_not_crash() -> None:
    refused = {"fraction": {"FLAGS_fraction_of_gpu_memory_to_use": "There is no room."}}
    results = {
        "links": measured(),
        "fraction": measured(not_consumed=refused["fraction"]),
        "communicators": measured(not_consumed={"nccl_comm_num": "There is no room."}),
        "amp": measured(consumed={"amp": "it was"}),
        "compile": measured(relaunch_needed="It needs a launch."),
    }
    assert judge("memory", GivenBench(trained(**results))).faults == []
    crashed = Trained(outcome=Outcome.CRASHED, reason="CUDA error", results={"links": measured()})
    faults = judge("memory", GivenBench(crashed)).faults
    assert "ended: crashed: CUDA error" in faults[0]
    assert len(faults) == 5


def reading(mebibytes: int) -> Reading:
    return Reading((NVML.model_copy(update={"memory_bytes": mebibytes * MIB}),))


def test_communicators_must_end_and_give_memory_back() -> None:
    flat = measured(consumed={"nccl_comm_num": "Buckets per communicator"})
    levels = measured(
        consumed=dict.fromkeys(("use_hierarchical_allreduce", "hierarchical_allreduce_inter_nranks"), "y")
    )
    well = trained(baseline=measured(), two=flat, four=flat, levels=levels)
    assert judge("communicators", GivenBench(well, readings=[reading(500), reading(550)])).faults == []
    [kept] = judge("communicators", GivenBench(well, readings=[reading(500), reading(1700)])).faults
    assert "1200 MiB more in use" in kept
    hung = Trained(outcome=Outcome.HUNG, reason="Rank 1 hangs.", results={})
    [fault] = judge("communicators", GivenBench(hung)).faults
    assert "hung: Rank 1 hangs." in fault


def settings(kept: int = 0, right: bool = True, **blocks: int) -> Trained:
    """What the script saw: `most`, `fewest` and `alone` blocks of its kernels."""
    asked = {"alone": {}, "most": {"max_ctas": 2}, "fewest": {"min_ctas": 16, "max_ctas": 64}}
    usual = {"alone": 12, "most": 2, "fewest": 16, **blocks}
    return Trained(
        notes={
            0: [
                {
                    "asked": asked[name],
                    "blocks": [count] * 5,
                    "is_right": right,
                    "taken_bytes": 9,
                    "kept_bytes": kept,
                }
                for name, count in usual.items()
            ]
        }
    )


def switched_arms(said: str = "over communicators of their own", **less: BlockResult) -> Trained:
    knobs = {"fewest": "NCCL_MIN_CTAS", "most": "NCCL_MAX_CTAS", "clusters": "NCCL_CGA_CLUSTER_SIZE"}
    return trained(
        baseline=measured(),
        **{**{name: measured(consumed={knob: said}) for name, knob in knobs.items()}, **less},
    )


BEATEN = settings(alone=1, most=1, fewest=1)


def test_channels_are_those_of_the_communicator_and_a_variable_beats_them() -> None:
    found = judge("channels", GivenBench(settings(), BEATEN, switched_arms()))
    assert found.faults == []
    assert "max_ctas 2: 2 to 2 blocks" in found.measured
    assert "min_ctas 16, max_ctas 64 under NCCL_MAX_CTAS=1: 1 blocks" in found.measured
    idle = measured(not_consumed={"NCCL_MAX_CTAS": "made with max_ctas [64]."})
    for launches, word in (
        ((settings(most=3), BEATEN, switched_arms()), "max_ctas 2: 3 to 3 blocks; 1 to 2 are expected."),
        ((settings(fewest=15), BEATEN, switched_arms()), "16 to 64 are expected"),
        ((settings(alone=0), BEATEN, switched_arms()), "nothing asked: 0 to 0 blocks"),
        ((settings(right=False), BEATEN, switched_arms()), "gave a wrong sum"),
        ((settings(kept=200 * MIB), BEATEN, switched_arms()), "keeps 200: 100 may be kept"),
        ((settings(), settings(most=1, fewest=16, alone=1), switched_arms()), "so 1 is expected"),
        ((settings(), BEATEN, switched_arms(most=idle)), "NCCL_MAX_CTAS was not in force: made with"),
        ((settings(), BEATEN, switched_arms("in the ranks' environment")), "stood there already"),
    ):
        faults = judge("channels", GivenBench(*launches)).faults
        assert word in " ".join(faults), faults


def test_channels_need_kernels_and_a_script_that_ends() -> None:
    empty = Trained(
        notes={0: [{"asked": {}, "blocks": [], "is_right": True, "taken_bytes": 0, "kept_bytes": 0}]}
    )
    faults = judge("channels", GivenBench(empty, BEATEN, switched_arms())).faults
    assert faults == ["The trace shows no kernel of NCCL's with nothing asked."]
    failed = Trained(code=1, log="NCCL error")
    for launch in (failed, replace(failed, notes=settings().notes)):
        bench = GivenBench(launch, BEATEN, switched_arms())
        [outcome] = run_checks(choose_checks(CHECKS, "channels"), bench, lambda _: None)
        assert outcome.status is Status.FAILED
        assert "NCCL error" in outcome.judgement.faults[0]


def test_clusters_that_a_card_lacks_are_left_out() -> None:
    arms = switched_arms(clusters=measured(not_consumed={"NCCL_CGA_CLUSTER_SIZE": "no clusters"}))
    old = replace(arms, refusals={"NCCL_CGA_CLUSTER_SIZE": "Clusters exist from 9.0 on."})
    found = judge("channels", GivenBench(settings(), BEATEN, old))
    assert found.faults == []
    assert found.left_out == ["NCCL_CGA_CLUSTER_SIZE: Clusters exist from 9.0 on."]


def test_the_tuner_plugin_must_be_loaded_and_asked() -> None:
    knobs = ("nccl_tuner_allreduce", "nccl_tuner_channels")
    well = trained(tuned=measured(consumed=dict.fromkeys(knobs, "NCCL's tuner plugin chose it 20 times.")))
    lacking = trained(
        tuned=measured(not_consumed={knobs[0]: "NCCL's tuner plugin chose tree/simple 0 times, and …"})
    )
    silent = trained(
        tuned=measured(not_consumed={knobs[0]: "NCCL has not loaded the advisor's tuner plugin."})
    )
    found = judge("tuner", GivenBench(well, well, well, lacking, well))
    assert found.faults == []
    assert [sentence.split(":")[0] for sentence in found.left_out] == ["nccl_tuner_allreduce tree/simple"]
    faults = judge("tuner", GivenBench(lacking, silent, well, silent, well)).faults
    assert len(faults) == 3, (
        "a ring is always possible, and a plugin that is not loaded is no choice of NCCL's"
    )
    assert all("nccl_tuner_allreduce was not in force" in fault for fault in faults)
    nan = trained(tuned=measured(consumed=dict.fromkeys(knobs, "yes"), diverged=True))
    assert "not finite" in judge("tuner", GivenBench(nan, well, well, well, well)).faults[0]
    refused = replace(well, refusals={knobs[0]: "No C compiler was found on this node."})
    with pytest.raises(NotPossible, match="No C compiler"):
        judge("tuner", GivenBench(refused))


def test_a_killed_agent_must_leave_nothing() -> None:
    nothing = Struck(processes=5, left=(), on_cards=0, shared_memory=(), memory_bytes=0)
    assert judge("kill", GivenBench(struck=nothing)).faults == []
    for left in (
        {"left": (7,)}, {"on_cards": 1}, {"shared_memory": ("torch_7",)}, {"memory_bytes": 600 * MIB}, {"processes": 0}
    ):  # fmt: skip
        assert len(judge("kill", GivenBench(struck=replace(nothing, **left))).faults) == 1


def test_the_suites_failures_are_listed() -> None:
    told = "FAILED tests/distributed/runtime/test_x.py::test_y - assert 1 == 2\n1 failed, 140 passed in 300.00s\n"
    failing = judge("suite", GivenBench(ran=(1, told)))
    assert failing.faults == ["tests/distributed/runtime/test_x.py::test_y: assert 1 == 2"]
    assert failing.measured == ["1 failed, 140 passed"]
    assert judge("suite", GivenBench(ran=(0, "141 passed in 300.00s\n"))).faults == []
    assert "ended with 4" in judge("suite", GivenBench(ran=(4, "usage"))).faults[0]


@pytest.mark.parametrize("name", ["tune", "demo"])
def test_a_tuning_must_end_with_an_advice(name: str) -> None:
    advice = {"verdict": "keep", "headline": "Nothing to gain.", "diagnosis": {"bound": "compute"}}
    output = f"stage: probe\n{json.dumps(advice, indent=2)}\n"
    found = judge(name, GivenBench(ran=(0, output)))
    assert found.faults == []
    assert found.measured == ["keep: Nothing to gain.", "bound by compute"]
    [outcome] = run_checks(choose_checks(CHECKS, name), GivenBench(ran=(100, "no")), lambda _: None)
    assert outcome.status is Status.FAILED
    assert "gave no advice (exit code 100): no" in outcome.judgement.faults[0]


# How they run, and what is written.


def answer(judgement: Judgement | Exception) -> Check:
    def run(bench: Any) -> Judgement:
        if isinstance(judgement, Exception):
            raise judgement
        return judgement

    return Check("one", "It holds.", run)


def test_checks_go_on_after_a_failure_and_stop_when_asked() -> None:
    checks = [
        answer(Judgement(["3 ms"])),
        answer(ZeroDivisionError("division by zero")),
        answer(NotPossible("One card only.")),
        answer(Judgement(faults=["4 ms | too much."])),
        answer(Interrupted()),
        answer(Judgement()),
    ]
    told: list[str] = []
    outcomes = run_checks(
        checks, GivenBench(), lambda outcome: told.append(outcome.status.value), iter(range(99)).__next__
    )
    assert told == ["passed", "failed", "not possible here", "failed"]
    assert outcomes[1].judgement.faults == ["ZeroDivisionError: division by zero"]
    page = describe_outcomes(CARD, outcomes, checks[len(outcomes) :])
    assert "1 × NVIDIA H100; driver 580.1, torch 2.13.0, CUDA 13.0, NCCL 2.28.9, cuDNN 91002." in page
    assert "1 passed, 2 failed, 1 not possible here" in page
    assert "Stopped before: one, one." in page
    assert "* **one**: 4 ms \\| too much." in page
    assert "| one | not possible here | It holds. | One card only. | 1 |" in page


def test_what_would_begin_after_an_hour_fails_unrun() -> None:
    ran = []
    checks = [Check(name, "It holds.", lambda _, name=name: ran.append(name) or Judgement()) for name in "ab"]
    hours = iter([0.0, 0.0, 3599.0, 3601.0, 3601.0])
    outcomes = run_checks(checks, GivenBench(), lambda _: None, clock=lambda: next(hours))
    assert [outcome.status for outcome in outcomes] == [Status.PASSED, Status.FAILED]
    assert ran == ["a"]
    assert "--checks b" in outcomes[1].judgement.faults[0]


def test_the_page_is_there_after_each_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is lent may be taken away before the last one."""
    page, pages = tmp_path / "gpu.md", []

    def look(bench: Bench) -> Judgement:
        pages.append(page.read_text() if page.exists() else "")
        return Judgement(["3 ms"])

    monkeypatch.setattr(command, "CHECKS", [Check(name, "It holds.", look) for name in ("a", "b")])
    monkeypatch.setattr(command, "find_machine", lambda *_: Machine("cpu"))
    assert command.check_gpus("", "cpu", page, NoGpus(), {}) == 0
    assert pages[0] == ""
    assert "Stopped before: b." in pages[1]
    assert "| a | passed |" in pages[1]
    assert "Stopped" not in page.read_text()


def test_a_terminal_that_goes_stops_the_checks_and_keeps_what_was_found() -> None:
    def hang_up(bench: Bench) -> Judgement:
        os.kill(os.getpid(), signal.SIGHUP)
        bench.make_folder("next")
        return Judgement()

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever the tests themselves were started under
    try:
        checks = [answer(Judgement()), Check("hang up", "It holds.", hang_up), answer(Judgement())]
        with open_bench(Machine("cpu"), NoGpus(), {}) as bench:
            assert len(run_checks(checks, bench, lambda _: None)) == 1
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_under_nohup_a_terminal_that_goes_stops_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with open_bench(Machine("cpu"), NoGpus(), {}) as bench:
            os.kill(os.getpid(), signal.SIGHUP)
            assert bench.make_folder("next").is_dir()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_no_launch_begins_after_the_hour(tmp_path: Path) -> None:
    bench = RealBench(Machine("cpu"), NoGpus(), tmp_path / "bench", {}, ends_at_s=time.monotonic() - 1)
    with pytest.raises(TimeoutError, match="The hour of the checks was over"):
        bench.run(["true"], 1.0)


def test_every_card_is_kept_busy_where_all_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    @contextmanager
    def start(words: Sequence[str], variables: Mapping[str, str]) -> Iterator[Any]:
        started.extend(words)
        (Path(variables["OUT"]) / "notes.0").write_text('{"step_s": 1}\n')
        yield SimpleNamespace(poll=lambda: None), tmp_path / "log"

    bench = RealBench(replace(CARD, cards=("A", "A")), NoGpus(), tmp_path / "bench", {})
    monkeypatch.setattr(bench, "_start", start)
    with bench.keep_busy(["--times"], 0.0):
        assert "--nproc-per-node=2" in started


def test_checks_are_chosen_by_name() -> None:
    assert [check.name for check in choose_checks(CHECKS, "memory, timing")] == ["timing", "memory"]
    assert choose_checks(CHECKS, "") == list(CHECKS)
    with pytest.raises(ValueError, match=r"--checks nonsense: there is no such check\. There are: nvml,"):
        choose_checks(CHECKS, "nonsense")


def test_what_needs_a_card_says_so_on_a_cpu() -> None:
    about_cards = "nvml,nccl,memory_fraction,compile,cudnn,memory,channels,tuner,demo"
    bench = GivenBench(machine=Machine("cpu"))
    for outcome in run_checks(choose_checks(CHECKS, about_cards), bench, lambda _: None):
        assert outcome.status is Status.IMPOSSIBLE
        assert outcome.because.endswith(".")
    assert bench.asked == []


def test_without_a_card_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(NoCard, match="No NVIDIA GPU is visible on this machine"):
        find_machine("cuda", NoGpus(), {"CUDA_VISIBLE_DEVICES": "", "PATH": ""})


def test_the_command_without_a_card_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    page = tmp_path / "gpu.md"
    assert command.main(["--output", str(page)]) == 3
    said = capsys.readouterr()
    assert said.err == (
        "No NVIDIA GPU is visible on this machine, so there is nothing to check: run it where one is.\n"
    )
    assert not said.out
    assert not page.exists()
    assert command.main(["--output", str(tmp_path / "none" / "gpu.md")]) == 2
    assert "there is no folder" in capsys.readouterr().err
