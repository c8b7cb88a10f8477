"""A recording card with NCCL on it: what communicators are made with, when they take memory, and in which order.

Stricter than NCCL where that would only crash or hang: a communicator takes its memory with its first sum, as NCCL's
do, and a sum over a destroyed one, a second destruction, and one that the card has no room for are errors.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fleet_advisor_runtime import backends
from fleet_advisor_runtime.levers.reduction import (
    communicators,
    nccl_configuration,
    nccl_options,
    reduction_hook,
    reduction_refusals,
)

from tests.unit.runtime.lone_rank import kept

UNSET = -(2**31)
USUAL_TIMEOUT = timedelta(minutes=10)
CPU = torch.device("cpu")
GIB = 2**30


class Config:
    """ncclConfig_t as torch shows it: no field but those it has can be set, and to a number only."""

    __slots__ = ("blocking", "cga_cluster_size", "max_ctas", "min_ctas")

    def __init__(self) -> None:
        self.min_ctas = self.max_ctas = self.cga_cluster_size = self.blocking = UNSET

    def __setattr__(self, name: str, value: int) -> None:
        assert type(value) is int, "torch raises TypeError"
        object.__setattr__(self, name, value)

    def check(self) -> None:
        """As NCCL does when a communicator is made with it (parseCommConfig in its src/init.cc)."""
        for name in ("min_ctas", "max_ctas"):
            if getattr(self, name) != UNSET and getattr(self, name) <= 0:
                raise RuntimeError("NCCL Error 4: invalid argument")
        if self.min_ctas > self.max_ctas or UNSET < self.cga_cluster_size < 0:
            raise RuntimeError("NCCL Error 4: invalid argument")


class Options:
    """ProcessGroupNCCL.Options: nothing but this can be set."""

    __slots__ = ("_timeout", "config", "is_high_priority_stream")

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.config, self.is_high_priority_stream = Config(), is_high_priority_stream
        self._timeout = USUAL_TIMEOUT


class NcclCard:
    """One rank of several on a card of 80 GiB, of which `free` are free beside what the training holds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int = 20 * GIB, each: int = GIB) -> None:
        self.free, self.each = free, each
        self.seen: list[str] = []
        """What was done with communicators, in order: `make 0 min_ctas=8`, `open 0`, `destroy 0`, `look`."""
        self.others: Callable[[list[int]], list[int]] = list
        """What the other ranks answer where all are asked for the largest of some numbers."""
        self.own = Options()
        self.groups: list[Any] = []
        self.options: dict[Any, Options] = {}
        self.state: dict[Any, str] = {}
        self._sum, self._make, self._destroy = dist.all_reduce, dist.new_group, dist.destroy_process_group
        for module in (communicators, nccl_configuration, reduction_hook, reduction_refusals):
            monkeypatch.setattr(module, "find_backend", lambda group, device: "nccl")
        kind = type("ProcessGroupNCCL", (), {"Options": Options})
        monkeypatch.setattr(dist, "ProcessGroupNCCL", kind, raising=False)
        backend = SimpleNamespace(of=self._find_backend, find=self._find_backend, is_in=lambda group: True)
        for module in (nccl_options, backends):
            monkeypatch.setattr(module, "GET_BACKEND", backend)
        monkeypatch.setattr(dist, "all_reduce", self.all_reduce)
        monkeypatch.setattr(dist, "new_group", self.new_group)
        monkeypatch.setattr(dist, "destroy_process_group", self.destroy)
        monkeypatch.setattr(communicators, "ABORT_GROUP", SimpleNamespace(load=lambda: self.abort))
        monkeypatch.setattr(torch.cuda, "mem_get_info", self._look)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
        monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 3))
        monkeypatch.setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1")
        for name in nccl_options.FIELDS:
            monkeypatch.delenv(name, raising=False)

    def new_group(
        self,
        ranks: list[int],
        timeout: timedelta = USUAL_TIMEOUT,
        backend: str | None = None,
        pg_options: Options | None = None,
        **how: Any,
    ) -> Any:
        assert backend == "nccl"
        group = self._make(ranks, timeout=timeout, backend=dist.get_backend(), **how)
        number, options = len(self.groups), pg_options or Options()
        assert pg_options is None or pg_options._timeout == timeout, "torch warns, each time"
        options._timeout = timeout
        self.groups.append(group)
        kept.append(group)
        self.options[group], self.state[group] = options, "made"
        config = {name: getattr(options.config, name) for name in Config.__slots__}
        self.seen.append(
            " ".join(["make", str(number), *(f"{n}={v}" for n, v in sorted(config.items()) if v != UNSET)])
        )
        return group

    def all_reduce(self, tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, **how: Any) -> Any:
        if group is None and op == dist.ReduceOp.MAX:
            tensor.copy_(torch.maximum(tensor, torch.tensor(self.others(tensor.tolist()))))
            return None
        if group in self.state:
            assert self.state[group] != "destroyed", "a sum over a communicator that is gone"
            if self.state[group] == "made":
                self.options[group].config.check()
                if self.each > self.free:
                    self.state[group] = "failed"
                    raise RuntimeError("NCCL error: Cuda failure 2 'out of memory'\nmore")
                self.free -= self.each
                self.state[group] = "open"
                self.seen.append(f"open {self.groups.index(group)}")
        return self._sum(tensor, op=op, group=group, **how)

    def destroy(self, group: Any) -> None:
        """As torch does it from 2.6 on: it waits for what is under way."""
        if self.state.get(group) == "failed":
            raise RuntimeError("NCCL communicator was aborted on rank 0.")
        self.abort(group)

    def abort(self, group: Any) -> None:
        assert self.state.get(group) in {"made", "open", "failed"}, "no communicator that is still there"
        self.free += self.each if self.state[group] == "open" else 0
        self.state[group] = "destroyed"
        self.seen.append(f"destroy {self.groups.index(group)}")
        self._destroy(group)

    def end_all(self) -> None:
        """The script ends with destroy_process_group()."""
        self._destroy()
        self.state = dict.fromkeys(self.state, "destroyed")

    def list_alive(self) -> list[int]:
        return [number for number, group in enumerate(self.groups) if self.state[group] != "destroyed"]

    def _look(self, device: Any) -> tuple[int, int]:
        self.seen.append("look")
        return self.free, 80 * GIB

    def _find_backend(self, group: Any) -> Any:
        assert dist.is_initialized(), "the script has ended its process groups"
        options = self.own if group is dist.group.WORLD else self.options[group]
        return lambda device: SimpleNamespace(options=options)


@contextmanager
def standing(name: str, value: str) -> Iterator[None]:
    """A variable in C's environment that Python's own copy does not know, as a line of nccl.conf becomes one."""
    os.environ.pop(name, None)
    libc = ctypes.CDLL(None)
    libc.setenv(name.encode(), value.encode(), 1)
    try:
        yield
    finally:
        libc.unsetenv(name.encode())
