"""Turns how a session ended into an outcome and a sentence that says what to do next. Pure functions.

The configuration's own failures (out of memory, a hang, a crash) teach the search; what the infrastructure did
(`lost`) teaches nothing and is tried again.
"""

import re
import signal
from dataclasses import dataclass, replace
from enum import StrEnum

from advisor.protocol.culprit import excerpt_failure, find_culprit, find_first_end
from advisor.protocol.measured.messages import ENDED_ELSEWHERE, LAUNCH_FAILED, Trouble
from advisor.protocol.measured.trials import Outcome
from agent.guard.progress import REMEDY
from agent.guard.session_log import strip_ranks

_RUNTIME_LOST = 75

_OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation|_ALLOC_FAILED"
    r"|Cuda failure (?:2 )?'out of memory'|Failed to CUDA (?:host )?(?:c|m)alloc"
    r"|can't allocate memory|Cannot allocate memory|^(?:\[rank\d+\]: ?)?MemoryError|_ArrayMemoryError|std::bad_alloc",
    re.MULTILINE,
)
_DEVICE_FAILED = re.compile(
    r"\bXid\b|uncorrectable (?:ECC|NVLink)|GPU is lost|fallen off the bus|CUDA-capable device\(s\) is/are busy"
    r"|CUDA driver initialization failed|hardware (?:stack )?error|cudaErrorDevicesUnavailable"
    r"|cudaErrorECCUncorrectable|Unable to determine the device handle",
    re.IGNORECASE,
)
_RUNTIME_FAILED = re.compile(
    r"^fleet advisor: rank \d+: the runtime failed, not the script: .*", re.MULTILINE
)
_RANK_LOST = re.compile(
    r"^fleet advisor: rank (\d+): (Rank \d+ (?:has ended, or gave up waiting,|waited \d+ s) .*)", re.MULTILINE
)
"""The runtime of a rank that waited in vain for another one."""
_ADDRESS_TAKEN = re.compile(r"EADDRINUSE|Address already in use", re.IGNORECASE)
_COLLECTIVE_TIMEOUT = re.compile(
    r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv|send)|collective.*timed out",
    re.IGNORECASE,
)
_KILLED = re.compile(r"exitcode\s*: (-\d+)|Signal (\d+) \(SIG\w+\) received by PID")
_MACHINES = re.compile(r"^(?:torch\.|c10|nccl|(?:RuntimeError|OSError|MemoryError|SystemError)\b)")
"""Exceptions in which memory or a device that fails comes to light. Of any other the rest of the log tells nothing."""


class Cause(StrEnum):
    """What ended a session, as the agent saw it."""

    EXITED = "exited"
    """The processes ended by themselves."""
    INSTRUCTED = "instructed"
    """The server's answer to rank 0 was: nothing more to measure."""
    SERVER_ENDED = "server_ended"
    """The server's answer to a beat was: this session is over."""
    TURNED_AWAY = "turned_away"
    """Something on the way to the server, or the server itself, refused what it was told."""
    AGENT_STOPPED = "agent_stopped"
    FENCED = "fenced"
    """No renewal was acknowledged for too long."""
    EXPIRED = "expired"
    """The session reached its longest life."""
    NEVER_BEGAN = "never_began"
    """No step within the time for start-up."""
    HUNG = "hung"
    SCRIPT_ENDED = "script_ended"
    """The runtime says that the script ended by itself."""
    TROUBLE = "trouble"
    """The runtime says that the script cannot be measured."""
    NONSENSE = "nonsense"
    """The runtime cannot be understood or believed."""
    DISK_FILLED = "disk_filled"
    """The session filled a disk of the node."""
    DISK_FULL = "disk_full"
    """A disk of the node was full without the session's doing."""
    DEVICE_UNUSABLE = "device_unusable"
    """A GPU failed, its driver does not answer, or another process computes on it."""
    UNLAUNCHABLE = "unlaunchable"
    """Nothing was started."""


_WHAT_A_DEVICE_DOES = frozenset({Cause.EXITED, Cause.HUNG, Cause.NEVER_BEGAN})
"""Endings that a lost device explains better than anything else."""


@dataclass(frozen=True)
class Ending:
    """Why the agent ended a session, or found it ended."""

    cause: Cause
    sentence: str = ""
    trouble: Trouble | None = None


@dataclass(frozen=True)
class Evidence:
    """What is known about a session's processes when none is left."""

    log_text: str = ""
    """With the marks that say which rank wrote a line."""
    exit_code: int | None = None
    """The launcher's (negative: a signal); None when its shim died before it."""
    steps: int = 0
    """Steps of the slowest local rank."""
    is_command: bool = False
    """Only node 0's has to tell steps: of another one nobody knows how far it was."""
    launched_as_is: bool = True
    """No cold knob was changed for this launch, so a failure to start is the script's own."""
    nnodes: int = 1
    node_rank: int = 0
    kernel_oom_kills: int = 0
    """Processes of this machine that the kernel killed for memory meanwhile."""
    device_failure: str = ""
    """A sentence when a device or its driver failed meanwhile, as the agent's own telemetry saw it."""


@dataclass(frozen=True)
class Judgement:
    """How a session ended."""

    outcome: Outcome
    reason: str
    trouble: Trouble | None = None
    is_consequence: bool = False
    """Something else ended first, perhaps on another node, perhaps on the server's request."""
    failed_after: int = 0
    """Steps after which it broke off by itself; 0 where it did not, or before its first step."""


_BROKEN_OFF = frozenset({Cause.EXITED, Cause.HUNG})
"""Endings of which it is told after how many steps they came."""


def judge(ending: Ending, evidence: Evidence) -> Judgement:
    """Return the outcome of a session, with its sentence."""
    judgement = _judge(ending, evidence)
    if judgement.outcome is Outcome.FINISHED or ending.cause not in _BROKEN_OFF:
        return judgement
    return replace(judgement, failed_after=evidence.steps)


def _judge(ending: Ending, evidence: Evidence) -> Judgement:
    if evidence.device_failure and ending.cause in _WHAT_A_DEVICE_DOES:
        return Judgement(Outcome.LOST, evidence.device_failure)
    match ending.cause:
        case Cause.EXITED:
            return _judge_exit(evidence)
        case Cause.INSTRUCTED | Cause.SERVER_ENDED:
            return Judgement(Outcome.FINISHED, ending.sentence or "The server ended the session.")
        case Cause.SCRIPT_ENDED:
            ended = Trouble(code="script_ended", sentence=ending.sentence, fatal=False)
            return Judgement(Outcome.FINISHED, ending.sentence, ended)
        case Cause.EXPIRED:
            return Judgement(Outcome.FINISHED, ending.sentence)
        case Cause.DISK_FILLED:
            filled = Trouble(code="disk_filled", sentence=ending.sentence)
            return Judgement(Outcome.CRASHED, ending.sentence, filled)
        case Cause.AGENT_STOPPED | Cause.FENCED | Cause.TURNED_AWAY | Cause.DISK_FULL | Cause.DEVICE_UNUSABLE:
            return Judgement(Outcome.LOST, ending.sentence)
        case Cause.HUNG:
            return Judgement(Outcome.HUNG, ending.sentence)
        case Cause.NEVER_BEGAN:
            # In a gang the other node may be to blame, and with cold knobs they may be.
            is_script = evidence.launched_as_is and evidence.nnodes == 1
            trouble = describe_launch_failure(ending.sentence, evidence) if is_script else None
            return Judgement(Outcome.HUNG, ending.sentence, trouble)
        case Cause.UNLAUNCHABLE:
            return Judgement(
                Outcome.CRASHED, ending.sentence, describe_launch_failure(ending.sentence, evidence)
            )
        case Cause.TROUBLE | Cause.NONSENSE:
            return Judgement(Outcome.CRASHED, ending.sentence, ending.trouble)


def _judge_exit(evidence: Evidence) -> Judgement:
    text, code = strip_ranks(evidence.log_text), evidence.exit_code
    if code == 0:
        return _judge_regular_exit(evidence)
    if code is None:
        return Judgement(
            Outcome.LOST,
            "The guard process of the session was killed from outside, and the ranks with it. Try again.",
        )
    culprit = find_culprit(evidence.log_text)
    own = culprit if culprit is not None and not culprit.is_consequence else None
    failed = _last_match(_RUNTIME_FAILED, text) if _RUNTIME_FAILED.search(text) else ""
    if own is not None and own.is_ours and not failed:
        failed = f"In a rank the runtime failed, not the script: {own.what.rstrip('.')}"
    if own is not None and not failed and not _is_machines(own.what):
        return _judge_crash(evidence, own.describe())
    if _OUT_OF_MEMORY.search(text):
        return Judgement(
            Outcome.OUT_OF_MEMORY,
            f"A rank ran out of memory {_say_when(evidence)}: {_find_shortage(evidence.log_text, text)}. Use a smaller "
            "batch, compute it in parts (micro_batches), or use a strategy that keeps less in memory.",
        )
    if failed:
        sentence = (
            f"{failed}. The strategy is left out; the log has the traceback, which belongs "
            "into a report of a fault."
        )
        return Judgement(Outcome.CRASHED, sentence)
    if _find_signal(text, code) == 9 and evidence.kernel_oom_kills > 0:
        return Judgement(
            Outcome.OUT_OF_MEMORY,
            "The kernel killed a rank because the node's memory was full. Use a smaller batch, fewer loader workers, "
            "or a node with more memory.",
        )
    if _DEVICE_FAILED.search(text):
        return Judgement(
            Outcome.LOST,
            f"A device of this node failed: {_last_match(_DEVICE_FAILED, text)}. Look at dmesg and nvidia-smi, and "
            "take the node out of use if it happens again.",
        )
    if _ADDRESS_TAKEN.search(own.what if own is not None else text):
        return Judgement(
            Outcome.LOST, "The rendezvous port was taken by another program meanwhile. Try again."
        )
    if own is not None:
        return _judge_crash(evidence, own.describe())
    lost = _RANK_LOST.search(text)
    victim = culprit.rank if culprit is not None else int(lost[1]) if lost is not None else None
    if lost is None and _COLLECTIVE_TIMEOUT.search(text):
        return Judgement(
            Outcome.HUNG,
            f"A collective timed out: {_last_match(_COLLECTIVE_TIMEOUT, text)}. A rank was stuck or left the others.",
        )
    killed_by = _find_signal(text, code)
    if evidence.nnodes == 1 and (left := _find_first_left(evidence.log_text, victim)):
        return _judge_crash(evidence, left)
    if lost is not None:
        return Judgement(Outcome.HUNG, f"{lost[2]} {REMEDY}", is_consequence=True)
    if culprit is not None and not killed_by and (evidence.nnodes > 1 or evidence.steps > 0):
        return Judgement(
            Outcome.CRASHED,
            f"{ENDED_ELSEWHERE}: {culprit.what}. See the other rank's log.",
            is_consequence=True,
        )
    if code == _RUNTIME_LOST:
        sentence = "The runtime lost its connection to the agent. See the agent's log; try again."
        return Judgement(Outcome.LOST, sentence, is_consequence=True)
    if killed_by == 9:
        return Judgement(
            Outcome.LOST,
            f"A rank was killed (SIGKILL) {_say_when(evidence)}, not by the agent. If it is not the script itself, "
            "look for what kills processes on this node (a memory limit, a batch system), and try again.",
        )
    return _judge_crash(evidence, f"a rank ended by {_name_signal(killed_by)}" if killed_by else "")


def _is_machines(exception: str) -> bool:
    """Whether memory or a device may be what failed: then the rest of the log tells of it."""
    patterns = (_OUT_OF_MEMORY, _DEVICE_FAILED)
    return bool(_MACHINES.match(exception)) or any(pattern.search(exception) for pattern in patterns)


def _find_first_left(log: str, victim: int | None) -> str:
    """Say which rank of this node ended first, where it did so without an exception: `sys.exit(3)`."""
    first = find_first_end(log)
    if first is None or first[1] <= 0 or first[1] == _RUNTIME_LOST or victim in (None, first[0]):
        return ""
    rank, code = first
    said = re.findall(rf"^\[rank {rank}\] (.*\S)", log, re.MULTILINE)
    last = f"; it last said: {said[-1][:200]}" if said else ""
    return f"rank {rank} ended by itself with exit code {code}{last}"


def _judge_regular_exit(evidence: Evidence) -> Judgement:
    if evidence.node_rank == 0 and evidence.steps == 0:
        sentence = (
            "The script ended without an error, and no process made enough training steps to be seen before. Give the "
            "command that really trains: check its arguments (a --help, a --dry-run, an empty data set?)."
        )
        return Judgement(Outcome.CRASHED, sentence, describe_launch_failure(sentence, evidence))
    return Judgement(Outcome.FINISHED, "The script ended by itself on this node.", is_consequence=True)


def _judge_crash(evidence: Evidence, exception: str) -> Judgement:
    what = (exception or f"exit code {evidence.exit_code}{_say_last(evidence)}").rstrip(".")
    if evidence.steps > 0 or not evidence.launched_as_is:
        return Judgement(Outcome.CRASHED, f"The script crashed {_say_when(evidence)}: {what}.")
    sentence = f"The script failed {_say_when(evidence)}: {what}. {_advise(exception, evidence.log_text)}"
    return Judgement(Outcome.CRASHED, sentence, describe_launch_failure(sentence, evidence))


def _say_last(evidence: Evidence) -> str:
    """What a command said last, which is no result: the only word about an end without an exception."""
    lines = [line.strip() for line in strip_ranks(evidence.log_text).splitlines() if line.strip()]
    last = lines[-1] if lines and evidence.is_command else ""
    return f"; it last said: {last[:200]}" if last and not last.startswith("{") else ""


def _say_when(evidence: Evidence) -> str:
    if evidence.is_command and evidence.node_rank > 0:
        return f"on node {evidence.node_rank}"
    return f"after {evidence.steps} steps" if evidence.steps else "before its first step"


def _advise(exception: str, text: str) -> str:
    if "ModuleNotFoundError" in exception or "ImportError" in exception:
        return "Install it beside this torchrun, or give the torchrun of the environment that trains by full path."
    if "cannot be started" in text or "No such file" in exception or "FileNotFoundError" in exception:
        return "Check that the file exists on every node, and the job's working_dir."
    if "environment variable RANK expected" in text:
        return "The script asks for RANK, which a launcher sets: torchrun --nproc-per-node 1 in the place of python."
    if "unrecognized arguments" in text or "error: argument" in text or "usage:" in text:
        return "Check the command's arguments: the line above in the log names the one that was refused."
    if "PermissionError" in exception or "Permission denied" in text:
        return (
            "Give the user that scripts run as (the agent's own, or its run_as) access to the script, its interpreter "
            "and its data."
        )
    return "Run the same command by hand on this node: it has to train there first."


def describe_launch_failure(sentence: str, evidence: Evidence) -> Trouble:
    """Return the trouble that ends the job; below its sentence stand the lines of the log that say why."""
    told = "\n".join(filter(None, [sentence, excerpt_failure(evidence.log_text)]))
    return Trouble(code=LAUNCH_FAILED, sentence=told, fatal=True)


def _find_signal(text: str, code: int) -> int:
    """Return the signal that ended a rank (9 for SIGKILL), 0 for none."""
    if code < 0:
        return -code
    signals = [abs(int(match[1] or match[2])) for match in _KILLED.finditer(text)]
    return 9 if 9 in signals or code == 137 else (signals[0] if signals else 0)


def _find_shortage(log: str, text: str) -> str:
    culprit = find_culprit(log)
    is_told = culprit is not None and _OUT_OF_MEMORY.search(culprit.what)
    return culprit.describe() if culprit and is_told else _last_match(_OUT_OF_MEMORY, text)


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_match(pattern: re.Pattern[str], text: str) -> str:
    """Return the line of the pattern's last match, shortened."""
    start = [match.start() for match in pattern.finditer(text)][-1]
    line = text[text.rfind("\n", 0, start) + 1 :].splitlines()[0].strip()
    return line if len(line) <= 300 else line[:300] + "…"


def read_kernel_oom_kills() -> int:
    """Return how many processes this machine's kernel has killed for memory since it started."""
    try:
        with open("/proc/vmstat") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0
