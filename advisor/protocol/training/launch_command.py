"""Reads a launch command as its launcher would: which words are the launcher's options, which the script's.

Understood: `torchrun …`, `python -m torch.distributed.run …` and `python script.py …`; every other command starts its
ranks itself, and the runtime gets into them through their environment. Pure functions.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import PurePath

from advisor.protocol.training.workload import Injection

_TORCHRUN_FLAGS = ("standalone", "module", "no-python", "run-path", "virtual-local-rank", "help")
"""torchrun's options that take no value; every other one takes exactly one."""
_TORCHRUN_VALUES = (
    "nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "max-restarts",
    "monitor-interval", "start-method", "event-log-handler", "role", "log-dir", "redirects", "tee",
    "local-ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters", "node-rank", "master-addr",
    "master-port", "local-addr", "logs-specs", "numa-binding", "signals-to-handle", "shutdown-timeout",
)  # fmt: skip
_SHORT = {"m": "module", "h": "help", "r": "redirects", "t": "tee"}
_OURS = (
    "standalone", "nnodes", "node-rank", "master-addr", "master-port", "max-restarts", "local-addr",
    "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf",
)  # fmt: skip
"""Options that the gang decides."""
_RENDEZVOUS = frozenset({"standalone", "nnodes", "rdzv-endpoint", "master-addr"})
_PYTHON_FLAGS = frozenset("bBdEhiIOPqsSuvVx")
_OUT_OF_REACH = {
    "mpirun": "Start one agent per node",
    "mpiexec": "Start one agent per node",
    "srun": "Start one agent per node with srun",
    "ssh": "Start an agent on that node",
    "docker": "Start the agent inside the container",
    "podman": "Start the agent inside the container",
}
"""Launchers whose processes are no descendants of the agent, and what to do instead."""


_OF_PADDLE = frozenset({"fleetrun", "paddle.distributed.launch", "paddle.distributed.fleet.launch"})
_IMPORT = r"^[ \t]*(?:import|from)[ \t]+{package}\b"
_BY_TORCH = "torch|lightning|pytorch_lightning|accelerate|transformers|deepspeed|diffusers|fastai|timm"
_LAUNCHES_PADDLE = r"\bfleetrun\b|\bpaddle\.distributed\.(?:fleet\.)?launch\b"


class UnlaunchableCommand(ValueError):
    """The command cannot be launched with the runtime in front; the sentence names the word and the remedy."""


class ForeignCommand(UnlaunchableCommand):
    """The command starts the ranks itself: the runtime can reach them only through their environment."""


class PaddleCommand(UnlaunchableCommand):
    """What is to be started trains with PaddlePaddle, which only a job of that kind can measure."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} trains with PaddlePaddle, and this job measures PyTorch trainings: give --kind paddle "
            "(advisor tune --kind paddle -- COMMAND; in a job's file, kind: paddle under workload)."
        )


@dataclass(frozen=True)
class LaunchCommand:
    """A launch command, taken apart."""

    launcher: str
    """The first word: torchrun or a python, perhaps with its path."""
    is_torchrun: bool
    """Ranks are started by torchrun (in either spelling); otherwise the script is the only process."""
    runs_module: bool
    """The launcher is `python -m torch.distributed.run`, or the script of a plain python is a module."""
    python_options: tuple[str, ...]
    """Options of the interpreter, e.g. -u."""
    launcher_options: tuple[str, ...]
    """Options of torchrun that are kept, e.g. --nproc-per-node=2."""
    script: tuple[str, ...]
    """`script.py` or `-m module`."""
    arguments: tuple[str, ...]
    """The script's own arguments."""
    typed_launcher: tuple[str, ...]
    """Everything before the script as it was typed, but for the word that makes it a module."""
    replaced: tuple[str, ...] = ()
    """Options of torchrun that the gang decides, as they were typed."""
    names_rendezvous: bool = False
    """The command itself says how its nodes meet."""

    def with_one_rank(self) -> tuple[str, ...]:
        """Return the words that start one rank of the same script; torchrun's only."""
        kept: list[str] = []
        words = iter(self.typed_launcher)
        for word in words:
            option = re.match(r"--nproc[\w-]*(=)?", word)
            if option is None:
                kept.append(word)
            elif option[1] is None:
                next(words, None)
        return (*kept, "--nproc-per-node=1", *self.script, *self.arguments)

    @property
    def spans_nodes(self) -> bool:
        """Whether it asks for several nodes."""
        found = re.search(r"--nnodes[= ](\S+)", " ".join(self.replaced))
        return found is not None and found[1] not in {"1", "1:1"}

    @property
    def script_path(self) -> str | None:
        """The script's path as typed; None for a module."""
        return None if self.script[0] == "-m" else self.script[0]


@dataclass(frozen=True)
class Command:
    """The words of a launch command, and what they mean to its launcher."""

    words: tuple[str, ...]
    launch: LaunchCommand | None
    """None where the runtime cannot stand in front of the script."""
    fault: UnlaunchableCommand | None = None
    """Why not."""

    @classmethod
    def read(cls, words: Sequence[str]) -> "Command":
        """Read a command that may be of any kind."""
        try:
            return cls(tuple(words), parse_command(words))
        except UnlaunchableCommand as fault:
            return cls(tuple(words), None, fault)


def parse_command(words: Sequence[str]) -> LaunchCommand:
    """Take a launch command apart; raises UnlaunchableCommand naming the word at fault and what to use instead."""
    launcher = words[0]
    name = PurePath(launcher).name
    if name == "torchrun":
        return _parse_torchrun(launcher, (), words[1:])
    if re.fullmatch(r"python(3(\.\d+)?)?t?", name):
        return _parse_python(launcher, words[1:])
    if name.endswith(".py"):
        raise UnlaunchableCommand(
            f"The command starts with the script {launcher}: put python or torchrun in front of it."
        )
    if name in _OUT_OF_REACH:
        raise UnlaunchableCommand(
            f"{name} starts processes that no agent can reach or guard. {_OUT_OF_REACH[name]}, and give torchrun "
            "--nproc-per-node N script.py … as the command."
        )
    raise _describe_foreign(name)


def refuse_paddle(words: Sequence[str]) -> None:
    """Raise PaddleCommand where one of Paddle's launchers stands before the script."""
    before_script = takewhile(lambda word: not word.endswith(".py"), words)
    for word in before_script:
        if PurePath(word.removeprefix("-m")).name in _OF_PADDLE:
            raise PaddleCommand(word.removeprefix("-m"))


def trains_with_paddle(source: str) -> bool:
    """Whether a script's text says that it trains with PaddlePaddle and not with torch."""
    if re.search(_IMPORT.format(package=f"(?:{_BY_TORCH})"), source, re.MULTILINE):
        return False
    return bool(re.search(f"{_IMPORT.format(package='paddle')}|{_LAUNCHES_PADDLE}", source, re.MULTILINE))


def count_ranks(words: Sequence[str]) -> int | None:
    """Return how many processes torchrun is told to start on a node; None where the command names no number."""
    launch = Command.read(words).launch
    typed = iter(launch.launcher_options if launch is not None and launch.is_torchrun else ())
    for word in typed:
        name, has_value = name_option(word)
        value = word.partition("=")[2] if has_value else next(typed, "") if takes_value(name) else ""
        if name == "nproc-per-node":
            return int(value) if value.isdigit() else None
    return None


def choose_injection(wanted: Injection, command: Command) -> Injection:
    """Return the way in which the runtime gets into the ranks: never `auto`.

    A script that is started by python itself starts its ranks, if it has several (Lightning, mp.spawn): only the
    environment reaches them. Raises UnlaunchableCommand when the command cannot be started at all, or not in the way
    that is wanted.
    """
    if command.fault and (wanted is Injection.LAUNCHER or not isinstance(command.fault, ForeignCommand)):
        raise command.fault
    if wanted is not Injection.AUTO:
        return wanted
    return Injection.LAUNCHER if command.launch and command.launch.is_torchrun else Injection.ENVIRONMENT


def _describe_foreign(what: str) -> ForeignCommand:
    return ForeignCommand(
        f"{what} starts the training processes itself, so the runtime has no place in the command: set injection to "
        "auto or environment, or give the command as torchrun --nproc-per-node N script.py …"
    )


def _parse_python(launcher: str, words: Sequence[str]) -> LaunchCommand:
    position = 0
    while position < len(words) and words[position].startswith("-") and words[position] != "-":
        word = words[position]
        position += 1
        if word.startswith("--"):
            position += word == "--check-hash-based-pycs"
            continue
        for place, letter in enumerate(word[1:], start=2):
            attached = word[place:]
            if letter == "m":
                module, after = (
                    (attached, position) if attached else (_take(words, position, word), position + 1)
                )
                options = _keep_options(words[: position - 1], word[: place - 1])
                return _finish_module(launcher, options, module, words[after:])
            if letter == "c":
                raise UnlaunchableCommand(
                    "python -c has no script to put the runtime in front of: write it to a file."
                )
            if letter in "WX":
                position += not attached
                break
            if letter not in _PYTHON_FLAGS:
                raise UnlaunchableCommand(f"{word} is not an option of python: check the command's spelling.")
    script = _take(words, position, launcher)
    options = tuple(words[:position])
    return LaunchCommand(
        launcher, False, False, options, (), (script,), tuple(words[position + 1 :]), (launcher, *options)
    )


def _keep_options(before: Sequence[str], joined: str) -> tuple[str, ...]:
    """`-um module`: the letters in front of the m stay options of python."""
    return (*before, joined) if len(joined) > 1 else tuple(before)


def _finish_module(
    launcher: str, options: tuple[str, ...], module: str, rest: Sequence[str]
) -> LaunchCommand:
    if module == "torch.distributed.run":
        return _parse_torchrun(launcher, options, rest)
    if module in {"torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner"}:
        raise _describe_foreign(f"python -m {module}")
    typed = (launcher, *options)
    return LaunchCommand(launcher, False, True, options, (), ("-m", module), tuple(rest), typed)


def _parse_torchrun(launcher: str, python_options: tuple[str, ...], words: Sequence[str]) -> LaunchCommand:
    kept: list[str] = []
    replaced: list[str] = []
    all_typed: list[str] = []
    names_rendezvous = is_module = False
    position = 0
    while position < len(words) and words[position].startswith("-"):
        word = words[position]
        position += 1
        if word == "--":
            break
        option, has_value = name_option(word)
        typed = [word]
        if takes_value(option) and not has_value:
            typed.append(_take(words, position, word))
            position += 1
        if option != "module":
            all_typed += typed
        names_rendezvous = names_rendezvous or option in _RENDEZVOUS
        if option == "module":
            is_module = True
        elif option == "no-python":
            raise _describe_foreign("torchrun --no-python")
        elif option == "help":
            raise UnlaunchableCommand("torchrun --help trains nothing: give the script that trains.")
        elif option in _OURS:
            replaced.append(" ".join(typed))
        elif (
            option != "run-path"
        ):  # it only changes how torchrun calls the script, which is the runtime's part here
            kept += typed
    script = _take(words, position, launcher)
    runs_module = PurePath(launcher).name != "torchrun"
    module_words = ("-m", "torch.distributed.run") if runs_module else ()
    return LaunchCommand(
        launcher,
        is_torchrun=True,
        runs_module=runs_module,
        python_options=python_options,
        launcher_options=tuple(kept),
        script=("-m", script) if is_module else (script,),
        arguments=tuple(words[position + 1 :]),
        typed_launcher=(launcher, *python_options, *module_words, *all_typed),
        replaced=tuple(replaced),
        names_rendezvous=names_rendezvous,
    )


def takes_value(option: str) -> bool:
    """Whether an option of torchrun is followed by a value."""
    return option not in _TORCHRUN_FLAGS


def name_option(word: str) -> tuple[str, bool]:
    """Return an option's full name with dashes, and whether its value is attached; argparse takes abbreviations."""
    if not word.startswith("--"):
        name = _SHORT.get(word[1:2])
        if name is None:
            raise UnlaunchableCommand(f"{word} is not an option of torchrun: check the command's spelling.")
        return name, len(word) > 2
    typed, equals, _ = word[2:].partition("=")
    typed = typed.replace("_", "-")
    options = (*_TORCHRUN_FLAGS, *_TORCHRUN_VALUES)
    matches = [typed] if typed in options else [option for option in options if option.startswith(typed)]
    if len(matches) != 1:
        meant = f" (it could mean {', '.join('--' + match for match in matches)})" if matches else ""
        raise UnlaunchableCommand(
            f"{word} is not an option of torchrun{meant}: check the command's spelling."
        )
    return matches[0], bool(equals)


def _take(words: Sequence[str], position: int, after: str) -> str:
    if position >= len(words):
        raise UnlaunchableCommand(f"The command ends after {after}: the script that trains is missing.")
    return words[position]
