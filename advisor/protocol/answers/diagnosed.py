"""Where the time of a training goes, as one launch as it stands shows: the dearest findings, with remedies.

Pure functions of what the ranks measured. Every second of a step is counted once: what a finding explains is taken from
the part of the account that it lies in.
"""

import math
import shlex
from collections.abc import Iterator, Sequence
from statistics import fmean, stdev

from advisor.protocol.answers.late_rank import tell_late
from advisor.protocol.base import Message
from advisor.protocol.measured.results import BlockResult, Phases
from advisor.protocol.nodes.cluster import Cluster, Node
from advisor.protocol.training.crowd import find_crowd
from advisor.protocol.training.workload import SAMPLES_PER_S, WorkloadFacts

MOST = 5
"""Findings that are told."""
_LEAST_SHARE = 0.03
"""Share of a step from which on something is a finding."""
_CORRELATED = 3.0
"""Times by which the variance of a mean step is larger than that of as many independent ones."""
_EVERY_STEP = 0.5
"""Reads a step from which a line is named."""


class Found(Message):
    """One thing that takes time."""

    name: str
    """For programs: accumulation, threads, input, late_rank, host_read, communication, buffers, collectives, waiting,
    own_code, evaluation, garbage or stalls."""
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


class Diagnosed(Message):
    """What one launch showed."""

    ranks: int
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
    found = [one for one in _list_found(result, facts, node, command) if one.cost_s >= _LEAST_SHARE * step_s]
    found.sort(key=lambda one: -one.cost_s)
    times = result.step_time_s
    spread = stdev(times) / math.sqrt(len(times)) if len(times) > 1 else 0.0
    per_s = result.steps / result.wall_s if result.wall_s else 0.0
    is_counted = facts.rate_unit == SAMPLES_PER_S
    return Diagnosed(
        ranks=facts.world_size,
        steps=result.steps,
        rate=per_s * result.samples_per_step if is_counted else per_s,
        rate_unit=facts.rate_unit,
        step_s=step_s,
        error_s=1.96 * math.sqrt(_CORRELATED) * spread,
        computing=1.0 - alone_s / step_s if phases.exposed_comm_s is not None and step_s else None,
        phases=phases,
        found=tuple(one.model_copy(update={"share": one.cost_s / step_s}) for one in found[:MOST]),
    )


def _list_found(
    result: BlockResult, facts: WorkloadFacts, node: Node, command: Sequence[str]
) -> Iterator[Found]:
    phases, late = result.phases, result.late
    left = {name: getattr(phases, name) or 0.0 for name in phases.__dataclass_fields__}
    if late is not None:
        doing, remedy = tell_late(late)
        left[late.part] -= late.waited_s
        yield _find(
            "late_rank",
            late.waited_s,
            f"the others wait for rank {late.rank}, which spends {_ms(late.excess_s)} more than they {doing}",
            remedy,
            "each rank's account of its step",
        )
    for read in facts.host_reads:
        if read.per_step >= _EVERY_STEP:
            left["own_code_s"] = max(0.0, left["own_code_s"] - read.waited_s)
            yield _find(
                "host_read",
                read.waited_s,
                f"{read.call.strip('_')}() reads a value off the device, {read.per_step:g} times a step, and waits",
                "keep the tensor, and read it every 30 steps",
                "the reads of the first steps, by line",
            ).model_copy(update={"where": read.site})
    yield from _find_communication(left, facts, command)
    yield from _find_crowd(left, facts, node)
    yield _find(
        "input",
        left["data_wait_s"],
        _say_reading(facts),
        _advise_on_reading(facts, node),
        "waits for the next batch",
    )
    yield from (_find(name, left[part], *told) for name, part, *told in _PLAIN)


def _find_communication(
    left: dict[str, float], facts: WorkloadFacts, command: Sequence[str]
) -> Iterator[Found]:
    exposed_s, times = left["exposed_comm_s"], facts.exchanges_per_step
    if times > 1 and facts.microbatches_per_step >= 2:
        found = _find(
            "accumulation",
            exposed_s,
            f"gradients are exchanged {times} times a step, once for each accumulated micro-batch",
            "with model.no_sync(): around the forward and backward of all micro-batches but the last",
            f"{times} exchanges in each of the optimizer's steps, counted",
        )
        yield found.model_copy(update={"saves_s": exposed_s * (1.0 - 1.0 / times)})
        return
    yield _find(
        "communication",
        exposed_s,
        "the exchange of gradients is not hidden behind computation",
        f"advisor tune --minutes 10 -- {shlex.join(command)}",
        "steps with and without the exchange",
    )


def _find_crowd(left: dict[str, float], facts: WorkloadFacts, node: Node) -> Iterator[Found]:
    """Threads beyond the cores: ranks stall and wait for each other, now one and now another."""
    crowd = find_crowd(facts, Cluster(nodes=(node,)))
    if crowd is None:
        return
    cost_s = left["stalls_s"] + left["wait_s"]
    left |= {"stalls_s": 0.0, "wait_s": 0.0}
    yield _find(
        "threads",
        cost_s,
        f"{crowd}: they stall and wait for each other",
        f"{crowd.remedy}, {'in the script' if facts.sets_threads else 'before the launch command'}",
        "threads of each rank, cores, and slow steps",
    )


def _say_reading(facts: WorkloadFacts) -> str:
    if facts.dataloader is None:
        return "the ranks wait for their next batch, which the script reads without a DataLoader"
    workers = int(facts.dataloader.get("num_workers") or 0)
    return f"the ranks wait for their next batch: {workers or 'no'} worker{'s' * (workers != 1)} read ahead"


def _advise_on_reading(facts: WorkloadFacts, node: Node) -> str:
    if facts.dataloader is None:
        return "read ahead: DataLoader(…, num_workers=2)"
    workers = int(facts.dataloader.get("num_workers") or 0)
    most = max(1, node.cpu_count // max(1, facts.local_world_size))
    if workers and 2 * workers > most:
        return "make reading cheaper, or read from faster storage: more workers than cores do not help"
    return f"DataLoader(…, num_workers={2 * workers or min(2, most)}, persistent_workers=True)"


def _find(name: str, cost_s: float, what: str, remedy: str, seen: str) -> Found:
    return Found(name=name, cost_s=cost_s, share=0.0, what=what, remedy=remedy, saves_s=cost_s, seen=seen)


_PLAIN = (
    (
        "buffers", "buffers_s", "DDP sends the model's buffers from rank 0 before every forward",
        "DDP(…, broadcast_buffers=False), where each rank may keep its own", "broadcasts before the forward pass",
    ),
    (
        "collectives", "collectives_s",
        "collectives beside the exchange of gradients: the script's own, SyncBatchNorm's or a sharded model's",
        "call them less often, on less data, or with async_op=True", "calls of torch.distributed",
    ),
    (
        "waiting", "wait_s", "ranks wait for each other, now for one and now for another",
        "look for uneven batches, and for other work on the processors", "waits before collectives",
    ),
    (
        "own_code", "own_code_s", "the script's own code between the phases: loss, clipping, logging, averages",
        "do it less often, or faster", "time between data, forward, backward and optimizer",
    ),
    (
        "evaluation", "evaluation_s", "evaluating and saving, spread over all steps",
        "do it less often, or save in the background", "steps in which the script evaluates or saves",
    ),
    (
        "garbage", "garbage_s", "full collections of Python's garbage", "gc.freeze() once the model is built",
        "Python's own callbacks",
    ),
    (
        "stalls", "stalls_s", "some steps compute several times as long as the usual one",
        "look for other work on the processors, or for swapping", "slow steps",
    ),
)  # fmt: skip
"""Name, part of the account, what it is, what to do, and how it is seen."""


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def describe_diagnosed(told: Diagnosed, command: Sequence[str]) -> list[str]:
    """Return lines for a terminal; a line to paste stands alone."""
    lines = [say_summary(told)]
    for place, one in enumerate(told.found, start=1):
        lines += [
            f"{place}  {_ms(one.cost_s):>7} {one.share:4.0%}  {one.what}",
            f"   {one.where + '  ' if one.where else ''}{one.remedy}",
            f"   {_say_most(one)} · seen: {one.seen}",
        ]
    if not told.found:
        lines.append(f"Nothing stands out: {_say_largest(told.phases)}.")
    if told.computing is not None:
        lines.append(f"Communication and waiting for other ranks take {1 - told.computing:.0%} of a step.")
    else:
        lines.append("What of backward is communication could not be measured.")
    lines.append(f"Prove a change:  advisor tune --minutes 10 -- {shlex.join(command)}")
    return lines


def write_markdown(told: Diagnosed) -> str:
    """Return the same as ten lines of Markdown, for an issue or an agent."""
    rows = [
        f"| {_ms(one.cost_s)} | {one.share:.0%} | {one.what} | {one.where} | {one.remedy} | {_say_most(one)} |"
        for one in told.found
    ]
    head = ["| a step | share | what | where | do | most |", "|---|---|---|---|---|---|"]
    return "\n".join(
        [
            say_summary(told),
            "",
            *(head if rows else [f"Nothing stands out: {_say_largest(told.phases)}."]),
            *rows,
        ]
    )


def say_summary(told: Diagnosed) -> str:
    """Return `2 ranks · 61.0 samples/s · step 104 ms (±4 %) over 48 steps`."""
    ranks = f"{told.ranks} rank{'s' * (told.ranks != 1)}"
    error = f" (±{told.error_s / told.step_s:.0%})" if told.step_s else ""
    return (
        f"{ranks} · {told.rate:.3g} {told.rate_unit} · step {_ms(told.step_s)}{error} over {told.steps} steps"
    )


def _say_most(one: Found) -> str:
    return f"saves up to {_ms(one.saves_s)}"


def _say_largest(phases: Phases) -> str:
    largest = sorted(phases.list_named(), key=lambda part: -(part[1] or 0.0))[:3]
    return ", ".join(f"{name} {_ms(seconds or 0.0)}" for name, seconds in largest)
