"""What a check asks for: launches with and without the runtime, and what NVML and nvidia-smi say."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import Outcome, RacePlan
from agent.devices.gpus import DeviceProcess, Reading

_LOG_CHARACTERS = 2000


class Interrupted(Exception):
    """The checks were asked to stop."""


@dataclass(frozen=True)
class Machine:
    """What the checks run on."""

    device: str
    """`cuda`, or `cpu` where the checks themselves are tested."""
    cards: tuple[str, ...] = ()
    """Their names."""
    driver: str = ""
    torch: str = ""
    cuda: str = ""
    nccl: str = ""
    cudnn: str = ""
    has_transformers: bool = False

    @property
    def has_card(self) -> bool:
        """Whether the checks run on cards."""
        return self.device == "cuda"


@dataclass(frozen=True)
class Trained:
    """What came of one launch."""

    code: int = 0
    """Exit code of a launch without the runtime; 0 with it."""
    outcome: Outcome | None = None
    """How the session ended; None without the runtime."""
    reason: str = ""
    """Why, in a sentence."""
    log: str = ""
    results: Mapping[str, BlockResult] = field(default_factory=dict)
    """Of every arm, by its block id."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[int, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """What each rank wrote down, line by line."""
    trace: str = ""
    """The Chrome trace that the script recorded, "" for none."""

    def describe_end(self) -> str:
        """Return how it ended and its last words, for a fault's sentence."""
        how = self.outcome.value if self.outcome else f"exit code {self.code}"
        return f"{how}: {self.reason or self.log[-_LOG_CHARACTERS:].strip() or 'no word'}"

    def collect(self, key: str, rank: int = 0) -> list[Any]:
        """Return one figure of all the lines of a rank that hold it."""
        return [line[key] for line in self.notes.get(rank, ()) if key in line]


class Bench(Protocol):
    """What a check asks for."""

    machine: Machine

    def train(
        self, script: str, arguments: Sequence[object], races: Sequence[RacePlan], *, ranks: int = 2,
        cold: Changes = Changes(), variables: Mapping[str, str] | None = None,
    ) -> Trained:  # fmt: skip
        """Launch a check's script with the runtime in front, and hand out the races one after the other."""

    def run_bare(
        self, script: str, arguments: Sequence[object], *, ranks: int = 2,
        variables: Mapping[str, str] | None = None,
    ) -> Trained:  # fmt: skip
        """Launch it as it stands, to its end."""

    def run(
        self, words: Sequence[str], limit_s: float, variables: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Run a command to its end; return its exit code and what it wrote."""

    def keep_busy(self, arguments: Sequence[object], seconds: float) -> AbstractContextManager[None]:
        """Return a context in which the training script keeps every card busy, entered after those seconds of it."""

    def strike_agent(self, arguments: Sequence[object]) -> "Struck":
        """Start an agent with a session of two ranks, kill it with SIGKILL once they train; return what is left."""

    def sample(self) -> Reading | None:
        """Return what NVML says of the cards now."""

    def list_processes(self) -> tuple[DeviceProcess, ...]:
        """Return who computes on the cards, as NVML says."""

    def ask_smi(self) -> str:
        """Return the answer of `nvidia-smi` to this package's question; raises OSError where there is none."""

    def make_folder(self, name: str) -> Path:
        """Return an empty folder that is gone after the checks."""


@dataclass(frozen=True)
class Struck:
    """What was left of a session whose agent was killed."""

    processes: int
    """Processes of it that ran when it was struck: ranks, their launcher, what guards them."""
    left: tuple[int, ...]
    """Those that ran still after ten seconds."""
    on_cards: int
    """Processes on the cards that were not there before."""
    shared_memory: tuple[str, ...]
    """New names in /dev/shm that no living process maps."""
    memory_bytes: int
    """Device memory in use, against before."""
