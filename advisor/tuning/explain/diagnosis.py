"""Where the time of a step goes, and what that rules out."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from advisor.protocol.answers.advice import Diagnosis, Finding
from advisor.protocol.answers.gains import spell_share
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.knob import Part
from advisor.protocol.measured.trials import Block, Phases
from advisor.tuning.measure.phases import (
    computing_s,
    measure_busy,
    measure_compute_skew,
    measure_scaling,
    measure_skew,
    median_phases,
)
from advisor.tuning.space.space import Space

_SKEWED = 0.10
_DOMINANT = 0.15
_COMPUTING = 0.75
_HOST_BUSY = 0.5
"""Processors that a rank keeps busy at least while it launches kernels one after another."""

_LAUNCHING = frozenset(
    {
        "fuse_all_optimizer_ops",
        "fuse_elewise_add_act_ops",
        "fuse_bn_act_ops",
        "num_iteration_per_run",
        "num_iteration_per_drop_scope",
    }
)
"""Knobs that save the host work: fewer and larger kernels, fewer synchronisations and collections of garbage."""
_ACTS_ON: Mapping[str, Callable[[str], bool]] = {
    "communication": lambda name: CATALOGUE[name].part is Part.COMMUNICATION or name == "gradient_merge",
    "compute": lambda name: CATALOGUE[name].part in {Part.COMPUTATION, Part.OPTIMIZER} or name == "amp",
    "input": lambda name: CATALOGUE[name].part is Part.INPUT or name == "loader_pin_memory",
    "launch": lambda name: name in _LAUNCHING,
    "straggler": lambda _: False,
}


def diagnose(blocks: Sequence[Block], space: Space | None = None, after: Sequence[Block] = ()) -> Diagnosis:
    """Return what bounds the step in these blocks of the baseline, with the figures of everything that may.

    `space` tells which knobs act on each finding; `after` are blocks of the advised strategy.
    """
    phases, skew = median_phases(blocks), measure_skew(blocks)
    total = phases.total_s()
    if total <= 0:
        sentence = "The phases of a step were not measured, so nothing can be said about what bounds it."
        return Diagnosis(bound="unmeasured", sentence=sentence, skew=skew)
    lead = max(0.0, skew, measure_compute_skew(blocks))
    findings = [
        _find_straggler(lead, total),
        _find_input(phases),
        _find_launch(phases, blocks, space),
    ]
    if phases.exposed_comm_s is not None:
        findings += [_find_communication(phases.exposed_comm_s, total), _find_compute(phases)]
    held = {finding.bound: finding for finding in findings if finding.holds}
    exposed = phases.exposed_comm_s
    bound = _name_bound(held, "balanced" if exposed is not None else "unmeasured")
    ceiling = total / (total - exposed) if exposed is not None and 0 <= exposed < total else None
    sentence = held[bound].evidence if bound in held else _say_balanced(phases)
    if ceiling is not None:
        sentence += f" Without any exposed communication the job would run {spell_share(ceiling - 1)} faster."
    elif exposed is None:
        sentence += " Exposed communication could not be measured."
    findings.sort(key=lambda finding: -finding.share)
    return Diagnosis(
        bound=bound,
        sentence=sentence,
        ceiling_ratio=ceiling,
        skew=lead,
        findings=tuple(_name_knobs(finding, space) for finding in findings),
        scaling_before=measure_scaling(phases),
        scaling_after=measure_scaling(median_phases(after)),
    )


def _name_bound(held: Mapping[str, Finding], otherwise: str) -> str:
    """The finding to act on first. A slow rank shows as communication elsewhere, so it goes before that."""
    if "communication" in held and "straggler" not in held:
        wait = held["input"].share if "input" in held else 0.0
        if held["communication"].share >= wait:
            return "communication"
    return next((b for b in ("straggler", "input", "launch", "compute") if b in held), otherwise)


def _find_communication(exposed: float, total: float) -> Finding:
    share = exposed / total
    holds = share >= _DOMINANT
    evidence = f"{_ms(exposed)} of a {_ms(total)} step is communication that computation does not hide."
    if holds:
        evidence += " What the knobs cannot hide only faster links shorten."
    return Finding(bound="communication", share=share, holds=holds, evidence=evidence)


def _find_straggler(lead: float, total_s: float) -> Finding:
    if lead < _SKEWED:
        evidence = f"The slowest rank needs {spell_share(lead)} of the step more than the median rank."
        return Finding(bound="straggler", share=min(1.0, lead), holds=False, evidence=evidence)
    evidence = (
        f"The slowest rank needs {spell_share(lead)} of the step more than the median rank ({_ms(lead * total_s)}): "
        "the others wait for it. No knob can fix that: look for another process, a lower clock or uneven data there."
    )
    return Finding(bound="straggler", share=min(1.0, lead), holds=True, evidence=evidence)


def _find_input(phases: Phases) -> Finding:
    wait, total = phases.data_wait_s, phases.total_s()
    share = wait / total
    holds = share >= _DOMINANT
    evidence = f"{_ms(wait)} of a {_ms(total)} step is waiting for data."
    if holds:
        evidence += (
            " A faster reader helps more than any other knob here; where its workers are not enough, only faster "
            "storage or data prepared beforehand are."
        )
    return Finding(bound="input", share=share, holds=holds, evidence=evidence)


def _find_compute(phases: Phases) -> Finding:
    computing, total = computing_s(phases), phases.total_s()
    share = computing / total
    holds = share >= _COMPUTING
    evidence = f"{_ms(computing)} of a {_ms(total)} step is computation."
    if holds:
        evidence = (
            f"{_ms(computing)} of a {_ms(total)} step is computation: communication and reading are hidden. "
            "Past what the knobs bring only faster devices or a cheaper model help."
        )
    return Finding(bound="compute", share=share, holds=holds, evidence=evidence)


def _find_launch(phases: Phases, blocks: Sequence[Block], space: Space | None) -> Finding:
    """Bound by the host: the device idles while the host prepares the next kernel.

    On GPUs the idle share is what telemetry calls not busy, less the wait for data (waiting in a collective is busy),
    while the ranks keep the host busy: where they do not, something else holds them up. Everywhere it is at least the
    time outside all phases: the script's own Python between them.
    """
    total = phases.total_s()
    outside = phases.other_s / total
    share, evidence = outside, f"{_ms(phases.other_s)} of a {_ms(total)} step is host work outside all phases"
    busy = measure_busy(blocks)
    if busy is not None:
        idle = max(0.0, 1.0 - busy - phases.data_wait_s / total)
        cores = measure_host_cores(blocks, space)
        if idle > outside and cores is not None and cores < _HOST_BUSY:
            evidence += (
                f". The devices ran no kernel for {spell_share(1 - busy)} of the time, and a rank kept only "
                f"{cores:.1f} processors busy meanwhile: it waited for something that is neither data nor a collective"
            )
        elif idle > outside:
            share = idle
            evidence = (
                f"The devices ran no kernel for {spell_share(1 - busy)} of the time, "
                f"{spell_share(phases.data_wait_s / total)} of it waiting for data: the rest is the host "
                "launching small kernels"
            )
    holds = share >= _DOMINANT
    if holds:
        evidence += (
            ": a compiled step, larger batches and less Python in the loop help; faster devices do not"
        )
    return Finding(bound="launch", share=min(1.0, share), holds=holds, evidence=f"{evidence}.")


def measure_host_cores(blocks: Sequence[Block], space: Space | None) -> float | None:
    """Return how many processors a rank kept busy; None where telemetry or the nodes' sizes are not known."""
    if space is None or not space.context.cluster.nodes:
        return None
    shares = [node.session_cpu.mean for block in blocks for node in block.telemetry]
    cpus = min(node.cpu_count for node in space.context.cluster.nodes)
    return fmean(shares) * cpus / max(1, space.context.facts.local_world_size) if shares else None


def _say_balanced(phases: Phases) -> str:
    total = phases.total_s()
    if phases.exposed_comm_s is None:
        return (
            f"Forward, backward and optimizer take {_ms(computing_s(phases))} of a {_ms(total)} step, with the "
            f"communication in them, waiting for data {_ms(phases.data_wait_s)}."
        )
    return (
        f"No phase dominates: computation takes {_ms(computing_s(phases))} of a {_ms(total)} step, waiting for data "
        f"{_ms(phases.data_wait_s)}."
    )


def _name_knobs(finding: Finding, space: Space | None) -> Finding:
    """Which knobs the finding keeps in the search, and which ones it rules out because its part is negligible."""
    if space is None:
        return finding
    acts = _ACTS_ON[finding.bound]
    searched = [d.knob.name for d in (*space.dimensions, *space.costly, *space.higher)]
    left_out = [d.knob for d in space.dropped if d.is_negligible]
    return finding.model_copy(
        update={
            "knobs_in": tuple(filter(acts, searched)),
            "knobs_out": tuple(filter(acts, left_out)),
        }
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
