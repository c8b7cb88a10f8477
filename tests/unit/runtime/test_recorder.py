"""Which steps' phases are marked, and that everything else is known of the others too."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
recorder = importlib.import_module("fleet_advisor_runtime.observe.recorder")
judging = importlib.import_module("fleet_advisor_runtime.races.judge")
results = importlib.import_module("fleet_advisor_runtime.races.results")


class Clock:
    """A mark is the number of marks before it: every one that is made shows."""

    def __init__(self) -> None:
        self.made = 0

    def mark(self) -> int:
        self.made += 1
        return self.made

    def measure(self, start: int, end: int) -> float:
        return float(end - start)


def make_recorder(every: int) -> Any:
    made = recorder.Recorder()
    made.clock, made.recording = Clock(), True
    made.sample_phases(every)
    return made


def run_steps(watched: Any, count: int) -> dict[str, list[Any]]:
    """What is known of so many ordinary steps."""
    steps = []
    for number in range(count + 1):
        mark = watched.clock.mark()
        steps.append(watched.close_step(mark, 8))
        watched.begin_step(mark)
        watched.begin_forward()
        watched.end_forward()
        watched.begin_backward(torch.tensor(float(number)))
        watched.end_backward()
        watched.begin_optimizer()
        watched.end_optimizer()
    return recorder.measure_steps(steps[1:], watched.clock)


def test_phases_are_marked_in_the_last_of_so_many_steps_and_losses_are_kept_in_all() -> None:
    watched = make_recorder(4)
    found = run_steps(watched, 9)
    marked = [place for place, forward in enumerate(found["forward_s"]) if forward is not None]
    assert marked == [3, 7]
    for phase in ("forward_s", "backward_s", "optimizer_s"):
        assert [found[phase][place] for place in marked] == [1.0] * 2
    assert found["losses"] == [float(number) for number in range(9)]
    assert found["samples"] == [8] * 9
    # One at the beginning of a step and one at its optimizer's; five more in those that are marked.
    assert watched.clock.made == 2 * 10 + 5 * 2


def test_every_step_is_marked_where_none_is_left_out() -> None:
    assert None not in run_steps(make_recorder(1), 5)["backward_s"]


def test_nothing_is_marked_while_nothing_is_recorded() -> None:
    watched = make_recorder(1)
    watched.recording = False
    found = run_steps(watched, 5)
    assert found["forward_s"] == found["losses"] == [None] * 5


def test_optimizers_steps_around_a_closure_are_measured_in_the_steps_that_they_end_in() -> None:
    watched = make_recorder(4)
    steps = []
    for _ in range(10):
        watched.begin_optimizer()
        mark = watched.clock.mark()
        steps.append(watched.close_step(mark, 8))
        watched.begin_step(mark)
        watched.begin_forward()
        watched.end_forward()
        watched.begin_backward(torch.tensor(1.0))
        watched.end_backward()
        watched.end_optimizer()
    found = recorder.measure_steps(steps[1:], watched.clock)
    assert found["optimizer_s"] == [None, None, None, 1.0, None, None, None, 1.0, None]


def test_medians_are_of_the_steps_that_have_phases() -> None:
    found = run_steps(make_recorder(4), 16)
    payload = {**found, "period": 1, "exposed_comm_s": None}
    split = results.break_down([payload], range(16))
    assert split["forward_s"]["median"] == split["optimizer_s"]["median"] == 1.0
    none_marked = results.break_down([payload], range(3))
    assert none_marked["forward_s"]["median"] == 0.0


@pytest.mark.parametrize(
    ("step_s", "period", "steps", "every"),
    [(0.005, 1, 400, judging.SAMPLED_EVERY), (0.05, 1, 400, 1), (0.005, 4, 400, 1), (0.005, 1, 40, 1)],
)
def test_phases_are_sampled_where_steps_are_short_and_many_and_all_alike(
    step_s: float, period: int, steps: int, every: int
) -> None:
    arm = SimpleNamespace(races=True, period=period, estimate_step_s=lambda _: step_s)
    judge = judging.Judge(SimpleNamespace(), [arm], Clock(), restores=False)
    assert judge._choose_sampling(steps) == every
