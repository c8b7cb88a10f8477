"""The lever of sharding_forward_prefetch and sharding_backward_prefetch: how far ahead parameters are gathered."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ... import private_torch
from ...observe.memory import count_room_at_peak
from ...observe.sharded import count_gathered_bytes, find_device, list_inner, list_parts
from ..lever import Evidence, Lever, Training, read_count
from ..reduction.communicators import agree_on_most
from .gather_watch import (
    BACKWARD,
    FORWARD,
    GatherWatch,
    order_by_beginning,
    order_for_backward,
    read_forward_order,
)
from .layers import explain_no_layers
from .leftovers import Leftovers

KNOBS = {FORWARD: "sharding_forward_prefetch", BACKWARD: "sharding_backward_prefetch"}
_FIXED = (
    "FullyShardedDataParallel fixes what it gathers ahead as the model is built. Set forward_prefetch and "
    "backward_prefetch by hand, or shard with fully_shard, which can change it between steps."
)
OWN_DEPTH = {FORWARD: 0, BACKWARD: 1}
"""What fully_shard does unasked: it gathers as a forward comes to a module, and one module ahead in a backward."""
_COPIES = 2
"""Of a module's parameters while they are gathered: what was received, and what is laid out from it."""


class Prefetching(Lever):
    """Sets fully_shard's own lists of what each module gathers ahead.

    The order of the modules is that of the first forward that is seen under a strategy with one of these knobs. Each
    module's list ends where the fullest rank would have no memory for more: large modules are gathered less far ahead.
    """

    knobs = tuple(KNOBS.values())
    serves_sharded = True
    serves_replicas = False

    def __init__(self) -> None:
        self._own: List[Tuple[Any, List[Any], List[Any]]] = []
        """Each module's state with the script's own lists of states, forward and backward."""
        self._baseline = dict(OWN_DEPTH)
        self._wanted: Dict[str, int] = {}
        self._rejected: Dict[str, str] = {}
        self._orders: Dict[Any, List[Any]] = {}
        """Root -> the modules inside it as a forward ended them."""
        self._expected: Dict[str, int] = {}
        self._room = 0
        """Bytes for what is gathered ahead, on the fullest rank; 0 where a rank does not know."""
        self._shortened: Dict[str, int] = {}
        """Phase -> modules whose list the room has shortened."""
        self._leftovers = Leftovers(of_gathers_ahead=True)
        self._watches: Dict[Any, GatherWatch] = {}
        """Root -> what was seen since timing began."""
        self._watching: List[GatherWatch] = []

    def list_refusals(self, training: Training) -> Dict[str, str]:
        sentence = _explain_no_prefetching(training)
        return {} if sentence is None else dict.fromkeys(self.knobs, sentence)

    def observe(self, training: Training) -> Dict[str, Any]:
        if _explain_no_prefetching(training) is not None:
            return {}
        ahead, back = private_torch.FORWARD_STATES, private_torch.BACKWARD_STATES
        states = [state for root in training.sharded for state in list_parts(root)]
        self._own = [(state, ahead.of(state), back.of(state)) for state in states]
        self._baseline = {
            FORWARD: max((len(own) for _, own, _ in self._own), default=0),
            BACKWARD: max(1, max((len(own) for _, _, own in self._own), default=0)),
        }
        return {knob: self._baseline[phase] for phase, knob in KNOBS.items()}

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._stop_watching()
        self._wanted, self._rejected, self._expected, self._shortened = {}, {}, {}, {}
        for state, ahead, back in self._own:
            private_torch.FORWARD_STATES.set(state, ahead)
            private_torch.BACKWARD_STATES.set(state, back)
        for phase, knob in KNOBS.items():
            if knob in values:
                try:
                    self._wanted[phase] = read_count(values[knob], OWN_DEPTH[phase])
                except ValueError as error:
                    self._rejected[knob] = f"{knob} was not set: {error}."
        self.is_on = bool(self._wanted)
        self._leftovers.stop()
        if self.is_on:
            device = find_device(training.sharded[0])
            self._room = -agree_on_most([-count_room_at_peak(device)], device)[0]
            for root in training.sharded:
                self._set_lists(root)
            if self._wanted.get(FORWARD, 0) > self._baseline[FORWARD]:
                # A forward that takes a part of the model gathers what it comes to nowhere.
                self._leftovers.watch(list_inner(training.sharded), training.sharded)
        # The order is known after a forward, and the next one goes by it.
        self.least_warm_up = 2 if self.is_on and any(r not in self._orders for r in training.sharded) else 0
        self.begin_timing()

    def _set_lists(self, root: Any) -> None:
        if root not in self._orders:
            return
        ended = self._orders[root]
        chains = {FORWARD: [root, *order_by_beginning(ended)], BACKWARD: [root, *order_for_backward(ended)]}
        sizes = count_gathered_bytes(root)
        for phase, depth in self._wanted.items():
            chain, longest = chains[phase], 0
            for place, module in enumerate(chain):
                # Without a list fully_shard does what it does unasked.
                asked = chain[place + 1 : place + 1 + depth] if depth != OWN_DEPTH[phase] else []
                listed = asked[: max(OWN_DEPTH[phase], self._count_fitting(asked, sizes))]
                self._shortened[phase] = self._shortened.get(phase, 0) + (len(listed) < len(asked))
                longest = max(longest, len(listed))
                if phase == FORWARD:
                    module.set_modules_to_forward_prefetch(listed)
                else:
                    module.set_modules_to_backward_prefetch(listed)
            expected = longest if depth != OWN_DEPTH[phase] else depth
            self._expected[phase] = max(expected, self._expected.get(phase, 0))

    def _count_fitting(self, modules: Sequence[Any], sizes: Mapping[Any, int]) -> int:
        """How many of them, from the first on, can be gathered at once."""
        together = accumulate(_COPIES * sizes.get(module, 0) for module in modules)
        return len(modules) if self._room <= 0 else sum(taken <= self._room for taken in together)

    def before_forward(self, ddp: Any) -> None:
        if ddp in self._orders and ddp not in self._watches:
            self._watches[ddp] = GatherWatch(ddp)
            self._watching.append(self._watches[ddp])
            self._watches[ddp].start()

    def after_forward(self, ddp: Any) -> None:
        if ddp not in self._orders:
            self._orders[ddp] = read_forward_order(ddp)
            self._set_lists(ddp)
        elif ddp in self._watches:
            self._watches[ddp].phase = BACKWARD

    def after_backward(self) -> None:
        self._stop_watching()

    def before_step(self) -> None:
        self._leftovers.drop()

    def end_segment(self, training: Training) -> None:
        self._leftovers.stop()
        self._stop_watching()

    def _stop_watching(self) -> None:
        for watch in self._watching:
            watch.stop()
        self._watching = []

    def begin_timing(self) -> None:
        self._stop_watching()
        self._watches = {}

    def prove(self) -> Evidence:
        evidence = Evidence(not_consumed=dict(self._rejected))
        for phase, wanted in self._wanted.items():
            knob, watches = KNOBS[phase], list(self._watches.values())
            found = max((watch.most_ahead[phase] for watch in watches), default=0)
            gathers = sum(watch.gathers[phase] for watch in watches)
            if not gathers:
                kept = ", because they stay gathered from the forward on" if phase == BACKWARD else ""
                evidence.not_consumed[knob] = f"A {phase} gathered no parameters{kept}."
                continue
            sentence = f"A {phase} gathered the parameters of up to {_count(found)} ahead of their use."
            if shortened := self._shortened.get(phase):
                room = f"the fullest rank has {self._room / 2**30:.3g} GiB for more"
                sentence += f" Before {_count(shortened)} fewer than {wanted}: {room}."
            proved = found == self._expected.get(phase)
            (evidence.consumed if proved else evidence.not_consumed)[knob] = sentence
            if proved and found == self._baseline[phase]:
                evidence.no_effect[knob] = f"The script gathers {_count(found)} ahead already."
        return evidence


def _count(modules: int) -> str:
    return "1 module" if modules == 1 else f"{modules} modules"


def _explain_no_prefetching(training: Training) -> Optional[str]:
    missing = explain_no_layers(training.sharded, _FIXED, "there is nothing to gather ahead")
    if missing is not None:
        return missing
    states = [state for root in training.sharded for state in list_parts(root)]
    lists = (private_torch.FORWARD_STATES, private_torch.BACKWARD_STATES)
    missing = next(filter(None, (private_torch.explain_missing(state, lists) for state in states)), None)
    if missing is not None:
        return missing
    groups = [group for found in list_inner(training.sharded).values() for group in found]
    needed = (private_torch.GATHER_CONTEXT, private_torch.GATHERED)
    missing = next(filter(None, (private_torch.explain_missing(group, needed) for group in groups)), None)
    return missing or private_torch.explain_missing(
        private_torch.GATHER_CONTEXT.of(groups[0]), (private_torch.FORWARD_ORDER,)
    )
