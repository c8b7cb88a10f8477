"""The node's GPUs as the agent sees them, read by a child process: a driver that hangs, hangs nothing of ours.

The child lives only while its answers are asked for: for the length of a session, and for moments before it. One that
does not answer in time is killed and started again; after three times the driver itself is taken to be the trouble.
"""

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from pydantic import ValidationError

from advisor.protocol.measured.telemetry import DeviceError, DeviceSample
from advisor.protocol.nodes.cluster import Device
from agent.guard.child import Child

_RESET = "Reset the GPU (nvidia-smi --gpu-reset) or restart the node; have it examined when it happens again."
_REPLACE = "Take the node out of use and have the GPU examined."
_HARDWARE = {
    48: ("a memory error that ECC could not correct", _RESET),
    62: ("its internal microcontroller halted", _RESET),
    64: ("a row of its memory could not be remapped", _REPLACE),
    74: ("an NVLink error", "Check the NVLink bridges and switches, and restart the node."),
    79: ("it has fallen off the bus", "Restart the node; check power, cooling and the slot when it happens again."),
    94: ("a memory error that ended the process", _RESET),
    95: ("a memory error that could not be contained", _RESET),
    119: ("its system processor (GSP) does not answer", _RESET),
    120: ("its system processor (GSP) failed", _RESET),
    140: ("an unrecovered memory error", _RESET),
    143: ("it could not be initialised", _RESET),
}  # fmt: skip


def describe_failure(device: int, code: int) -> str:
    """Return what happened to a device and what to do, "" where the hardware is not to blame."""
    if code not in _HARDWARE:
        return ""
    what, remedy = _HARDWARE[code]
    name = f"GPU {device}" if device >= 0 else "A GPU"
    return f"{name} reported Xid {code}: {what}. {remedy}"


_PATIENCE_S = 0.5
"""How long a sample is waited for, before the sampler goes on without devices and asks again later."""
_MOST_HANGS = 3

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class DeviceProcess:
    """A process that computes on a device, of this session or not."""

    device: int
    pid: int
    """As NVML tells it: in a container it may be the host's number."""
    memory_bytes: int
    """Device memory that it uses; 0 where NVML does not tell."""


@dataclass(frozen=True)
class Reading:
    """The devices at one moment."""

    devices: tuple[DeviceSample, ...] = ()
    errors: tuple[DeviceError, ...] = ()
    """Critical errors since the last reading."""


class Gpus(Protocol):
    """What the agent asks of a source of GPU figures."""

    @property
    def trouble(self) -> str:
        """What is wrong with the devices or their driver since the last `close`, in a sentence; "" when nothing is."""

    def list_devices(self) -> tuple[Device, ...]:
        """Return the visible devices in NVML's order."""

    def list_processes(self) -> tuple[DeviceProcess, ...] | None:
        """Return who computes on them; None while NVML does not answer."""

    def sample(self) -> Reading | None:
        """Return the present figures of those that answer; None while NVML does not answer at all."""

    def close(self) -> None:
        """Let go of the driver; the next question takes it up again."""


@dataclass(frozen=True)
class Deadlines:
    """How long NVML may take, in seconds."""

    start_s: float = 60.0
    """For the first answer: without NVIDIA's persistence daemon every GPU is woken up."""
    restart_s: float = 20.0
    """For the first answer of a child that replaces another one, or follows it: the GPUs are awake."""
    answer_s: float = 5.0
    """For any other."""


class ChildGpus:
    """GPUs through `agent.devices.gpu_child`. Not for two threads at a time."""

    def __init__(
        self,
        visible: str | None,
        environment: Mapping[str, str],
        *,
        deadlines: Deadlines = Deadlines(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`visible` is CUDA_VISIBLE_DEVICES (None: every device); `environment` is the child's, without secrets."""
        self._visible, self._environment = visible, dict(environment)
        self._deadlines, self._clock = deadlines, clock
        self._child: _Reader | None = None
        self._stuck: list[subprocess.Popen[bytes]] = []
        """Children that SIGKILL has not ended yet: the kernel holds them in a call of the driver."""
        self._devices: tuple[Device, ...] | None = None
        """What the first child found; None before."""
        self._hangs = 0
        self._why = ""
        self._failures: dict[str, str] = {}

    @property
    def trouble(self) -> str:
        """What is wrong with the devices or their driver since the last `close`, in a sentence; "" when nothing is."""
        if self._failures:
            return " ".join(list(self._failures.values()))
        if self._hangs >= _MOST_HANGS:
            return (
                f"NVML does not answer ({self._why}), so that the GPUs of this node cannot be watched. Look at dmesg "
                "and nvidia-smi; when the driver hangs, restart the node."
            )
        return ""

    def list_devices(self) -> tuple[Device, ...]:
        """Return the visible devices in NVML's order; none when NVML does not answer, which `trouble` then says."""
        self.close()
        if self._devices is None:
            child = self._get_child()
            if child is None or self._receive(child, self._deadlines.start_s) is None:
                self._check_deadline()
                self._hangs = _MOST_HANGS
                log.warning("The GPUs could not be listed.", because=self.trouble)
        self._end_child()
        return self._devices or ()

    def list_processes(self) -> tuple[DeviceProcess, ...] | None:
        """Return who computes on the visible devices; None while NVML does not answer."""
        if self._devices == ():
            return ()
        answer = self._ask("processes", _PATIENCE_S)
        if answer is None:
            return None
        with suppress(KeyError, TypeError):
            return tuple(DeviceProcess(**entry) for entry in answer["processes"])
        return None

    def sample(self) -> Reading | None:
        """Return the present figures of those that answer; None while NVML does not answer at all."""
        if self._devices == ():
            return Reading()
        answer = self._ask("sample", _PATIENCE_S)
        if answer is None or "lost" not in answer:
            return None
        try:
            devices = tuple(DeviceSample.model_validate(entry) for entry in answer["devices"])
            errors = tuple(DeviceError.model_validate(entry) for entry in answer["xids"])
        except ValidationError as error:
            log.warning("NVML's figures make no sense.", error=str(error))
            return None
        self._hangs = 0
        self._note_failures(answer["lost"], errors)
        return Reading(devices, errors)

    def close(self) -> None:
        """End the child, and forget what was wrong."""
        self._end_child()
        self._hangs, self._why, self._failures = 0, "", {}

    def _ask(self, question: str, patience_s: float) -> dict[str, Any] | None:
        """Return the answer to a question, None when there is none yet; kills a child that is overdue."""
        child = self._get_child()
        if child is None:
            return None
        if child.awaits_devices and self._receive(child, patience_s) is None:
            self._check_deadline()
            return None
        if child.question != question:
            # The answer to an earlier question, whose caller gave up, comes first.
            if child.question and self._receive(child, patience_s) is None:
                self._check_deadline()
                return None
            child.ask(question, self._clock())
        answer = self._receive(child, patience_s)
        if answer is None:
            self._check_deadline()
        return answer

    def _get_child(self) -> "_Reader | None":
        """None while too many children hang in the driver: another one would only join them."""
        self._stuck = [process for process in self._stuck if process.poll() is None]
        if self._child is None and len(self._stuck) < _MOST_HANGS:
            self._child = _Reader(self._visible, self._environment, self._clock())
        return self._child

    def _receive(self, child: "_Reader", patience_s: float) -> dict[str, Any] | None:
        answer = child.receive(patience_s)
        if answer is None:
            return None
        child.question = ""
        if child.awaits_devices:
            child.awaits_devices = False
            try:
                self._devices = tuple(Device.model_validate(entry) for entry in answer["devices"])
            except (KeyError, ValidationError) as error:
                log.warning("What NVML says of the devices makes no sense.", error=str(error))
                self._devices = ()
        return answer

    def _check_deadline(self) -> None:
        child = self._child
        if child is None:
            return
        limits = self._deadlines
        limit_s = limits.answer_s
        if child.awaits_devices:
            limit_s = limits.start_s if self._devices is None else limits.restart_s
        if child.has_ended:
            self._why = f"its reader ended with exit code {child.process.poll()}"
        elif self._clock() - child.asked_at_s >= limit_s:
            self._why = f"no answer within {limit_s:g} s"
        else:
            return
        self._hangs += 1
        log.warning(
            "NVML does not answer; its reader is started again.", because=self._why, times=self._hangs
        )
        self._end_child()

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None and not child.end():
            self._stuck.append(child.process)

    def _note_failures(self, lost: list[int], errors: tuple[DeviceError, ...]) -> None:
        for index in lost:
            self._failures.setdefault(
                f"lost {index}",
                f"GPU {index} is lost: it does not answer the driver any more. Restart the node; have the GPU examined "
                "when it happens again.",
            )
        for error in errors:
            if sentence := describe_failure(error.device, error.code):
                self._failures.setdefault(f"{error.device} {error.code}", sentence)


class _Reader(Child):
    """One child process, and the question that it was asked last."""

    def __init__(self, visible: str | None, environment: Mapping[str, str], now_s: float) -> None:
        words = ["-P", "-m", "agent.devices.gpu_child", json.dumps(visible)]
        super().__init__(words, environment, subprocess.DEVNULL)
        self.asked_at_s = now_s
        self.awaits_devices = True
        """The first line describes the devices, without a question."""
        self.question = ""
        """The one that is not answered yet; "" for none."""

    def ask(self, question: str, now_s: float) -> None:
        """Put a question."""
        self.question, self.asked_at_s = question, now_s
        self.tell(question)


def open_gpus(visible: str | None, environment: Mapping[str, str]) -> Gpus:
    """Return the node's GPUs; `visible` is CUDA_VISIBLE_DEVICES (None: every device), `environment` the agent's own.

    Nothing is started: a node without GPUs pays for one short question, when it is described.
    """
    kept = {name: value for name, value in environment.items() if not name.startswith("ADVISOR_")}
    return ChildGpus(visible, kept)
