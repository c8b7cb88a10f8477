"""The lever of num_threads: torch's intra-op threads."""

from __future__ import annotations

import os
from typing import Any, Dict, Mapping, Optional

import torch

from ..lever import Evidence, Lever, Training, read_count


class Threads(Lever):
    knobs = ("num_threads",)
    serves_plain = True
    serves_sharded = True
    serves_engines = True
    proves_state = True

    def __init__(self) -> None:
        self._baseline = torch.get_num_threads()
        self._wanted: Optional[int] = None
        self._rejected = ""

    def observe(self, training: Training) -> Dict[str, Any]:
        """The script's own number, read when it is certain that the script has set it."""
        self._baseline = torch.get_num_threads()
        return {"num_threads": self._baseline}

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        is_the_scripts = self._wanted is not None and torch.get_num_threads() != self._wanted
        self._wanted, self._rejected = None, ""
        if "num_threads" in values:
            try:
                self._wanted = read_count(values["num_threads"], 1)
                if self._wanted > 4 * (os.cpu_count() or 1):
                    raise ValueError(f"{self._wanted} threads are more than four per core of this machine")
            except ValueError as error:
                self._wanted, self._rejected = None, f"num_threads was not set: {error}."
        if is_the_scripts:  # set since then: what it goes back to
            self._baseline = torch.get_num_threads()
        target = self._wanted or self._baseline
        if torch.get_num_threads() != target:
            torch.set_num_threads(target)

    def describe_in_force(self, chosen: Mapping[str, Any]) -> Any:
        return torch.get_num_threads()

    def prove(self) -> Evidence:
        if self._rejected:
            return Evidence(not_consumed={"num_threads": self._rejected})
        if self._wanted is None:
            return Evidence()
        found = torch.get_num_threads()
        sentence = f"torch.get_num_threads() is {found}."
        if found == self._wanted:
            return Evidence(consumed={"num_threads": sentence})
        return Evidence(
            not_consumed={"num_threads": f"{sentence} The script set it back from {self._wanted}."}
        )
