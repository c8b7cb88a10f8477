"""Keeps an eye on a real training: windows of its steps, held against the throughput that was advised.

Host time between step boundaries, so nothing waits for a device; rank 0 only. Every window is a line of a file.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import statistics
import threading
import time
import urllib.request
from typing import Any, Callable, Dict, List, Mapping, Optional, Set, Tuple

from ..observe.recorder import PLAIN, StepMarks

WINDOW_S = 30.0
"""Shortest window."""
LEAST_STEPS = 20
"""Fewest steps of a window."""
ALERT_AFTER = 2
"""Windows in a row below the interval before it is told: one may be another program's."""
LEARNT_WINDOWS = 3
"""Windows that stand for what is usual, where no throughput was advised."""
LEARNT_SHARE = 0.9
"""Of the usual throughput, below which such a training is told to have slowed down."""
CAP = 1.5
"""Medians of its window from which on a step is slow: what it takes beyond is told as a stall."""
NOTICEABLE = 0.02
"""Share of a step by which a part of it must have grown to be named as a cause."""
WEBHOOK_TIMEOUT_S = 10.0
SECRET = "ADVISOR_WEBHOOK_SECRET"
"""Variable with the key that webhooks are signed with."""


class Watch:
    """`settings`: `path` of the file; perhaps `low` (samples a second of all ranks, or steps), `every_s`, `webhook`,
    `retune`, `server` (where to put every window) with its `token` or `token_file`."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        world_size: int,
        say: Callable[[str], None],
        now_s: Callable[[], float] = time.perf_counter,
        unit: Callable[[], str] = lambda: "samples/s",
    ) -> None:
        self._settings, self._world_size, self._say, self._now_s = settings, world_size, say, now_s
        self._unit = unit
        self._window_s = float(settings.get("every_s") or WINDOW_S)
        self._low: Optional[float] = settings.get("low")
        self._usual: List[Dict[str, float]] = []
        """The first windows: what later ones are compared with."""
        self._steps: List[float] = []
        self._samples = 0.0
        self._data_wait_s = 0.0
        self._count = 0
        self._last_s: Optional[float] = None
        self._below = 0
        self._is_alerted = False
        self._can_write = True
        self._unreachable: Set[str] = set()

    def note(self, step: StepMarks) -> None:
        """A step ended at this boundary. Evaluations and checkpoints inside it are no slow step."""
        now_s = self._now_s()
        last_s, self._last_s = self._last_s, now_s
        self._count += 1
        if last_s is None or step.flag != PLAIN:
            return
        self._steps.append(now_s - last_s)
        self._samples += step.samples
        self._data_wait_s += step.data_wait_s
        if len(self._steps) >= LEAST_STEPS and sum(self._steps) >= self._window_s:
            self._close_window()

    def _close_window(self) -> None:
        median_s = statistics.median(self._steps)
        typical_s = statistics.fmean(min(step_s, CAP * median_s) for step_s in self._steps)
        count, mean_s = len(self._steps), statistics.fmean(self._steps)
        window = {
            "step": self._count,
            "steps": count,
            "step_s": mean_s,
            "stall_s": mean_s - typical_s,
            "data_wait_s": self._data_wait_s / count,
            "samples_per_s": self._samples * self._world_size / count / mean_s,
        }
        self._steps, self._samples, self._data_wait_s = [], 0.0, 0.0
        self._write({**window, "unit": self._unit()})
        self._report(window, *self._judge(window))
        if len(self._usual) < LEARNT_WINDOWS:
            self._usual.append(window)

    def _judge(self, window: Mapping[str, float]) -> Tuple[str, str]:
        """The event that the window is and its sentence, told; empty texts for an ordinary one."""
        low = self._find_low()
        if low is None or window["samples_per_s"] >= low:
            is_back = self._is_alerted
            self._below, self._is_alerted = 0, False
            if is_back:
                sentence = f"Throughput is back at {window['samples_per_s']:.4g} {self._unit()}."
                return self._tell("recovered", sentence, window)
            return "", ""
        self._below += 1
        if self._below < ALERT_AFTER or self._is_alerted:
            return "", ""
        self._is_alerted = True
        held_against = "what was advised" if self._settings.get("low") else "what was usual in this run"
        sentence = (
            f"Throughput has fallen to {window['samples_per_s']:.4g} {self._unit()}, below {held_against} "
            f"({low:.4g}). {self._explain(window)}"
        )
        if self._settings.get("retune"):
            sentence += f" What the strategy brings today: {self._settings['retune']}"
        return self._tell("below", sentence, window)

    def _find_low(self) -> Optional[float]:
        if self._low is None and len(self._usual) == LEARNT_WINDOWS:
            self._low = LEARNT_SHARE * statistics.median(w["samples_per_s"] for w in self._usual)
        return self._low

    def _explain(self, window: Mapping[str, float]) -> str:
        """The likely cause: what of a step grew since the run began, else what else the machine does."""
        first: List[Mapping[str, float]] = [*self._usual] or [window]
        usual = {name: statistics.median(known[name] for known in first) for name in window}
        grown = window["data_wait_s"] - usual["data_wait_s"]
        if grown > NOTICEABLE * window["step_s"] and grown > 0.5 * (window["step_s"] - usual["step_s"]):
            return (
                f"Likely cause: a step waits {window['data_wait_s'] * 1e3:.3g} ms for data, "
                f"{usual['data_wait_s'] * 1e3:.3g} ms when the run began."
            )
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
        if load > 1.5 * cores:
            return f"Likely cause: {load:.0f} processes want this node's {cores} cores."
        if window["step_s"] > (1.0 + NOTICEABLE) * usual["step_s"]:
            return (
                f"A step takes {window['step_s'] * 1e3:.3g} ms, {usual['step_s'] * 1e3:.3g} ms when the run began, and "
                "does not wait for data: look for a throttled device, a slower rank, or the network."
            )
        return "It has been so since the run began: the machine or the model differs from what was measured."

    def _tell(self, event: str, sentence: str, window: Mapping[str, float]) -> Tuple[str, str]:
        self._say(sentence)
        record = {"event": event, "sentence": sentence, **window}
        self._write(record)
        url = self._settings.get("webhook")
        if url:
            body = json.dumps({"source": "fleet-advisor", **record}).encode()
            signature = {}
            key = os.environ.get(SECRET)
            if key:
                digest = hmac.new(key.encode(), body, hashlib.sha256).hexdigest()
                signature["X-Advisor-Signature"] = f"sha256={digest}"
            self._send("POST", str(url), body, signature, "webhook")
        return event, sentence

    def _report(self, window: Mapping[str, float], event: str, sentence: str) -> None:
        """To the server that advised the strategy, where the command named one."""
        server = self._settings.get("server")
        if not server:
            return
        report = {
            "host": socket.gethostname()[:255],
            "ranks": self._world_size,
            "step": window["step"],
            "step_s": window["step_s"],
            "samples_per_s": window["samples_per_s"],
            "low": self._low,
            "event": event or None,
            "sentence": sentence,
        }
        token = {"Authorization": f"Bearer {self._read_token()}"}
        self._send("PUT", str(server), json.dumps(report).encode(), token, "server")

    def _send(self, method: str, url: str, body: bytes, headers: Dict[str, str], whom: str) -> None:
        """In a thread of its own: no step waits for a network. What cannot be reached is told once."""

        def send() -> None:
            try:
                request = urllib.request.Request(
                    url, body, {"Content-Type": "application/json", **headers}, method=method
                )
                urllib.request.urlopen(request, timeout=WEBHOOK_TIMEOUT_S).close()
                self._unreachable.discard(whom)
            except (OSError, ValueError) as error:
                if whom not in self._unreachable:
                    self._unreachable.add(whom)
                    self._say(f"The {whom} could not be reached: {error}")

        threading.Thread(target=send, daemon=True).start()

    def _write(self, record: Mapping[str, Any]) -> None:
        if not self._can_write:
            return
        line = json.dumps({"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **record})
        try:
            with open(self._settings["path"], "a") as file:
                file.write(line + "\n")
        except OSError as error:
            self._can_write = False
            self._say(f"Step times are not written any more: {error}")

    def _read_token(self) -> str:
        if self._settings.get("token"):
            return str(self._settings["token"])
        try:
            with open(str(self._settings.get("token_file") or "")) as file:
                return file.read().strip()
        except OSError:
            return ""
