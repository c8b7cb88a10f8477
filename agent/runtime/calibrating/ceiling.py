"""How far a step is from what this device could do: its matrix operations, counted, and one of them, timed.

Operations are counted by torch's own formulas (torch.utils.flop_counter) in one step that is not timed: products,
convolutions and attention, forward and backward, computed again or not; a multiplication and an addition are two. They
are held against a multiplication of two large matrices on this device, in the number format of most of them, which is
what a step could reach here and not what a data sheet says.
"""

from __future__ import annotations

import re
import sys
import time
from typing import Any, Dict, List, Optional

import torch
from torch.utils import flop_counter

from ..levers.lever import Training
from ..levers.script_compilation import is_compiled_by_script

OWN_KERNELS = ("flash_attn", "liger_kernel", "mamba_ssm", "transformer_engine", "unsloth", "xformers")
"""Packages whose kernels compute past torch's dispatcher."""
MULTIPLIES = re.compile(
    r"(^|[._])(\w*attention|\w*rnn|\w*lstm|\w*gru|linear|\w*mm|\w*matmul|\w*conv\w*)([._]|$)"
)
"""Names of operators that multiply matrices."""
LIBRARIES = ("aten", "prim", "prims", "profiler", "c10d", "fsdp", "torchvision", "torchaudio", "symm_mem")
"""Whose operators are known: of another one's nothing tells what they compute."""
SIDES = {"cuda": 8192, "cpu": 1024}
"""Of the matrices that are multiplied."""
BUDGET_S, FEWEST_LAPS = 0.2, 3


class OperationCount(flop_counter.TorchDispatchMode):  # type: ignore[misc]
    """Of everything that this rank computes while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self._formulas: Dict[Any, Any] = dict(getattr(flop_counter, "flop_registry"))
        self.by_format: Dict[torch.dtype, float] = {}
        self.missed = ""
        """The first operator that multiplies and has no formula."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        formula = find_formula(str(packet)) or self._formulas.get(packet)
        if formula is None:
            if not self.missed and is_unknown(str(packet)):
                self.missed = str(packet)
            return result
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        if any(hasattr(tensor, "to_local") for tensor in tensors):
            self.missed = self.missed or f"{packet} of tensors that are spread over ranks"
        counted = formula(*args, **(kwargs or {}), out_val=result)
        dtype = tensors[0].dtype
        self.by_format[dtype] = self.by_format.get(dtype, 0.0) + counted
        return result


def find_formula(name: str) -> Optional[Any]:
    """Of operators that torch's table lacks, or counts too high.

    Attention on CPUs has an operator of its own name. Of a convolution's backward pass torch 2.13 counts every group's
    channels as if they met every other group's: 17 times the forward pass for 16 groups of one channel, where each of
    the two gradients takes as much as the forward pass.
    """
    if name == "aten.convolution_backward":
        forward_of = flop_counter.conv_flop_count

        def count_gradients(grad: Any, x: Any, weight: Any, *rest: Any, **_: Any) -> Any:
            transposed, wanted = rest[4], rest[7]
            return forward_of(list(x.shape), list(weight.shape), list(grad.shape), transposed) * sum(
                wanted[:2]
            )

        return count_gradients
    if name.endswith("flash_attention_for_cpu"):
        forward = flop_counter.sdpa_flop_count
        return lambda q, k, v, *_, **__: forward(q.shape, k.shape, v.shape)
    if name.endswith("flash_attention_for_cpu_backward"):
        backward = flop_counter.sdpa_backward_flop_count
        return lambda g, q, k, v, *_, **__: backward(g.shape, q.shape, k.shape, v.shape)
    return None


def is_unknown(name: str) -> bool:
    """Whether an operator without a formula (`aten._thnn_fused_lstm_cell`) may multiply matrices."""
    library, _, rest = name.partition(".")
    is_known = library in LIBRARIES or library.lstrip("_").startswith(("c10d", "dtensor"))
    return not is_known or (library == "aten" and MULTIPLIES.search(rest) is not None)


class Ceiling:
    """Of one rank: begun at a step's first boundary, ended at the next one."""

    def __init__(self, training: Training, device: torch.device) -> None:
        self._device, self._count = device, None
        self._refusal = explain_no_count(training, device)
        self._rate = 0.0
        if not self._refusal:
            self._count = OperationCount()
            self._count.__enter__()

    def stop(self) -> None:
        """The step has ended."""
        if self._count is not None:
            self._count.__exit__(None, None, None)

    def measure_rate(self) -> None:
        """The multiplication, at a boundary, on all ranks at about one time: what they share they share there, too."""
        if self._count is None:
            return
        if self._count.missed:
            self._refusal = f"torch's counter of operations has no formula for {self._count.missed}"
        elif not self._count.by_format:
            self._refusal = "no product of matrices, convolution or attention was seen in a step"
        else:
            self._rate = time_product(self._device, self._find_format())
            self._refusal = (
                "" if self._rate else "there is no memory for the matrices that would be multiplied"
            )

    def read(self) -> Dict[str, Any]:
        """Plain JSON."""
        counted = self._count.by_format if self._count is not None and not self._refusal else {}
        return {
            "operations": sum(counted.values()),
            "rate": self._rate,
            "number_format": str(self._find_format()).replace("torch.", "") if counted else "",
            "refusal": self._refusal,
        }

    def _find_format(self) -> torch.dtype:
        assert self._count is not None
        found = self._count.by_format
        return max(found, key=lambda dtype: found[dtype])


def explain_no_count(training: Training, device: torch.device) -> str:
    """Why operations cannot be counted; "" when they can."""
    if device.type not in SIDES:
        return f"how fast {device.type} multiplies is not measured"
    if any(map(is_compiled_by_script, training.whole, training.inner)):
        return "the model is compiled, and compiled code tells no operators"
    own = next((name for name in OWN_KERNELS if name in sys.modules), "")
    if own:
        return f"{own} has kernels of its own, which tell no operators"
    if not hasattr(flop_counter, "flop_registry"):
        return f"torch {torch.__version__} has no table of operators' formulas"
    return ""


def time_product(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second in the fastest of several products of two square matrices; 0 where memory is short."""
    side = SIDES[device.type]
    try:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            left = torch.ones(side, side, dtype=dtype, device=device)
            right, into = torch.ones_like(left), torch.empty_like(left)
            laps: List[float] = []
            began_s: Optional[float] = None
            while began_s is None or len(laps) < FEWEST_LAPS or time.perf_counter() - began_s < BUDGET_S:
                start_s = time.perf_counter()
                torch.mm(left, right, out=into)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                if began_s is None:
                    began_s = time.perf_counter()  # the first one loads kernels
                else:
                    laps.append(time.perf_counter() - start_s)
    except RuntimeError:
        return 0.0
    return 2.0 * side**3 / min(laps)
