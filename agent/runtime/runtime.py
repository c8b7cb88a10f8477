"""Takes every signal of the patches and hooks, and turns them into step boundaries. One object per rank."""

from __future__ import annotations

import time
from typing import Any, Callable, Optional, Tuple

import torch
from torch.nn.parallel import DistributedDataParallel

from . import current
from .current import Args, Kwargs
from .guard import FAILED, describe_failure
from .levers.computation.compilation import hides_optimizer_steps
from .levers.events import StepEvents
from .levers.launched import replace_cap
from .levers.reduction.reducer import is_joining
from .link import beat
from .link.control import AgentLost
from .link.environment import Environment
from .link.exchange import PeerLost
from .link.rank_output import say, say_traceback
from .link.trouble import describe_trouble
from .model_search import STEPS_WITHOUT_MODEL, ModelSearch, Trouble
from .observe.clock import is_capturing
from .observe.recorder import FORWARD, INTERRUPTED
from .private_torch import GET_LOG
from .races.parts import leave_exchange, leave_group, read_exposed_s
from .rank_process import RankProcess
from .script_loaders import ScriptLoaders
from .steering.alone import AloneStrategy
from .steering.choice import choose_steering, explain_no_steering
from .steering.steering import Steering
from .untraced import untraced

FEWEST_OUTSIDE = 5
"""Optimizer steps, of a process that is no rank for certain, which are a training."""
FORWARDS_WITHOUT_STEP = 200
UNTIL_ENDED_S = 10.0
"""The agent ends ranks that cannot be measured, once it has heard so."""


class Runtime:
    """Observes always; switches only under an agent (its control socket is given) or for a given strategy."""

    def __init__(self, environment: Environment) -> None:
        process = self.process = RankProcess(environment)
        self.environment = environment
        self.watch, self.recorder, self.models = process.watch, process.recorder, process.models
        self.samples, self.reading, self.precision = process.samples, process.reading, process.precision
        self.shared, self.splitting = process.shared, process.splitting
        self.write_beat, self.note_autocast = process.write_beat, process.precision.note_autocast
        self.loaders, self._search = ScriptLoaders(process), ModelSearch(process)
        self.start_epoch, self.note_length = self.loaders.start_epoch, self.loaders.note_length
        self.read_batch, self.hang_up = self.loaders.read_batch, process.hang_up
        self.begin_backward, self.note_interlude = self.recorder.begin_backward, self.recorder.note_interlude
        self.begin_phase, self.end_phase = self.recorder.begin, self.recorder.end
        self.begin_collective = self.recorder.begin_collective
        self.finish_backward = current.tell_after_backward
        self.begin_save, self.end_save = self.recorder.begin_save, self.recorder.end_save
        self.split_forward, self.checkpoint = self.splitting.run, process.recomputation.checkpoint
        self.may_go_on, self.go_on = self.splitting.may_go_on, self.splitting.go_on
        self._active = environment.control is not None or environment.strategy is not None
        self._steering: Optional[Steering] = None
        self.at_work: Optional[StepEvents] = None
        """Who is told what happens inside a step, where anybody listens."""
        self._alone: Optional[AloneStrategy] = None
        """What a rank has in force by itself, where the strategy as a whole is not."""
        self._rests = False
        """Nothing is left to be done at boundaries."""
        self._may_capture = True
        """Whether CUDA is in use: there are graphs to be captured."""
        self._training_forwards, self._told_trouble, self._has_failed = 0, False, False

    # What the patches report.

    def adjust_ddp_arguments(self, args: Args, kwargs: Kwargs) -> Kwargs:
        """The script's own arguments, but for a bucket size that this session was launched with."""
        kwargs, replaced = replace_cap(self.environment.cold, args, kwargs)
        self.process.launched_over = replaced or self.process.launched_over
        return kwargs

    def note_ddp(self, ddp: Any) -> None:
        self.models.add_replica(ddp)
        self._rests = False
        self.write_beat()

    def make_way(self, ddp: Any) -> None:
        """The script is about to register a communication hook."""
        if self._steering is not None:
            self._steering.make_way(ddp)

    def note_optimizer(self, optimizer: Any) -> None:
        """The script has made an optimizer."""
        self.watch.note_made(optimizer)
        own = self.models.list_training() if self._steering is not None else []
        if any(optimizer is known for known in self.watch.list_waiting(own)):
            self.models.have_come, self._rests = True, False

    def begin_forward(self, ddp: Any, args: Any, kwargs: Any) -> bool:
        """Before DDP's own preparation of a training forward; whether it is computed in parts."""
        if self.reading.undecided is not None:
            self.loaders.decide()
        if self._rests:
            return self.splitting.parts > 1
        if self._may_capture and self._active and is_capturing():
            self._leave_to_graph()
            return self.splitting.parts > 1
        models, is_marked, identity = self.models, False, id(ddp)
        begins_step = not self.shared.by_updates and self.process.ends_step()
        if identity not in models.last_forward:
            models.meet(ddp, self._steering is not None)
        models.last_forward[identity], models.entered = models.step, ddp
        if begins_step:
            is_marked = self._pass_boundary(in_forward=True)
        elif self.watch.optimizer_steps == 0:
            self._training_forwards += 1
            if self._training_forwards == FORWARDS_WITHOUT_STEP:
                self._tell_no_steps(FORWARDS_WITHOUT_STEP)
        self._look_where_due()
        models.entered = None
        self.shared.note_forward(ddp)
        self.samples.note_forward(identity, args, kwargs, self.reading.multiple)
        if self.at_work is not None:
            self.at_work.begin_forward(ddp)
        if not is_marked:
            self.recorder.begin(FORWARD)
        return self.splitting.parts > 1

    def end_forward(self, ddp: Any, output: Any) -> Any:
        """What the script gets from this forward."""
        self.recorder.end(FORWARD)
        if self.recorder.asks_ddp:
            self.note_reduction(ddp)
        output = output if self.at_work is None else self.at_work.end_forward(ddp, output)
        return self.models.await_backward(ddp, output) if self._active and not self._rests else output

    @untraced
    def note_reduction(self, ddp: Any) -> None:
        """What DDP has logged of its last reduction."""
        if isinstance(ddp, DistributedDataParallel):
            logged = GET_LOG.of(ddp)()
            self.recorder.note_reduction(ddp, logged, read_exposed_s(logged))

    def drop_forward(self) -> None:
        """It failed, and the script may catch that and go on."""
        self.recorder.end(FORWARD)
        if self.at_work is not None:
            self.at_work.drop_forward()

    def multiply_loss(self, roots: Any, args: Args, kwargs: Kwargs) -> Tuple[Any, Args, Kwargs]:
        """The arguments of the outermost backward, with the loss multiplied where the strategy in force asks for it."""
        at_work = self.at_work
        return (roots, args, kwargs) if at_work is None else at_work.multiply_loss(roots, args, kwargs)

    def end_backward(self) -> None:
        self.shared.note_backward()
        if self.at_work is not None:
            self.at_work.end_backward()
        self.recorder.end_backward()

    def begin_optimizer_step(self, optimizer: Any) -> None:
        self.recorder.begin_optimizer(optimizer)
        self.shared.note_update()
        if self.at_work is not None and not self.recorder.is_in_backward:
            self.at_work.before_step()
        if self.watch.optimizer_steps == 0 and self._search.has_no_meeting():
            self._tell_trouble("pipeline")
        elif not self.models.has_replicas:
            self._look_for_models(optimizer)
        elif not self.models.have_run and self.watch.optimizer_steps == STEPS_WITHOUT_MODEL:
            self._tell_trouble("eval_mode", steps=STEPS_WITHOUT_MODEL)

    @untraced
    def _look_for_models(self, optimizer: Any) -> None:
        if self._search.look(optimizer):
            self.models.have_come, self._rests = self._steering is not None, False
        if self.watch.optimizer_steps == STEPS_WITHOUT_MODEL:
            self._tell_none(self._search.explain_none())

    def _tell_none(self, trouble: Optional[Trouble]) -> None:
        if trouble is not None:
            self._tell_trouble(trouble[0], **trouble[1])

    def end_optimizer_step(self, optimizer: Any) -> None:
        self.recorder.end_optimizer(optimizer)
        is_new = self.watch.note_optimizer_step(optimizer)
        if self.shared.by_updates and self.models.have_run and not self._rests and self.process.ends_step():
            self._pass_boundary(in_forward=False)
            self._look_where_due()
        if self._alone is not None and self.watch.leader_stepped:
            self.watch.leader_stepped = False
            self._alone.end_step()
        if is_new and self.watch.never_settles and self.environment.strategy is None:
            self._tell_trouble("made_anew", steps=self.watch.optimizer_steps)

    def end_step(self, samples: Optional[int]) -> None:
        """The script says that a step ended, and perhaps how many samples this rank consumed in it."""
        self.watch.note_told_step()
        self.samples.told = samples

    def note_evaluation(self) -> None:
        """A forward in eval mode."""
        self.loaders.note_evaluation()
        self.recorder.raise_flag(INTERRUPTED)

    def note_loss_scaling(self, scaler: Any, outputs: Any) -> None:
        self.precision.note_scaler(scaler)
        self.recorder.note_unscaled_loss(outputs)

    def begin_reading(self) -> None:
        """Gradients are about to be clipped or unscaled."""
        self.shared.note_read()
        if self.at_work is not None:
            self.at_work.before_reading()

    def may_clear(self, owner: Any, args: Args, kwargs: Kwargs) -> bool:
        """Whether a zero_grad() of an optimizer or a module is made."""
        return self.at_work is None or self.at_work.may_clear(owner, args, kwargs)

    def may_clip(self) -> bool:
        """Whether the script's clipping of gradients is made; otherwise it only learns their norm."""
        return self.at_work is None or self.at_work.may_clip()

    def join_group(self, world_size: Any) -> None:
        """The script is about to join a process group."""
        if world_size == 1 < self.environment.world_size and not self.models.has_replicas:
            self._tell_trouble("joins_alone", started=self.environment.world_size)
            if self.environment.control is not None:
                time.sleep(UNTIL_ENDED_S)  # joining would fail at an address that another rank has taken

    def note_spawning(self, call: str) -> None:
        """The script is about to start processes."""
        if not self.models.has_replicas:
            self._tell_trouble("spawns_own_ranks", call=call)

    def has_trained(self) -> bool:
        """Whether this process ran a wrapped model's training forward or an optimizer's step."""
        return self.models.have_run or self.watch.optimizer_steps > 0

    def finish_script(self) -> None:
        """The script ended by itself; called once on every rank."""
        self.process.enter(beat.ENDED)
        if not self._active or self._told_trouble:
            return
        if not self.models.has_any:
            self._tell_none(self._search.describe_none("ended"))
        elif self.watch.optimizer_steps == 0:
            self._tell_no_steps(self._training_forwards)
        elif self.models.has_replicas and not self.models.have_run:
            self._tell_trouble("eval_mode", steps=self.watch.optimizer_steps)
        elif self._steering is not None:
            try:
                self._steering.finish_script()
            except (AgentLost, PeerLost, RuntimeError) as error:
                say(f"the last block is lost: {error}")
        else:
            self._tell_trouble("too_short", steps=self.watch.training_steps, needed="measured steps")
        leave_exchange(self.process, self._rests)

    # Boundaries, and where the script is left to itself.

    def _pass_boundary(self, in_forward: bool) -> bool:
        """Between two steps, at the first forward of the later one or at the update of the earlier: whether nothing was
        decided there."""
        recorder = self.recorder
        is_marked = recorder.ahead > 0 and not (recorder.gives_way and self.models.have_come)
        if is_marked:
            recorder.pass_boundary(self.samples.close_step(), in_forward)
        else:
            self._steer(Steering.pass_boundary)
        self.write_beat()
        return is_marked

    def _look_where_due(self) -> None:
        if self._active and self.shared.is_look_due:
            self._steer(Steering.look)

    def _tell_trouble(self, code: str, **facts: object) -> None:
        """Tells once why this script cannot be measured or steered; the script is left to itself from here."""
        if not self.process.is_rank and (
            self.watch.optimizer_steps < FEWEST_OUTSIDE or not self.process.become_rank()
        ):
            return  # a helper's few steps to try something
        already, self._told_trouble = self._told_trouble, True
        if not self._active or already:
            return
        self._leave()
        trouble, strategy = describe_trouble(code, **facts), self.environment.strategy
        if strategy is not None and self.process.phase != beat.ENDED:
            alone = AloneStrategy(strategy["changes"], self.environment.rank == 0)
            self._alone = None if alone.is_empty else alone
        if self.environment.rank != 0:
            return
        if strategy is not None:
            say(f"The strategy is not in force. {trouble['sentence']}")
        if self.environment.control is not None:
            try:
                self.process.reach_agent().send_last(trouble)
            except AgentLost as lost:
                say(str(lost))

    @untraced
    def _tell_no_steps(self, forwards: int) -> None:
        code = "compiled_steps" if hides_optimizer_steps() else "never_steps"
        self._tell_trouble(code, forwards=forwards, version=torch.__version__)

    @untraced
    def _leave_to_graph(self) -> None:
        """The step is being recorded: its replays call nothing of ours."""
        if self._steering is not None and self.environment.strategy is not None:
            self._stop_steering(str(describe_trouble("cuda_graph")["sentence"]))
        else:
            self._tell_trouble("cuda_graph")

    @untraced
    def _steer(self, act: Callable[[Steering], None]) -> None:
        if not self._active:
            self.samples.close_step()
            if self.process.phase == beat.STARTING:
                self.process.phase = beat.TRAINING
        else:
            if not self.process.become_rank():
                self._leave()  # it trains beside the one that is measured, in no group with it
                return
            if self._steering is None:
                if (trouble := explain_no_steering(self.process)) is not None:
                    self._tell_none(trouble)
                    return
                self._steering = choose_steering(self.process)
            try:
                act(self._steering)
                self._steering = self._steering.successor or self._steering
            except (AgentLost, PeerLost) as lost:
                if self.environment.strategy is None:
                    self.process.end(FAILED, str(lost))
                self._take_back(str(lost))
            except Exception:
                if self.environment.strategy is not None:
                    leave_exchange(self.process)  # the others need not wait for what this rank will not do
                raise
        steering = self._steering
        self.at_work = steering.events if steering is not None and steering.works_in_steps else None
        self._may_capture = torch.cuda.is_initialized()
        is_done = steering is None or (steering.is_over and not self.models.has_unmet)
        self._rests = is_done and not self.process.is_watched

    def fail(self, error: Exception) -> None:
        """Something of ours failed, which is not to be blamed on the script. A real training goes on."""
        if self._has_failed:
            return
        self._has_failed = True
        say_traceback(error)
        reason = describe_failure(error)
        if self._active and self.environment.strategy is None:
            self.process.end(FAILED, reason)
        if self._steering is not None and self._steering.note_failure(reason):
            say(f"The training goes on under what is in force: {reason}")  # ranks have to leave it together
            return
        if self._active:
            self._stop_steering(reason)
        current.set_current(None)

    @untraced
    def enter_join(self) -> None:
        """The script enters a join context, perhaps one of these models: ranks may run out of data one by one."""
        if not any(is_joining(ddp) for ddp in self.models.list_known()):
            return
        if self._steering is not None and self.environment.strategy is not None and self._active:
            self._take_back(str(describe_trouble("joins")["sentence"]), are_told=self.environment.rank == 0)
        else:
            self._tell_trouble("joins")

    def leave_group(self) -> None:
        """The script destroys its process group."""
        leave_group(self.process, self._rests)
        if self._steering is not None:
            self._steering.leave_group()

    def _take_back(self, reason: str, are_told: bool = True) -> None:
        """On all ranks at one place: what of a real training's strategy is in force, or being tried."""
        if self._steering is not None:
            reason += self._steering.take_back()
        self.process.hang_up()
        self._stop_steering(f"the strategy is not in force. {reason}", are_told)

    def _stop_steering(self, reason: str, are_told: bool = True) -> None:
        """A real training is left to itself."""
        self._leave()
        if are_told:
            say(f"The training goes on by itself: {reason}")

    def _leave(self) -> None:
        """This rank takes part in nothing any more, and the others need not wait for it."""
        self._active = False
        self._steering = self.at_work = None
        self.recorder.stop()
        leave_exchange(self.process)
