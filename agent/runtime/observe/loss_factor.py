"""Starts a backward pass from loss × factor without touching the loss itself."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import torch


def multiply_loss(
    roots: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any], factor: float
) -> Tuple[Any, Tuple[Any, ...], Dict[str, Any]]:
    """Arguments for torch.autograd.backward whose gradients come out multiplied by `factor`.

    The factor goes into the initial gradients (`grad_tensors`), so that the script reads its own number in the loss. A
    root that backward would refuse is left as it is, for torch's own error.
    """
    roots = (roots,) if isinstance(roots, torch.Tensor) else tuple(roots)
    given = args[0] if args else kwargs.get("grad_tensors")
    if given is None:
        given = (None,) * len(roots)
    elif isinstance(given, torch.Tensor):
        given = (given,)
    initial = tuple(_multiply(root, gradient, factor) for root, gradient in zip(roots, given))
    if args:
        return roots, (initial, *args[1:]), kwargs
    return roots, args, {**kwargs, "grad_tensors": initial}


def _multiply(root: Any, gradient: Any, factor: float) -> Any:
    if gradient is not None:
        return gradient * factor
    if isinstance(root, torch.Tensor) and root.numel() == 1:
        return torch.full_like(root, factor)
    return None
