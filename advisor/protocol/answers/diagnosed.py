"""Where the time of a training goes, as one launch as it stands shows: the dearest findings, with remedies.

Pure functions of what the ranks measured. Every second of a step is counted once: what a finding explains is taken from
the part of the account that it lies in.
"""

import math
import shlex
from collections.abc import Iterator, Sequence
from statistics import fmean, stdev

from advisor.protocol.answers.energy import say_costs
from advisor.protocol.answers.found import Found, make_found, say_ms, say_often
from advisor.protocol.answers.found_between_ranks import (
    BY_HAND,
    find_collectives,
    find_communication,
    find_search,
    write_ddp_argument,
)
from advisor.protocol.answers.found_recomputed import find_recomputed
from advisor.protocol.answers.framework_remedies import advise_by_framework
from advisor.protocol.answers.late_rank import tell_late
from advisor.protocol.answers.limits import Limits, Scaling, find_limits, say_limits, say_scaling
from advisor.protocol.answers.parts import PARTS
from advisor.protocol.answers.places import find_place, say_kinds
from advisor.protocol.base import Message
from advisor.protocol.gains import spell_rate
from advisor.protocol.knobs.loading import find_reader
from advisor.protocol.measured.results import BlockResult, Phases
from advisor.protocol.nodes.cluster import Cluster, DeviceKind, Node, spell_memory
from advisor.protocol.training.crowd import find_crowd
from advisor.protocol.training.launch_command import Command
from advisor.protocol.training.workload import SAMPLES_PER_S, WorkloadFacts

MOST = 5
"""Findings that are told."""
_LEAST_SHARE = 0.03
"""Share of a step from which on something is a finding."""
_SURE, _LEAST_SURE = frozenset({"unused_search"}), 0.005
"""Findings that are counted, and whose remedy takes nothing away, with the share from which on they are told."""
_CORRELATED = 3.0
"""Times by which the variance of a mean step is larger than that of as many independent ones."""
_EVERY_STEP = 0.5
"""Reads a step from which a line is named."""


class Diagnosed(Message):
    """What one launch showed."""

    ranks: int
    threads: int
    """Of a rank."""
    steps: int
    """Timed steps."""
    rate: float
    rate_unit: str
    step_s: float
    """The mean step."""
    error_s: float
    """Half of its 95 % interval; steps close to each other are taken to be alike."""
    computing: float | None
    """Share of a step without communication and waiting for other ranks; None where that was not measured."""
    phases: Phases
    """The account of a step."""
    found: tuple[Found, ...]
    """The dearest first, five at most."""
    limits: Limits = Limits()
    """What devices and link could do."""
    peak_memory_bytes: int = 0
    """Of the fullest rank, in the timed steps: its device's, or its own resident memory; 0 where unknown."""
    room_bytes: int = 0
    """What stayed free for the rank with least; 0 where unknown."""
    power_w: float | None = None
    """Of this machine's visible devices; None where they do not tell."""
    price_per_hour: float | None = None
    """Of all that the training runs on, as the user said."""
    exchanges_by: str = ""
    """What exchanges gradients where no lever of ours reaches that; else empty."""
    network: tuple[str, ...] = ()
    """Where the command asks for several nodes: what keeps NCCL from this one's right network, in sentences. Nothing of
    it was timed."""
    scaling: Scaling | None = None
    """Against one rank; None where that was not asked for."""


def diagnose_launch(
    result: BlockResult, facts: WorkloadFacts, node: Node, command: Sequence[str]
) -> Diagnosed:
    """Return what takes the time of a training that `command` starts on `node`."""
    phases = result.phases
    step_s = phases.total_s() or fmean(result.step_time_s)
    alone_s = sum(
        seconds
        for seconds in (
            phases.exposed_comm_s,
            phases.buffers_s,
            phases.collectives_s,
            phases.wait_s,
        )
        if seconds
    )
    found = [
        one
        for one in _list_found(result, facts, node, command)
        if one.cost_s >= (_LEAST_SURE if one.name in _SURE else _LEAST_SHARE) * step_s
    ]
    found.sort(key=lambda one: -one.cost_s)
    times = result.step_time_s
    spread = stdev(times) / math.sqrt(len(times)) if len(times) > 1 else 0.0
    per_s = result.steps / result.wall_s if result.wall_s else 0.0
    is_counted = facts.rate_unit == SAMPLES_PER_S
    return Diagnosed(
        ranks=facts.world_size,
        threads=facts.cpu_threads,
        steps=result.steps,
        rate=per_s * result.samples_per_step if is_counted else per_s,
        rate_unit=facts.rate_unit,
        step_s=step_s,
        error_s=1.96 * math.sqrt(_CORRELATED) * spread,
        # Where calls exchange the gradients, they are among the collectives.
        computing=1.0 - alone_s / step_s
        if step_s and (phases.exposed_comm_s is not None or facts.exchanges_by)
        else None,
        phases=phases,
        found=tuple(_place(one, result, facts, step_s) for one in found[:MOST]),
        limits=find_limits(result, facts),
        peak_memory_bytes=result.peak_memory_bytes,
        room_bytes=result.room_bytes,
        exchanges_by=facts.exchanges_by,
        network=node.network if (launch := Command.read(command).launch) and launch.spans_nodes else (),
    )


def _place(one: Found, result: BlockResult, facts: WorkloadFacts, step_s: float) -> Found:
    """The finding with its share, and the line that a rank was seen in most often meanwhile."""
    kinds = say_kinds(one.name, result.places)
    where = one.where or find_place(one.name, result.late, result.places)
    remedy = advise_by_framework(one.name, where, result.places, facts.software)
    return one.model_copy(
        update={
            "share": one.cost_s / step_s,
            "where": where,
            "remedy": remedy or one.remedy,
            "what": f"{one.what} (of all time: {kinds})" if kinds else one.what,
        }
    )


def _list_found(
    result: BlockResult, facts: WorkloadFacts, node: Node, command: Sequence[str]
) -> Iterator[Found]:
    phases, late = result.phases, result.late
    left = {name: getattr(phases, name) or 0.0 for name in phases.__dataclass_fields__}
    if late is not None:
        doing, remedy = tell_late(late)
        left[late.part] -= late.waited_s
        yield make_found(
            "late_rank",
            late.waited_s,
            f"the others wait for rank {late.rank}, which spends {say_ms(late.excess_s)} more than they {doing}",
            remedy,
            "each rank's account of its step",
        )
    for read in facts.host_reads:
        if read.per_step >= _EVERY_STEP:
            left["own_code_s"] = max(0.0, left["own_code_s"] - read.waited_s)
            yield make_found(
                "host_read",
                read.waited_s,
                f"{read.call.strip('_')}() reads a value off the device, {say_often(read.per_step)}, and waits",
                "keep the tensor, and read it every 30 steps",
                "the reads of the first steps, by line",
            ).model_copy(update={"where": read.site})
    yield from find_search(left, result, facts)
    yield from find_recomputed(left, result, facts)
    yield from find_collectives(left, result.collective_calls, facts, _LEAST_SHARE * phases.total_s())
    yield from find_communication(left, facts, command)
    yield from _find_crowd(left, facts, node)
    yield make_found(
        "input",
        left["data_wait_s"],
        _say_reading(facts),
        _advise_on_reading(facts, node) + _advise_on_decoding(facts),
        "waits for the next batch",
    )
    for name, of in PARTS.items():
        found = make_found(name, left[of.part], of.what, of.remedy, of.seen)
        yield found.model_copy(update=_tell_more(name, result, facts))


def _find_crowd(left: dict[str, float], facts: WorkloadFacts, node: Node) -> Iterator[Found]:
    """Threads beyond the cores: ranks stall and wait for each other, now one and now another."""
    crowd = find_crowd(facts, Cluster(nodes=(node,)))
    if crowd is None:
        return
    cost_s = left["stalls_s"] + left["wait_s"]
    left |= {"stalls_s": 0.0, "wait_s": 0.0}
    yield make_found(
        "threads",
        cost_s,
        f"{crowd}: they stall and wait for each other",
        f"{crowd.remedy}, {'in the script' if facts.sets_threads else 'before the launch command'}",
        "threads of each rank, cores, and slow steps",
    )


def _say_reading(facts: WorkloadFacts) -> str:
    who = "the ranks wait for their" if facts.world_size > 1 else "the training waits for its"
    if reader := find_reader(facts):
        return f"{who} next batch, which the script reads through {reader.name}"
    if facts.dataloader is None:
        return f"{who} next batch, which the script reads without a DataLoader"
    workers = int(facts.dataloader.get("num_workers") or 0)
    return f"{who} next batch: {workers or 'no'} worker{'s' * (workers != 1)} read ahead"


def _advise_on_reading(facts: WorkloadFacts, node: Node) -> str:
    if reader := find_reader(facts):
        return reader.remedy
    if facts.dataloader is None:
        return "read ahead: DataLoader(…, num_workers=2)"
    workers = int(facts.dataloader.get("num_workers") or 0)
    most = max(1, node.cpu_count // max(1, facts.local_world_size))
    if workers and 2 * workers > most:
        return "make reading cheaper, or read from faster storage: more workers than cores do not help"
    # One worker reads what an IterableDataset deals out; several read it all, each, unless it divides itself.
    is_iterable = bool(facts.dataloader.get("iterable"))
    if workers and is_iterable:
        return (
            f"DataLoader(…, num_workers={2 * workers}), where each worker of the IterableDataset reads its own part: "
            "by torch.utils.data.get_worker_info()"
        )
    read_ahead = f"num_workers={2 * workers or (1 if is_iterable else min(2, most))}"
    if facts.dataloader.get("stateful"):
        return f"StatefulDataLoader(…, {read_ahead}, persistent_workers=True)"
    if "transformers" in facts.software:
        return f"TrainingArguments(…, dataloader_{read_ahead}, dataloader_persistent_workers=True)"
    return f"DataLoader(…, {read_ahead}, persistent_workers=True)"


def _advise_on_decoding(facts: WorkloadFacts) -> str:
    is_elsewhere = facts.device is DeviceKind.CUDA and facts.dataloader is not None
    return "; images that processors decode: NVIDIA DALI decodes them on the GPU" if is_elsewhere else ""


def _tell_more(name: str, result: BlockResult, facts: WorkloadFacts) -> dict[str, str]:
    """What this launch shows of a part beyond the words that every screen has."""
    if name == "collectives" and facts.exchanges_by:
        more = {"what": f"other collectives, with those of {facts.exchanges_by}"}
        if facts.exchanges_by != BY_HAND:
            more["remedy"] = (
                "the engine's own settings: larger buckets, overlap with computation, or less sharding where memory "
                "is there"
            )
        return more
    if name == "buffers":
        line = write_ddp_argument(facts, "broadcast_buffers")
        return {"where": facts.ddp.built_at, "remedy": f"{line}, where each rank may keep its own"}
    if name == "compiling":
        shown = [line.spans for line in result.timelines if line.rank == result.phases_rank]
        times = sum(span.name == PARTS[name].part for spans in shown for span in spans)
        return {"what": f"{PARTS[name].what}, {times} times in these steps"}
    return {}


def describe_diagnosed(told: Diagnosed, command: Sequence[str]) -> list[str]:
    """Return lines for a terminal; a line to paste stands alone."""
    lines = [say_summary(told)]
    for place, one in enumerate(told.found, start=1):
        lines += [
            f"{place}  {say_ms(one.cost_s):>7} {one.share:4.0%}  {one.what}",
            f"   {one.where + '  ' if one.where else ''}{one.remedy}",
            f"   {_say_most(one)} · seen: {one.seen}",
        ]
    if not told.found:
        lines.append(f"Nothing stands out: {_say_largest(told.phases)}.")
    if told.ranks == 1:
        pass  # nothing is communicated
    elif told.computing is not None:
        lines.append(f"Communication and waiting for other ranks take {1 - told.computing:.0%} of a step.")
    else:
        lines.append("What of backward is communication could not be measured.")
    lines += _say_ends(told)
    lines += _say_how_to_go_on(told, command)
    return lines


_DEEPSPEED = "DeepSpeed's engine"
DEEPSPEED_PATTERN = "CurrSamplesPerSec=(?P<samples_per_s>[0-9.]+)"
"""Finds the speed of a step in what DeepSpeed logs of it."""


def _say_how_to_go_on(told: Diagnosed, command: Sequence[str]) -> list[str]:
    if not told.exchanges_by:
        return [f"Prove a change:  advisor tune --minutes 10 -- {shlex.join(command)}"]
    if told.exchanges_by == _DEEPSPEED:
        file = next((word for word in command if word.endswith(".json")), "CONFIG.json")
        return [
            f"The ranks exchange by {told.exchanges_by}, which no setting of ours reaches. Tune its configuration, by",
            'the speed that it logs where that has "steps_per_print": 1 and the script calls',
            'deepspeed.utils.logging.set_log_level_from_string("info"):',
            f"  advisor tune --minutes 10 --kind command --knob-file '{file}:zero_optimization.stage=3,2,1:exact' "
            f"--pattern '{DEEPSPEED_PATTERN}' -- {shlex.join(command)}",
        ]
    return [
        f"The ranks exchange by {told.exchanges_by}, which no setting of ours reaches. Tune the script's own options,",
        "by the step times that it logs; put the option's name, its values and the log line there:",
        f"  advisor tune --minutes 10 --kind command --try '--OPTION=TODAY,OTHER' --pattern "
        f"'(?P<step_time_s>[0-9.]+) s' -- {shlex.join(command)}",
    ]


def _say_ends(told: Diagnosed) -> list[str]:
    scaling = [say_scaling(told.ranks, told.scaling)] if told.scaling is not None else []
    costs = say_costs(told.rate, told.rate_unit, told.power_w, told.price_per_hour)
    network = [f"Between nodes, which were not timed: {sentence}" for sentence in told.network]
    return [*scaling, *filter(None, [say_limits(told.limits), _say_memory(told), costs]), *network]


def _say_memory(told: Diagnosed) -> str:
    if not told.peak_memory_bytes or not told.room_bytes:
        return ""
    rank = "The fullest rank" if told.ranks > 1 else "The training"
    used, left = spell_memory(told.peak_memory_bytes), spell_memory(told.room_bytes)
    return f"{rank} used {used} of memory at most, and {left} stayed free for it"


def say_seen(facts: WorkloadFacts) -> str:
    """Return what the first steps showed of a training of which too few were timed."""
    ranks = f"{facts.world_size} rank{'s' * (facts.world_size != 1)} on {facts.device.value}"
    hint = facts.step_time_s_hint
    step = f", a step of about {say_ms(hint)}" if hint else ""
    batch = f", {facts.batch_size_per_rank:g} samples a rank" if facts.batch_size_per_rank else ""
    return (
        f"Seen until then: {ranks}{step}{batch}, {_say_reading(facts).partition(': ')[2] or 'no DataLoader'}."
    )


def write_markdown(told: Diagnosed) -> str:
    """Return the same as ten lines of Markdown, for an issue or an agent."""
    rows = [
        f"| {say_ms(one.cost_s)} | {one.share:.0%} | {one.what} | {one.where} | {one.remedy} | {_say_most(one)} |"
        for one in told.found
    ]
    head = ["| a step | share | what | where | do | most |", "|---|---|---|---|---|---|"]
    return "\n".join(
        [
            say_summary(told),
            "",
            *(head if rows else [f"Nothing stands out: {_say_largest(told.phases)}."]),
            *rows,
            *(f"\n{line}" for line in _say_ends(told)),
        ]
    )


def say_summary(told: Diagnosed) -> str:
    """Return `2 ranks · 61.0 samples/s · step 104 ms (±4 %) over 48 steps`."""
    ranks = f"{told.ranks} rank{'s' * (told.ranks != 1)}"
    error = f" (±{told.error_s / told.step_s:.0%})" if told.step_s else ""
    step = f"step {say_ms(told.step_s)}{error} over {told.steps} steps"
    return f"{ranks} · {spell_rate(told.rate)} {told.rate_unit} · {step}"


def _say_most(one: Found) -> str:
    return f"saves up to {say_ms(one.saves_s)}"


def _say_largest(phases: Phases) -> str:
    largest = sorted(phases.list_named(), key=lambda part: -(part[1] or 0.0))[:3]
    return ", ".join(f"{name} {say_ms(seconds or 0.0)}" for name, seconds in largest)
