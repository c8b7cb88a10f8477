"""What the process of one rank has seen of its script, and what it says of itself: in its beat and to its agent."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Dict, List, Optional

from .guard import FAILED
from .levers.buckets.bucket_plan import BucketPlan
from .levers.micro_batches.split_forward import KNOB, SplitForward
from .link import beat, stacks
from .link.control import AgentLost, ControlLine
from .link.environment import RANK_PROCESS, Environment
from .link.exchange import Exchange
from .link.rank_output import flush_output, say
from .loading.reading import Reading
from .observe.models import Models
from .observe.precision import ScriptPrecision
from .observe.recomputation import Recomputation
from .observe.recorder import Recorder
from .observe.samples import SampleCount
from .observe.shared_steps import SharedSteps
from .observe.steps import StepWatch


class RankProcess:
    """The runtime fills it; races and steerings work with it."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.models = Models()
        self.watch = StepWatch(self.models.are_strange_to)
        self.shared = SharedSteps(environment.world_size == 1)
        self.samples = SampleCount(environment.samples_per_forward)
        self.reading = Reading()
        self.splitting = SplitForward(_read_parts(environment), environment.local_world_size)
        self.recomputation = Recomputation()
        self.recorder = Recorder(environment.world_size == 1)
        self.precision = ScriptPrecision()
        self.loader: Optional[Dict[str, Any]] = None
        """The training loader iterated last."""
        self.batches: Optional[int] = None
        """Of one pass over it."""
        self.launched_over: Optional[BucketPlan] = None
        """The script's own bucket plan, where the session was launched with another one."""
        self.groups_left = 0
        """Process groups of the job that the script has destroyed."""
        self.exchange: Optional[Exchange] = None
        """The line to the other ranks, once anything was agreed on."""
        self.phase = beat.STARTING
        self._exchanges = 0
        self._beat: Optional[beat.BeatWriter] = None
        self._agent: Optional[ControlLine] = None
        self.is_rank = environment.is_rank
        """Whether this process is a rank for certain by now."""
        if self.is_rank:
            self._show()

    def become_rank(self) -> bool:
        """It trains, in no process group: whether it is the job's rank, and no other process is."""
        folder = self.environment.session_dir
        if not self.is_rank and not (folder and os.path.exists(beat.locate(folder, self.environment.rank))):
            self.is_rank = True
            os.environ[RANK_PROCESS] = str(os.getpid())
            if folder:
                stacks.arm(folder, self.environment.rank)
            self._show()
        return self.is_rank

    def ends_step(self) -> bool:
        """Whether a step has ended since this was last asked."""
        own, self.watch.leader_stepped = self.watch.leader_stepped, False
        # A trial of a script that makes its optimizers anew again and again waits until that is told.
        may_end = self.environment.strategy is not None or self.watch.has_leader
        has_ended = self.shared.end_step(own, may_end)
        self.models.step += has_ended
        return has_ended

    def _show(self) -> None:
        environment = self.environment
        if environment.session_dir:
            self._beat = beat.BeatWriter(environment.session_dir, environment.rank)
        self.write_beat()

    @property
    def is_watched(self) -> bool:
        """Whether there is a beat to write."""
        return self._beat is not None

    def write_beat(self) -> None:
        if self._beat is not None:
            self._beat.write(self.watch.training_steps, self.phase, self._exchanges)

    def write_waiting(self) -> None:
        """This rank waits for another one, whatever it does otherwise."""
        if self._beat is not None:
            self._beat.write(self.watch.training_steps, beat.WAITING, self._exchanges)

    def note_exchange(self) -> None:
        """The ranks have agreed on something: they get on, also where no step is made."""
        self._exchanges += 1
        self.write_beat()

    def enter(self, phase: int) -> None:
        """Says in the beat what this rank does."""
        self.phase = phase
        self.write_beat()

    def reach_agent(self) -> ControlLine:
        """Rank 0's line, opened at first use."""
        if self._agent is None:
            if self.environment.control is None:
                raise AgentLost("ADVISOR_CONTROL is not set; start the session through the agent.")
            self._agent = ControlLine(self.environment.control, self.write_beat)
        return self._agent

    def hang_up(self) -> None:
        """Closes the line where it is open."""
        line, self._agent = self._agent, None
        if line is not None:
            line.close()

    def end(self, code: int, reason: str) -> None:
        """Ends this rank at a step boundary, so that the script's final save does not run."""
        if code:
            say(f"rank {self.environment.rank}: {reason}")
        self.enter(beat.ENDED)
        children: List[Any] = getattr(sys.modules.get("multiprocessing"), "active_children", list)()
        for child in children:
            child.terminate()
        flush_output()
        if not code and self.environment.stay_s:
            time.sleep(self.environment.stay_s)
            code = FAILED  # no signal ended it, and the user's command must not go on as if it had trained
        os._exit(code)


def _read_parts(environment: Environment) -> int:
    """Parts of each batch from the first one on: a batch that does not fit leaves no step in which to switch."""
    given = {**environment.base, **(environment.strategy or {}).get("changes", {})}.get(KNOB)
    return given if isinstance(given, int) and given > 1 else 1
