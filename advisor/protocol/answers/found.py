"""One thing that takes a training's time, as a diagnosis tells it."""

from advisor.protocol.base import Message


class Found(Message):
    """One thing that takes time."""

    name: str
    """For programs: accumulation, threads, input, late_rank, host_read, communication, buffers, collectives, waiting,
    own_code, evaluation, garbage, compiling, stalls, unused_search, sync_batch_norm, split_layers or
    recomputation."""
    cost_s: float
    """Seconds of the mean step."""
    share: float
    """Of the step, 0 to 1."""
    what: str
    """A clause."""
    where: str = ""
    """`train.py:88`; empty where nothing tells the line."""
    remedy: str
    """A line, a command, or what to do."""
    saves_s: float
    """The most that it can bring, in seconds of a step."""
    seen: str
    """How it was seen."""


def make_found(name: str, cost_s: float, what: str, remedy: str, seen: str, where: str = "") -> Found:
    """Return a finding that may bring all that it takes; its share follows once the step is known."""
    return Found(
        name=name,
        cost_s=cost_s,
        share=0.0,
        what=what,
        where=where,
        remedy=remedy,
        saves_s=cost_s,
        seen=seen,
    )


def say_ms(seconds: float) -> str:
    """Return `38.2 ms`, and `1.23 s` from a second on."""
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{seconds * 1e3:.3g} ms"


def say_often(per_step: float) -> str:
    """Return `once a step`, `4 times a step`, `2.4 times a step`, `once in 20 steps`."""
    if per_step < 0.75:
        return f"once in {1 / per_step:.0f} steps"
    whole = round(per_step)
    times = f"{whole}" if abs(per_step - whole) < 0.1 else f"{per_step:.1f}"
    return "once a step" if times == "1" else f"{times} times a step"
