"""How far a training is from what its ranks, its device and its link could do, as one or two launches show.

Pure functions. A rank's device is held against a product of two large matrices that it computed right after the timed
steps, a link against allreduces of its own between the same ranks, and several ranks against one of them alone.
"""

from collections.abc import Sequence

from advisor.protocol.answers.found import say_ms
from advisor.protocol.base import Message
from advisor.protocol.measured.results import BlockResult, LinkTiming, Phases
from advisor.protocol.training.workload import WorkloadFacts

_LEAST_SHARE = 0.005
"""Of a step: less is not told as what could be gained."""
_GREW = 0.02
"""Share of the step of one rank by which a part has grown that is told."""
_MOST_GREW = 3


class Scaling(Message):
    """Several ranks against one."""

    ratio: float
    """Rate of all ranks, in times of one rank's."""
    efficiency: float
    """Of the ideal, which is as many times as there are ranks."""
    alone_step_s: float
    """The mean step of the one rank."""
    grew: tuple[tuple[str, float], ...]
    """Parts of the account that are longer than with one rank, and by how many seconds of a step; longest first."""


class Limits(Message):
    """What the devices and the link could do."""

    matrix_share: float | None = None
    """Of the rate of a large product of matrices on these devices, 0 to 1; None where it is not known."""
    number_format: str = ""
    """Of most operations of a step, and of that product."""
    operations_per_step: float = 0.0
    """Matrix operations of all ranks; 0 where they could not be counted."""
    product_rate: float = 0.0
    """Operations a second that all ranks' devices reached in the product."""
    refusal: str = ""
    """Clause: why the share is not known."""
    exchanged_bytes: int = 0
    """Gradients of one step; 0 where no link was timed."""
    link_s: float = 0.0
    """What one allreduce of that size takes on this link, by allreduces of several sizes."""
    exposed_s: float = 0.0
    """What of the exchange no computing hides, in the mean step."""
    most_from_communication: float = 0.0
    """The most that a training without exposed communication would be faster, 0.18 for +18 %."""
    most_from_data: float = 0.0
    """The same of one that never waits for a batch."""


def find_limits(result: BlockResult, facts: WorkloadFacts) -> Limits:
    """Return what the block tells; nothing where it was not asked to measure this."""
    calibration, phases = result.calibration, result.phases
    step_s = phases.total_s()
    exposed_s = phases.exposed_comm_s or 0.0
    found: dict[str, object] = {
        "most_from_communication": _gain(step_s, exposed_s),
        "most_from_data": _gain(step_s, phases.data_wait_s),
    }
    ceiling = calibration.ceiling if calibration is not None else None
    if ceiling is not None and ceiling.refusal:
        found["refusal"] = ceiling.refusal
    elif ceiling is not None and ceiling.rate and step_s:
        found |= {
            "matrix_share": ceiling.operations / step_s / ceiling.rate,
            "number_format": ceiling.number_format,
            "operations_per_step": ceiling.operations,
            "product_rate": ceiling.rate,
        }
    timed = [link for link in calibration.links if link.level == "world"] if calibration is not None else []
    if timed and facts.gradient_bytes:
        found |= {
            "exchanged_bytes": facts.gradient_bytes * max(1, facts.exchanges_per_step),
            "link_s": max(1, facts.exchanges_per_step) * predict_link(timed, facts.gradient_bytes),
            "exposed_s": exposed_s,
        }
    return Limits.model_validate(found)


def predict_link(timed: Sequence[LinkTiming], size: int) -> float:
    """Return the seconds of one allreduce of `size` bytes: latency of the smallest, then the rate of the largest."""
    alone = sorted((link for link in timed if link.concurrent == 1), key=lambda link: link.bytes)
    least, most = alone[0], alone[-1]
    if most.bytes <= least.bytes:
        return least.seconds * max(1.0, size / least.bytes)
    return least.seconds + max(0.0, most.seconds - least.seconds) / (most.bytes - least.bytes) * size


def _gain(step_s: float, part_s: float) -> float:
    return part_s / (step_s - part_s) if 0.0 < part_s < step_s else 0.0


def compare_with_one(ranks: int, rate: float, phases: Phases, alone_rate: float, alone: Phases) -> Scaling:
    """Return what `ranks` bring against one of them by itself, whose rate and account are the last arguments."""
    names = {name: (seconds or 0.0) for name, seconds in phases.list_named()}
    before = {name: (seconds or 0.0) for name, seconds in alone.list_named()}
    grown = {name: seconds - before.get(name, 0.0) for name, seconds in names.items()}
    told = [(name, more) for name, more in grown.items() if more >= _GREW * alone.total_s()]
    ratio = rate / alone_rate if alone_rate else 0.0
    return Scaling(
        ratio=ratio,
        efficiency=ratio / ranks,
        alone_step_s=alone.total_s(),
        grew=tuple(sorted(told, key=lambda part: -part[1])[:_MOST_GREW]),
    )


def say_scaling(ranks: int, scaling: Scaling) -> str:
    """Return `2 ranks give 1.31x of one (65 %); a step is longer by: exposed communication +18 ms`."""
    told = f"{ranks} ranks give {scaling.ratio:.2f}x of one ({scaling.efficiency:.0%})"
    grew = ", ".join(f"{name} +{say_ms(seconds)}" for name, seconds in scaling.grew)
    return f"{told}; a step is longer than its {say_ms(scaling.alone_step_s)} by: {grew}" if grew else told


def say_limits(limits: Limits) -> str:
    """Return one line for people; empty where nothing is known."""
    told = []
    if limits.matrix_share is not None:
        told.append(
            f"{_spell_share(limits.matrix_share)} of what matrices reach here ({limits.number_format}, "
            f"{_spell_rate(limits.matrix_share * limits.product_rate)} of {_spell_rate(limits.product_rate)})"
        )
    elif limits.refusal:
        told.append(f"how near the devices are to their limit is not known: {limits.refusal}")
    if limits.exchanged_bytes:
        told.append(
            f"{limits.exchanged_bytes / 2**20:.3g} MiB of gradients take {say_ms(limits.link_s)} on this link, "
            f"{say_ms(limits.exposed_s)} are exposed"
        )
    most = {"communication": limits.most_from_communication, "data": limits.most_from_data}
    named = [f"+{gain:.0%} from {name}" for name, gain in most.items() if gain >= _LEAST_SHARE]
    if named:
        told.append(f"at most {', '.join(named)}")
    return " · ".join(told)


def _spell_share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 else "under 1%"


def _spell_rate(rate: float) -> str:
    unit, name = (1e12, "TFLOP/s") if rate >= 1e12 else (1e9, "GFLOP/s")
    return f"{rate / unit:.3g} {name}"
