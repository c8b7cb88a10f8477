"""The rank that the others wait for, in words: for how long, what it does meanwhile, and what to do about it."""

from advisor.protocol.gains import spell_share
from advisor.protocol.measured.results import LateRank

OFTEN = 0.2
"""Share of samples, or of steps, from which on something is worth a sentence."""
_DOES = {
    "data_wait_s": (
        "waiting for its data",
        "look at its part of the dataset, its storage and the processes that read for it",
    ),
    "forward_s": ("in forward", "look for other load, a lower clock, a slower device or longer inputs there"),
    "backward_s": (
        "in backward",
        "look for other load, a lower clock, a slower device or longer inputs there",
    ),
    "optimizer_s": ("in its optimizer", "look for other load, a lower clock or a slower device there"),
    "own_code_s": (
        "in the script's own code between the phases",
        "what only this rank does there is the usual cause: logging, evaluation, a checkpoint, preparing its data",
    ),
    "evaluation_s": (
        "evaluating or saving",
        "let all ranks share the evaluation, do it less often, or save in the background",
    ),
    "garbage_s": ("collecting Python's garbage", "collect less often, or in the same steps on all ranks"),
    "compiling_s": (
        "compiling again what the script compiles",
        "give this rank the shapes that the others have, or compile with dynamic=True",
    ),
    "stalls_s": ("in stalls of its computing", "look for other load on its processors or device"),
}
"""What a late rank does, and what to do about it."""
_COMPUTING = frozenset({"forward_s", "backward_s", "optimizer_s", "stalls_s"})
"""What a thread beside the training slows down."""

SAVE_LESS = "save less often or less, or let another process write (AsyncCheckpointerType.PROCESS)"


def say_saving(share: float) -> str:
    """Return in how many steps a thread of the rank's own writes a checkpoint."""
    return f"in {spell_share(share)} of the steps a thread of its own saves: torch.save"


def tell_late(late: LateRank) -> tuple[str, str]:
    """Return what the late rank does beyond the others, `waiting for its data`, and what to do about it."""
    doing, remedy = _DOES[late.part]
    if late.saves_beside >= OFTEN and late.part in _COMPUTING:
        return f"{doing} ({say_saving(late.saves_beside)})", SAVE_LESS
    return doing, remedy


def describe_late(late: LateRank, step_s: float, where: str = "") -> str:
    """Return who waits for whom, for how long, and what the late rank does meanwhile."""
    doing, remedy = tell_late(late)
    return (
        f"Rank {late.rank}{where} is late: the others wait {late.waited_s * 1e3:.1f} ms of each {step_s * 1e3:.1f} ms "
        f"step for it, while it spends {late.excess_s * 1e3:.1f} ms more than they {doing}. "
        f"No knob mends that: {remedy}."
    )
