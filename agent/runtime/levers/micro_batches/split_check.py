"""Whether a model computes each sample by itself, asked of the model: parts of a few samples against all of them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

import torch

from ...observe.reduced import explain_delay
from ...private_torch import COMPILED_CALL, FORWARD_HOOKS, is_batch_norm
from ..script_compilation import is_compiled_by_script
from .batch_parts import (
    MEAN,
    SUM,
    Inseparable,
    count_samples,
    cut,
    join,
    list_tensors,
    measure_difference,
    share_out,
)

MOST_CHECKED = 32
"""Samples that a check computes, where a part has as many: more may not fit."""
TOLERANCES: Dict[torch.dtype, float] = {torch.float64: 1e-8, torch.float32: 1e-4}
"""Relative differences that rounding explains: kernels add up in another order for another number of samples."""
COARSE = 3e-2
"""That of 16-bit arithmetic; what mixes samples differs by more."""
TF32 = 5e-3

Forward = Callable[..., Any]
Inputs = Tuple[Any, Any]
"""Arguments by place and by name."""


@dataclass
class Finding:
    """What a check came to on this rank."""

    refusal: str = ""
    reduction: str = MEAN
    sentence: str = ""
    bytes_per_sample: float = 0.0
    """What a training forward keeps for its backward."""


def explain_no_split(ddp: Any) -> str:
    """Why this model's batch is not computed in parts; "" where only a check can tell."""
    if delay := explain_delay(ddp):
        return f"{delay}, in every part of a batch and without waiting for it."
    for name, module in ddp.module.named_modules():
        kind = type(module).__name__
        if is_batch_norm(module):
            return (
                f"The model has batch norm ({name or kind}), which computes with the mean of the batch that it sees: "
                "parts would be normalised by themselves. Synchronised or frozen batch norm does not help here; group "
                "or layer norm would."
            )
        if any(base.__name__ == "LightningModule" for base in type(module).__mro__):
            return (
                "Lightning runs training_step inside the model's forward, and its logging would be repeated for each "
                "part: set the loader's batch size and accumulate_grad_batches instead."
            )
        if FORWARD_HOOKS.find(module) and module is not ddp.module:
            return f"A forward hook of the script watches {name}, and would see the parts one by one."
    if is_compiled_by_script(ddp) or COMPILED_CALL.find(ddp.module) is not None:
        return "The model is compiled, for batches of the script's own size."
    return ""


def check(module: Any, forward: Forward, inputs: Inputs, parts: int) -> Finding:
    """Runs forwards that no step uses; random numbers and the model stay as they are."""
    samples = count_samples(inputs)
    checked = min(samples, MOST_CHECKED, max(2, -(-samples // parts)))
    devices = sorted({tensor.get_device() for tensor in list_tensors(inputs) if tensor.is_cuda})
    with torch.random.fork_rng(devices=devices):
        while True:
            few = next(cut(inputs, samples, [checked]))
            try:
                return _check(module, forward, few, checked, min(parts, checked))
            except Inseparable as why:
                return Finding(refusal=str(why))
            except Exception as error:
                if not is_out_of_memory(error):
                    return Finding(refusal=f"The model cannot compute a part of its batch: {_say(error)}.")
            if checked <= 2:
                return Finding(
                    refusal="There is no memory for two samples, by which a split could be checked."
                )
            checked //= 2


def _check(module: Any, forward: Forward, inputs: Inputs, samples: int, parts: int) -> Finding:
    finding = Finding(bytes_per_sample=_probe(module, forward, inputs, samples))
    asks_gradients = any(not tensor.dim() for tensor in list_tensors(_look(forward, inputs)))
    look = (lambda *call: _differentiate(module, *call)) if asks_gradients else _look
    whole = list_tensors(look(forward, inputs))
    limit = _choose_limit(list_tensors(_look(forward, inputs)))
    is_random = measure_difference(whole, list_tensors(look(forward, inputs))) > limit
    flags = [(part, part.training) for part in module.modules()]
    try:
        if is_random:
            module.eval()
            whole = list_tensors(look(forward, inputs))
        sizes = share_out(samples, parts)
        differences = []
        for reduction in (MEAN, SUM):
            joined = list_tensors(look(_split(forward, samples, sizes, reduction), inputs))
            differences.append((measure_difference(whole, joined), reduction))
    finally:
        for part, was_training in flags:
            part.training = was_training
    difference, finding.reduction = min(differences, key=lambda found: found[0])
    what = "gradients of its loss" if asks_gradients else "outputs"
    if difference > limit:
        finding.refusal = (
            f"The model computes something of the whole batch: of {samples} samples in {parts} parts its {what} differ "
            f"by {difference:.1e} of their size, where rounding explains {limit:.0e}."
        )
        return finding
    finding.sentence = (
        f"the {what} of {samples} samples in {parts} parts differ by {difference:.0e} of their size"
    )
    if is_random:
        finding.sentence += " in evaluation mode; in training mode each part draws random numbers of its own"
    return finding


def _split(forward: Forward, samples: int, sizes: Sequence[int], reduction: str) -> Forward:
    def run(*args: Any, **kwargs: Any) -> Any:
        outputs = [forward(*a, **k) for a, k in cut((args, kwargs), samples, sizes)]
        return join(outputs, sizes, reduction)

    return run


def _look(forward: Forward, inputs: Inputs) -> Any:
    with torch.no_grad():
        return forward(*inputs[0], **inputs[1])


def _differentiate(module: Any, forward: Forward, inputs: Inputs) -> List[Any]:
    """Gradients of the loss that the model computes: two means of a batch hardly differ where their gradients do."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    losses = [t for t in list_tensors(forward(*inputs[0], **inputs[1])) if not t.dim() and t.requires_grad]
    if not losses:
        raise Inseparable("The model gives a number that is no loss, and would give one for each part.")
    return list(torch.autograd.grad(torch.stack(losses).sum(), parameters, allow_unused=True))


def _probe(module: Any, forward: Forward, inputs: Inputs, samples: int) -> float:
    """Bytes that a training forward keeps for each sample. Raises Inseparable where it leaves anything behind."""
    before = [(name, buffer, buffer.detach().clone()) for name, buffer in module.named_buffers()]
    weights = {_locate(tensor)[0] for tensor in (*module.parameters(), *module.buffers())}
    kept: Dict[int, int] = {}
    with watch_kept(kept):
        output = forward(*inputs[0], **inputs[1])
    changed = [(name, buffer, copy) for name, buffer, copy in before if not torch.equal(buffer, copy)]
    with torch.no_grad():
        for _, buffer, copy in changed:
            buffer.copy_(copy)
    if changed:
        raise Inseparable(f"The model changes {changed[0][0]} in its forward, and would for each part.")
    for name, part in module.named_modules():
        for attribute, value in vars(part).items():
            if any(tensor.grad_fn is not None for tensor in list_tensors(value)):
                where = f"{name}.{attribute}" if name else attribute
                raise Inseparable(
                    f"The model keeps {where} from its forward: it would be that of the last part only."
                )
    del output
    return sum(size for place, size in kept.items() if place not in weights) / samples


@contextlib.contextmanager
def watch_kept(kept: Dict[int, int]) -> Iterator[None]:
    """Bytes, by their place, of what autograd keeps meanwhile."""

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        place, size = _locate(tensor)
        kept[place] = size
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield


def _locate(tensor: torch.Tensor) -> Tuple[int, int]:
    """Where a tensor's memory lies, and how much it is; views of one lie in one place."""
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    except (NotImplementedError, RuntimeError):  # a sparse one has several
        return id(tensor), tensor.numel() * tensor.element_size()


def _choose_limit(outputs: Sequence[torch.Tensor]) -> float:
    if any(_is_autocast(tensor.device.type) for tensor in outputs):
        return COARSE
    floating = [tensor for tensor in outputs if tensor.is_floating_point() or tensor.is_complex()]
    limit = max((TOLERANCES.get(tensor.dtype, COARSE) for tensor in floating), default=0.0)
    uses_tf32 = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
    return max(limit, TF32) if uses_tf32 and any(tensor.is_cuda for tensor in floating) else limit


def _is_autocast(device: str) -> bool:
    try:
        return bool(torch.is_autocast_enabled(device))
    except TypeError:  # before torch 2.4
        return bool(torch.is_autocast_enabled() if device == "cuda" else torch.is_autocast_cpu_enabled())


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was what a computation failed for: on a GPU, or in the host's own allocator."""
    kind = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
    return isinstance(error, (kind, MemoryError)) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
    )


def _say(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__
