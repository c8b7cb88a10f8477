"""A real training that tunes itself: races between its own steps, until the tuner says what it goes on with.

Only exact strategies race, so that the training is what it would have been. Whatever happens to the tuner, it goes on.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ..levers.reduction.reducer import is_joining
from ..link.say import say
from ..link.trouble import describe_trouble
from ..races.parts import RankParts
from ..rank_process import FAILED
from .conversation import Conversation
from .production import Production


class OnlineTuning(Conversation):
    """The first steps and the races of a trial; then the strategy that was found, as if it had been given."""

    patience_s = 60.0
    saves_training = False

    def __init__(self, parts: RankParts) -> None:
        super().__init__(parts)
        self._found: Dict[str, Any] = {}

    def _begin(self) -> None:
        if not any(is_joining(ddp) for ddp in self._parts.list_replicas()):
            super()._begin()
            return
        self._describe_script()
        trouble = describe_trouble("joins")
        if self._parts.rank == 0:
            self._process.reach_agent().send(trouble)
        self._end({"exit_code": FAILED, "reason": trouble["sentence"]})

    def _describe_script(self) -> Dict[str, Any]:
        self._found = super()._describe_script()
        return self._found

    def finish_script(self) -> None:
        self._process.hang_up()

    def _end(self, reply: Mapping[str, Any]) -> None:
        environment = self._process.environment
        if reply.get("exit_code") and self._parts.rank == 0:
            say(f"Tuning is over, the training goes on as it was: {reply.get('reason')}")
        self._process.hang_up()
        changes = {**environment.base, **(reply.get("overrides") or {})}
        strategy = {**(environment.strategy or {}), "changes": changes}
        self.successor = production = Production(self._parts, strategy, self._found)
        production.take_over()
