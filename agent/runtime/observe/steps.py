"""Finds where one training step ends and the next begins, from the order of optimizer steps and forwards."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

WATCHED_OPTIMIZER_STEPS = 12
"""How many optimizer steps are watched before the leader of several optimizers is named."""
LONE_OPTIMIZER_STEPS = 4
"""How many are enough while only one optimizer has stepped."""
MOST_STRANGERS = 3
"""As many optimizers that hold no parameter of a model may belong to a script's cycle. A script with more makes them
anew in every step, as meta-learning and attacks do: none of them closes a step."""
_ANY_STRANGER = 0
MOST_IN_TURN = 3
"""As many optimizers of the same parameters may take turns. A script with more makes them anew every few steps, and
they are one to it."""
MOST_RESTARTS = 5
"""So often is a leader looked for anew, where hardly any step is left between two searches."""


def choose_leader(order: List[int]) -> int:
    """The optimizer that closes a step: of those that step least often, the one that came last in the cycle.

    `order` holds one identity per optimizer step. A generator trained once per five critic steps closes the step; of
    two that alternate, the second does.
    """
    counts: Dict[int, int] = {}
    for identity in order:
        counts[identity] = counts.get(identity, 0) + 1
    fewest = min(counts.values())
    return [identity for identity in counts if counts[identity] == fewest][-1]


class StepWatch:
    """A step begins at the first training forward after a step of the leading optimizer.

    That is the one moment at which no reducer is in flight, whether the script accumulates gradients, has several
    optimizers or runs forward and backward inside a closure.
    """

    def __init__(self, is_strange: Callable[[Any], bool]) -> None:
        """`is_strange` is asked at the first step of each optimizer: whether it holds no parameter of a model."""
        self._is_strange = is_strange
        self._order: List[int] = []
        self._known: Dict[int, Tuple[Any, int]] = {}
        """Each that has stepped, by its identity, with its number in the order of appearance: a dead one's identity is
        given again, on one rank sooner than on another."""
        self._came = 0
        self._strangers: Set[int] = set()
        """Numbers of those that hold no parameter of a model; one number for all from the time that they are many."""
        self._has_own = False
        """Whether another has stepped."""
        self._in_turn: List[Tuple[Any, Any, List[int]]] = []
        """First and last parameter of optimizers, with the numbers of the first few that held these."""
        self._numbers: Set[int] = set()
        """All that were given."""
        self._restarts = 0
        self._made: List[Any] = []
        """Optimizers that have not stepped yet."""
        self._waiting: Tuple[Any, List[Any]] = (None, [])
        """Those of the models that were asked about last, with what that answer holds for."""
        self._leader: Optional[int] = None
        self._settled: Optional[int] = None
        """Identity of the leading optimizer while it lives and nothing is left to be learned from its steps."""
        self.leader_stepped = False
        """Whether the next training forward opens a new step."""
        self._told = False
        """The script itself says where its steps end."""
        self.optimizer_steps = 0
        self._leader_steps = 0

    @property
    def training_steps(self) -> int:
        """Steps of the leader so far: what a user calls training steps."""
        if self._leader is None and self._order:
            return max(self._leader_steps, self._order.count(choose_leader(self._order)))
        return self._leader_steps

    def note_told_step(self) -> None:
        """The script says that a step ended: from here on its word counts, not the optimizers."""
        self._told = self.leader_stepped = True
        self._settled = None
        self.optimizer_steps += 1
        self._leader_steps += 1

    def note_made(self, optimizer: Any) -> None:
        """The script has made an optimizer, perhaps for later."""
        self._made = [made for made in self._made if made() is not None]
        self._made.append(weakref.ref(optimizer))

    def note_optimizer_step(self, optimizer: Any) -> bool:
        """Whether another one has come, that takes no other's place."""
        if id(optimizer) == self._settled:
            self.leader_stepped = True
            self.optimizer_steps += 1
            self._leader_steps += 1
            return False
        is_new = not self.knows(optimizer) and self._meet(optimizer, self._is_strange(optimizer))
        number = self._known[id(optimizer)][1]
        if self._told:
            return is_new
        self.optimizer_steps += 1
        if number in self._strangers and self._leaves_strangers_out:
            return is_new
        if is_new and self._leader is not None:
            # A new optimizer came after the leader was named: watch again, from the step after this one, which
            # probably closes a cycle.
            self._leader, self._settled, self._order = None, None, []
            self._restarts += 1
            return True
        if self._leader is None:
            self._order.append(number)
            enough = LONE_OPTIMIZER_STEPS if self._came == 1 else WATCHED_OPTIMIZER_STEPS
            if len(self._order) >= enough:
                self._leader = choose_leader(self._order)
                self._leader_steps = max(self._leader_steps, self._order.count(self._leader) - 1)
        if number == self._leader:
            self._settled = id(optimizer)
            self.leader_stepped = True
            self._leader_steps += 1
        return is_new

    @property
    def has_leader(self) -> bool:
        """Whether it is known which optimizer closes a step."""
        return self._told or self._leader is not None

    @property
    def _leaves_strangers_out(self) -> bool:
        """Not where no other optimizer steps: some scripts let copies of the parameters learn in another format."""
        return self._has_own and len(self._strangers) > MOST_STRANGERS

    @property
    def never_settles(self) -> bool:
        """Whether new optimizers come before it can be told who leads, again and again, and the earlier ones go. A
        script that keeps them, one for each parameter, comes to the end of its cycle."""
        few = 1.5 * WATCHED_OPTIMIZER_STEPS * self._restarts
        return (
            self._restarts >= MOST_RESTARTS
            and self.optimizer_steps <= few
            and 2 * len(self.list_optimizers()) <= self._came
        )

    def _meet(self, optimizer: Any, is_stranger: bool) -> bool:
        """Whether its number is a new one, too."""
        self._came += 1
        number = _ANY_STRANGER if is_stranger and len(self._strangers) > MOST_STRANGERS else self._came
        self._known = {key: known for key, known in self._known.items() if known[0]() is not None}
        self._made = [made for made in self._made if made() is not optimizer]
        if is_stranger:
            self._strangers.add(number)
        else:
            self._has_own = True
            number = self._take_turn(optimizer, number)
        self._known[id(optimizer)] = weakref.ref(optimizer, self._unsettle), number
        is_new = number not in self._numbers
        self._numbers.add(number)
        if self._leaves_strangers_out:
            self._order = [number for number in self._order if number not in self._strangers]
            if self._leader in self._strangers:
                self._leader = self._settled = None
        return is_new

    def _take_turn(self, optimizer: Any, number: int) -> int:
        """The number that it goes by: the first of its line, where several have had its parameters before it."""
        own = list_parameters(optimizer)
        if not own:
            return number
        self._in_turn = [turn for turn in self._in_turn if turn[0]() is not None and turn[1]() is not None]
        line = next((line for a, z, line in self._in_turn if a() is own[0] and z() is own[-1]), None)
        if line is None:
            line = []
            self._in_turn.append((weakref.ref(own[0]), weakref.ref(own[-1]), line))
        if len(line) < MOST_IN_TURN:
            line.append(number)
            return number
        one = dict.fromkeys(line, line[0])
        self._known = {key: (known, one.get(given, given)) for key, (known, given) in self._known.items()}
        self._order = [one.get(given, given) for given in self._order]
        self._leader = self._leader if self._leader is None else one.get(self._leader, self._leader)
        return line[0]

    def _unsettle(self, _died: Any) -> None:
        """An optimizer died: another one may be given its identity."""
        self._settled = None

    def knows(self, optimizer: Any) -> bool:
        """Whether this optimizer has stepped before."""
        known = self._known.get(id(optimizer))
        return known is not None and known[0]() is optimizer

    def list_optimizers(self) -> List[Any]:
        """Every optimizer that has stepped and still lives, in the order of first appearance."""
        return [
            optimizer for optimizer in (ref() for ref, _ in self._known.values()) if optimizer is not None
        ]

    def list_waiting(self, models: List[Any]) -> List[Any]:
        """Optimizers of these models that have not stepped yet."""
        if not self._made:
            return []
        # Asked at boundaries, where looking through all parameters would cost a step.
        asked = ([*self._made], [id(model) for model in models])
        if asked != self._waiting[0]:
            own = {id(parameter) for model in models for parameter in model.parameters()}
            made = [(ref, ref()) for ref in self._made]
            found = [ref for ref, optimizer in made if optimizer is not None and own & _list_ids(optimizer)]
            self._waiting = (asked, found)
        return [optimizer for optimizer in (ref() for ref in self._waiting[1]) if optimizer is not None]


def _list_ids(optimizer: Any) -> Set[int]:
    return {id(parameter) for parameter in list_parameters(optimizer)}


def list_parameters(optimizer: Any) -> List[Any]:
    """Those of all its groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
