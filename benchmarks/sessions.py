"""What the benchmarks share: one launch of torchrun with the runtime in front, and a stand-in for the agent."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LAUNCH = ROOT / "agent" / "runtime" / "launch.py"


@dataclass(frozen=True)
class Ranks:
    """Where the ranks of a session start."""

    nproc_per_node: int = 2
    node_prefixes: tuple[tuple[str, ...], ...] = ((),)
    """The words that start a command on each node; one empty entry is this machine alone."""
    master_address: str = "127.0.0.1"
    """Where the first node's rendezvous is reached by the others."""
    interface: str | None = None
    """Network interface of gloo on every node."""


class SessionFailed(Exception):
    """A launch did not measure every block; the text holds the ranks' last words."""


def run_session(
    words: Sequence[str],
    blocks: Sequence[Mapping[str, Any]],
    ranks: Ranks,
    extra: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Launch `words` (a script and its arguments) once, hand out `blocks` one after the other, return their results.

    A block is the rules of a race (`advisor.protocol.measured.trials.RaceRules`) and `overrides`; with `arms` (block id
    -> overrides) in their place it is a whole race, whose result is that of each arm by its id. `extra` is added to the
    environment.
    """
    return run_planned(words, lambda _: blocks, ranks, extra)


def run_planned(
    words: Sequence[str],
    plan: Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]],
    ranks: Ranks,
    extra: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Like `run_session`, with blocks that `plan` makes from the runtime's hello (facts, baseline, refusals)."""
    directory = Path(tempfile.mkdtemp(prefix="fa-bench-"))
    path = directory / "control"
    results: list[dict[str, Any]] = []
    planned: list[Mapping[str, Any]] = []
    processes: list[subprocess.Popen[str]] = []
    logs = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        threading.Thread(target=_hand_out, args=(listener, plan, planned, results), daemon=True).start()
        for node, prefix in enumerate(ranks.node_prefixes):
            environment = {k: v for k, v in os.environ.items() if not k.startswith("ADVISOR_")}
            environment |= {
                "ADVISOR_TUNING": "1",
                "ADVISOR_SESSION_DIR": str(directory / f"node{node}"),
                "ADVISOR_CONTROL": str(path),
                "ADVISOR_SESSION": "benchmark",
                "OMP_NUM_THREADS": "1",
                **({"GLOO_SOCKET_IFNAME": ranks.interface} if ranks.interface else {}),
                **(extra or {}),
            }
            log = (directory / f"log{node}").open("w+")
            logs.append(log)
            launcher = [*prefix, sys.executable, "-m", "torch.distributed.run", *_rendezvous(ranks, node)]
            command = [*launcher, str(LAUNCH), *words]
            processes.append(
                subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True)
            )
        codes = [process.wait() for process in processes]
    tails = []
    for log in logs:
        log.seek(0)
        tails.append(log.read()[-3000:])
        log.close()
    shutil.rmtree(directory, ignore_errors=True)
    if any(codes) or not planned or len(results) != len(planned):
        raise SessionFailed(
            f"{len(results)} of {len(planned)} blocks were measured, exit codes {codes}:\n" + "\n".join(tails)
        )
    return results


def _rendezvous(ranks: Ranks, node: int) -> list[str]:
    count = ["--nproc-per-node", str(ranks.nproc_per_node)]
    if len(ranks.node_prefixes) == 1:
        return ["--standalone", *count]
    return [
        f"--nnodes={len(ranks.node_prefixes)}", f"--node-rank={node}", "--rdzv-backend=static",
        f"--master-addr={ranks.master_address}", "--master-port=29511", *count,
    ]  # fmt: skip


def _hand_out(
    listener: socket.socket,
    plan: Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]],
    planned: list[Mapping[str, Any]],
    results: list[dict[str, Any]],
) -> None:
    """Play the agent: one block after the other, then the end."""
    connection, _ = listener.accept()
    waiting: list[tuple[int, Mapping[str, Any]]] = []
    with connection, connection.makefile("rwb") as stream:
        for line in stream:
            message = json.loads(line)
            if message["kind"] == "race":
                found = message["results"]
                results.append(found if len(found) > 1 else next(iter(found.values())))
            elif message["kind"] == "hello":
                planned.extend(plan(message))
                waiting = list(enumerate(planned))
            if message["kind"] not in {"hello", "race"}:
                continue
            reply: dict[str, Any] = {"kind": "end", "reason": "all blocks are measured"}
            if waiting:
                number, block = waiting.pop(0)
                arms = block.get("arms") or {str(number): block.get("overrides", {})}
                reply = {
                    "kind": "race",
                    "race_id": f"{number}",
                    "rules": {
                        name: value for name, value in block.items() if name not in {"arms", "overrides"}
                    },
                    "arms": [{"block_id": arm, "overrides": overrides} for arm, overrides in arms.items()],
                }
            stream.write(json.dumps(reply).encode() + b"\n")
            stream.flush()
