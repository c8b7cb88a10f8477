"""Makes a process a rank when it joins a process group, or trains in none: for ranks that the advisor's launcher did
not start.

`watch_for_rank` may run in every Python process below the user's command. torchrun itself, package managers and other
helpers never join a process group, make no optimizer, and stay as they are; what a rank starts (loader workers,
compilers) is told so by an environment variable. A process that makes an optimizer or a loader, and that no launcher
has told of others, is observed from then on. It is the job's only rank once it has trained for some steps.
"""

from __future__ import annotations

import atexit
import functools
import gc
import os
import sys
import time
from dataclasses import replace
from typing import Any, Callable, List, Tuple

from .. import current
from ..link.control import ControlLine
from ..link.environment import RANK_PROCESS, RUN, read_environment, read_joined_environment
from ..link.rank_output import say, take_own_output
from ..link.trouble import describe_trouble
from ..nccl_tuner.plugin import load_where_asked
from .after_import import call_after_import
from .session import keep_launch_order, listen_for_signals, start_runtime
from .trackers import silence_trackers

FEWEST_OUTSIDE = 5
"""Optimizer steps of a process that has ended which were a training; a helper may make one to try something."""
STEPS_OUTSIDE, SECONDS_OUTSIDE = 50, 8.0
"""Optimizer steps, and seconds since the first, after which a process in no group is taken to train alone."""
FIRST_OBJECTS = {"torch.optim.optimizer": "Optimizer", "torch.utils.data.dataloader": "DataLoader"}
"""By module of torch's, the class whose first object shows that a process may train."""
_counting: List[Any] = []
"""What counts steps until this process is a rank."""
_unarmed: List[Tuple[Any, Any]] = []
"""Classes of torch's whose first object arms this process, each with its constructor."""


def watch_for_rank() -> None:
    """Arms this process as soon as it joins a process group; costs a hook on `import torch` until then."""
    if _is_below_a_rank():
        return
    if not os.environ.get(RUN):  # a real training's dashboards are wanted
        silence_trackers(os.environ, os.environ.get("ADVISOR_SESSION_DIR"))
    keep_launch_order()
    load_where_asked(os.environ, os.environ.get("ADVISOR_SESSION_DIR"))
    call_after_import("torch", _watch_process_groups)
    if os.environ.get("WORLD_SIZE", "1") == "1":
        for module, name in FIRST_OBJECTS.items():
            call_after_import(module, _harmless(functools.partial(_arm_at_first, module, name)))
    else:
        call_after_import("torch.optim.optimizer", _watch_steps_outside)


def _is_below_a_rank() -> bool:
    return os.environ.get(RANK_PROCESS, str(os.getpid())) != str(os.getpid())


def _harmless(function: Callable[[], None]) -> Callable[[], None]:
    """A failure of ours leaves the script to train as it is: one line says why it is not measured."""

    def call() -> None:
        try:
            function()
        except Exception as error:
            current.set_current(None)
            say(f"this process is not measured: {error!r}")

    return call


@_harmless
def _watch_process_groups() -> None:
    import torch.distributed as dist

    if not dist.is_available():
        return
    original = dist.init_process_group

    @functools.wraps(original)
    def join(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        _become_rank()
        return result

    # Torch's own modules hold the function by name too: init_device_mesh joins through one of them.
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.distributed") and getattr(module, "init_process_group", None) is original:
            setattr(module, "init_process_group", join)
    if dist.is_initialized():
        _become_rank()


def _arm_at_first(module: str, name: str) -> None:
    """The first object of this class makes the process one that may be the job's only rank."""
    kind = getattr(sys.modules[module], name)
    original = kind.__init__

    @functools.wraps(original)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        for known, constructor in _unarmed:
            known.__init__ = constructor
        _unarmed.clear()
        _harmless(_watch_alone)()
        kind.__init__(self, *args, **kwargs)

    _unarmed.append((kind, original))
    kind.__init__ = make


def _watch_alone() -> None:
    if current.current_runtime is not None or _is_below_a_rank():
        return
    start_runtime(replace(read_environment(), is_rank=False))
    _report_at_exit()


@_harmless
def _watch_steps_outside() -> None:
    """Tells the agent of a training that goes on for seconds, or has ended, without any process group."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    steps, first_s, is_told, process_id = 0, 0.0, False, os.getpid()

    def count(*_: Any) -> None:
        nonlocal steps, first_s
        steps += 1
        first_s = first_s or time.monotonic()
        if steps >= STEPS_OUTSIDE and time.monotonic() - first_s > SECONDS_OUTSIDE:
            _harmless(lambda: tell("so far"))()

    def tell(when: str) -> None:
        nonlocal steps, is_told
        told, was_told = steps, is_told
        steps, is_told = 0, True
        control = os.environ.get("ADVISOR_CONTROL")
        is_rank = current.current_runtime is not None or _is_below_a_rank()
        if was_told or told < FEWEST_OUTSIDE or is_rank or os.getpid() != process_id:
            return
        code = "own_groups" if _has_replicas() else "outside_group"
        trouble = describe_trouble(code, steps=told, when=when)
        if os.environ.get(RUN):
            if os.environ.get("RANK", "0") == "0":
                say(f"The strategy is not in force. {trouble['sentence']}")
        elif control:
            ControlLine(control).send_last(trouble)

    # Never taken off in a step: torch goes through these hooks then. A rank's are, before it makes one.
    _counting.append(register_optimizer_step_post_hook(count))
    atexit.register(_harmless(lambda: tell("before it ended")))


def _has_replicas() -> bool:
    """Whether models exchange gradients over groups of their own. Walks all objects."""
    from torch.nn.parallel import DistributedDataParallel

    return any(issubclass(type(found), DistributedDataParallel) for found in gc.get_objects())


@_harmless
def _become_rank() -> None:
    import torch.distributed as dist

    # One that is only observed makes way for what it turns out to be.
    if (current.current_runtime is not None and RANK_PROCESS in os.environ) or _is_below_a_rank():
        return
    if not dist.is_initialized():
        return
    environment = read_joined_environment(dist.get_rank(), dist.get_world_size())
    take_own_output(environment.rank, os.environ)
    while _counting:
        _counting.pop().remove()
    listen_for_signals(environment)
    start_runtime(environment)
    os.environ[RANK_PROCESS] = str(os.getpid())
    _report_at_exit()


@functools.lru_cache(maxsize=None)
def _report_at_exit() -> None:
    """Says how the script ended once the interpreter leaves: there is no code of ours around it."""
    original_exit = sys.exit
    failed = False

    @functools.wraps(original_exit)
    def note_exit(status: Any = None, /) -> None:
        nonlocal failed
        failed = status not in (None, 0)
        original_exit(status)

    def report() -> None:
        # Set for every exception that reached the top; a `raise SystemExit(1)` does not set it.
        crashed = hasattr(sys, "last_type")
        runtime = current.current_runtime
        if runtime is None or failed or crashed or not runtime.has_trained():
            return
        runtime.finish_script()
        environment = read_environment()
        if environment.control and RANK_PROCESS in os.environ:
            time.sleep(environment.stay_s)

    sys.exit = note_exit  # type: ignore[assignment]
    atexit.register(_harmless(report))
