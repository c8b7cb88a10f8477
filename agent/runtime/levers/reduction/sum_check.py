"""Holds the first sums of a hook against the plain reduction of the same gradients over the script's own group.

The plain one is issued inside the hook, where DDP would have issued its own: so on that group every rank has the order
that the script has without us, and nothing waits that DDP would not wait for. Sparse buckets are not looked at.
"""

from __future__ import annotations

from typing import Any, List, Optional

import torch
import torch.distributed as dist

SAMPLE = 2**12
"""Most numbers of a bucket that are looked at, spread evenly over it."""


class SumCheck:
    """Of one model's hook: `passes` backward passes, every bucket of each."""

    def __init__(self, group: Any, passes: int, parameters: int = 0) -> None:
        """`parameters`: how many the script's own reducer reduces in each pass; 0 where that is not known."""
        self._group, self._left = group, passes
        self._wanted, self._seen = parameters, 0
        self._share = 1.0 / dist.get_world_size(group)
        self._open: List[_Sum] = []
        """Of the last pass: the buckets' own sums were waited for, so that these are there as well."""
        self._verdicts: List[torch.Tensor] = []
        self._failure = ""

    def watch(self, bucket: Any, wire_format: Optional[torch.dtype] = None) -> Optional["_Sum"]:
        """Before this bucket of gradients is reduced, and divided: what `keep` its sum; None for an unchecked one."""
        if self._left <= 0:
            return None
        if bucket.index() == 0:
            self._compare()
        self._seen += len(bucket.parameters())
        if bucket.is_last():
            self._left -= 1
            seen, self._seen = self._seen, 0
            if self._wanted and seen != self._wanted:
                self._failure = (
                    f"It reduced {seen} of the {self._wanted} parameters that the script's own reducer does."
                )
        buffer = bucket.buffer()
        if buffer.is_sparse or not buffer.numel():
            return None
        own = _sample(buffer).mul(self._share)
        found = _Sum(own, wire_format or own.dtype, self._group)
        self._open.append(found)
        return found

    def judge(self) -> "tuple[int, str]":
        """How many sums were looked at, and what is wrong with them; "" where they are right. Waits for the device."""
        self._left = 0
        self._compare()
        wrong = int(torch.stack(self._verdicts).sum()) if self._verdicts else 0
        if wrong:
            sentence = (
                f"{wrong} of the first {len(self._verdicts)} sums that were checked are not what a plain allreduce of "
                "the same gradients gives: it would train on wrong gradients here."
            )
            return len(self._verdicts), sentence
        return len(self._verdicts), self._failure

    def _compare(self) -> None:
        opened, self._open = self._open, []
        try:
            self._verdicts += [
                differs for differs in (found.compare() for found in opened) if differs is not None
            ]
        except RuntimeError as error:  # the script has ended its process group, or another rank is gone
            self._failure = f"Its first sums could not be checked: {str(error).splitlines()[0]}"


class _Sum:
    """One bucket's numbers, summed in both ways."""

    def __init__(self, own: torch.Tensor, wire_format: torch.dtype, group: Any) -> None:
        self._wire_format, self._world_size = wire_format, dist.get_world_size(group)
        # Beside the sum that of the sizes: by it the error is judged that another order of adding makes.
        self._plain = torch.stack([own, own.abs()])
        self._work = dist.all_reduce(self._plain, group=group, async_op=True)
        self._found: Optional[torch.Tensor] = None

    def keep(self, done: Any) -> Any:
        """A callback for the future of the bucket's sum."""
        result = done.value()
        if isinstance(result, list):
            [result] = result
        self._found = _sample(result).clone()
        return result

    def compare(self) -> Optional[torch.Tensor]:
        """Whether they differ by more than rounding, as a tensor of one; None where the bucket was never reduced."""
        self._work.wait()
        if self._found is None:
            return None
        if self._found.is_cuda:
            # A callback's own stream made it.
            self._found.record_stream(torch.cuda.current_stream(self._found.device))
        plain, sizes = self._plain.double()
        found, format = self._found.double(), torch.finfo(self._wire_format)
        error = (self._world_size + 2) * format.eps * (sizes + format.tiny)
        # What the plain sum cannot hold either says nothing, nor what 16 bits overflow with.
        is_told = plain.isfinite() if format.bits > 16 else plain.isfinite() & found.isfinite()
        return (is_told & ~((found - plain).abs() <= error)).any()


def _sample(buffer: torch.Tensor) -> torch.Tensor:
    numbers = torch.view_as_real(buffer).reshape(-1) if buffer.is_complex() else buffer.reshape(-1)
    return numbers[:: -(-numbers.numel() // SAMPLE)]
