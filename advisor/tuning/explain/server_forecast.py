"""How many parameter servers, and servers at all? What the cost model expects of other setups, sizes and links."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from pydantic import ValidationError

from advisor.protocol.answers.forecast import SetupForecast
from advisor.protocol.gains import spell_share
from advisor.protocol.kinds import Allow
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Block
from advisor.protocol.nodes.cluster import spell_memory
from advisor.protocol.training.parameter_servers import (
    Architecture,
    Mode,
    ParameterServers,
    Placement,
    ServerPlace,
    ServerSetup,
    TableKind,
)
from advisor.tuning.measure.contrast import mean_step_over
from advisor.tuning.model.parameter_servers import ServerModel, find_node_bytes, find_traffic, fit, lay_out

_BLOCKS = (8_192, 0)
"""Smallest blocks that are compared with today's: the documents' own, and whole variables."""
_GEO_K = 4
"""Steps between two exchanges that are shown."""
_MOST_SERVERS = 256
"""Counts beyond this one are predicted where they are today's, or where fewer do not hold the model."""
_MOST_SERVERS_OF_ALL = 4096
_LARGE_BYTES = 2**34
"""What not every node has left for a model: from here on memory is asked for."""
_Timer = Callable[[ParameterServers], float]
"""Predicted seconds of a step; infinite where a node's memory does not hold the setup."""


def fit_servers(job: ParameterServers, blocks: Iterable[Block], bytes_per_s: float) -> ServerModel:
    """Return the model of what a job measured; there is a block of its baseline.

    Arms whose changes are no part of a setup are left out: what they do to a step is not known here.
    """
    arms: dict[Changes, list[Block]] = {}
    for block in blocks:
        if block.result and all(name in ServerSetup.model_fields for name in block.plan.overrides):
            arms.setdefault(block.plan.overrides, []).append(block)
    measured = []
    for changes, those in arms.items():
        try:
            setup = lay_out(job.under(changes)) if changes else job
        except ValidationError:
            continue  # The user's option has values that the bundled workload's has not.
        if (seconds := mean_step_over(those)) > 0:
            measured.append((setup, seconds))
    return fit(measured, bytes_per_s)


def move(job: ParameterServers, nodes: int | None, batch: float) -> ParameterServers:
    """Return the training on `nodes` nodes with as many trainers each; servers that stand apart have further nodes."""
    counts = Counter(job.trainer_nodes)
    together = bool(job.server_nodes) and set(job.server_nodes) <= set(counts)
    moved = job.model_copy(
        update={
            "place": ServerPlace.TOGETHER if together else job.place,
            "rows_per_step": min(job.rows_per_step * batch, float(job.table_rows)),
            "compute_s": job.compute_s * batch,
            "nodes": 0,
        }
    )
    if nodes is None or nodes == len(counts):
        return moved
    each = -(-len(job.trainer_nodes) // len(counts))
    trainers = tuple(node for node in range(nodes) for _ in range(each))
    return lay_out(moved.model_copy(update={"trainer_nodes": trainers}))


def list_setups(
    today: ParameterServers, model: ServerModel, memory_bytes: float = math.inf
) -> tuple[SetupForecast, ...]:
    """Return today's setup and the others worth knowing: what learns the same first, each part fastest first.

    `memory_bytes` is what a node has; setups that it does not hold come last.
    """

    def time(job: ParameterServers) -> float:
        return model.predict_step_s(job) if find_node_bytes(job) <= memory_bytes else math.inf

    found: dict[Changes, SetupForecast] = {}
    for job in (today, *_list_others(today, time)):
        changes, node_bytes = _list_changes(today, job), find_node_bytes(job)
        found.setdefault(
            changes,
            SetupForecast(
                setup=ServerSetup.model_validate(job.model_dump(include=set(ServerSetup.model_fields))),
                changes=changes,
                effect=job.find_effect(today),
                largest_share=find_traffic(job).largest_share,
                step_time_s=model.predict_step_s(job),
                node_bytes=node_bytes,
                fits=node_bytes <= memory_bytes,
            ),
        )
    return tuple(sorted(found.values(), key=lambda told: (not told.fits, told.effect.rank, told.step_time_s)))


def choose_setup(setups: Sequence[SetupForecast], allowed: Allow, doubt: float) -> SetupForecast:
    """Return the fastest allowed setup that fits; today's where none is faster by more than the model's doubt."""
    today = next(told for told in setups if not told.changes)
    best = next(iter(_list_able(setups, allowed)), today)
    return best if best.step_time_s * (1.0 + doubt) < today.step_time_s or not today.fits else today


def compare_architectures(setups: Sequence[SetupForecast], allowed: Allow, doubt: float) -> str:
    """Return a sentence: servers, or none? By how much, or that the model cannot tell."""
    fastest: dict[Architecture, SetupForecast] = {}
    for told in _list_able(setups, allowed):
        fastest.setdefault(told.setup.architecture, told)
    if len(fastest) < 2:
        return ""
    first, second = list(fastest.values())[:2]
    lead = second.step_time_s / first.step_time_s
    names = f"{first.setup.describe()} against {second.setup.describe()}"
    if lead < 1.0 + doubt:
        return f"Too near to tell: {names} are {spell_share(lead - 1.0)} apart, and the model may be off by more."
    return f"The fastest two ways are {names}: the first is {lead:.2f} times as fast."


def describe_waiting(setups: Sequence[SetupForecast], doubt: float) -> str:
    """Return what trainers gain that do not wait for each other, and what that changes; nothing where they do not."""
    for told in setups:
        waiting = told.setup.model_copy(update={"mode": Mode.SYNC})
        other = next((other for other in setups if other.setup == waiting), None)
        if told.setup.mode is Mode.ASYNC and told.fits and other is not None:
            lead = other.step_time_s / told.step_time_s
            if lead >= 1.0 + doubt:
                return (
                    f"Where trainers do not wait for each other (async), they make {lead:.2f} times as many steps a "
                    "second; each gradient then changes values that others have changed since they were read, so that "
                    "the model learns otherwise: compare losses."
                )
    return ""


def describe_memory(setups: Sequence[SetupForecast], memory_bytes: float) -> str:
    """Return what does not fit into a node's memory, or, where that is not known, what asks for much of it."""
    if math.isinf(memory_bytes):
        most = max(setups, key=lambda told: told.node_bytes)
        if most.node_bytes < _LARGE_BYTES:
            return ""
        return (
            f"With {most.setup.describe()} a node holds {spell_memory(most.node_bytes)} at least, and what a node has "
            "was not told: give --memory, so that what does not fit is said."
        )
    if all(told.fits for told in setups):
        return ""
    least = min(setups, key=lambda told: told.node_bytes)
    sentence = f"Setups at the end do not fit: a node has {spell_memory(memory_bytes)}."
    if not least.fits:
        sentence = (
            f"Nothing here fits: a node has {spell_memory(memory_bytes)}, and {least.setup.describe()} take at least "
            f"{spell_memory(least.node_bytes)} of one."
        )
    return f"{sentence} Counted are parameters and gradients; what an optimizer keeps comes on top."


def _list_able(setups: Sequence[SetupForecast], allowed: Allow) -> list[SetupForecast]:
    able = (told for told in setups if told.fits and told.effect.rank <= allowed.rank)
    return sorted(able, key=lambda told: told.step_time_s)


def _list_others(today: ParameterServers, time: _Timer) -> Iterator[ParameterServers]:
    tables = tuple(TableKind) if today.table_rows else (today.table,)
    # Summing up in a node first means something where a node has several trainers; so Fluid does with several GPUs.
    crowded = len(set(today.trainer_nodes)) < len(today.trainer_nodes)
    kept = [
        _vary(today, reduce_in_node=first)
        for first in ((False, True) if crowded else (today.reduce_in_node,))
    ]
    plain = [_vary(job, architecture=Architecture.SERVERS, table=table) for job in kept for table in tables]
    counts = _list_counts(plain, time)
    exact: list[ParameterServers] = []
    for place in ServerPlace:
        each = [_place_best(plain, count, place, time) for count in counts]
        fastest = _fastest(each, time)
        shown = {1, today.servers, fastest.servers, len(today.trainer_nodes)}
        exact += [job for job in each if job.servers in shown]
    served = _fastest(exact, time)
    exact.append(
        _fastest([_vary(job, architecture=Architecture.COLLECTIVE, mode=Mode.SYNC) for job in plain], time)
    )
    if today.table_rows:
        hybrids = [
            _vary(job, architecture=Architecture.HYBRID, mode=Mode.SYNC, table=TableKind.ROWS) for job in kept
        ]
        each = [
            _vary(job, servers=count, place=place)
            for place in ServerPlace
            for count in counts
            for job in hybrids
        ]
        exact += [each[0], _fastest(each, time)]
    yield from exact
    if today.wire > 16:
        yield _vary(_fastest(exact, time), wire=16)
    for mode in Mode:
        yield _vary(served, mode=mode, geo_k=_GEO_K if mode is Mode.GEO else today.geo_k)


def _list_counts(plain: Sequence[ParameterServers], time: _Timer) -> list[int]:
    """Today's, and doublings up to one server a trainer, where the documents draw the line, or until they hold all."""
    today = plain[0]
    most = min(len(today.trainer_nodes), _MOST_SERVERS)
    counts = {today.servers, most, *(2**power for power in range(most.bit_length()))}
    while not today.nodes and most < _MOST_SERVERS_OF_ALL:
        if not math.isinf(time(_place_best(plain, most, ServerPlace.APART, time))):
            return sorted({*counts, most})
        most *= 2
    return sorted(counts)


def _place_best(
    plain: Sequence[ParameterServers], count: int, place: ServerPlace, time: _Timer
) -> ParameterServers:
    """The fastest placement of so many servers; today's where no other is faster."""
    kept = [_vary(job, servers=count, place=place) for job in plain]
    rules = [(size, rule) for size in _BLOCKS for rule in Placement] if count > 1 else []
    others = [_vary(job, min_block=size, placement=rule) for job in kept for size, rule in rules]
    return _fastest([*kept, *others], time)


def _fastest(jobs: Sequence[ParameterServers], time: _Timer) -> ParameterServers:
    """The first of those that are fastest to a thousandth."""
    times = [time(job) for job in jobs]
    return next(job for job, time_s in zip(jobs, times, strict=True) if time_s <= min(times) * 1.001)


def _vary(job: ParameterServers, **changes: object) -> ParameterServers:
    return lay_out(job.model_copy(update=changes))


def _list_changes(today: ParameterServers, job: ParameterServers) -> Changes:
    """What has to be set for `job`, without what means nothing there."""
    names = ["architecture", "wire", "reduce_in_node"] + (["table"] if job.table_rows else [])
    if job.architecture is not Architecture.COLLECTIVE:
        names += ["servers", "place"]
    if job.architecture is Architecture.SERVERS:
        names += ["mode", *(["geo_k"] if job.mode is Mode.GEO else [])]
        names += ["placement", "min_block"] if job.servers > 1 else []
    told, before = job.model_dump(mode="json"), today.model_dump(mode="json")
    return Changes({name: told[name] for name in names if told[name] != before[name]})
