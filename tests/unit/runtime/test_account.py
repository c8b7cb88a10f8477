"""One account of a step: phases that never overlap, waits that are told apart, the late rank with what it does."""

from __future__ import annotations

import importlib
import random
import threading
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")
rank_arm = importlib.import_module("fleet_advisor_runtime.races.rank_arm")
account = importlib.import_module("fleet_advisor_runtime.races.account")
recorder = importlib.import_module("fleet_advisor_runtime.observe.recorder")


class Clock:
    """Advances only where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def mark(self) -> float:
        return self.now

    def measure(self, start: float, end: float) -> float:
        return end - start

    def keep_loss(self, loss: Any) -> Any:
        return loss

    def note_turn(self) -> None:
        pass

    def is_in_turn(self) -> bool:
        return False


class Rank:
    """A recorder and its clock."""

    def __init__(self) -> None:
        self.recorder, self.clock = recorder.Recorder(), Clock()
        self.recorder.clock = self.clock
        self.recorder.start()
        self.recorder.begin_step(0.0)

    def spend(self, seconds: float) -> None:
        self.clock.now += seconds

    def close(self) -> dict[str, float]:
        step = self.recorder.close_step(self.clock.mark(), 1)
        parts, _ = recorder.split_step(step, self.clock)
        assert sum(parts) == pytest.approx(self.clock.now)
        return {name: seconds for name, seconds in zip(recorder.PHASES, parts, strict=True) if seconds}


def test_what_runs_inside_something_else_is_counted_once() -> None:
    """Lightning's manual optimisation: backward and the optimizer's step inside the wrapped forward."""
    rank, optimizer = Rank(), object()
    rank.recorder.begin(recorder.FORWARD)
    rank.spend(1)
    rank.recorder.begin_backward(None)
    rank.spend(2)
    rank.recorder.end_backward()
    rank.spend(1)
    rank.recorder.begin_optimizer(optimizer)
    rank.spend(4)
    rank.recorder.end_optimizer(optimizer)
    rank.recorder.end(recorder.FORWARD)
    rank.spend(8)
    assert rank.recorder.has_nested
    assert rank.close() == {"forward_s": 2, "backward_s": 2, "optimizer_s": 4, "own_code_s": 8}


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_backward_whose_hooks_run_a_steps_first_forward_goes_on_over_the_boundary(is_kept: bool) -> None:
    """Cached losses: forward and backward of each part run inside the loss's own backward."""
    rank = Rank()

    def compute_part() -> None:
        rank.recorder.begin(recorder.FORWARD)
        rank.spend(1)
        rank.recorder.end(recorder.FORWARD)
        assert not rank.recorder.begin_backward(None)
        rank.spend(4)

    assert rank.recorder.begin_backward(None)
    rank.spend(2)
    rank.clock.now = 0.0
    if is_kept:
        rank.recorder.pass_boundary(1)
        rank.recorder.end(recorder.FORWARD)
    else:
        rank.recorder.begin_step(0.0)
    compute_part()
    compute_part()
    rank.recorder.end_backward()
    rank.spend(3)
    assert rank.close() == {"forward_s": 2, "backward_s": 8, "own_code_s": 3}


def test_a_backward_under_way_is_one_where_recording_starts() -> None:
    rank = Rank()
    rank.recorder.begin_backward(None)
    rank.recorder.start()
    rank.recorder.begin_step(0.0)
    rank.spend(2)
    rank.recorder.end_backward()
    rank.spend(1)
    assert rank.close() == {"backward_s": 2, "own_code_s": 1}


def test_a_step_that_ends_inside_a_closure_leaves_the_optimizer_its_own_work() -> None:
    rank, optimizer = Rank(), object()
    rank.recorder.begin_optimizer(optimizer)
    rank.spend(1)
    first = rank.recorder.close_step(rank.clock.mark(), 1)
    rank.recorder.begin_step(rank.clock.mark())
    rank.recorder.begin(recorder.FORWARD)
    rank.spend(2)
    rank.recorder.end(recorder.FORWARD)
    rank.recorder.begin_backward(None)
    rank.spend(4)
    rank.recorder.end_backward()
    rank.spend(8)
    rank.recorder.end_optimizer(optimizer)
    rank.spend(16)
    second = rank.recorder.close_step(rank.clock.mark(), 1)
    parts = [
        dict(zip(recorder.PHASES, recorder.split_step(s, rank.clock)[0], strict=True))
        for s in (first, second)
    ]
    assert parts[0]["optimizer_s"] == 1
    names = ("forward_s", "backward_s", "optimizer_s", "own_code_s")
    assert [parts[1][name] for name in names] == [2, 4, 8, 16]


def test_what_failed_takes_no_time_of_what_follows() -> None:
    rank, optimizer = Rank(), object()
    rank.recorder.begin(recorder.FORWARD)
    rank.recorder.begin_optimizer(optimizer)  # neither of them ends
    rank.spend(1)
    rank.recorder.close_step(rank.clock.mark(), 1)
    rank.recorder.begin_step(rank.clock.mark())
    rank.recorder.begin_optimizer(optimizer)
    rank.recorder.end_optimizer(optimizer)
    rank.spend(2)
    step = rank.recorder.close_step(rank.clock.mark(), 1)
    parts, _ = recorder.split_step(step, rank.clock)
    assert parts[recorder.OWN] == 2


def test_compiling_inside_a_forward_is_a_part_of_its_own_with_the_garbage_that_it_leaves() -> None:
    rank = Rank()
    rank.recorder.begin(recorder.FORWARD)
    rank.spend(1)
    rank.recorder.note_interlude(recorder.COMPILING, True)
    rank.spend(2)
    rank.recorder.note_interlude(recorder.GARBAGE, True)
    rank.spend(4)
    rank.recorder.note_interlude(recorder.GARBAGE, False)
    rank.spend(8)
    rank.recorder.note_interlude(recorder.COMPILING, False)
    rank.spend(16)
    rank.recorder.end(recorder.FORWARD)
    assert rank.close() == {"forward_s": 17, "compiling_s": 14}


def list_moves(rank: Rank) -> list[Any]:
    found, optimizers = rank.recorder, [object(), object()]
    return [
        *(partial(found.begin, phase) for phase in range(10)),
        *(partial(found.end, phase) for phase in range(1, 10)),
        *(partial(found.begin_optimizer, one) for one in optimizers),
        *(partial(found.end_optimizer, one) for one in optimizers),
        partial(found.begin_backward, None),
        found.end_backward,
        partial(found.begin_collective, recorder.COLLECTIVE),
        partial(found.note_interlude, recorder.GARBAGE, True),
        partial(found.note_interlude, recorder.COMPILING, False),
    ]


def test_any_order_of_beginnings_and_ends_adds_up_to_the_step() -> None:
    dice = random.Random(7)
    for _ in range(200):
        rank = Rank()
        moves = list_moves(rank)
        for _ in range(40):
            dice.choice(moves)()
            rank.spend(dice.random())
        assert min(rank.close().values()) > 0


def test_a_collective_inside_another_is_one_and_one_beside_the_training_is_none() -> None:
    rank = Rank()
    assert rank.recorder.begin_collective(recorder.COLLECTIVE)
    assert not rank.recorder.begin_collective(recorder.COLLECTIVE)
    rank.spend(3)
    rank.recorder.end(recorder.COLLECTIVE)
    found = []
    beside = threading.Thread(
        target=lambda: found.append(rank.recorder.begin_collective(recorder.COLLECTIVE))
    )
    beside.start()
    beside.join()
    assert found == [False]
    assert rank.close() == {"collectives_s": 3}


def test_of_many_collectives_the_last_are_told_as_one() -> None:
    rank = Rank()
    for _ in range(100):
        rank.recorder.begin_collective(recorder.COLLECTIVE)
        rank.spend(1)
        rank.recorder.end(recorder.COLLECTIVE)
    step = rank.recorder.close_step(rank.clock.mark(), 1)
    _, calls = recorder.split_step(step, rank.clock)
    assert len(calls) == recorder.MOST_CALLS
    assert sum(calls) == 100


def test_a_reduction_that_ddp_logs_belongs_to_the_step_of_its_forward() -> None:
    rank, model, steps = Rank(), object(), []

    def pass_step(ended: int, exposed_s: float) -> None:
        rank.recorder.note_reduction(model, {"backward_comm_time_end": ended}, exposed_s)
        steps.append(rank.recorder.close_step(rank.clock.mark(), 1))
        rank.recorder.begin_step(rank.clock.mark())

    pass_step(1, 9.0)  # of a step that nobody watched
    pass_step(2, 0.5)
    pass_step(2, 0.5)  # the forward before reduced nothing
    pass_step(3, 0.25)
    assert [step.exposed_s for step in steps] == [0.5, 0.0, 0.25, None]


def make_rank(step_s: float, steps: int = 10, calls: Any = (), **phases: float) -> Any:
    """A rank of equal steps: `exposed` is in backward."""
    exposed = phases.pop("exposed", None)
    named = {f"{name}_s": [seconds] * steps for name, seconds in phases.items()}
    rest = step_s - sum(phases.values()) - sum(calls)
    return rank_arm.RankArm(
        step_time_s=[step_s] * steps,
        samples=[8] * steps,
        flags=[0] * steps,
        losses=[None] * steps,
        cycles=[0] * steps,
        exposed_s=[exposed] * steps,
        saves_beside=[False] * steps,
        phases={**named, "own_code_s": [rest] * steps, "collectives_s": [sum(calls)] * steps},
        collectives=[list(calls)] * steps if calls else [],
        replicas=True,
    )


def tell(*arms: Any) -> dict[str, Any]:
    found: dict[str, Any] = account.account_for(arms, len(arms[0].step_time_s))
    for rank, phases in enumerate(found["per_rank_phases"]):
        assert phases.total_s() == pytest.approx(found["per_rank_step_time_s"][rank])
        assert all((seconds or 0.0) > -1e-9 for _, seconds in phases.list_named())
    return found


def test_a_rank_that_is_busy_in_its_own_code_is_named_and_communication_is_the_wires() -> None:
    waiting = make_rank(0.208, forward=0.002, backward=0.204, exposed=0.202, optimizer=0.001)
    busy = make_rank(0.208, forward=0.002, backward=0.006, exposed=0.004, optimizer=0.001)
    found = tell(waiting, busy)
    assert found["late"].rank == found["phases_rank"] == 1
    assert found["late"].part == "own_code_s"
    assert found["late"].waited_s == pytest.approx(0.198)
    assert found["phases"].exposed_comm_s == pytest.approx(0.004)
    assert found["phases"].own_code_s == pytest.approx(0.199)
    assert found["per_rank_work_s"] == pytest.approx((0.01, 0.208))


@pytest.mark.parametrize("part", ["data_wait", "forward", "optimizer"])
def test_the_late_rank_is_named_with_the_part_in_which_it_exceeds_the_others(part: str) -> None:
    others = [make_rank(0.1, forward=0.01, backward=0.07, exposed=0.06, optimizer=0.01) for _ in range(3)]
    parts = {"forward": 0.01, "optimizer": 0.01}
    late = make_rank(0.1, backward=0.02, exposed=0.01, **{**parts, part: parts.get(part, 0.0) + 0.05})
    found = tell(*others[:2], late, others[2])
    assert (found["late"].rank, found["late"].part) == (2, f"{part}_s")


def test_a_rank_that_comes_late_to_a_collective_of_the_scripts_own_is_named() -> None:
    found = tell(
        make_rank(0.1, forward=0.01, backward=0.02, exposed=0.0, calls=(0.06, 0.001)),
        make_rank(0.1, forward=0.01, backward=0.02, exposed=0.0, calls=(0.01, 0.001)),
    )
    assert (found["late"].rank, found["late"].part) == (1, "own_code_s")
    assert found["phases"].collectives_s == pytest.approx(0.011)
    assert found["per_rank_phases"][0].wait_s == pytest.approx(0.05)


def test_ranks_that_wait_for_each_other_in_turn_name_nobody_and_keep_their_waiting() -> None:
    """Each works while the other waits: averaged over ranks nobody would wait."""
    first = make_rank(0.1, forward=0.01, backward=0.02, exposed=0.0, calls=(0.04, 0.001))
    second = make_rank(0.1, forward=0.01, backward=0.02, exposed=0.0, calls=(0.001, 0.04))
    found = tell(first, second)
    assert found["late"] is None
    assert found["phases"].wait_s == pytest.approx(0.039)


def test_collectives_that_differ_between_ranks_tell_nothing_of_waiting() -> None:
    found = tell(
        make_rank(0.1, forward=0.01, backward=0.02, exposed=0.0, calls=(0.06,)),
        make_rank(0.1, forward=0.01, backward=0.02, exposed=0.0, calls=(0.001, 0.02)),
    )
    assert found["late"] is None
    assert [phases.wait_s for phases in found["per_rank_phases"]] == [0.0, 0.0]
    assert found["per_rank_phases"][0].collectives_s == pytest.approx(0.06)


def test_where_ddp_was_not_asked_no_rank_is_called_late() -> None:
    found = tell(make_rank(0.1, forward=0.01, backward=0.08), make_rank(0.1, forward=0.01, backward=0.02))
    assert found["late"] is None
    assert found["phases"].exposed_comm_s is None


def test_the_broadcast_of_buffers_is_no_reduction_of_gradients() -> None:
    parts = {"forward": 0.01, "backward": 0.03, "exposed": 0.01}
    found = tell(make_rank(0.1, buffers=0.04, **parts), make_rank(0.1, buffers=0.045, **parts))
    assert found["phases"].buffers_s == pytest.approx(0.04)
    assert found["phases"].exposed_comm_s == pytest.approx(0.01)
    assert found["per_rank_phases"][1].wait_s == pytest.approx(0.005)


def test_a_profile_says_what_of_the_timed_backward_is_communication() -> None:
    waiting = make_rank(0.1, forward=0.01, backward=0.08)
    late = make_rank(0.1, forward=0.01, backward=0.03)
    waiting.profiled.extend([(0.09, 0.07)] * 4 + [(0.09, None)])
    late.profiled.extend([(0.04, 0.02)] * 4 + [(0.04, None)])
    found = tell(waiting, late)
    assert found["late"].rank == 1
    assert found["per_rank_phases"][0].backward_s == pytest.approx(0.02)
    assert found["per_rank_phases"][1].exposed_comm_s == pytest.approx(0.01)


def test_averaging_at_boundaries_is_all_the_communication_there_is() -> None:
    ranks = [make_rank(0.1, forward=0.01, backward=0.03, reduction=seconds) for seconds in (0.02, 0.03)]
    found = tell(*(replace(rank, averages=True) for rank in ranks))
    assert found["phases"].exposed_comm_s == pytest.approx(0.02)
    assert found["per_rank_phases"][1].wait_s == pytest.approx(0.01)
    assert found["phases"].backward_s == pytest.approx(0.03)


def test_an_evaluation_in_few_steps_is_told_apart_and_means_add_up() -> None:
    rank = make_rank(0.1, steps=20, forward=0.03, backward=0.05, exposed=0.0)
    rank.step_time_s[7] += 2.0
    rank.phases["own_code_s"][7] += 2.0
    rank.flags[7] = recorder.INTERRUPTED
    found = tell(rank, rank)
    assert found["phases"].evaluation_s == pytest.approx(0.1)
    assert found["phases"].own_code_s == pytest.approx(0.02)


def test_what_an_evaluation_reads_and_gathers_belongs_to_it_and_training_keeps_its_own() -> None:
    """Each metric is gathered by all ranks: nothing that a training step could call less often."""
    ranks = [
        make_rank(0.1, steps=20, forward=0.03, backward=0.05, exposed=0.0, calls=(0.004,)) for _ in range(2)
    ]
    for rank in ranks:
        rank.step_time_s[7] += 3.0
        rank.phases["own_code_s"][7] += 1.0
        rank.phases["data_wait_s"] = [0.0] * 7 + [0.5] + [0.0] * 12
        rank.phases["collectives_s"][7] += 1.5
        rank.collectives[7] = [0.004, *[0.5] * 3]
        rank.flags[7] = recorder.INTERRUPTED
    found = tell(*ranks)["phases"]
    assert found.evaluation_s == pytest.approx(3.0 / 20)
    assert (found.collectives_s, found.data_wait_s) == (pytest.approx(0.004), pytest.approx(0.0))


def test_what_others_wait_while_one_rank_evaluates_is_still_waiting_for_it() -> None:
    waiting, late = (make_rank(0.1, steps=20, backward=0.05, exposed=0.0, calls=(0.004,)) for _ in range(2))
    for rank in (waiting, late):
        rank.step_time_s[7] += 2.0
    late.phases["own_code_s"][7] += 2.0
    late.flags[7] = recorder.INTERRUPTED
    waiting.phases["collectives_s"][7] += 2.0
    waiting.collectives[7] = [2.004]
    found = tell(waiting, late)
    assert (found["late"].rank, found["late"].part) == (1, "evaluation_s")
    assert found["late"].waited_s == pytest.approx(0.1)


def test_computing_that_takes_several_times_as_long_in_some_steps_is_a_stall() -> None:
    rank = make_rank(0.1, steps=20, forward=0.03, backward=0.05, exposed=0.0)
    rank.step_time_s[3] += 1.0
    rank.phases["forward_s"][3] += 1.0
    found = tell(rank, rank)
    assert found["phases"].stalls_s == pytest.approx(0.05)
    assert found["phases"].forward_s == pytest.approx(0.03)


def test_a_save_in_the_training_thread_interrupts_a_step_and_one_beside_it_is_told_of_the_late_rank() -> None:
    rank, begun, done = Rank(), threading.Event(), threading.Event()

    def save() -> None:
        rank.recorder.begin_save()
        begun.set()
        done.wait()
        rank.recorder.end_save()

    def close() -> Any:
        step = rank.recorder.close_step(rank.clock.mark(), 1)
        rank.recorder.begin_step(rank.clock.mark())
        return step.flag, step.saves_beside

    beside = threading.Thread(target=save)
    beside.start()
    begun.wait()
    found = [close(), close()]
    done.set()
    beside.join()
    found += [close(), close()]
    assert found == [(recorder.PLAIN, True)] * 3 + [(recorder.PLAIN, False)], (
        "one that ends in a step is in it, too"
    )
    rank.recorder.begin_save()
    rank.recorder.end_save()
    assert close() == (recorder.INTERRUPTED, False)

    waiting = make_rank(0.1, forward=0.01, backward=0.07, exposed=0.06)
    late = make_rank(0.1, forward=0.06, backward=0.02, exposed=0.01)
    assert tell(waiting, late)["late"].saves_beside == 0.0
    late.saves_beside[:6] = [True] * 6
    assert tell(waiting, late)["late"].saves_beside == pytest.approx(0.6)


def test_of_many_ranks_the_account_of_one_is_told() -> None:
    ranks = [make_rank(0.1, forward=0.01, backward=0.02, exposed=0.0) for _ in range(65)]
    found = tell(*ranks)
    assert found["per_rank_phases"] == ()
    assert len(found["per_rank_work_s"]) == 65
