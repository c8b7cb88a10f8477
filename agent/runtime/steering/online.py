"""A real training that tunes itself: races between its own steps, until the tuner says what it goes on with.

Only exact strategies race, so that the training is what it would have been. Whatever happens to the tuner, it goes on.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ..link.say import say
from ..races.parts import RankParts
from .conversation import Conversation
from .production import Production


class OnlineTuning(Conversation):
    """The first steps and the races of a trial; then the strategy that was found, as if it had been given."""

    patience_s = 50.0
    saves_training = False

    def __init__(self, parts: RankParts) -> None:
        super().__init__(parts)
        self._found: Dict[str, Any] = {}

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
