"""Where the time of a step goes, and what that rules out."""

from collections.abc import Sequence
from statistics import fmean, median

from advisor.protocol.advice import Diagnosis
from advisor.protocol.trials import Block, Phases

NEGLIGIBLE = 0.02
"""A phase with a smaller share of the step cannot bring 2 % (Amdahl: 1 / (1 - share) - 1)."""
_SKEWED = 0.10
_DOMINANT = 0.15


def median_phases(blocks: Sequence[Block]) -> Phases:
    """Return the median of each phase over the blocks that measured phases, in seconds per step."""
    measured = [b.result.phases for b in blocks if b.result and b.result.phases.total_s() > 0]
    if not measured:
        return Phases()
    exposed = [p.exposed_comm_s for p in measured if p.exposed_comm_s is not None]
    return Phases(
        data_wait_s=median(p.data_wait_s for p in measured),
        forward_s=median(p.forward_s for p in measured),
        backward_s=median(p.backward_s for p in measured),
        exposed_comm_s=median(exposed) if exposed else None,
        optimizer_s=median(p.optimizer_s for p in measured),
        other_s=median(p.other_s for p in measured),
    )


def exposed_share(phases: Phases) -> float | None:
    """Return exposed communication's share of the step; None where it was not measured."""
    total = phases.total_s()
    if phases.exposed_comm_s is None or total <= 0:
        return None
    return phases.exposed_comm_s / total


def measure_skew(blocks: Sequence[Block]) -> float:
    """Return the slowest rank's median step time over the median rank's, minus 1; averaged over blocks."""
    skews = []
    for block in blocks:
        ranks = block.result.per_rank_step_time_s if block.result else ()
        if len(ranks) > 1 and median(ranks) > 0:
            skews.append(max(ranks) / median(ranks) - 1.0)
    return fmean(skews) if skews else 0.0


def measure_compute_skew(blocks: Sequence[Block]) -> float:
    """Return how much more of the step the slowest rank computes than the median rank, as a share of the step.

    Synchronised ranks all take the same step time, so a straggler shows in what it computes, not in its steps.
    """
    skews = []
    for block in blocks:
        if (
            block.result
            and block.result.phases.total_s() > 0
            and block.result.worst_rank_phases.total_s() > 0
        ):
            usual, worst = block.result.phases, block.result.worst_rank_phases
            skews.append((_computing(worst) - _computing(usual)) / usual.total_s())
    return fmean(skews) if skews else 0.0


def _computing(phases: Phases) -> float:
    return phases.forward_s + phases.backward_s + phases.optimizer_s


def diagnose(blocks: Sequence[Block]) -> Diagnosis:
    """Return what bounds the step in these blocks of the baseline, with its figures."""
    phases, skew = median_phases(blocks), measure_skew(blocks)
    total = phases.total_s()
    if total <= 0:
        sentence = "The phases of a step were not measured, so nothing can be said about what bounds it."
        return Diagnosis(bound="unmeasured", sentence=sentence, skew=skew)
    exposed = phases.exposed_comm_s
    ceiling = total / (total - exposed) if exposed is not None and 0 <= exposed < total else None
    compute, wait = _computing(phases), phases.data_wait_s
    lead = max(skew, measure_compute_skew(blocks))
    step = f"of a {_ms(total)} step"
    if exposed is not None and exposed / total >= _DOMINANT and exposed >= wait and lead < _SKEWED:
        bound = "communication"
        sentence = f"{_ms(exposed)} {step} is communication that computation does not hide."
    elif lead >= _SKEWED:
        bound = "straggler"
        sentence = f"The slowest rank needs {lead:.0%} of the step more than the median rank: the others wait for it."
    elif wait / total >= _DOMINANT:
        bound = "input"
        sentence = f"{_ms(wait)} {step} is waiting for data: a faster reader helps more than any knob here."
    elif compute / total >= 0.75:
        bound = "compute"
        sentence = f"{_ms(compute)} {step} is computation: communication and reading are hidden."
    else:
        bound = "balanced"
        sentence = (
            f"No phase dominates: computation takes {_ms(compute)} {step}, waiting for data {_ms(wait)}."
        )
    if ceiling is not None:
        sentence += (
            f" Without any exposed communication the job would run {(ceiling - 1) * 100:.0f} % faster."
        )
    elif exposed is None:
        sentence += " Exposed communication could not be measured."
    return Diagnosis(bound=bound, sentence=sentence, ceiling_ratio=ceiling, skew=max(0.0, lead))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
