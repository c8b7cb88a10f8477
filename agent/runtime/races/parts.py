"""What a race works with on this rank: its levers, its clock, its line to the other ranks."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, List

import torch.distributed as dist

from ..backends import find_place
from ..facts import count_gradient_bytes, locate
from ..levers.lever import Training
from ..levers.registry import Levers
from ..link.exchange import Exchange, PeerLost
from ..observe.clock import choose_clock
from ..observe.memory import count_free_bytes
from ..private_torch import DEFAULT_STORE, SET_LOG_RATE
from ..rank_process import RankProcess

PEER_TIMEOUT_S = 180.0
"""In a trial, whose agent ends it when a rank hangs."""
PRODUCTION_TIMEOUT_S = 60.0
"""In a real training, which then goes on without what was waited for. All ranks wait right before an exchange of
gradients, so that a rank that only comes late loses nothing by it."""

SPARE_SHARE = 0.5
"""The most of the free memory that reducers beside the one in force may take."""


class RankParts:
    """Made once, at the hello."""

    def __init__(self, process: RankProcess) -> None:
        self.process, environment, models = process, process.environment, process.models
        self.rank, self.world_size = find_place()
        self.local_world_size = environment.local_world_size
        self.device, self.backend = locate(models.list_replicas(), models.list_sharded(), models.list_plain())
        self.clock = choose_clock(self.device)
        self.recorder, self.reading = process.recorder, process.reading
        self.recorder.clock = self.clock
        self.levers = Levers(
            self.rank,
            self.world_size,
            self.local_world_size,
            self.device,
            self.clock,
            environment.cold,
            self.reading,
            environment.scratch,
            environment.own,
            process.splitting,
            environment.local_rank,
            process.recomputation,
        )
        self.asks_cheaply = self.device.type == "cpu"
        """Whether DDP may be asked for its times in every step: elsewhere that makes the host wait for the device."""
        self.drifted = ""
        """Rank 0's sentence once a race left the ranks with different parameters: nothing counts from then on."""
        self.apart_before: Dict[int, str] = {}
        """By a model's place, what ranks held apart before anything of ours was in force: the script's own doing."""

    @property
    def exchange(self) -> Exchange:
        """The line to the other ranks: another one for each process group that the script makes its own."""
        if self.process.exchange is None:
            self.process.exchange = _open_exchange(self.process)
        return self.process.exchange

    def leave_group(self) -> None:
        """The script destroys its process group."""
        self.levers.reduction.communicators.leave_group()

    def list_replicas(self) -> List[Any]:
        """The DDP models that train now, the same list on every rank."""
        return self.process.models.list_replicas()

    def gather_training(self) -> Training:
        """What levers act on."""
        process = self.process
        models = process.models
        replicas, sharded, plain = models.list_replicas(), models.list_sharded(), models.list_plain()
        return Training(
            replicas,
            process.watch.list_optimizers(),
            process.precision,
            process.recorder.loss if self.levers.needs_loss else None,
            sharded,
            process.models.list_awaited(),
            process.models.list_known(),
            process.shared.repeats_backward,
            process.models.entered,
            process.watch.list_waiting(models.list_training()),
            plain,
            process.shared.length,
            process.shared.reads_between,
        )

    def has_room(self, reducers: int) -> bool:
        """For the buckets of so many reducers of each model beside the one in force, on this rank."""
        spare = reducers * sum(map(count_gradient_bytes, self.list_replicas()))
        processes = 1 if self.device.type == "cuda" else self.local_world_size
        return spare <= SPARE_SHARE * count_free_bytes(self.device) / processes

    def enter(self, phase: int) -> None:
        """Says in the beat what this rank does."""
        self.process.enter(phase)

    def rate_logging(self, sample_rate: int) -> None:
        """How often DDP times an iteration of its own: every one while an arm is profiled."""
        for ddp in self.list_replicas():
            SET_LOG_RATE.of(ddp)(sample_rate)

    def agree_on_most(self, own: List[int], what: str) -> List[int]:
        """Collective. The largest of all ranks' numbers, place by place: one rank may have more to wait for."""
        views = self.exchange.gather(own, what, PEER_TIMEOUT_S) or [own]
        return [int(number) for number in self.share([max(numbers) for numbers in zip(*views)], what)]

    def agree_on_refusal(self, own: str, what: str) -> str:
        """Collective. The first sentence of a rank that refuses, for all; empty where none does. What only some ranks
        had in force would let them wait for each other for ever."""
        views = self.exchange.gather(own, what, PEER_TIMEOUT_S) or []
        return str(self.share(next(filter(None, views), ""), what))

    def meet(self, what: str) -> None:
        """Collective. Comes back when all ranks stand here, with the same models; else raises PeerLost on every rank.

        Before reducers are changed: ranks with other buckets than the others would wait for each other for ever.
        """
        own = [
            self.process.shared.exchanges,
            len(self.list_replicas()),
            len(self.process.models.list_sharded()),
        ]
        views = self.exchange.gather(own, what, PEER_TIMEOUT_S)
        if not self.share(views is None or all(view == own for view in views), what):
            raise PeerLost(f"The ranks are not at the same place of the training at {what}.")

    def share(self, value: Any, what: str) -> Any:
        """Rank 0's value on every rank."""
        return self.exchange.broadcast(value, what, PEER_TIMEOUT_S)


def leave_exchange(process: RankProcess, is_over: bool = False) -> None:
    """This rank meets the others no more over this process group, and perhaps never did.

    `is_over` says that none will be met anyway: then the store, which may be gone, is not asked.
    """
    line, process.exchange = process.exchange, None
    if is_over:
        return
    with contextlib.suppress(RuntimeError):  # the store may have ended with its rank
        if line is None and dist.is_available() and dist.is_initialized():
            line = _open_exchange(process)
        if line is not None:
            line.leave()


def leave_group(process: RankProcess, is_over: bool) -> None:
    """The script destroys its process group. A trial's last results still go over its store."""
    if process.environment.strategy is not None:
        leave_exchange(process, is_over)
    process.groups_left += 1


def _open_exchange(process: RankProcess) -> Exchange:
    environment = process.environment
    if environment.world_size == 1:
        store: Any = dist.HashStore()  # nobody is to be met
    elif dist.is_initialized():
        store = DEFAULT_STORE.load()()
    else:
        raise PeerLost(
            "The script has destroyed its default process group, over whose store the ranks agree."
        )
    return Exchange(
        store,
        # Torchrun keeps its store over restarts of the ranks: none may read what an earlier one left.
        f"{environment.session}/{environment.attempt}/{process.groups_left}",
        *find_place(),
        process.write_waiting,
        process.note_exchange,
        most_s=PEER_TIMEOUT_S if environment.strategy is None else PRODUCTION_TIMEOUT_S,
    )


def read_exposed_s(data: Dict[str, int]) -> float:
    """Seconds of communication that no computing hid, in the last backward that DDP logged.

    From DDP's durations, which are a device's own on CUDA. Its host stamps are not: there a future's wait() returns
    before the collective has run.
    """
    hidden_ns = data.get("backward_compute_comm_overlap_time", 0)
    return max(0.0, (data.get("backward_comm_time", 0) - hidden_ns) / 1e9)
