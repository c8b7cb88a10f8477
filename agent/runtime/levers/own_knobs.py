"""The lever of a user's own knobs: what `fleet_advisor.knob` answers, and the proof that the script asked."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from .. import current
from ..observe.sharded import find_kind
from .lever import Evidence, Lever, Training


class OwnKnobs(Lever):
    """Hot ones are switched between two steps; of the others, which stand since the launch, it only knows the proof."""

    serves_plain = True
    serves_sharded = True
    serves_engines = True
    starts_slowly = True  # another micro-batch allocates and chooses kernels anew

    def __init__(self, own: Mapping[str, Mapping[str, Any]]) -> None:
        """`own`: for each knob how it is put there (`how`), the `values` to try, whether it is `hot` and `exact`."""
        self._own = own
        hot = {name: about for name, about in own.items() if about.get("hot")}
        self.knobs = tuple(hot)
        self.changes_training = tuple(name for name, about in hot.items() if not about.get("exact"))
        self._wanted: Mapping[str, Any] = {}
        self._seen: Dict[str, int] = {}
        self._engine = ""
        """What exchanges the model's gradients, in a clause."""

    def has(self, name: str) -> bool:
        """Whether it is one of the script's own."""
        return name in self._own

    def list_refusals(self, training: Training) -> Dict[str, str]:
        refused = {}
        for name, about in self._own.items():
            if about.get("how"):
                continue
            if name not in current.own_defaults:
                refused[name] = (
                    f'Nothing in the command holds {name}, and the script did not call fleet_advisor.knob("{name}", '
                    "VALUE) up to its first steps."
                )
            elif not _is_among(current.own_defaults[name], about.get("values", ())):
                refused[name] = (
                    f"The script's own value is {current.own_defaults[name]!r}, which is none of those to try: name "
                    "it, too."
                )
        return refused

    def observe(self, training: Training) -> Dict[str, Any]:
        """What the script itself has, where it asks."""
        if training.sharded or training.replicas:
            self._engine = find_kind(training.sharded[0]) if training.sharded else "DistributedDataParallel"
        asked = (name for name, about in self._own.items() if not about.get("how"))
        return {name: current.own_defaults[name] for name in asked if name in current.own_defaults}

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._wanted = dict(values)
        current.own_values.clear()
        current.own_values.update(values)

    def begin_timing(self) -> None:
        self._seen = dict(current.own_asked)

    def prove(self) -> Evidence:
        evidence = Evidence()
        for name, value in self._wanted.items():
            asked = current.own_asked.get(name, 0) - self._seen.get(name, 0)
            if asked > 0:
                evidence.consumed[name] = f'fleet_advisor.knob("{name}") answered {value!r}, {asked} times.'
            else:
                evidence.not_consumed[name] = (
                    f'The script did not call fleet_advisor.knob("{name}") in the timed steps.'
                )
        return evidence

    def prove_launched(self, name: str, value: Any) -> Evidence:
        """Of a knob that stands since the launch."""
        how = str(self._own[name].get("how", ""))
        if how and self._engine and isinstance(value, str):
            # Words that a program takes and makes nothing of are seen by this.
            how = f"{how} The model trains under {self._engine}."
        if how:
            return Evidence(consumed={name: how})
        if current.own_asked.get(name, 0) > 0:
            return Evidence(consumed={name: f'fleet_advisor.knob("{name}") answered {value!r}.'})
        return Evidence(
            not_consumed={
                name: f'Nothing in the command holds {name}, and the script did not call fleet_advisor.knob("{name}").'
            }
        )


def _is_among(value: Any, values: Any) -> bool:
    return any(str(value) == str(one) or value == one for one in values)
