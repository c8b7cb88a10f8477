"""Whether a strategy leaves every bit of the training as the first arm does: the same steps from the same state.

Each run makes a few steps under its strategy that only read on, then puts the saved state back and makes the steps that
count, on the batches, with the random numbers and the learning rates of the same steps of the first run. Then all
parameters, buffers and optimizer states are digested. Buffers and optimizer states count too, because the next step
begins from them: where they are equal, training goes on equally.

The first arm runs once more at the end. Where it differs from itself the script does not repeat itself (batches that it
makes with a generator of its own, kernels that add in any order), and nothing is certified.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Generator, List, Optional, Sequence, Tuple

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..guard import guarded
from ..levers.lever import Training
from ..link import beat
from ..loading.random_numbers import RandomNumbers
from ..observe.digests import digest
from ..observe.memory import count_free_host_bytes
from ..observe.recorder import StepMarks
from .arm import Arm
from .loss_check import READ_BEFORE, Steps
from .parts import RankParts
from .snapshot import (
    TrainingSnapshot,
    explain_no_snapshot,
    is_number,
    list_states,
    list_tensors,
    put_back,
    save,
)

_ALONE = (
    "It was launched by itself, where no state is one that the script's own settings went on from: its bits cannot be "
    "held against theirs."
)


class BitCheck:
    """The runs of one race on this rank, each to be made under the strategy that is in force."""

    def __init__(self, parts: RankParts, steps: int, snapshot: TrainingSnapshot) -> None:
        self._parts, self._steps, self._snapshot = parts, steps, snapshot
        self._random: List[RandomNumbers] = []
        self._rates: List[List[Dict[str, Any]]] = []
        self._updates = 0
        self._reference: Dict[Any, bytes] = {}

    def run(self) -> Generator[None, Optional[StepMarks], Tuple[int, int]]:
        """How many tensors are other ones than after the first run, and of how many. The saved state is back then."""
        parts = self._parts
        parts.reading.begin_replay()
        unhook: Optional[Callable[[], None]] = None
        try:
            for place in range(READ_BEFORE + self._steps):
                if place == READ_BEFORE:
                    self._snapshot.restore()
                    self._updates = 0
                    unhook = register_optimizer_step_pre_hook(guarded(self._before_update)).remove
                self._meet_random_numbers(place)
                yield
            found = digest_training(parts.gather_training())
        finally:
            if unhook is not None:
                unhook()
            parts.reading.end_replay()
        self._snapshot.restore()
        self._reference = self._reference or found
        names = {*found, *self._reference}
        differ = sum(found.get(name) != self._reference.get(name) for name in names)
        return parts.agree_on_most([differ], "a comparison of all bits")[0], len(names)

    def _meet_random_numbers(self, place: int) -> None:
        if place < len(self._random):
            self._random[place].restore()
        else:
            device = self._parts.device
            devices = [device.index or 0] if device.type == "cuda" else []
            self._random.append(RandomNumbers(devices, others=True))

    def _before_update(self, optimizer: Any, *_: Any) -> None:
        """A scheduler counts on from run to run: each update has the numbers of the same update of the first run."""
        place, self._updates = self._updates, self._updates + 1
        if place == len(self._rates):
            self._rates.append(
                [
                    {name: save(value) for name, value in group.items() if is_number(value)}
                    for group in optimizer.param_groups
                ]
            )
        elif place < len(self._rates):
            for group, numbers in zip(optimizer.param_groups, self._rates[place]):
                put_back(group, numbers)


def check_bits(
    parts: RankParts,
    arms: Sequence[Arm],
    switch_to: Callable[[Arm], bool],
    steps: int,
    saved: Optional[TrainingSnapshot],
) -> Steps:
    """Collective. Gives every arm that races its certificate, or the sentence why it has none.

    `saved` is the state that the race keeps anyway; without one a state is saved for the check alone.
    """
    training, racing = parts.gather_training(), [arm for arm in arms if arm.races]
    parts.enter(beat.WARMING_UP)
    own = explain_no_snapshot(training, parts.local_world_size, count_free_host_bytes()) or ""
    refusal = parts.agree_on_refusal(own, "whether all bits can be compared")
    if len(arms) == 1 and arms[0].order.overrides:
        refusal = refusal or _ALONE
    for arm in racing:
        arm.bits_differ = refusal
    if refusal or arms[0] not in racing:
        return
    check = BitCheck(parts, steps, saved or TrainingSnapshot(training))
    found: List[Tuple[Arm, int, int]] = []
    for arm in [*racing, arms[0]]:
        if switch_to(arm):
            differ, total = yield from check.run()
            found.append((arm, differ, total))
    last, own_differ, total = found[-1]
    if last is not arms[0] or len(found) < 2:
        own_differ = total
    for arm, differ, total in found:
        arm.bits_differ = explain_no_equality(differ, total, own_differ, steps)
        arm.bit_steps = 0 if arm.bits_differ else steps


def digest_training(training: Training) -> Dict[Any, bytes]:
    """A digest of every tensor that the next step begins from, by what it is; waits for the device."""
    found: Dict[Any, bytes] = {}
    with torch.no_grad():
        for place, tensor in enumerate(list_tensors(training)):
            found[place] = digest(tensor)
        for place, optimizer in enumerate(training.optimizers):
            # By their order: a state that is made anew has another identity, and the same bits.
            for row, (_, state) in enumerate(list_states(optimizer)):
                for name, value in state.items():
                    found[place, row, str(name)] = digest(save(value))
    return found


def explain_no_equality(differ: int, total: int, own_differ: int, steps: int) -> str:
    """Why an arm has no certificate; "" where it has one. `own_differ`: tensors that the first arm left differently."""
    where = f"{steps} steps from the same state, with the same batches, random numbers and learning rates"
    if own_differ:
        return (
            f"The script as it stands does not repeat itself, so that nothing can be certified: {where}, left "
            f"{own_differ} of {total} tensors different the second time. It draws batches or random numbers outside "
            "torch's loaders and generators, or its kernels add in any order (torch.use_deterministic_algorithms)."
        )
    if differ:
        return (
            f"Not bit for bit: {where}, left {differ} of {total} tensors (parameters, buffers, optimizer states) "
            "other than under the script's own settings."
        )
    return ""
