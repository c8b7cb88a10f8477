"""The bench of this machine: real ranks with and without the runtime, a real agent, NVML and `nvidia-smi`."""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import RacePlan
from advisor.protocol.training.workload import Workload
from agent.devices.gpus import DeviceProcess, Gpus, Reading
from agent.guard.processes import kill_until_none, list_descendants, list_marked, read_parents
from agent.operator.rehearsal import SERVER_URL, run_session
from agent.runtime.link import beat
from agent.settings import AgentSettings
from tests.gpu.bench import Interrupted, Machine, Struck, Trained
from tests.gpu.nvidia_smi import QUESTION

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parents[2]
"""The checkout."""
MARK = "FLEET_GPU_CHECK"
"""Variable by which every process of a check is found again."""
LAUNCH_LIMIT_S = 300.0
"""One launch of a check; a hang is one that takes longer."""
_LEAST_S = 60.0
"""What a command gets at least that is begun in time."""
_KILL_S = 10.0
_POLL_S = 0.1
_LOG_CHARACTERS = 2000
_STEPS_SEEN = 3
_SHARED_MEMORY = "/dev/shm"


class RealBench:
    """Starts real processes on this machine; every one of them is gone when it is closed."""

    def __init__(
        self,
        machine: Machine,
        gpus: Gpus,
        folder: Path,
        environment: Mapping[str, str],
        ends_at_s: float = math.inf,
    ) -> None:
        """`folder` is the bench's own; `environment` is the processes'. Nothing starts after `ends_at_s`, monotonic."""
        self.machine, self._gpus, self._folder, self._ends_at_s = machine, gpus, folder, ends_at_s
        self._token, self._launches = token_hex(8), 0
        self._environment = {
            **{name: value for name, value in environment.items() if not name.startswith("ADVISOR_")},
            "PATH": os.pathsep.join([environment.get("PATH", os.defpath), str(Path(sys.executable).parent)]),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH", "")])),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            MARK: self._token,
            **({} if machine.has_card else {"CUDA_VISIBLE_DEVICES": ""}),
        }
        self._stop: Callable[[], None] = lambda: None
        self._is_interrupted = False

    def interrupt(self) -> None:
        """End what runs; from a signal handler. Whatever the bench is asked then raises Interrupted."""
        self._is_interrupted = True
        self._stop()

    def train(
        self, script: str, arguments: Sequence[object], races: Sequence[RacePlan], *, ranks: int = 2,
        cold: Changes = Changes(), variables: Mapping[str, str] | None = None,
    ) -> Trained:  # fmt: skip
        """Launch a check's script with the runtime in front, and hand out the races one after the other."""
        out = self._begin(script)
        workload = Workload(
            command=("torchrun", "--nproc-per-node", str(ranks), *self._name(script, arguments)),
            working_dir=str(out),
            environment={"OUT": str(out), **(variables or {})},
        )
        # Scripts write down what they see, and everything of them lies in a folder of ours: nothing is overlaid.
        settings = AgentSettings(
            server_url=SERVER_URL, name="gpu-check", work_dir=out / "agent", isolate=False,
            startup_timeout_s=LAUNCH_LIMIT_S, allow_busy_gpus=True,
        )  # fmt: skip
        heard = run_session(
            workload, races, self._environment, settings, self._gpus, self._listen, cold, LAUNCH_LIMIT_S
        )
        self._stop = lambda: None
        self._refuse_to_go_on()
        ended = heard.ended
        return Trained(
            outcome=ended.outcome if ended else None,
            reason=ended.reason if ended else "",
            log=ended.log_tail if ended else "",
            results=heard.results,
            refusals=heard.hello.refusals if heard.hello else {},
            notes=_read_notes(out),
            trace=_read_text(out / "trace.json"),
        )

    def run_bare(
        self, script: str, arguments: Sequence[object], *, ranks: int = 2,
        variables: Mapping[str, str] | None = None,
    ) -> Trained:  # fmt: skip
        """Launch it as it stands, to its end."""
        out = self._begin(script)
        words = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
            *self._name(script, arguments),
        ]  # fmt: skip
        code, log = self.run(words, LAUNCH_LIMIT_S, {"OUT": str(out), **(variables or {})})
        return Trained(code=code, log=log, notes=_read_notes(out), trace=_read_text(out / "trace.json"))

    def run(
        self, words: Sequence[str], limit_s: float, variables: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Run a command to its end; return its exit code and what it wrote. Past its time it is killed."""
        limit_s = min(limit_s, max(_LEAST_S, self._ends_at_s - time.monotonic()))
        with self._start(words, variables or {}) as (process, log):
            deadline = time.monotonic() + limit_s
            while process.poll() is None and time.monotonic() < deadline and not self._is_interrupted:
                time.sleep(_POLL_S)
            code, is_late = process.poll(), process.poll() is None
        self._refuse_to_go_on()
        text = _read_text(log)
        return (-9, f"{text}\nIt ran longer than {limit_s:.0f} s.") if is_late else (int(code or 0), text)

    @contextmanager
    def keep_busy(self, arguments: Sequence[object], seconds: float) -> Iterator[None]:
        """Keep every card busy with the training script, entered after that many seconds of it."""
        out = self._begin("busy")
        ranks = f"--nproc-per-node={max(1, len(self.machine.cards))}"
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", ranks]
        with self._start([*words, *self._name("training.py", arguments)], {"OUT": str(out)}) as (process, _):
            self._wait(lambda: bool(_read_notes(out).get(0)) or process.poll() is not None, LAUNCH_LIMIT_S)
            self._wait(lambda: process.poll() is not None, seconds)
            yield
        self._refuse_to_go_on()

    def strike_agent(self, arguments: Sequence[object]) -> Struck:
        """Start an agent with a session of two ranks, kill it with SIGKILL once they train; return what is left."""
        out = self._begin("struck")
        shared = set(os.listdir(_SHARED_MEMORY))
        on_cards, memory = {process.pid for process in self.list_processes()}, self._count_memory()
        launch = ["torchrun", "--nproc-per-node", "2", *self._name("training.py", arguments)]
        words = [sys.executable, "-P", "-m", "agent", "diagnose", "--env", f"OUT={out}", "--", *launch]
        # Short: a unix socket's path may have 107 bytes.
        with (
            tempfile.TemporaryDirectory(prefix="fa-") as temporary,
            self._start(words, {"TMPDIR": temporary}) as (process, log),
        ):
            # What ranks write is overlaid; their beats, in the agent's temporary directory, are not.
            self._wait(
                lambda: _count_training(Path(temporary)) >= 2 or process.poll() is not None, LAUNCH_LIMIT_S
            )
            if _count_training(Path(temporary)) < 2 or process.poll() is not None:
                raise RuntimeError(f"The session did not come to train: {_read_text(log)[-_LOG_CHARACTERS:]}")
            struck = {*list_descendants(process.pid), *list_marked(**{MARK: self._token})} - {process.pid}
            process.kill()
            process.wait()
            self._wait(lambda: not struck & read_parents().keys(), _KILL_S)
            left = tuple(sorted(struck & read_parents().keys()))
            # The driver takes a moment to see that a process is gone.
            self._wait(lambda: {p.pid for p in self.list_processes()} <= on_cards, _KILL_S)
            found = Struck(
                processes=len(struck),
                left=left,
                on_cards=len({each.pid for each in self.list_processes()} - on_cards),
                shared_memory=tuple(sorted(set(os.listdir(_SHARED_MEMORY)) - shared - _list_held())),
                memory_bytes=self._count_memory() - memory,
            )
        self._refuse_to_go_on()
        return found

    def sample(self) -> Reading | None:
        """Return what NVML says of the cards now."""
        return self._gpus.sample()

    def list_processes(self) -> tuple[DeviceProcess, ...]:
        """Return who computes on the cards, as NVML says."""
        return (self._gpus.list_processes() or ()) if self.machine.has_card else ()

    def ask_smi(self) -> str:
        """Return the answer of `nvidia-smi` to this package's question; raises OSError where there is none."""
        return subprocess.run(
            ["nvidia-smi", *QUESTION], capture_output=True, text=True, timeout=30, check=False
        ).stdout

    def make_folder(self, name: str) -> Path:
        """Return an empty folder that is gone after the checks."""
        return self._begin(name)

    def close(self) -> None:
        """End every process of the checks that still runs, and remove their files."""
        kill_until_none(lambda: list_marked(**{MARK: self._token}), _KILL_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _begin(self, name: str) -> Path:
        self._refuse_to_go_on()
        if time.monotonic() > self._ends_at_s:
            raise TimeoutError("The hour of the checks was over in the middle of this one.")
        self._launches += 1
        folder = self._folder / f"{self._launches}-{Path(name).stem}"
        folder.mkdir(parents=True)
        return folder

    def _name(self, script: str, arguments: Sequence[object]) -> list[str]:
        return [str(SCRIPTS / script), "--device", self.machine.device, *map(str, arguments)]

    def _listen(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        if self._is_interrupted:
            stop()

    def _refuse_to_go_on(self) -> None:
        if self._is_interrupted:
            raise Interrupted

    def _count_memory(self) -> int:
        reading = self.sample() if self.machine.has_card else None
        return sum(device.memory_bytes for device in reading.devices) if reading else 0

    def _wait(self, is_so: Callable[[], bool], limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while not (found := is_so()) and time.monotonic() < deadline and not self._is_interrupted:
            time.sleep(_POLL_S)
        return found

    @contextmanager
    def _start(
        self, words: Sequence[str], variables: Mapping[str, str]
    ) -> "Iterator[tuple[subprocess.Popen[bytes], Path]]":
        """A process with everything below it; killed at the end."""
        log = self._begin("command") / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                list(words), env={**self._environment, **variables}, cwd=log.parent, stdin=subprocess.DEVNULL,
                stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            yield process, log
        finally:
            kill_until_none(lambda: list_marked(**{MARK: self._token}), _KILL_S)
            process.wait()


def _list_held() -> set[str]:
    """Names in shared memory that a living process maps: somebody else's, for a session that is gone holds none."""
    held = set()
    for pid in read_parents():
        for line in _read_text(Path(f"/proc/{pid}/maps")).splitlines():
            _, found, name = line.partition(f"{_SHARED_MEMORY}/")
            if found:
                held.add(name.removesuffix(" (deleted)"))
    return held


def _count_training(folder: Path) -> int:
    """Ranks with their beats below a folder that have made a few steps."""
    # Not rglob: what else the agent has there, a probe's folder say, may go while it is walked, and `walk` bears that.
    paths = [Path(at, name) for at, _, names in os.walk(folder) for name in names if name.startswith("beat.")]
    beats = [beat.read(str(path)) for path in paths]
    return sum(found is not None and found.step >= _STEPS_SEEN for found in beats)


def _read_text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""


def _read_notes(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """What each rank wrote down; a last line that was cut off is left out."""
    notes: dict[int, list[dict[str, Any]]] = {}
    for path in folder.glob("notes.*"):
        lines = notes.setdefault(int(path.suffix[1:]), [])
        with suppress(ValueError):
            for line in _read_text(path).splitlines():
                lines.append(json.loads(line))
    return notes
