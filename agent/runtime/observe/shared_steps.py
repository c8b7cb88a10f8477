"""Steps as all ranks count them alike: by the backward passes in which models exchange gradients.

A rank's own steps are no common count: one may skip an optimizer's step, drop a bad batch or accumulate otherwise. But
none can make an exchange more or less than the others, so whatever ranks do together has its place after so many.
Where none is seen any more, because the script averages parameters by hand or a pipeline prepares DDP's reducer itself,
what is left to count are the ranks' own steps. Where one rank trains alone its own steps are the common ones.
"""

from __future__ import annotations

from typing import Any, List, Optional

from .sharded import reduces_gradients

FIRST_LOOK = 4
"""Exchanges after which ranks ask each other for the first time whether they have seen enough."""
LATER = 1.3
"""Times as many exchanges at the next such look."""
UNSEEN = 8
"""A rank's own steps without an exchange after which these are counted instead, in times of the most that ever lay
between two: the model's copies exchange nothing by themselves, or not in passes that can be told."""


class SharedSteps:
    """Counts until the ranks have agreed on the exchanges of a step; from then on says where each step ends."""

    def __init__(self, is_alone: bool = False) -> None:
        """`is_alone`: there is one rank."""
        self._is_alone = is_alone
        self.exchanges = 0
        self.repeats_backward = False
        """Whether a backward pass came without a forward before it."""
        self.reads_between = False
        """Whether gradients were read before the last exchange ahead of an optimizer's step."""
        self._sharded: Any = None
        """The model of the last forward, where no DDP wraps it, until the ranks agree."""
        self._reductions, self.reductions = 0, 0
        """Passes that reduced a sharded model's gradients in the own step under way, and in the last one."""
        self._since_update = 0
        """Exchanges since an optimizer has stepped."""
        self._read_after: Optional[int] = None
        """How many of them had come when gradients were first read."""
        self._has_forward = False
        self._is_due = False
        """Whether a forward has come whose backward pass exchanges gradients."""
        self._since = 0
        """Exchanges since the last step ended."""
        self._quiet, self._longest = 0, 1
        """Own steps since the last exchange, and the most that lay between two."""
        self._own: List[int] = []
        """Exchanges in each of this rank's own steps."""
        self._length = 0
        self._next_look = FIRST_LOOK
        self.by_updates = False
        """Whether a step ends with its optimizer's, and each is counted: nothing is known of the models' exchanges."""

    def note_forward(self, model: Any) -> None:
        """A training forward of a replica, or of a sharded model, which has no such flag."""
        self._has_forward = True
        self._is_due = self._is_due or model.__dict__.get("require_backward_grad_sync", True)
        is_sharded = not self.are_agreed and "require_backward_grad_sync" not in model.__dict__
        self._sharded = model if is_sharded else None

    def note_backward(self) -> None:
        self.repeats_backward = self.repeats_backward or not self._has_forward
        self._has_forward = False
        sharded, self._sharded = self._sharded, None
        if sharded is not None:
            self._reductions += reduces_gradients(sharded)
        if self._is_due and not self.by_updates:
            self._is_due = False
            self._longest, self._quiet = max(self._longest, self._quiet), 0
            self._count()

    def note_read(self) -> None:
        """Gradients are about to be clipped or unscaled."""
        if self._read_after is None:
            self._read_after = self._since_update

    def note_update(self) -> None:
        """An optimizer steps."""
        self.reads_between |= self._read_after is not None and self._read_after < self._since_update
        self._since_update, self._read_after = 0, None

    def _count(self) -> None:
        self.exchanges += 1
        self._since += 1
        self._since_update += 1

    @property
    def length(self) -> int:
        """Exchanges in one of the ranks' common steps; 0 before they agree."""
        return self._length

    @property
    def are_agreed(self) -> bool:
        """Whether steps are the ranks' common ones by now."""
        return self._length > 0

    @property
    def is_look_due(self) -> bool:
        """Whether here all ranks ask each other whether they can begin."""
        return self._length == 0 and self.exchanges >= self._next_look

    def _end_own_step(self) -> None:
        self._quiet += 1
        if self.by_updates or self._quiet > UNSEEN * self._longest:
            self._count()
        if not self.are_agreed:
            self._own.append(self._since)
            self.reductions, self._reductions = self._reductions, 0
            self._since = 0

    def describe(self) -> List[int]:
        """At a look: exchanges so far, in a usual step, and in the step that is under way."""
        self._next_look = max(self.exchanges + 1, int(self.exchanges * LATER))
        recent = self._own[-3:]
        return [self.exchanges, max(1, round(sum(recent) / len(recent))) if recent else 0, self._since]

    def agree(self, length: int, since: int) -> None:
        """What one rank described holds for all from here on."""
        self._length, self._since = length, since % length

    def end_step(self, has_own_ended: bool, may_end: bool = True) -> bool:
        """At a forward: whether a step has ended, the ranks' common one or, until they agree, this rank's own."""
        if has_own_ended:
            self._end_own_step()
        if self._is_alone or not self.are_agreed:
            return has_own_ended
        has_ended = may_end and self._since >= self._length
        if has_ended:
            self._since = 0
        return has_ended
