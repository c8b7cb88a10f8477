"""The lines that a rank stands in, by samples of its stack, and all ranks' steps on one timeline."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from fleet_advisor_runtime.link.measured import BlockResult
from fleet_advisor_runtime.observe.clock import CpuClock
from fleet_advisor_runtime.observe.host_reads import OWN
from fleet_advisor_runtime.observe.recorder import DATA, FORWARD, INTERRUPTED, PLAIN, Recorder, StepMarks
from fleet_advisor_runtime.observe.recorder import OWN as OWN_CODE
from fleet_advisor_runtime.observe.stack_samples import StackSamples
from fleet_advisor_runtime.races.close_look import RankLook, add_looks, list_spans


def sample(
    folder: Path, phases: list[int], library: str = "", evaluated: bool = False, inner: str = ""
) -> Any:
    """What is told of a script that calls a library's function, which is where each sample is taken."""
    stacks = StackSamples(Recorder(), lambda: evaluated)

    def take() -> None:
        frame = sys._getframe(1)
        for phase in phases:
            stacks.take(frame, phase)

    names: dict[str, Any] = {"take": take}
    inner = inner or str(folder / "site-packages" / library / "code.py")
    exec(compile("def call():\n    take()\n", inner, "exec"), names)
    exec(compile("x = 1\n\ncall()\n", str(folder / "train.py"), "exec"), names)
    return stacks.describe()


def test_each_sample_is_told_by_its_part_and_the_scripts_own_innermost_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sample(tmp_path, [DATA, DATA, FORWARD, DATA]) == [
        ("data_wait_s", "train.py:3", 0.75),
        ("forward_s", "train.py:3", 0.25),
    ]
    assert sample(tmp_path / "elsewhere", [DATA])[0][1] == "elsewhere/train.py:3"


@pytest.mark.parametrize(
    ("library", "evaluated", "part"),
    [
        ("", False, "own_code_s"),
        ("", True, "evaluation"),
        ("wandb", False, "logging"),
        ("torch/distributed/checkpoint", True, "saving"),
    ],
)
def test_own_code_is_told_by_what_it_does(tmp_path: Path, library: str, evaluated: bool, part: str) -> None:
    assert sample(tmp_path, [OWN_CODE], library, evaluated)[0][0] == part


@pytest.mark.parametrize(
    ("phase", "evaluated", "flag"),
    [(OWN_CODE, True, INTERRUPTED), (OWN_CODE, False, PLAIN), (FORWARD, True, PLAIN)],
)
def test_a_step_in_which_an_evaluation_is_seen_is_no_usual_one_though_it_calls_no_hook(
    phase: int, evaluated: bool, flag: int
) -> None:
    recorder = Recorder()
    recorder.begin_step(0.0)
    StackSamples(recorder, lambda: evaluated).take(sys._getframe(), phase)
    step = recorder.close_step(1.0, 1)
    assert step is not None
    assert step.flag == flag


def test_what_ours_decides_between_two_steps_is_no_sample(tmp_path: Path) -> None:
    assert not sample(tmp_path, [OWN_CODE], inner=os.path.join(OWN, "races", "race.py"))
    assert sample(tmp_path, [OWN_CODE], inner=os.path.join(OWN, "inject", "patches.py"))


def test_a_thread_samples_the_one_that_starts_it_and_ends() -> None:
    recorder = Recorder()
    recorder.clock = CpuClock()
    recorder.start()
    recorder.begin(FORWARD)
    stacks = StackSamples(recorder, lambda: False)
    stacks.start()
    while stacks.samples < 3:
        pass
    stacks.stop()
    told = stacks.samples
    assert {(part, site.rpartition(":")[0]) for part, site, _ in stacks.describe()} == {
        ("forward_s", str(Path(__file__).relative_to(Path.cwd())))
    }
    assert stacks.samples == told
    assert stacks.spent_s > 0


def test_ranks_of_one_machine_keep_their_clock_and_another_machines_are_moved_to_where_all_agreed() -> None:
    looks = [
        RankLook("a", 100.0, [("data_wait_s", "train.py:3", 0.5)], [("step", 1.0, 2.0)]),
        RankLook("a", 100.5, [("forward_s", "train.py:9", 1.0)], [("step", 1.0, 2.0)]),
        RankLook("b", 7000.0, [], [("step", 1.0, 2.0)]),
    ]
    result = add_looks(BlockResult(1, (1.0,), 1.0, 1.0, phases_rank=1), looks)
    assert [one.spans[0].start_s for one in result.timelines] == [1.0, 1.5, 1.0]
    assert [(place.part, place.site) for place in result.places] == [("forward_s", "train.py:9")]
    assert not add_looks(BlockResult(1, (1.0,), 1.0, 1.0), [None, None]).timelines


@pytest.mark.parametrize(("most", "steps"), [(12, 4), (11, 3), (3, 1), (2, 0)])
def test_of_many_spans_those_of_the_first_whole_steps_are_kept(most: int, steps: int) -> None:
    """Ranks that call hundreds of collectives a step would fill a request with their spans."""
    marks = []
    for place in range(4):
        step = StepMarks(float(place), FORWARD)
        step.marks.append(place + 0.5)
        step.phases.append(OWN_CODE)
        step.end = place + 1.0
        marks.append(step)
    spans = list_spans(marks, 0.0, CpuClock(), most)
    assert [start for name, start, _ in spans if name == "step"] == [float(place) for place in range(steps)]
    assert len(spans) == 3 * steps
