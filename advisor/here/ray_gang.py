"""Nodes of a Ray cluster: a placement group, and on each of its nodes an actor that runs `advisor tune --here`."""

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from advisor.here.join import SECRET
from advisor.local.process import PYTHON
from advisor.local.server import LocalModeFailed

_LOOK_S, _SAY_S, _STOP_S = 0.5, 5.0, 90.0
_KEEPER = """"$0" -P -m advisor.local.guard $$ "$@" & trap "kill $!" TERM
wait $!; code=$?; [ $code = 143 ] && { wait $!; code=$?; }; exit $code"""
"""Ray kills (SIGKILL) what an actor started when it ends the actor: this shell, at whose death its child is asked."""


def share_out(nodes: int | None, cpus: int | None, gpus: int | None) -> list[dict[str, float]]:
    """Return what each node is to give: as asked, else what the smallest of the largest nodes has."""
    there = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    sizes = sorted(((each.get("GPU", 0.0), each.get("CPU", 0.0)) for each in there), reverse=True)
    usable = [size for size in sizes if any(size)]
    wanted = nodes or sum(gpu > 0 for gpu, _ in usable) or max(1, len(usable))
    taken = usable[:wanted]
    if len(taken) < wanted and (cpus is None or gpus is None):
        raise LocalModeFailed(
            f"The cluster has {len(taken)} nodes with processors.",
            "Ask for as many; or say with --nodes, --cpus and --gpus what the cluster is to add.",
        )
    bundle = {
        "CPU": float(min(size[1] for size in taken) if cpus is None else cpus),
        "GPU": float(min(size[0] for size in taken) if gpus is None else gpus),
    }
    return [{name: amount for name, amount in bundle.items() if amount}] * wanted


class NodeActor:
    """What runs on a node."""

    def find_address(self) -> str:
        """Return where the other nodes reach this one."""
        return str(ray.util.get_node_ip_address())

    def start(self, words: Sequence[str], folder: str, secret: str) -> None:
        """Start the verb, in the driver's folder where this node has it too."""
        self._said = [tempfile.TemporaryFile(), tempfile.TemporaryFile()]  # noqa: SIM115 - they end with the actor
        guarded = (*PYTHON, "-m", "advisor.local.guard", str(os.getpid()), "sh", "-c", _KEEPER, PYTHON[0])
        self._process = subprocess.Popen(
            [*guarded, *PYTHON, "-m", "advisor", "tune", "--here", *words],
            stdin=subprocess.DEVNULL,
            stdout=self._said[0],
            stderr=self._said[1],
            cwd=folder if Path(folder).is_dir() else None,
            env={SECRET: secret, **os.environ},  # nodes that have a secret of their own keep it
            start_new_session=True,
        )

    def look(self, seen: Sequence[int]) -> tuple[list[bytes], int | None]:
        """Return what it wrote since on its two outputs, as far as lines are whole, and its exit code."""
        try:
            code = self._process.wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            code = None
        said = [os.pread(file.fileno(), 1 << 24, at) for file, at in zip(self._said, seen, strict=True)]
        return said if code is not None else [text[: text.rfind(b"\n") + 1] for text in said], code

    def stop(self) -> None:
        """Ask it to stop."""
        self._process.terminate()


class RayGang:
    """The actors, each on a node of its own; they are gone when the context is left."""

    def __init__(self, bundles: list[dict[str, float]], tell: Callable[[str], None]) -> None:
        self._bundles, self._tell = bundles, tell
        self._group = placement_group(bundles, strategy="STRICT_SPREAD")
        self._actors: list[Any] = []
        self._seen = [[0, 0] for _ in bundles]
        self.codes: dict[int, int] = {}
        """Of the nodes whose command has ended."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self._actors:
            ray.kill(actor)
        remove_placement_group(self._group)

    def start(self, words: Sequence[str], folder: Path) -> None:
        """Start the verb on every node, in this folder where the node has it, as soon as the cluster has them."""
        size, count = self._bundles[0], len(self._bundles)
        if not self._group.wait(_SAY_S):
            each = " and ".join(f"{amount:g} {name}" for name, amount in size.items())
            self._tell(f"Waiting for {count} nodes with {each} free on each …")
            while not self._group.wait(_SAY_S):
                pass
        kind = ray.remote(num_cpus=size.get("CPU", 0), num_gpus=size.get("GPU", 0))(NodeActor)
        places = [PlacementGroupSchedulingStrategy(self._group, rank) for rank in range(count)]
        actors = [kind.options(scheduling_strategy=place).remote() for place in places]
        head = ray.get(actors[0].find_address.remote())
        secret, self._actors = secrets.token_hex(32), actors
        who = [("--node-rank", str(rank), "--nodes", str(count), "--head", head) for rank in range(count)]
        ray.get(
            [actors[rank].start.remote([*who[rank], *words], str(folder), secret) for rank in range(count)]
        )

    def look(self) -> None:
        """Pass on what the nodes said since: node 0's as it is, that of the others with their number."""
        running = [rank for rank in range(len(self._actors)) if rank not in self.codes]
        looks = {rank: self._actors[rank].look.remote(self._seen[rank]) for rank in running}
        for rank, look in looks.items():
            try:
                said, code = ray.get(look)
            except RayError as error:
                self._tell(f"Ray lost node {rank}: {str(error).strip().splitlines()[0]}")
                said, code = [b"", b""], 1
            self._seen[rank] = [at + len(text) for at, text in zip(self._seen[rank], said, strict=True)]
            for stream, text in zip((sys.stdout, sys.stderr), said, strict=True):
                if rank == 0:
                    stream.write(text.decode(errors="replace"))
                    stream.flush()
                for line in text.decode(errors="replace").splitlines() if rank else ():
                    self._tell(f"node {rank}: {line}")
            if code is not None:
                self.codes[rank] = code

    def await_end(self, patience_s: float) -> None:
        """Pass on what the nodes say until all have ended: those that have not within a while are asked to stop."""
        for limit_s, asked in ((patience_s, False), (_STOP_S, True)):
            for actor in self._actors if asked else ():
                actor.stop.remote()
            deadline = time.monotonic() + limit_s
            while len(self.codes) < len(self._actors) and time.monotonic() < deadline:
                self.look()
