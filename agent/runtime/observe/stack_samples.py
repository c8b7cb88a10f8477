"""Which lines of the script's own code a rank stands in, by samples of the training thread's stack.

A thread of ours reads it some 75 times a second, while a diagnosis times steps and at no other time. What a rank does
at that moment the recorder knows; the line is the innermost one that is neither torch's, ours nor another library's.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from .host_reads import OWN
from .own_lines import is_own, shorten
from .recorder import INTERRUPTED, PHASES, Recorder
from .recorder import OWN as OWN_CODE

INTERVAL_S = 1 / 75
MOST_PLACES = 20
_DECIDING = tuple(os.path.join(OWN, name, "") for name in ("steering", "races", "calibrating", "link"))
EVALUATION, SAVING, LOGGING = "evaluation", "saving", "logging"
"""What own code is, where its stack tells; else a part is called as in the account."""
_SAVES = (os.path.join("torch", "serialization.py"), os.path.join("torch", "distributed", "checkpoint", ""))
_LOGS = tuple(os.path.join(name, "") for name in ("logging", "tensorboard", "wandb", "mlflow", "tqdm"))


class StackSamples:
    """Of one rank. `is_evaluated` says whether the model is in eval mode now."""

    def __init__(self, recorder: Recorder, is_evaluated: Callable[[], bool]) -> None:
        self._recorder, self._is_evaluated = recorder, is_evaluated
        self._counts: Dict[Tuple[str, str], int] = {}
        self._thread: Optional[threading.Thread] = None
        self._ended = threading.Event()
        self.samples = 0
        self.spent_s = 0.0
        """Of the sampling thread."""

    def start(self) -> None:
        """Read the stack of the thread that calls this, from here on."""
        watched = threading.get_ident()
        self._thread = threading.Thread(target=self._run, args=(watched,), name="advisor-stacks", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def describe(self) -> List[Tuple[str, str, float]]:
        """Part, line and share of the time, those that take most first."""
        rows = sorted(self._counts.items(), key=lambda row: -row[1])[:MOST_PLACES]
        return [(part, shorten(own), count / max(1, self.samples)) for (part, own), count in rows]

    def _run(self, watched: int) -> None:
        while not self._ended.wait(INTERVAL_S):
            start_s = time.thread_time()
            frame = sys._current_frames().get(watched)
            if frame is not None:
                self.take(frame, self._recorder.phase)
            del frame
            self.spent_s += time.thread_time() - start_s

    def take(self, frame: Any, phase: int) -> None:
        """One sample; what ours decides between two steps is no part of any."""
        own, kind = "", ""
        while frame is not None and not own:
            path = frame.f_code.co_filename
            if path.startswith(_DECIDING):
                return
            if is_own(path):
                own = f"{path}:{frame.f_lineno}"
            elif not kind and any(name in path for name in _SAVES):
                kind = SAVING
            elif not kind and any(name in path for name in _LOGS):
                kind = LOGGING
            frame = frame.f_back
        self.samples += 1
        part = PHASES[phase]
        if phase == OWN_CODE:
            part = kind or (EVALUATION if self._is_evaluated() else part)
            if part in (EVALUATION, SAVING):  # what calls no hook of ours: model.module(…) without a loader
                self._recorder.raise_flag(INTERRUPTED)
        self._counts[part, own] = self._counts.get((part, own), 0) + 1
