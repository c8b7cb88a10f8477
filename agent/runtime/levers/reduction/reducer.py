"""Rebuilds a DistributedDataParallel's reducer in place, with new buckets and another communication hook.

Where torch lacks a private name that this takes, a new session is asked for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import types
import weakref
from typing import Any, Iterator, List, Optional

import torch
import torch.distributed as dist

from ... import private_torch
from ...guard import guarded
from ...observe.reduced import Reduced, explain_delay, explain_own_ending, find_reduced
from ...private_torch import BUCKET_CONFIG, FORGET_PASS, HAS_REBUILT
from ..buckets.bucket_plan import BATCHED, BucketPlan
from ..lever import RelaunchNeeded
from ..script_compilation import is_compiled_by_script
from .reduction_hook import reduce_bucket

SAMPLED_ITERATIONS = 11
"""DDP times a new reducer's first ten iterations whatever the sample rate, and on CUDA waits for the device then."""
NO_ROOM = (
    "There is no memory for a second set of buckets beside those in use, which stay until the new ones stand."
)
HELPER_ARGUMENTS = ["parameters", "expect_sparse_gradient", "param_to_name_mapping", "static_graph"]


COMPILED_REDUCER = (
    "torch.compile's python_reducer mode keeps no bucket plan that could be changed in a live process."
)
EAGER_REDUCER = (
    "torch._dynamo.config.optimize_ddp is 'python_reducer', and the model is not compiled: DDP then reduces each "
    "parameter by itself and waits for it. Take that setting out, and its buckets and their overlap come back."
)


def explain_no_rebuild(ddp: Any) -> Optional[str]:
    """Why this model's reducer cannot be rebuilt in a live process, or None when it can."""
    if private_torch.PYTHON_REDUCER.find(ddp, False):
        return COMPILED_REDUCER if is_compiled_by_script(ddp) else EAGER_REDUCER
    if getattr(ddp, "mixed_precision", None) is not None:
        return "DistributedDataParallel(mixed_precision=…) keeps state in its reducer that cannot be carried over."
    if delay := explain_delay(ddp):
        return f"{delay}, by a hook that knows no buckets."
    if ending := explain_own_ending(ddp):
        return f"{ending}, which only the model's own reducer expects."
    reduced = find_reduced(ddp)
    if reduced is None:
        return "It was not seen from which parameters this model's reducer was built."
    if any(map(private_torch.IN_BACKWARD.is_in, reduced.parameters)):
        return "The optimizer runs inside backward (apply_optimizer_in_backward), tied to this reducer."
    if not private_torch.HOOKS.is_in(ddp) and has_own_hook(ddp) and _find_builtin_hook(ddp) is None:
        return "This torch keeps no record of the script's communication hook, so it could not be registered again."
    missing = private_torch.explain_no_new_reducer(ddp)
    if missing is not None:
        return f"{missing} Buckets can be set only at launch."
    given = list(inspect.signature(private_torch.BUILD_REDUCER.of(ddp)).parameters)
    if given != HELPER_ARGUMENTS:
        return f"This torch's DDP init helper takes {given}, which the runtime does not know."
    return None


def rebuild_reducer(
    ddp: Any,
    plan: BucketPlan,
    state: Any = None,
    hook: Any = None,
    group: Any = None,
    is_entered: bool = False,
) -> None:
    """Runs DDP's own init helper again for another reducer of the same parameters, frozen ones included.

    Call between steps, on every rank alike. The reducer before is in force until the new one stands, and after any
    error. `hook` replaces the script's own communication hooks when given; otherwise those are registered again, since
    a hook lives in the reducer. Gradients go over `group` where one is given; buffers and whatever else DDP sends stay
    with the model's own. `is_entered` says that this model's training forward begins at this moment: where its graph is
    static and that forward is none that reduces, it gets the reducer as the next one begins that does.
    """
    reason = explain_no_rebuild(ddp)
    reduced = find_reduced(ddp)
    if reason is not None or reduced is None:
        raise RelaunchNeeded(str(reason))
    if (waiting := _WAITING.pop(ddp, None)) is not None:
        waiting.remove()
    if not ddp.static_graph or (is_entered and ddp.require_backward_grad_sync):
        _exchange(ddp, reduced, plan, state, hook, group)
        return

    def note_forward(model: Any, _args: Any) -> None:
        if model.require_backward_grad_sync and torch.is_grad_enabled():
            _WAITING.pop(model).remove()
            _exchange(model, reduced, plan, state, hook, group)

    _WAITING[ddp] = ddp.register_forward_pre_hook(guarded(note_forward))


_WAITING: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()
"""By models with a static graph, the hook that waits for a forward outside no_sync() to give it another reducer. That
reduces at the end of the first backward pass that it sees, and counts the gradients of that pass for all later ones."""


def _exchange(ddp: Any, reduced: Reduced, plan: BucketPlan, state: Any, hook: Any, group: Any) -> None:
    before = {name: vars(ddp)[name] for name in FIELDS if name in vars(ddp)}
    try:
        with _thawed(reduced.parameters):
            _build(ddp, reduced, plan, state, hook, group)
    except BaseException as error:
        for name, value in before.items():
            setattr(ddp, name, value)
        if isinstance(error, torch.cuda.OutOfMemoryError):
            raise RelaunchNeeded(NO_ROOM) from error
        raise


@contextlib.contextmanager
def _thawed(parameters: List[torch.Tensor]) -> Iterator[None]:
    """A reducer is told of a gradient by the accumulator of its parameter, which a frozen one does not show."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def _build(ddp: Any, reduced: Reduced, plan: BucketPlan, state: Any, hook: Any, group: Any) -> None:
    builtin_hook = _find_builtin_hook(ddp)
    _set_plan(ddp, plan)
    first_bytes = private_torch.FIRST_BUCKET_BYTES
    usual_first_bytes = first_bytes.find(dist)
    own_group = ddp.process_group
    try:
        ddp.process_group = group or own_group
        # torch before 2.12 reads the first bucket's size from this module constant.
        first_bytes.set(dist, plan.first_bytes)
        build = private_torch.BUILD_REDUCER.of(ddp)
        build(reduced.parameters, reduced.sparse, reduced.names, ddp.static_graph)
    finally:
        ddp.process_group = own_group
        first_bytes.set(dist, usual_first_bytes)
    private_torch.HAS_REBUILT.set(ddp, False)
    if ddp.static_graph:
        private_torch.STATIC_ENQUEUED.set(ddp, False)
        private_torch.SET_STATIC.of(ddp.reducer)()
        private_torch.SET_STATIC.of(ddp.logger)()
    if hook is not None:
        _register(ddp, state, hook)
        return
    for own_hook, own_state in private_torch.HOOKS.find(ddp, []):
        _register(ddp, own_state, own_hook)
    if builtin_hook is not None:
        private_torch.REGISTER_BUILTIN_HOOK.of(ddp)(builtin_hook)


def explain_no_handover(ddp: Any, outputs: List[Any], searches: bool = False) -> Optional[str]:
    """Why a reducer that waits for these outputs' backward could not hand this over to another one, or None.

    `searches`: whether that other one searches for unused parameters.
    """
    # Which parameters are unused is found from the outputs themselves.
    is_lost = (ddp.find_unused_parameters or searches) and any(output is None for output in outputs)
    if outputs and (ddp.static_graph or is_lost):
        kind = "static_graph" if ddp.static_graph else "find_unused_parameters"
        return (
            f"The script lets a model with {kind}=True wait for its backward while another one's optimizer ends the "
            "step: there is no moment at which its reducer could be exchanged."
        )
    return None


def hand_over(ddp: Any, outputs: List[Any]) -> None:
    """The model's new reducer waits for these outputs' backward pass, as DDP had the one before do."""
    ddp.reducer.prepare_for_backward([output for output in outputs if output is not None])


def _register(ddp: Any, state: Any, hook: Any) -> None:
    private_torch.SET_HOOK_NAME.of(ddp.logger)(hook.__qualname__)
    private_torch.REGISTER_HOOK.of(dist)(ddp.reducer, state, hook)


def has_own_hook(ddp: Any) -> bool:
    """Whether the script registered a communication hook (torch before 2.2 tells it by its name only)."""
    if private_torch.HOOKS.find(ddp):
        return True
    return str(private_torch.GET_LOG.of(ddp)().get("comm_hook", "")) not in ("", reduce_bucket.__qualname__)


def keeps_state(ddp: Any) -> bool:
    """Whether the script's own hooks may remember buckets: all do but a plain function without a state of its own."""
    return any(
        not isinstance(hook, types.FunctionType)
        or hook.__closure__ is not None
        or not (state is None or isinstance(state, dist.ProcessGroup))
        for hook, state in private_torch.HOOKS.find(ddp, [])
    )


def find_talk_in_backward(ddp: Any) -> Optional[str]:
    """What of this model communicates in a backward pass beside its buckets, or None."""
    if any(isinstance(module, torch.nn.SyncBatchNorm) for module in ddp.modules()):
        return "SyncBatchNorm"
    if ddp.static_graph:
        return "static_graph"
    return "find_unused_parameters" if ddp.find_unused_parameters else None


def is_joining(ddp: Any) -> bool:
    """Whether the script trains in a join context, in which ranks may run out of data one by one."""
    return bool(getattr(private_torch.JOINING.find(ddp), "enable", False))


def _find_builtin_hook(ddp: Any) -> Any:
    name = str(private_torch.GET_LOG.of(ddp)().get("comm_hook", ""))
    builtin = getattr(dist, "BuiltinCommHookType", None)
    if builtin is None or not name.startswith("BuiltinCommHookType."):
        return None
    return getattr(builtin, name.split(".", 1)[1], None)


def _set_plan(ddp: Any, plan: BucketPlan) -> None:
    ddp.bucket_bytes_cap = plan.cap_bytes
    ddp.bucket_bytes_cap_default = plan.first_bytes != plan.cap_bytes
    if hasattr(ddp, BATCHED):
        setattr(ddp, BATCHED, plan.copies_batched)
    ddp.find_unused_parameters = plan.searches_unused
    config = private_torch.BUCKET_CONFIG.find(ddp)
    if config is not None:
        planned = dataclasses.replace(
            config,
            bucket_bytes_cap=plan.cap_bytes,
            first_bucket_bytes_cap=plan.first_bytes,
            per_bucket_bytes_caps=plan.listed_bytes,
        )
        private_torch.BUCKET_CONFIG.set(ddp, planned)
        ddp.bucket_bytes_cap_list = list(plan.listed_bytes)


FIELDS = (
    "reducer",
    "logger",
    "bucket_bytes_cap",
    "bucket_bytes_cap_default",
    "bucket_bytes_cap_list",
    "find_unused_parameters",
    BATCHED,
    BUCKET_CONFIG.name,
    HAS_REBUILT.name,
)
"""What DDP itself keeps about its reducer; which of them exist depends on torch."""


class LiveReducer:
    """A model's reducer as it stands, to be put back later between any two steps."""

    def __init__(self, ddp: Any) -> None:
        """Call between steps: the model's next pass is another reducer's."""
        self._fields = {name: vars(ddp)[name] for name in FIELDS if name in vars(ddp)}
        self.reducer = ddp.reducer
        FORGET_PASS.of(self.reducer)()

    def take_over(self, ddp: Any) -> None:
        """Call between steps, on every rank alike."""
        for name, value in self._fields.items():
            setattr(ddp, name, value)
        if ddp.find_unused_parameters:
            # Its hooks noted the parameters that were used while others reduced; that must not count for the next step.
            FORGET_PASS.of(ddp.reducer)()


def explain_no_live_reducers(ddp: Any) -> Optional[str]:
    """Why this model can have only one reducer at a time, or None."""
    if ddp.static_graph:
        return "With static_graph=True a second reducer lets the ranks' parameters drift apart."
    return private_torch.explain_missing(ddp.reducer, (FORGET_PASS,))
