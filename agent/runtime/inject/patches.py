"""The process-wide patches: where torch tells the runtime what the unchanged script does."""

from __future__ import annotations

import functools
import gc
import math
import sys
from typing import Any, Callable, Dict, Tuple

import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.utils.clip_grad as clipping
import torch.utils.data.dataloader as loading
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .. import current, guard, hooks, rank_process, script_loaders
from .. import runtime as rank_runtime
from ..link import beat
from ..observe import clock, models, precision, recorder, samples, shared_steps, steps
from ..observe.reduced import watch_building
from ..private_torch import ANY_ITERATOR, COMPILE_BEGINS, COMPILE_ENDS, DYNAMO, DYNAMO_CALLBACKS
from ..untraced import skip_frames
from .after_import import call_after_import
from .collectives import patch_collectives
from .recomputation import patch_recomputation

OLDEST_GENERATION = 2
"""Of Python's garbage: collecting the younger ones takes no time to speak of."""


@functools.lru_cache(maxsize=None)
def install_patches() -> None:
    """Once per process, after torch was imported."""
    _patch_ddp()
    _patch_join()
    _patch_joining()
    _patch_leaving()
    _patch_backward()
    _patch_loader()
    _patch_loss_scaling()
    _patch_autocast()
    is_compiling = getattr(torch.compiler, "is_compiling", lambda: False)
    for owner in (torch.nn.Module, torch.optim.Optimizer):
        _patch_clearing(owner, is_compiling)
    _patch_clipping(is_compiling)
    _patch_saving()
    _patch_spawning()
    _patch_optimizers()
    patch_collectives(is_compiling)
    patch_recomputation(is_compiling)
    gc.callbacks.append(_note_garbage)
    register_optimizer_step_pre_hook(_before_optimizer_step)
    register_optimizer_step_post_hook(_after_optimizer_step)
    watching = (
        sys.modules[__name__],
        guard,
        hooks,
        rank_runtime,
        rank_process,
        beat,
        clock,
        models,
        precision,
        recorder,
        samples,
        script_loaders,
        shared_steps,
        steps,
    )
    call_after_import(DYNAMO, lambda: skip_frames(*watching))
    call_after_import(DYNAMO_CALLBACKS, _watch_compiling)


def _patch_ddp() -> None:
    watch_building()
    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        runtime = current.current_runtime
        if runtime is None:
            original(self, *args, **kwargs)
            return
        original(self, *args, **runtime.adjust_ddp_arguments(args, kwargs))
        if type(self).forward is not forward:
            hooks.watch(self)
        runtime.note_ddp(self)

    original_forward = DistributedDataParallel.forward

    # In place of hooks, with which torch calls a module in a slower way.
    @functools.wraps(original_forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        runtime = current.current_runtime
        if runtime is None or type(self).forward is not forward:
            return original_forward(self, *args, **kwargs)
        if not (torch.is_grad_enabled() and models.trains(self)):
            hooks.before_forward(self, args, kwargs)
            try:
                return original_forward(self, *args, **kwargs)
            finally:
                hooks.after_forward(self, args, kwargs, None)
        is_split = runtime.begin_forward(self, args, kwargs)
        try:
            if is_split:
                output = runtime.split_forward(self, args, kwargs, original_forward)
            else:
                output = original_forward(self, *args, **kwargs)
        except BaseException:
            runtime.drop_forward()
            raise
        return runtime.end_forward(self, output)

    original_register = DistributedDataParallel.register_comm_hook

    @functools.wraps(original_register)
    def register_comm_hook(self: Any, *args: Any, **kwargs: Any) -> None:
        if current.current_runtime is not None:
            current.current_runtime.make_way(self)
        original_register(self, *args, **kwargs)

    DistributedDataParallel.register_comm_hook = register_comm_hook
    DistributedDataParallel.__init__ = build
    DistributedDataParallel.forward = forward


def _patch_join() -> None:
    original = Join.__enter__

    @functools.wraps(original)
    def enter(self: Any) -> Any:
        if current.current_runtime is not None:
            current.current_runtime.enter_join()
        return original(self)

    Join.__enter__ = enter


def _patch_leaving() -> None:
    original = dist.destroy_process_group

    @functools.wraps(original)
    def destroy(group: Any = None) -> None:
        if current.current_runtime is not None and (group is None or group is dist.group.WORLD):
            current.current_runtime.leave_group()
        original(group)

    for home in (dist, dist.distributed_c10d):
        home.destroy_process_group = destroy


def _patch_joining() -> None:
    original = dist.init_process_group

    @functools.wraps(original)
    def join(*args: Any, **kwargs: Any) -> Any:
        runtime = current.current_runtime
        if runtime is not None:
            runtime.join_group(kwargs.get("world_size"))
        return original(*args, **kwargs)

    for home in (dist, dist.distributed_c10d):
        home.init_process_group = join


def _patch_backward() -> None:
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        runtime = current.current_runtime
        if runtime is None:
            original(tensors, *args, **kwargs)
            return
        if not isinstance(tensors, (torch.Tensor, tuple, list)):
            tensors = tuple(tensors)  # as torch does: what gives them once must not be looked into
        if not runtime.begin_backward(tensors):
            original(tensors, *args, **kwargs)
            return
        try:
            tensors, args, kwargs = runtime.multiply_loss(tensors, args, kwargs)
            shortage = None
            try:
                original(tensors, *args, **kwargs)
            except Exception as error:
                if not runtime.may_go_on(error):
                    raise
                # Its traceback holds the tensors for which there was no room.
                shortage = error.with_traceback(None)
            if shortage is not None and not runtime.go_on():
                raise shortage
            runtime.finish_backward()
        finally:
            runtime.end_backward()

    torch.autograd.backward = backward


def _patch_loader() -> None:
    original_iter = loading.DataLoader.__iter__
    any_iterator = ANY_ITERATOR.find(loading)

    @functools.wraps(original_iter)
    def iterate(self: Any) -> Any:
        runtime = current.current_runtime
        return original_iter(self) if runtime is None else runtime.start_epoch(self, original_iter)

    original_length = loading.DataLoader.__len__

    @functools.wraps(original_length)
    def count(self: Any) -> int:
        batches: int = original_length(self)
        if current.current_runtime is not None:
            current.current_runtime.note_length(self, batches)
        return batches

    loading.DataLoader.__iter__, loading.DataLoader.__len__ = iterate, count
    if any_iterator is None:
        return  # reading is not timed, and its knobs are refused
    original_next = any_iterator.__next__

    @functools.wraps(original_next)
    def fetch(self: Any) -> Any:
        runtime = current.current_runtime
        return original_next(self) if runtime is None else runtime.read_batch(self, original_next)

    any_iterator.__next__ = fetch


def _patch_loss_scaling() -> None:
    # Under a GradScaler the root of backward is loss × scale; the loss is what the script handed to scale().
    scaler = getattr(getattr(torch, "amp", None), "GradScaler", None) or torch.cuda.amp.GradScaler
    original = scaler.scale

    @functools.wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        runtime = current.current_runtime
        if runtime is not None:
            runtime.note_loss_scaling(self, outputs)
        return original(self, outputs)

    scaler.scale = scale
    # What a scaler asks of gradients decides whether its optimizer steps at all.
    for name in ("unscale_", "step"):
        setattr(scaler, name, _tell_reading(getattr(scaler, name)))


def _tell_reading(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def read(*args: Any, **kwargs: Any) -> Any:
        runtime = current.current_runtime
        if runtime is not None:
            runtime.begin_reading()
        return original(*args, **kwargs)

    return read


def _patch_autocast() -> None:
    original = torch.autocast.__enter__

    @functools.wraps(original)
    def enter(self: Any) -> Any:
        runtime = current.current_runtime
        if runtime is not None:
            runtime.note_autocast(self)
        return original(self)

    torch.autocast.__enter__ = enter


def _patch_clearing(owner: Any, is_compiling: Callable[[], bool]) -> None:
    original = owner.zero_grad

    @functools.wraps(original)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        # What a script compiles may have to be one graph: there it clears at every step, which the proof sees.
        runtime = None if is_compiling() else current.current_runtime
        if runtime is None or runtime.may_clear(self, args, kwargs):
            original(self, *args, **kwargs)

    owner.zero_grad = zero_grad


def _patch_clipping(is_compiling: Callable[[], bool]) -> None:
    # A script that accumulates by itself clips once, when all has been added up.

    def patch(name: str, hold: Callable[..., Any]) -> None:
        original = getattr(torch.nn.utils, name)

        @functools.wraps(original)
        def clip(*args: Any, **kwargs: Any) -> Any:
            # As in zero_grad; the evidence tells of it.
            runtime = None if is_compiling() else current.current_runtime
            if runtime is not None:
                runtime.begin_reading()
            if runtime is None or runtime.may_clip():
                return original(*args, **kwargs)
            return hold(*args, **kwargs)

        for home in (torch.nn.utils, clipping):
            if getattr(home, name, None) is original:
                setattr(home, name, clip)

    measure = torch.nn.utils.clip_grad_norm_

    def measure_norm(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG001
        return measure(parameters, math.inf, *args, **kwargs)

    def leave(*_args: Any, **_kwargs: Any) -> None:
        pass

    patch("clip_grad_norm_", measure_norm)
    patch("clip_grad_value_", leave)
    if hasattr(torch.nn.utils, "clip_grads_with_norm_"):
        patch("clip_grads_with_norm_", leave)


def _patch_optimizers() -> None:
    original = torch.optim.Optimizer.__init__

    @functools.wraps(original)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        runtime = current.current_runtime
        if runtime is not None:
            runtime.note_optimizer(self)

    torch.optim.Optimizer.__init__ = make


def _patch_saving() -> None:
    original = torch.save

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> None:
        runtime = current.current_runtime
        if runtime is None:
            original(*args, **kwargs)
            return
        runtime.begin_save()
        try:
            original(*args, **kwargs)
        finally:
            runtime.end_save()

    torch.save = save


def _patch_spawning() -> None:
    def announce(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def spawn(*args: Any, **kwargs: Any) -> Any:
            runtime = current.current_runtime
            if runtime is not None:
                runtime.note_spawning(f"torch.multiprocessing.{name}")
            return original(*args, **kwargs)

        return spawn

    for name in ("spawn", "start_processes"):
        setattr(torch.multiprocessing, name, announce(name, getattr(torch.multiprocessing, name)))


def _note_garbage(moment: str, info: Dict[str, int]) -> None:
    runtime = current.current_runtime
    if runtime is not None and info["generation"] == OLDEST_GENERATION:
        runtime.note_interlude(recorder.GARBAGE, moment == "start")


def _watch_compiling() -> None:
    """Compiling counts as what it happens in where torch has no callbacks, or has forgotten them: `_dynamo.reset()`."""
    for moment, begins in ((COMPILE_BEGINS, True), (COMPILE_ENDS, False)):
        register = moment.find_loaded()
        if register is not None:
            register(functools.partial(_note_compiling, begins))


def _note_compiling(begins: bool, *_: Any) -> None:
    runtime = current.current_runtime
    if runtime is not None:
        runtime.note_interlude(recorder.COMPILING, begins)


def _before_optimizer_step(optimizer: Any, _args: Tuple[Any, ...], _kwargs: Any) -> None:
    runtime = current.current_runtime
    if runtime is not None:
        runtime.begin_optimizer_step(optimizer)


def _after_optimizer_step(optimizer: Any, _args: Tuple[Any, ...], _kwargs: Any) -> None:
    runtime = current.current_runtime
    if runtime is not None:
        runtime.end_optimizer_step(optimizer)
