"""What the script itself does about number formats: its autocast and its loss scalers."""

from __future__ import annotations

import weakref
from typing import Any

from ..private_torch import AUTOCAST_ON


class ScriptPrecision:
    """Filled by the patches. A script that has mixed precision of its own keeps it."""

    def __init__(self) -> None:
        self.autocast_dtype = ""
        """The 16-bit type of the last autocast that was entered, "" while there was none."""
        self.scalers: "weakref.WeakSet[Any]" = weakref.WeakSet()
        """Every enabled GradScaler that has scaled a loss and still lives."""
        self._is_settled = False

    def note_autocast(self, context: Any) -> None:
        if not self._is_settled and AUTOCAST_ON.find(context, True):
            self.autocast_dtype = str(context.fast_dtype).replace("torch.", "")

    def settle(self) -> None:
        """From here on autocast may be a lever's doing."""
        self._is_settled = True

    def note_scaler(self, scaler: Any) -> None:
        if scaler.is_enabled():
            self.scalers.add(scaler)
