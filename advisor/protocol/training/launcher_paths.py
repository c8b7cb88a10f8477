"""Where launchers write by options of their own: an operator's roots hold for these paths as for the script's.

Pure functions. A launcher's option that only names what it reads is not listed: it reads as the job's user.
"""

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from advisor.protocol.training.launch_command import Command, name_option, takes_value

_TORCHRUN = frozenset({"log-dir", "rdzv-endpoint"})
"""The endpoint may be a file."""
_OTHERS = {
    "accelerate": frozenset({*_TORCHRUN, "offload-optimizer-nvme-path", "offload-param-nvme-path"}),
    "deepspeed": frozenset({"enable-each-rank-log"}),
    "mpirun": frozenset(
        {
            "output-filename", "output", "xml-file", "report-uri", "report-pid", "wdir", "wd", "path", "tmpdir",
            "preload-files-dest-dir", "outfile-pattern", "errfile-pattern", "stdout", "stderr",
        }
    ),
}  # fmt: skip
_SAME = {
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "torch.distributed.launch": "torchrun",
    "torch.distributed.run": "torchrun",
    "mpiexec": "mpirun",
    "orterun": "mpirun",
    "prterun": "mpirun",
}


def list_launcher_paths(command: Command) -> list[tuple[str, str]]:
    """Return the options of a command's launchers that name where they write, each with its path.

    Of a launcher that starts ranks by itself every word up to the script counts, also where another one stands before
    it (`env`, `python -m`).
    """
    launch = command.launch
    return list(_list_torchrun(launch.launcher_options) if launch else _list_foreign(command.words))


def _list_torchrun(options: Sequence[str]) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(options):
        word = options[position]
        name, has_value = name_option(word)
        value = word.partition("=")[2] if has_value else next(iter(options[position + 1 :]), "")
        if name in _TORCHRUN:
            yield word.partition("=")[0], value
        position += 1 if has_value or not takes_value(name) else 2


def _list_foreign(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    named: frozenset[str] = frozenset()
    for position, word in enumerate(words):
        launcher = PurePath(word).name
        launcher = _SAME.get(launcher, launcher)
        if launcher == "torchrun":
            named |= _TORCHRUN
        named |= _OTHERS.get(launcher, frozenset())
        if word.endswith(".py") and not word.startswith("-"):
            return
        option, equals, value = word.lstrip("-").partition("=")
        if word.startswith("-") and _is_named(option.replace("_", "-"), named):
            yield word.partition("=")[0], value if equals else next(iter(words[position + 1 :]), "")


def _is_named(option: str, named: frozenset[str]) -> bool:
    """argparse takes a beginning for the whole: one that could mean such an option counts as it."""
    return len(option) > 1 and any(full.startswith(option) for full in named)
