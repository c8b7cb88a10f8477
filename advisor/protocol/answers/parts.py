"""Parts of a step's account in words, alike on every screen: what each is, what to do about it, how it was seen."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Words:
    """What is said of one part."""

    part: str
    """Its name in the account."""
    what: str
    """What the seconds are, after `12 ms of a 100 ms step is`."""
    remedy: str
    """What to do: a clause."""
    seen: str = ""
    """How a diagnosis saw it."""

    def say(self, seconds: float, of_step: str) -> str:
        """Return `12.0 ms of a 100.0 ms step is waiting for data.`"""
        return f"{seconds * 1e3:.1f} ms {of_step} is {self.what}."

    def advise(self) -> str:
        """Return what to do, as a sentence."""
        return f"{self.remedy[0].upper()}{self.remedy[1:]}."


PARTS: Mapping[str, Words] = {
    "buffers": Words(
        "buffers_s",
        "the broadcast of the model's buffers, which DistributedDataParallel sends from rank 0 before every forward",
        "give DDP broadcast_buffers=False where each rank may keep its own (batch norm's running statistics, which "
        "only rank 0 saves anyway), or keep constants out of the module's buffers",
        "broadcasts before the forward pass",
    ),
    "collectives": Words(
        "collectives_s",
        "collectives beside the exchange of gradients: the script's own, SyncBatchNorm's or a sharded model's",
        "call them less often, on less data, or with async_op=True and wait for them later",
        "calls of torch.distributed",
    ),
    "waiting": Words(
        "wait_s",
        "waiting for other ranks, now for one and now for another",
        "look for uneven batches, other load on the nodes, or more processes and threads than cores",
        "waits before collectives",
    ),
    "own_code": Words(
        "own_code_s",
        "the script's own code between the phases: loss, clipping, logging, averages of weights",
        "do it less often, or faster",
        "time between data, forward, backward and optimizer",
    ),
    "evaluation": Words(
        "evaluation_s",
        "evaluating and saving, spread over all steps",
        "do it less often, on a part of the data, or save in the background",
        "steps in which the script evaluates or saves",
    ),
    "garbage": Words(
        "garbage_s",
        "full collections of Python's garbage",
        "call gc.freeze() once the model is built, or collect less often (num_iteration_per_drop_scope)",
        "Python's own callbacks",
    ),
    "compiling": Words(
        "compiling_s",
        "compiling again what torch.compile has compiled, for other inputs",
        "set TORCH_LOGS=recompiles, which tells what changes: inputs of one shape (padding), or "
        "torch.compile(…, dynamic=True), need no further version",
        "torch's own callbacks",
    ),
    "stalls": Words(
        "stalls_s",
        "stalls: computing takes several times as long in some steps",
        "look for other load, for swapping, or for more processes and threads than cores",
        "slow steps",
    ),
}
"""By the names that findings have."""
