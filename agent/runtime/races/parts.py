"""What a race works with on this rank: its levers, its clock, its line to the other ranks."""

from __future__ import annotations

from typing import Any, Dict, List

import torch.distributed as dist

from ..facts import locate
from ..levers.lever import Training
from ..levers.registry import Levers
from ..link.exchange import Exchange
from ..observe.clock import choose_clock
from ..private_torch import DEFAULT_STORE, SET_LOG_RATE
from ..rank_process import RankProcess

PEER_TIMEOUT_S = 180.0


class RankParts:
    """Made once, at the hello."""

    def __init__(self, process: RankProcess) -> None:
        self.process, environment, models = process, process.environment, process.models
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.local_world_size = environment.local_world_size
        self.device, self.backend = locate(models.list_replicas(), models.list_sharded())
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
        )
        # Torchrun keeps its store over restarts of the ranks: an attempt must not read what the last one left.
        session = f"{environment.session}/{environment.attempt}"
        self.exchange = Exchange(
            DEFAULT_STORE.load()(),
            session,
            self.rank,
            self.world_size,
            process.write_waiting,
            process.note_exchange,
        )
        self.asks_cheaply = self.device.type == "cpu"
        """Whether DDP may be asked for its times in every step: elsewhere that makes the host wait for the device."""
        self.drifted = ""
        """Sentence once a race left the ranks with different parameters: no reducers live side by side from then on."""

    def list_replicas(self) -> List[Any]:
        """The DDP models that train now, the same list on every rank."""
        return self.process.models.list_replicas()

    def gather_training(self) -> Training:
        """What levers act on."""
        process = self.process
        replicas, sharded = process.models.list_replicas(), process.models.list_sharded()
        return Training(
            replicas,
            process.watch.list_optimizers(),
            process.precision,
            process.recorder.loss if self.levers.needs_loss else None,
            sharded,
            process.watch.list_waiting([*replicas, *sharded]),
        )

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

    def share(self, value: Any, what: str) -> Any:
        """Rank 0's value on every rank."""
        return self.exchange.broadcast(value, what, PEER_TIMEOUT_S)


def read_exposed_s(data: Dict[str, int]) -> float:
    """Seconds of communication that no computing hid, in the last backward that DDP logged.

    From DDP's durations, which are a device's own on CUDA. Its host stamps are not: there a future's wait() returns
    before the collective has run.
    """
    hidden_ns = data.get("backward_compute_comm_overlap_time", 0)
    return max(0.0, (data.get("backward_comm_time", 0) - hidden_ns) / 1e9)
