"""Ranks forked from one process that has loaded torch once: a launch takes a moment instead of its many seconds.

`python forked_ranks.py` reads orders from its standard input, a JSON line each, and answers each with how it ended, as
`torchrun` would. What a launcher itself does is tested with real ones: in test_injection, test_troubles and the tests
of the agent.
"""

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_S = 10.0


class RankForge:
    """The process that ranks are forked from; started at the first launch."""

    def __init__(self, *, loads_runtime: bool = False) -> None:
        """With `loads_runtime` the runtime's modules are loaded once, too: for ranks that all have it in front."""
        self._words = ["--runtime"] if loads_runtime else []
        self._process: subprocess.Popen[str] | None = None

    def launch(
        self,
        words: list[str],
        environment: dict[str, str],
        folder: Path,
        ranks: int,
        timeout_s: float,
        local_world_size: int | None = None,
    ) -> tuple[int, str]:
        """Run a script with its arguments on all ranks to its end; return exit code and output.

        Those of one node take each other for all ranks where no `local_world_size` says how many a node has.
        """
        process = self._process = self._process or self._start()
        assert process.stdin
        assert process.stdout
        log = Path(environment["OUT"]) / f"ranks-{time.monotonic_ns()}.log"
        order = {"words": words, "environment": environment, "folder": str(folder), "ranks": ranks,
                 "local_world_size": local_world_size or ranks, "timeout_s": timeout_s, "log": str(log)}  # fmt: skip
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        return int(process.stdout.readline()), log.read_text(errors="replace")

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            assert self._process.stdin
            self._process.stdin.close()
            self._process.wait()

    def _start(self) -> "subprocess.Popen[str]":
        # More threads than processors must not spin while they wait for each other.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        if environment.get("FLEET_TEST_DEVICE", "cpu") == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        return subprocess.Popen(
            [sys.executable, __file__, *self._words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )


def main() -> None:
    """Serve orders until there are no more."""
    import torch._dynamo  # what optimizers load at their first step
    import torch.distributed
    import torch.nn.parallel

    if "--runtime" in sys.argv:
        runpy.run_path(str(Path(__file__).parents[3] / "agent" / "runtime" / "launch.py"))[
            "load_runtime_package"
        ]()
        importlib.import_module("fleet_advisor_runtime.inject.patches")
    torch.distributed.destroy_process_group = _wait_before(torch.distributed.destroy_process_group)
    # Out of every rank's collections: they would write to each page of it, which is shared until then.
    gc.collect()
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        answers.write(f"{run(json.loads(line))}\n")
        answers.flush()


def _wait_before(destroy: Callable[..., None]) -> Callable[..., None]:
    """Until gloo's thread has let go of its last work.

    It needs the interpreter's lock for that, which whoever drops the last reference to the group holds while joining
    the thread (torch 2.13, without our runtime too): a rank that destroys its group right after a barrier hangs, once
    in twenty launches.
    """

    def wait_and_destroy(*given: Any) -> None:
        time.sleep(0.05)
        destroy(*given)

    return wait_and_destroy


def run(order: dict[str, Any]) -> int:
    """Fork the ranks and wait for them: 0 when all left well; the first that fails ends the others."""
    keeper, port = _fork_store()
    try:
        return _wait(order, port)
    finally:
        os.kill(keeper, signal.SIGKILL)
        os.waitpid(keeper, 0)


def _fork_store() -> tuple[int, int]:
    """A process that keeps the store in which the ranks meet, as torchrun does; returns its id and the store's port."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        from torch.distributed import TCPStore

        store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        os.write(write_end, f"{store.port}\n".encode())
        while True:
            signal.pause()
    os.close(write_end)
    with os.fdopen(read_end) as told:
        return pid, int(told.readline())


def _wait(order: dict[str, Any], port: int) -> int:
    ranks = [_fork_rank(order, rank, port) for rank in range(order["ranks"])]
    left, code = set(ranks), 0
    deadline = time.monotonic() + order["timeout_s"]
    number = signal.SIGTERM
    while left:
        for pid in list(left):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                left.remove(pid)
                code = code or (1 if status else 0)
        if left and (code or time.monotonic() > deadline):
            if time.monotonic() > deadline:
                _ask_for_stacks(left)
                _note(order, "[timed out]")
                code = -signal.SIGTERM
            for pid in left:
                with contextlib.suppress(ProcessLookupError):  # it has no group of its own yet
                    os.killpg(pid, number)
            number, deadline = signal.SIGKILL, time.monotonic() + PATIENCE_S
            time.sleep(0.2)
        time.sleep(0.01)
    return code


def _ask_for_stacks(ranks: set[int]) -> None:
    """Where each rank stands, into the log: a hang that comes once in a thousand launches must tell of itself."""
    for pid in ranks:
        os.kill(pid, signal.SIGUSR1)
    time.sleep(0.5)


def _note(order: dict[str, Any], text: str) -> None:
    with open(order["log"], "a") as file:
        file.write(f"\n{text}")


def _fork_rank(order: dict[str, Any], rank: int, port: int) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = _be_rank(order, rank, port)
        finally:
            os._exit(code)
    return pid


def _be_rank(order: dict[str, Any], rank: int, port: int) -> int:
    os.setsid()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    local = order["local_world_size"]
    os.environ.clear()
    os.environ.update(order["environment"])
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank % local), GROUP_RANK=str(rank // local), WORLD_SIZE=str(order["ranks"]),
        LOCAL_WORLD_SIZE=str(local),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_RUN_ID="none", TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_USE_AGENT_STORE="True",
    )  # fmt: skip
    os.chdir(order["folder"])
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    sys.argv = order["words"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.modules.pop("__main__", None)
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException as error:
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        traceback.print_exc()
        code = 1
    import atexit

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    main()
