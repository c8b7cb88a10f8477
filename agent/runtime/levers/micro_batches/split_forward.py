"""Computes a model's training forward in parts of the batch, each of which keeps nothing for the backward but the last.

The script sees one forward with the whole batch's output, and one backward: what is not kept is computed again in it,
part by part. DistributedDataParallel, too, sees each gradient once.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ...link.rank_output import say
from ...observe.memory import count_free_bytes
from ...observe.recomputation import Ours
from .batch_parts import count_samples, cut, cut_one, join, list_tensors, share_out
from .split_check import Finding, Forward, check, explain_no_split, is_out_of_memory

KNOB = "micro_batches"
CHECKS = 3
"""Forwards of each model that are checked first."""
ROOM = 0.9
"""The most of the free memory that a part may take, so that none is left to fail."""
BACKWARD = 1.25
"""What a part's backward takes for each byte that its forward kept."""
FIRST = 8
"""Forwards before each of which it is looked how much memory is free; later only for a part larger than any before."""
MOST_TOLD = 3
"""Shortages of a rank that are told one by one."""


class Known:
    """What is known of one model."""

    def __init__(self) -> None:
        self.checks = 0
        self.finding = Finding()
        self.parts = 0
        """As many as memory asked for; 0 while nothing was short."""
        self.fits = 0.0
        """The largest part, in bytes, that was seen to fit."""
        self.forwards = 0


class SplitForward:
    """Each rank splits by itself: nothing about it has to be agreed on, because all exchange the same gradients."""

    def __init__(self, parts: int = 1, ranks: int = 1) -> None:
        """`parts` from the first forward on; `ranks` share a host's memory."""
        self.parts = parts
        """At least so many of each batch; a rank that is short of memory makes more."""
        self._ranks = ranks
        self._known: "weakref.WeakKeyDictionary[Any, Known]" = weakref.WeakKeyDictionary()
        self._last: Optional[Tuple[Any, Any, bool]] = None
        """Of the last forward: its model, one sample of its input, and whether gradients are exchanged after it."""
        self.begin_timing()

    def begin_timing(self) -> None:
        """Counts start again."""
        self.forwards = self.shortages = self.lost = 0
        self.sizes: Tuple[int, int] = (0, 0)
        """Samples of a batch, and of its largest part, seen last."""

    @property
    def refusal(self) -> str:
        """Why a model is computed whole."""
        return next((known.finding.refusal for known in self._known.values() if known.finding.refusal), "")

    def describe(self) -> str:
        """What a check of this rank found, and what was kept."""
        known = [known for known in self._known.values() if known.checks]
        if not known:
            return ""
        finding, (samples, size) = known[-1].finding, self.sizes
        kept, all_kept = finding.bytes_per_sample * size, finding.bytes_per_sample * samples
        sentence = (
            f"{self.forwards} forwards ran in parts of at most {size} of {samples} samples, which keep "
            f"{kept / 2**20:.1f} MiB at a time instead of {all_kept / 2**20:.1f} MiB; {finding.sentence}."
        )
        if self.lost:
            sentence += (
                f" Memory was short in {self.lost} backward passes: their samples are missing in those steps."
            )
        return sentence

    def run(self, ddp: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any], forward: Forward) -> Any:
        """`forward` is DistributedDataParallel's own; the module in it computes in parts meanwhile."""
        known = self._known.setdefault(ddp, Known())
        if known.finding.refusal:
            return forward(ddp, *args, **kwargs)
        module, own = ddp.module, ddp.module.__dict__.get("forward")
        original, synchronised = module.forward, bool(ddp.require_backward_grad_sync)

        def compute(*inputs: Any, **named: Any) -> Any:
            # What is computed again in the backward calls the module's own.
            _put_back(module, own)
            return self._compute(ddp, known, original, (inputs, named), synchronised)

        module.forward = compute
        try:
            return forward(ddp, *args, **kwargs)
        finally:
            _put_back(module, own)

    def _compute(
        self, ddp: Any, known: Known, forward: Forward, inputs: Tuple[Any, Dict[str, Any]], synchronised: bool
    ) -> Any:
        samples = count_samples(inputs)
        if known.checks < CHECKS and samples > 1:
            self._check(ddp, known, forward, inputs)
        if known.finding.refusal or samples < 2:
            return forward(*inputs[0], **inputs[1])
        device = next(ddp.module.parameters()).device
        self._last = (weakref.ref(ddp), cut_one(inputs, samples), synchronised)
        while True:
            parts = self._choose_parts(known, samples, device)
            sizes = share_out(samples, parts)
            try:
                outputs = [
                    _compute_part(forward, part, place == parts - 1)
                    for place, part in enumerate(cut(inputs, samples, sizes))
                ]
                self.forwards += 1
                self.sizes = samples, sizes[0]
                return join(outputs, sizes, known.finding.reduction)
            except Exception as error:
                if not is_out_of_memory(error) or parts == samples:
                    raise
            self._make_more(known, parts)

    def _check(self, ddp: Any, known: Known, forward: Forward, inputs: Tuple[Any, Dict[str, Any]]) -> None:
        reason = "" if known.checks else explain_no_split(ddp)
        finding = Finding(refusal=reason) if reason else check(ddp.module, forward, inputs, self.parts)
        if known.checks and not finding.refusal and finding.reduction != known.finding.reduction:
            finding.refusal = (
                "The model's loss is a mean of the parts' for one batch, and their sum for another."
            )
        known.finding = finding
        known.checks += 1

    def _choose_parts(self, known: Known, samples: int, device: torch.device) -> int:
        """So many that a part fits into the memory that is free, by what a sample was seen to keep."""
        parts = min(samples, max(self.parts, known.parts))
        each = BACKWARD * known.finding.bytes_per_sample
        known.forwards += 1
        # In the first steps optimizers take memory for what they keep.
        if known.forwards > FIRST and each * -(-samples // parts) <= known.fits:
            return parts
        free = count_free_bytes(device)
        room = ROOM * free / (self._ranks if device.type == "cpu" else 1)
        while free and each * -(-samples // parts) > room and parts < samples:
            parts = min(samples, parts + 1)
        known.fits = max(known.fits, each * -(-samples // parts))
        return parts

    def _make_more(self, known: Known, parts: int) -> None:
        known.parts = 2 * parts
        self.shortages += 1
        if self.shortages <= MOST_TOLD:
            say(
                f"A part of the batch did not fit into this rank's memory: it makes {2 * parts} parts from here on."
            )
        _free()

    # What the patch of the backward asks.

    def may_go_on(self, error: BaseException) -> bool:
        """Whether `go_on` may help after a backward that failed: with one model it is known which one it belongs to."""
        is_divisible = self.sizes[1] > 1 and len(self._known) == 1
        return self.parts > 1 and self._last is not None and is_divisible and is_out_of_memory(error)

    def go_on(self) -> bool:
        """After a backward for which this rank's memory was short: whether it has given the others what they wait for.

        Its own samples are lost to this step: zeros stand for their gradients, and the next batches have more parts.
        """
        assert self._last is not None
        reference, (args, kwargs), synchronised = self._last
        ddp, self._last = reference(), None
        if ddp is None:
            return False
        known = self._known[ddp]
        self._make_more(known, max(self.parts, known.parts))
        self.lost += 1
        if self.lost <= MOST_TOLD:
            say("A backward did not fit into this rank's memory: one step goes without its samples.")
        return not synchronised or _give_zeros(ddp, args, kwargs)


def _put_back(module: Any, own: Any) -> None:
    """The module's forward as the script has it."""
    if own is None:
        module.__dict__.pop("forward", None)
    else:
        module.forward = own


def _compute_part(forward: Forward, part: Tuple[Any, Dict[str, Any]], is_last: bool) -> Any:
    if is_last:
        return forward(*part[0], **part[1])
    # The tensors go in by themselves: by them torch finds the devices whose random numbers are to be repeated.
    again = Ours(lambda: forward(*part[0], **part[1]))
    return checkpoint(again, *list_tensors(part), use_reentrant=False)


def _give_zeros(ddp: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Takes part in the exchange of gradients that is under way, as a rank whose gradients are all zero."""
    forward: Callable[..., Any] = getattr(DistributedDataParallel.forward, "__wrapped__", ddp.forward)
    synchronises = ddp.require_forward_param_sync
    # The others exchange no buffers now.
    ddp.require_forward_param_sync = False
    try:
        outputs: List[Any] = [t for t in list_tensors(forward(ddp, *args, **kwargs)) if t.requires_grad]
        torch.autograd.backward(outputs, [torch.zeros_like(output) for output in outputs])
    except RuntimeError:  # some of its gradients were exchanged before it failed
        return False
    finally:
        ddp.require_forward_param_sync = synchronises
    return True


def _free() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
