"""Starts a node's ranks as `torchrun` would: `start_ranks.py [torchrun's options] script.py args…`.

torchrun loads all of torch before it starts a rank, which takes as long as the ranks' own loading of it, at every
launch. Here the ranks are started first, and torch is loaded beside them: for the store in which they meet, which node
0's launcher keeps as torchrun does. The ranks are the same processes, with the same words and variables. Whatever is
not understood here (another option, a variable of torchrun's, an old torch) is torchrun's to do, with the same words.
Executed as a plain script by the python that torchrun belongs to.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from importlib import metadata
from typing import Any, Dict, List, Mapping, NoReturn, Optional, Sequence, Tuple

_NUMBERS = ("nproc-per-node", "nnodes", "node-rank", "master-port")
_TEXTS = ("master-addr",)
_FIXED = {"rdzv-backend": "static", "max-restarts": "0"}
"""Options that the agent gives, with the only values that are understood."""
_OLDEST_TORCH = (2, 2)
"""Earlier ones set other variables."""
_PATIENCE_S = 30.0
"""What ranks get to leave after SIGTERM, as torchrun gives them."""
_POLL_S = 0.05
_BACKLOG = 4096
_KEPT = "PET_LOG_DIR"
"""The one variable of torchrun's that the agent gives: a folder, for which there is no use here."""


def main() -> None:
    if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]  # nothing of this folder is meant here
    words = sys.argv[1:]
    understood = None if _wants_torchrun(os.environ) else parse(words)
    if understood is None:
        _become_torchrun(words)
    options, script = understood
    asked: List[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        # Only noted: an exception could come while a rank is being started, and that rank would be left running.
        signal.signal(number, lambda number, _: asked.append(number))
    ranks: List[subprocess.Popen[bytes]] = []
    # Ranks that are there before the store are kept waiting by the kernel.
    listener = _listen(int(options["master-port"])) if options.get("node-rank", "0") == "0" else None
    try:
        for local_rank in range(int(options.get("nproc-per-node", "1"))):
            if asked:
                break
            environment = describe_rank(options, local_rank, os.environ)
            words = [sys.executable, "-u", *script]
            # An OS session of its own, as torchrun gives it: its whole group can be stopped.
            ranks.append(subprocess.Popen(words, env=environment, start_new_session=True))
        store = _keep_store(options, listener) if listener is not None and not asked else None
        code = wait(ranks, asked)
        del store
    finally:
        _end(ranks)
    sys.exit(code)


def parse(words: Sequence[str]) -> Optional[Tuple[Dict[str, str], List[str]]]:
    """torchrun's options by their names with dashes, and the script's words; None where it is not that simple."""
    options: Dict[str, str] = {}
    position = 0
    while position < len(words) and words[position].startswith("--"):
        name, separator, value = words[position][2:].partition("=")
        name = name.replace("_", "-")
        position += 1
        if not separator:
            if position == len(words):
                return None
            value = words[position]
            position += 1
        is_known = (name in _NUMBERS and value.isdecimal()) or name in _TEXTS or _FIXED.get(name) == value
        if not is_known:
            return None
        options[name] = value
    script = list(words[position:])
    named = script[1:] if script[:1] == ["-m"] else script
    is_whole = {"master-addr", "master-port"} <= options.keys() and options.get("nproc-per-node") != "0"
    return (options, script) if is_whole and named and not named[0].startswith("-") else None


def describe_rank(
    options: Mapping[str, str], local_rank: int, environment: Mapping[str, str]
) -> Dict[str, str]:
    """The environment of a rank: the launcher's own, with what torchrun tells its ranks."""
    ranks_here, nodes = int(options.get("nproc-per-node", "1")), int(options.get("nnodes", "1"))
    node = int(options.get("node-rank", "0"))
    rank, world = str(node * ranks_here + local_rank), str(nodes * ranks_here)
    told = {
        "RANK": rank,
        "LOCAL_RANK": str(local_rank),
        "GROUP_RANK": str(node),
        "ROLE_RANK": rank,
        "ROLE_NAME": "default",
        "LOCAL_WORLD_SIZE": str(ranks_here),
        "WORLD_SIZE": world,
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": options["master-addr"],
        "MASTER_PORT": options["master-port"],
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    }
    usual = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    if ranks_here > 1:
        usual["OMP_NUM_THREADS"] = "1"
    return {**usual, **environment, **told}


def _listen(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
    return socket.create_server(("", port), backlog=_BACKLOG)


def _keep_store(options: Mapping[str, str], listener: socket.socket) -> Any:
    """Returns the store, which serves the ranks as long as it is held."""
    from torch.distributed import TCPStore

    host, port = options["master-addr"], int(options["master-port"])
    return TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listener.detach(),
    )


def wait(ranks: Sequence["subprocess.Popen[bytes]"], asked: Sequence[int]) -> int:
    """Returns the exit code once all ranks have left by themselves (0), or as soon as one has failed or a signal asks
    for the end (1)."""
    left = list(ranks)
    while left and not asked:
        for rank in [each for each in left if each.poll() is not None]:
            left.remove(rank)
            if rank.returncode:
                place = ranks.index(rank)
                print(
                    f"fleet advisor: local rank {place} ended with exitcode : {rank.returncode} (pid: {rank.pid}); "
                    "the node's other ranks are stopped.",
                    file=sys.stderr,
                    flush=True,
                )
                return 1
        time.sleep(_POLL_S)
    return 1 if asked else 0


def _end(ranks: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Ends what still runs, first politely."""
    for number, patience_s in ((signal.SIGTERM, _PATIENCE_S), (signal.SIGKILL, _PATIENCE_S)):
        left = [rank for rank in ranks if rank.poll() is None]
        for rank in left:
            try:
                os.killpg(rank.pid, number)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline and any(rank.poll() is None for rank in left):
            time.sleep(_POLL_S)


def _wants_torchrun(environment: Mapping[str, str]) -> bool:
    others = [name for name in environment if name != _KEPT]
    if any(name.startswith(("PET_", "TORCHELASTIC_")) or name == "PYTHON_EXEC" for name in others):
        return True
    try:
        version = metadata.version("torch").split(".")
        return (int(version[0]), int(version[1])) < _OLDEST_TORCH
    except (metadata.PackageNotFoundError, ValueError, IndexError):
        return True


def _become_torchrun(words: Sequence[str]) -> NoReturn:
    os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *words])


if __name__ == "__main__":
    main()
