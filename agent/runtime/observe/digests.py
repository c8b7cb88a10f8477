"""Digests of all bits of tensors, by which two moments, or two ranks, are held against each other."""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any

import torch


def digest(value: Any) -> bytes:
    """Of a tensor, or of what its text says; waits for the device."""
    if not isinstance(value, torch.Tensor):
        return hashlib.sha256(repr(value).encode()).digest()
    here = value.detach().to("cpu")
    if here.layout is not torch.strided:  # a momentum of sparse gradients
        here = here.to_dense()
    here = here.contiguous()
    found = hashlib.sha256(f"{here.dtype} {tuple(here.shape)} ".encode())
    size = here.numel() * here.element_size()
    if size:
        # Its memory as it is: NumPy, which need not be there, does not know all of torch's types.
        found.update((ctypes.c_char * size).from_address(here.data_ptr()))
    return found.digest()
