"""The lever of cudnn_exhaustive_search: cuDNN tries its convolution algorithms and keeps the fastest for each shape."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

import torch

from ..lever import Evidence, Lever, Training, read_switch

SEARCH = "cudnn_exhaustive_search"
WORKSPACE = "conv_workspace_size_limit"


class Convolutions(Lever):
    """Also refuses the workspace limit, which cuDNN reads when the process starts, where it could do nothing."""

    knobs = (SEARCH,)
    changes_training = knobs
    serves_sharded = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._baseline = bool(torch.backends.cudnn.benchmark)
        self._wanted: Optional[bool] = None
        self._evidence = Evidence()

    def list_refusals(self, training: Training) -> Dict[str, str]:
        reason = self._explain_no_choice(training)
        return dict.fromkeys((SEARCH, WORKSPACE), reason) if reason is not None else {}

    def _explain_no_choice(self, training: Training) -> Optional[str]:
        if self._device.type != "cuda":
            return "The job trains on CPU, where cuDNN has no part in convolutions."
        if not torch.backends.cudnn.enabled:
            return "The script has switched cuDNN off (torch.backends.cudnn.enabled)."
        if any(isinstance(module, torch.nn.modules.conv._ConvNd) for module in training.list_modules()):
            return None
        return "The model has no convolution, whose algorithm could be chosen."

    def observe(self, training: Training) -> Dict[str, Any]:
        self._baseline = bool(torch.backends.cudnn.benchmark)
        return {SEARCH: self._baseline}

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._evidence = Evidence()
        self._wanted = None
        if SEARCH in values:
            try:
                self._wanted = read_switch(values[SEARCH])
            except ValueError as error:
                self._evidence.not_consumed[SEARCH] = f"{SEARCH} was not set: {error}."
        self.starts_slowly = bool(self._wanted)
        torch.backends.cudnn.benchmark = self._baseline if self._wanted is None else self._wanted

    def prove(self) -> Evidence:
        if self._wanted is not None:
            found = bool(torch.backends.cudnn.benchmark)
            sentence = f"torch.backends.cudnn.benchmark is {found}."
            if found == self._wanted:
                self._evidence.consumed[SEARCH] = sentence
            else:
                self._evidence.not_consumed[SEARCH] = f"{sentence} The script set it back."
        return self._evidence
