"""What bounds a step: the part of its account that takes most of it, and what that rules out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median

from advisor.protocol.answers.advice import Diagnosis, Finding
from advisor.protocol.answers.late_rank import OFTEN, SAVE_LESS, describe_late, say_saving
from advisor.protocol.answers.limits import find_limits, say_limits
from advisor.protocol.answers.parts import PARTS, Words
from advisor.protocol.gains import spell_share
from advisor.protocol.kinds import Part
from advisor.protocol.knobs.knob import Knob
from advisor.protocol.measured.results import LateRank, Phases
from advisor.protocol.measured.trials import Block
from advisor.protocol.training.workload import WorkloadFacts
from advisor.tuning.measure.phases import (
    computing_s,
    find_late,
    measure_busy,
    measure_scaling,
    pool_phases,
)
from advisor.tuning.space.space import Space

_BALANCED = 1 / 3
"""Where no part takes as much of the step, none bounds it."""
_CERTAIN = 0.5
"""Share from which on a part is the largest, whatever the others hide."""
_WORTH_TELLING = 0.02
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
_ACTS_ON: Mapping[str, Callable[[Knob], bool]] = {
    "communication": lambda knob: knob.part is Part.COMMUNICATION or knob.name == "gradient_merge",
    "buffers": lambda knob: knob.part is Part.BUFFERS,
    "compute": lambda knob: knob.part in {Part.COMPUTATION, Part.OPTIMIZER} or knob.name == "amp",
    "input": lambda knob: knob.part is Part.INPUT or knob.name == "loader_pin_memory",
    "launch": lambda knob: knob.name in _LAUNCHING,
    "garbage": lambda knob: knob.name == "num_iteration_per_drop_scope",
}
_WORDS = {
    "communication": Words(
        "exposed_comm_s",
        "the reduction of gradients that computation does not hide",
        "what the knobs cannot hide only faster links shorten",
    ),
    "input": Words(
        "data_wait_s",
        "waiting for data",
        "a faster reader helps more than any other knob here; where its workers are not enough, only faster storage or "
        "data prepared beforehand are",
    ),
    "compute": Words(
        "",
        "computation (forward, backward and optimizer)",
        "past what the knobs bring only faster devices or a cheaper model help",
    ),
    **PARTS,
}
_GROUPS = {words.part: bound for bound, words in _WORDS.items()}
"""What a part belongs to; those that are not named are computation."""
_THE_SCRIPTS = ("own_code", "evaluation")
"""What only the script's own lines change: fewer threads end stalls, a sharded model's knobs shorten collectives."""
_WIRE = ("communication", "buffers", "collectives")
_ALWAYS = frozenset({"communication", "compute", "input", "own_code", "straggler"})
"""Findings that are told however small they are."""


def diagnose(blocks: Sequence[Block], space: Space | None = None, after: Sequence[Block] = ()) -> Diagnosis:
    """Return what bounds the step in these blocks of the baseline, with the figures of everything that may.

    `space` tells which knobs act on each finding; `after` are blocks of the advised strategy.
    """
    phases, late = pool_phases(blocks), find_late(blocks)
    total = phases.total_s()
    if total <= 0:
        sentence = "The phases of a step were not measured, so nothing can be said about what bounds it."
        return Diagnosis(bound="unmeasured", sentence=sentence)
    seconds = _list_seconds(phases, late)
    launch = _find_launch(phases, blocks, space)
    if launch is not None and "compute" in seconds:
        seconds["compute"] = max(0.0, seconds["compute"] - launch.share * total)
    shares = {bound: min(1.0, max(0.0, spent) / total) for bound, spent in seconds.items()}
    if launch is not None:
        shares["launch"] = launch.share
    bound = _name_bound(shares, phases)
    saves = median([block.result.saves_beside for block in blocks if block.result] or [0.0])
    findings = [
        Finding(
            bound=name,
            share=share,
            holds=name == bound,
            evidence=_say(name, phases, late, name == bound, saves),
        )
        for name, share in shares.items()
        if name != "launch" and (name in _ALWAYS or share >= _WORTH_TELLING)
    ]
    if launch is not None:
        findings.append(_conclude_launch(launch, bound == "launch"))
    findings.sort(key=lambda finding: -finding.share)
    held = next((finding.evidence for finding in findings if finding.holds), None)
    sentences = [held or _say_balanced(phases)]
    if late is not None and bound != "straggler":
        sentences.append(describe_late(late, total))
    exposed = phases.exposed_comm_s
    ceiling = total / (total - exposed) if exposed is not None and exposed < total else None
    if exposed is None:
        sentences.append("What of backward is communication could not be measured.")
    elif ceiling is not None and exposed >= _WORTH_TELLING * total:
        sentences.append(
            f"Without any exposed communication the job would run {spell_share(ceiling - 1)} faster."
        )
    return Diagnosis(
        bound=bound,
        sentence=" ".join(sentences),
        ceiling_ratio=ceiling,
        skew=late.waited_s / total if late is not None else 0.0,
        findings=tuple(_name_knobs(finding, space) for finding in findings),
        scaling_before=measure_scaling(blocks),
        scaling_after=measure_scaling(after),
    )


def say_reach(blocks: Sequence[Block], facts: WorkloadFacts | None) -> str:
    """Return the line of `advisor diagnose` on devices and links, of the block that measured them; "" without one."""
    measured = [
        b.result for b in blocks if b.result and b.result.calibration and b.result.calibration.ceiling
    ]
    if not measured or facts is None:
        return ""
    # Against the account that all blocks give: the one that measured the devices is a few steps long.
    return say_limits(find_limits(replace(measured[0], phases=pool_phases(blocks)), facts))


def _list_seconds(phases: Phases, late: LateRank | None) -> dict[str, float]:
    """What may bound the step, with its seconds: no second twice. What the others wait for a late rank is taken from
    what it does meanwhile."""
    seconds = {name: getattr(phases, _WORDS[name].part) for name in ("input", *PARTS)}
    if phases.exposed_comm_s is not None:
        known = {"communication": phases.exposed_comm_s, "compute": computing_s(phases), "straggler": 0.0}
        seconds |= known
    if late is not None:
        seconds["straggler"] = late.waited_s
        group = _GROUPS.get(late.part, "compute")
        if group in seconds:
            seconds[group] -= late.waited_s
    return seconds


def _name_bound(shares: Mapping[str, float], phases: Phases) -> str:
    """The largest part. All communication counts together before one of its kinds is named."""
    wire = {name: shares[name] for name in _WIRE if name in shares}
    others = {name: share for name, share in shares.items() if name not in wire}
    largest = max(others, key=lambda name: others[name])
    share = others[largest]
    if sum(wire.values()) > share:
        largest, share = max(wire, key=lambda name: wire[name]), sum(wire.values())
    if phases.exposed_comm_s is None:
        return largest if share >= _CERTAIN else "unmeasured"
    return largest if share >= _BALANCED else "balanced"


def _say(bound: str, phases: Phases, late: LateRank | None, holds: bool, saves: float) -> str:
    total = phases.total_s()
    of_step = f"of a {_ms(total)} step"
    if bound == "straggler":
        return (
            describe_late(late, total)
            if late
            else f"No rank keeps the others waiting in every step {of_step}."
        )
    words = _WORDS[bound]
    if bound == "stalls" and saves >= OFTEN:
        words = replace(words, what=f"{words.what} ({say_saving(saves)})", remedy=SAVE_LESS)
    spent = computing_s(phases) if bound == "compute" else getattr(phases, words.part) or 0.0
    sentence = words.say(spent, of_step)
    if not holds:
        return sentence
    return f"{sentence} {'No knob changes that. ' if bound in _THE_SCRIPTS else ''}{words.advise()}"


def _find_launch(phases: Phases, blocks: Sequence[Block], space: Space | None) -> Finding | None:
    """Bound by the host: the device idles while the host prepares the next kernel. None without a device's telemetry.

    The share is what telemetry calls not busy (waiting in a collective is busy), less what the account knows of: the
    wait for data, the script's own code and garbage. Only while the ranks keep the host busy: where they do not,
    something else holds them up.
    """
    busy, total = measure_busy(blocks), phases.total_s()
    if busy is None:
        return None
    known_s = phases.data_wait_s + phases.own_code_s + phases.evaluation_s
    known_s += phases.garbage_s + phases.compiling_s
    idle = max(0.0, 1.0 - busy - known_s / total)
    cores = measure_host_cores(blocks, space)
    evidence = f"The devices ran no kernel for {spell_share(1 - busy)} of the time"
    if cores is not None and cores < _HOST_BUSY:
        evidence += (
            f", and a rank kept only {cores:.1f} processors busy meanwhile: it waited for something that is neither "
            "data nor a collective"
        )
        return Finding(bound="launch", share=0.0, holds=False, evidence=evidence)
    evidence += (
        f", {spell_share(known_s / total)} of it waiting for data or in the script's own code: the rest is the host "
        "launching small kernels"
    )
    return Finding(bound="launch", share=idle, holds=False, evidence=evidence)


def _conclude_launch(found: Finding, holds: bool) -> Finding:
    more = ": a compiled step, larger batches and less Python in the loop help; faster devices do not"
    return found.model_copy(update={"holds": holds, "evidence": f"{found.evidence}{more if holds else ''}."})


def measure_host_cores(blocks: Sequence[Block], space: Space | None) -> float | None:
    """Return how many processors a rank kept busy; None where telemetry or the nodes' sizes are not known."""
    if space is None or not space.context.cluster.nodes:
        return None
    shares = [node.session_cpu.mean for block in blocks for node in block.telemetry]
    cpus = min(node.cpu_count for node in space.context.cluster.nodes)
    return fmean(shares) * cpus / max(1, space.context.facts.local_world_size) if shares else None


def _say_balanced(phases: Phases) -> str:
    total = phases.total_s()
    computing = f"{_ms(computing_s(phases))} of a {_ms(total)} step"
    rest = f"waiting for data {_ms(phases.data_wait_s)}, the script's own code {_ms(phases.own_code_s)}"
    if phases.exposed_comm_s is None:
        return f"Forward, backward and optimizer take {computing}, with the communication in them, {rest}."
    return f"No part dominates: computation takes {computing}, {rest}."


def _name_knobs(finding: Finding, space: Space | None) -> Finding:
    """Which knobs the finding keeps in the search, and which ones it rules out because its part is negligible."""
    if space is None:
        return finding
    acts = _ACTS_ON.get(finding.bound, _acts_on_nothing)
    searched = [d.knob for d in (*space.dimensions, *space.costly, *space.higher)]
    left_out = [space.context.catalogue[d.knob] for d in space.dropped if d.is_negligible]
    return finding.model_copy(
        update={
            "knobs_in": tuple(knob.name for knob in searched if acts(knob)),
            "knobs_out": tuple(knob.name for knob in left_out if acts(knob)),
        }
    )


def _acts_on_nothing(_: Knob) -> bool:
    return False


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
