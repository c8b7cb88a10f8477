"""The lever of deferred exchange: of the micro-batches that a script accumulates only the last exchanges gradients."""

from __future__ import annotations

import os
import sys
from collections import Counter, deque
from typing import Any, Deque, Dict, List, Mapping, Optional

import torch

from ...guard import Unsafe
from ...observe.gradient_reads import find_gradient_reads
from ...observe.reduced import list_reduced
from ...private_torch import AFTER_ACCUMULATION, MARK_READY, explain_missing
from ..lever import Evidence, Lever, Training, read_switch
from .gradient_merge import find_in_backward
from .reduction_proof import ReductionPause, explain_no_pause

KNOB = "defer_gradient_sync"
REMEMBERED = 8
"""Steps by whose numbers of micro-batches it is told which one is the last."""
NOT_EXCHANGED = (
    "defer_gradient_sync left gradients to be exchanged before the optimizer steps, and that failed: {error}. This "
    "rank would train on gradients of its own. Train without that setting."
)
_OPTIMIZER = os.path.join("torch", "optim", "optimizer.py")


class DeferredSync(Lever):
    """The exchange after the last micro-batch is DDP's own, hidden behind that backward, of all that has been added up.

    Which one is the last is learnt from the steps before. Where a step comes sooner, DDP's exchange is made right
    before anyone reads gradients: the optimizer, a scaler, torch's clipping. A step that goes on longer exchanges after
    each further micro-batch, as the script does. So each step has the mean over ranks of the same gradients, added up
    in another order. Buffers are broadcast as often as before.
    """

    knobs = (KNOB,)

    def __init__(self) -> None:
        self._values: Mapping[str, Any] = {}
        self._rejected: Dict[str, str] = {}
        self._pause = ReductionPause()
        self._model: Any = None
        self._lengths: Deque[int] = deque(maxlen=REMEMBERED)
        self._usual = 0
        """Micro-batches of a step, whose gradients the script exchanges each time."""
        self._done = 0
        """Of the step under way."""
        self._pending: Optional[bool] = None
        """Of a forward whose backward has not come: whether that exchanges; None without one, and in the script's own
        no_sync()."""
        self._owes = False
        """Whether gradients were added up that were not exchanged."""
        self.begin_timing()

    def list_refusals(self, training: Training) -> Dict[str, str]:
        reason = _explain_no_deferral(training)
        return {KNOB: reason} if reason else {}

    def observe(self, training: Training) -> Dict[str, Any]:
        return {KNOB: False}

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._values, self._rejected, self.is_on = values, {}, False
        self._done, self._pending = 0, None
        try:
            self.is_on = read_switch(values.get(KNOB, False))
        except ValueError as error:
            self._rejected[KNOB] = f"{KNOB} was not set: {error}."
        if self.is_on:
            [self._model] = training.replicas
            self._usual = training.exchanges
            self._lengths.clear()
        self.begin_timing()

    def before_forward(self, ddp: Any) -> None:
        if ddp is not self._model or not ddp.require_backward_grad_sync:
            return
        self._pending = self._done + 1 >= self._usual
        if not self._pending:
            self._pause.begin(ddp)

    def after_forward(self, ddp: Any) -> None:
        if self._pending is False:
            self._pause.end()
            # DDP broadcasts no buffers in the forward after one without an exchange; the script has it do so.
            ddp.require_forward_param_sync = True

    def drop_forward(self) -> None:
        self._pause.end()
        self._pending = None

    def after_backward(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._done += 1
            self._owes = not pending
            self._counts["exchanged" if pending else "deferred"] += 1

    def before_reading(self) -> None:
        self._settle()

    def before_step(self) -> None:
        self._settle()
        if self._done:
            self._counts["steps"] += 1
            self._lengths.append(self._done)
            [(length, times)] = Counter(self._lengths).most_common(1)
            # A step or two of another length, as at the end of an epoch, change nothing.
            self._usual = length if 2 * times > REMEMBERED else self._usual
            self._done = 0

    def _settle(self) -> None:
        if self._owes:
            self._owes = False
            self._counts["by_hand"] += 1
            try:
                exchange_gradients(self._model)
            except Exception as error:
                raise Unsafe(NOT_EXCHANGED.format(error=error)) from error

    def end_segment(self, training: Training) -> None:
        if training.entered is None:
            self._settle()  # else the backward of the forward that begins now exchanges all
        self.is_on = self._owes = False

    def begin_timing(self) -> None:
        self._counts = {"steps": 0, "exchanged": 0, "deferred": 0, "by_hand": 0}

    def prove(self) -> Evidence:
        evidence = Evidence(not_consumed=dict(self._rejected))
        if KNOB not in self._values or self._rejected:
            return evidence
        if not self._values[KNOB]:
            evidence.consumed[KNOB] = "The value equals the baseline's: each micro-batch is exchanged."
            return evidence
        counts = self._counts
        made, scripts = counts["exchanged"] + counts["by_hand"], counts["exchanged"] + counts["deferred"]
        sentence = (
            f"{made} exchanges in {counts['steps']} optimizer steps, in place of the script's {scripts}."
        )
        if counts["by_hand"]:
            sentence += (
                f" {counts['by_hand']} of them came right before gradients were read, in shorter steps."
            )
        (evidence.consumed if made < scripts else evidence.not_consumed)[KNOB] = sentence
        return evidence


def _explain_no_deferral(training: Training) -> str:
    """Why no micro-batch's exchange can be left out in this script; "" when it can."""
    if len(training.replicas) != 1 or len(training.known) > 1:
        return "The script trains several models, and one's backward pass may leave gradients in another."
    [ddp] = training.replicas
    if training.exchanges == 1:
        return (
            "Gradients are exchanged once in a step already: the script accumulates none, or skips the others itself "
            "(no_sync)."
        )
    if training.repeats_backward or training.awaited:
        return "The script runs backward passes beside the one of each forward: none says which is the last."
    if training.reads_between:
        return "The script clips or unscales gradients after a micro-batch that is not the last of its step."
    if reads := find_gradient_reads(sys.modules):
        return (
            f"The script's own code reads gradients ({', '.join(reads[:2])}): before they are exchanged it would read "
            "those of its rank alone. Where it only clips or logs, torch.nn.utils.clip_grad_norm_ returns the norm."
        )
    if any(AFTER_ACCUMULATION.find(parameter) for parameter in list_reduced(ddp)):
        return "A hook of the script's looks at gradients as each micro-batch adds to them."
    if _is_inside_step():
        return "The script computes inside optimizer.step(closure): nothing tells there that the last batch has come."
    if ddp.static_graph:
        return "With static_graph=True DDP counts the gradients of each pass, and takes none between passes."
    if sentence := find_in_backward(training):
        return f"{sentence}: gradients are applied as they come."
    return explain_no_pause(training) or explain_missing(ddp, (MARK_READY,)) or ""


def _is_inside_step() -> bool:
    """Whether the forward that begins now was called by an optimizer's step."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename.endswith(_OPTIMIZER):
            return True
    return False


def exchange_gradients(ddp: Any) -> None:
    """Collective. Between two passes: DDP's own exchange of what its parameters' gradients hold now.

    The reducer is told, inside a backward of nothing, that each gradient has come: the same buckets, hooks and order as
    after a pass, so that ranks that exchange there meet those that exchange here.
    """
    parameters = list_reduced(ddp)
    indices = list(range(len(parameters)))
    outputs: List[torch.Tensor] = []
    if ddp.find_unused_parameters:
        # What has no gradient stays unused: of the rest the search has to find the graph, which nobody computes.
        indices = [index for index in indices if parameters[index].grad is not None] or indices[:1]
        outputs = [parameters[index].reshape(-1)[:0].sum() for index in indices]

    def mark(_: Any) -> None:
        for index in indices:
            MARK_READY.of(ddp)(index)

    with torch.enable_grad():
        leaf = torch.zeros((), requires_grad=True)
        pulse = leaf.clone()
        ddp.reducer.prepare_for_backward(outputs)
        pulse.register_hook(mark)
        # Not through backward(): the script has made no pass.
        torch.autograd.grad(pulse, leaf)
