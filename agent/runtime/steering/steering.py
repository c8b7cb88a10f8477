"""What stands between a rank's runtime and its levers: who decides which strategy is in force.

In a trial the agent does (`conversation`), in a real training the strategy that it was started with (`production`).
"""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from typing import Any, Dict, List, Optional

from ..facts import count_gradient_bytes, gather_baseline, gather_facts
from ..levers.buckets.bucket_plan import observe_plan
from ..levers.lever import Training
from ..levers.reduction.unused_parameters import KNOB as SEARCH
from ..link import beat
from ..link.rank_output import say_traceback
from ..observe.host_reads import HostReads
from ..observe.memory import read_share
from ..observe.recorder import OWN, REDUCTION, StepMarks
from ..observe.search_times import SearchTimes
from ..observe.unwrapped import find_exchanger
from ..races.agreement import find_all_apart
from ..races.parts import PEER_TIMEOUT_S, RankParts

WATCHED_STEPS = 3
"""Whole steps watched before anything is switched, so that batch size, accumulation and a step's time are known."""

READ_STEPS = 2
"""The last of them, in which reads of the device's values are counted."""


class Steering(ABC):
    """Every rank passes the same boundaries, once the ranks have agreed on them, and takes the same decisions."""

    def __init__(self, parts: RankParts) -> None:
        self._parts, self._process, self._levers = parts, parts.process, parts.levers
        self.events = parts.levers.events
        self.successor: Optional[Steering] = None
        """Who decides from here on, once this one has come to its end."""
        self._watched: List[StepMarks] = []
        self._forwards = 1
        self._has_begun = False
        """Boundaries are this rank's own until the ranks have agreed on common ones; here they have."""
        self._failure = ""
        """Why nothing that this rank has seen proves anything."""
        self._reads = HostReads() if parts.rank == 0 else None
        self._searches = SearchTimes()

    @property
    def works_in_steps(self) -> bool:
        """Whether anything has to be done before the next boundary: only then are its events told."""
        return bool(self.events.listeners)

    @property
    def is_over(self) -> bool:
        """Whether nothing will ever be done again, at boundaries or between them."""
        return False

    def make_way(self, ddp: Any) -> bool:
        """The script registers a communication hook: whether one of ours stood in its place."""
        return self._levers.reduction.make_way(ddp)

    def pass_boundary(self) -> None:
        """At the first training forward of a step: no reducer is in flight on any rank."""
        process, recorder, clock = self._process, self._parts.recorder, self._parts.clock
        if self._levers.work_in_steps:
            phase = REDUCTION if self._levers.averages_at_boundaries else OWN
            recorder.begin(phase)
            self._levers.end_step(self._parts.gather_training())
            recorder.end(phase)
        mark = clock.mark()
        forwards = process.samples.forwards
        step = recorder.close_step(mark, process.samples.close_step())
        if not self._has_begun:
            self._watch_script(step, forwards)
            if process.shared.are_agreed:
                self._has_begun = True
                self._begin()
                mark = clock.mark()
        elif step is not None and self._advance(step):
            mark = clock.mark()
        recorder.begin_step(mark)

    def _watch_script(self, step: Optional[StepMarks], forwards: int) -> None:
        self._process.phase = beat.TRAINING
        if not self._watched:
            self._levers.watch(self._parts.gather_training())
        if step is not None:
            self._watched = [*self._watched, step][-WATCHED_STEPS:]
            self._forwards = max(1, forwards)
        if len(self._watched) == WATCHED_STEPS - READ_STEPS:
            self._watch_closely()
        elif len(self._watched) == WATCHED_STEPS:
            self._process.recomputation.stop(READ_STEPS)
            if self._reads is not None:
                self._reads.stop()
                self._searches.stop()

    def _watch_closely(self) -> None:
        parts = self._parts
        # Not by buffers(): Megatron's DDP has a list in that method's place.
        buffers = [
            buffer
            for each in parts.gather_training().list_modules()
            for _, buffer in each.named_buffers(recurse=False)
        ]
        self._process.recomputation.start(parts.clock, parts.device, buffers)
        if self._reads is not None:
            self._reads.start()
            self._searches.start()

    def look(self) -> None:
        """Collective, after as many exchanges of gradients on every rank: whether all have watched enough of it to
        begin. Then what is a step for all is agreed on."""
        parts, shared = self._parts, self._process.shared
        views = parts.exchange.gather(
            [len(self._watched) == WATCHED_STEPS, *shared.describe()], "the first look", PEER_TIMEOUT_S
        )
        length, since = 0, 0
        if views is not None and all(view[0] for view in views) and len({view[1] for view in views}) == 1:
            length, since = views[0][2:]
        length, since = parts.share([length, since], "the first look")
        if length:
            shared.agree(length, since)
            if since % length == 0:
                self._has_begun = True
                self._begin()
                parts.recorder.begin_step(parts.clock.mark())

    def leave_group(self) -> None:
        """The script destroys its process group."""
        self._parts.leave_group()

    def note_failure(self, reason: str) -> bool:
        """Something of ours failed on this rank: whether it must go on as it is, because a strategy is on all ranks."""
        self._failure = reason
        return self._levers.have_switched

    def take_back(self) -> str:
        """Goes back to the script's own settings, at the same place on every rank; returns what failed in it."""
        try:
            if self._levers.have_switched:
                self._levers.switch({}, self._parts.gather_training())
                self._levers.reduction.drop_spares()
        except Exception as error:
            say_traceback(error)
            return f" ({type(error).__name__}: {error})"
        return ""

    @abstractmethod
    def _begin(self) -> None:
        """The first steps were watched."""

    @abstractmethod
    def _advance(self, step: StepMarks) -> bool:
        """Takes a later step; whether more was done than booking it, so that the next one begins only now."""

    @abstractmethod
    def finish_script(self) -> None:
        """The script ended by itself."""

    def _describe_script(self) -> Dict[str, Any]:
        """Collective. The script's facts and its own settings on rank 0; on every rank what some rank refuses."""
        process, parts = self._process, self._parts
        parts.enter(beat.WAITING)
        replicas = parts.list_replicas()
        training = parts.gather_training()
        refusals = self._merge(self._list_refusals(training), "what ranks refuse")
        self._levers.refuse(refusals)
        observed = self._levers.observe(training)
        parts.apart_before = find_all_apart(parts)
        batches = parts.exchange.gather(process.batches, "batches of an epoch", PEER_TIMEOUT_S)
        counted = math.ceil(max(step.samples for step in self._watched))
        fullest, counted = parts.agree_on_most(
            [round(1000 * read_share(parts.device)), counted], "how full memory is and what can be counted"
        )
        if not counted:
            process.samples.count_steps(parts.world_size)
        if parts.rank != 0:
            return {"refusals": refusals}
        parts.clock.settle()
        hint_s = statistics.median(parts.clock.measure(step.start, step.end) for step in self._watched)
        samples = int(statistics.median(step.samples for step in self._watched))
        facts = gather_facts(process.environment, training, process.loader, samples, self._forwards, hint_s)
        facts["memory_share"] = fullest / 1000
        facts["numbers_per_step"] = process.samples.numbers_per_step
        facts["tells_samples"] = process.samples.has_told
        if process.shared.by_updates:
            facts["exchanges_by"] = find_exchanger()
        else:
            facts["exchanges_per_step"] = process.shared.length if replicas else process.shared.reductions
        if parts.apart_before:
            facts["ranks_apart"] = next(iter(parts.apart_before.values()))
        if self._reads is not None:
            facts["host_reads"] = self._reads.describe(READ_STEPS)
        facts["recomputed"] = process.recomputation.describe(READ_STEPS)
        if observed.get(SEARCH) and SEARCH not in refusals:
            facts["vain_search_s"] = self._searches.seconds / READ_STEPS
        if batches is not None and None not in batches and len(set(batches)) > 1:
            facts["batches_per_rank"] = batches
        baseline = observed
        if replicas:
            facts["ddp"]["built_at"] = process.models.find_line(max(replicas, key=count_gradient_bytes))
            plan = process.launched_over or observe_plan(max(replicas, key=count_gradient_bytes))
            baseline = {**gather_baseline(plan, process.environment.local_world_size), **observed}
        return {"facts": facts, "baseline": baseline, "refusals": refusals}

    def _list_refusals(self, training: Training) -> Dict[str, str]:
        """Collective. This rank's."""
        return self._levers.list_refusals(training)

    def _merge(self, own: Dict[str, str], what: str) -> Dict[str, str]:
        """Collective. All ranks' sentences by knob."""
        parts = self._parts
        views = parts.exchange.gather(own, what, PEER_TIMEOUT_S) or []
        return dict(parts.share({knob: why for view in views for knob, why in view.items()}, what))
