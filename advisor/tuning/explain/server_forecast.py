"""How many parameter servers, and servers at all? What the cost model expects of other setups, sizes and links."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pydantic import ValidationError

from advisor.protocol.answers.forecast import SetupForecast
from advisor.protocol.gains import spell_share
from advisor.protocol.kinds import Allow
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Block
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
from advisor.tuning.model.parameter_servers import ServerModel, find_traffic, fit, lay_out

_BLOCKS = (8_192, 0)
"""Smallest blocks that are compared with today's: the documents' own, and whole variables."""
_GEO = (4, 10)
"""Steps between two exchanges that are shown."""
_MOST_SERVERS = 256
"""Counts beyond this one are predicted where they are today's only."""


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


def list_setups(today: ParameterServers, model: ServerModel) -> tuple[SetupForecast, ...]:
    """Return today's setup and the others worth knowing, fastest first."""
    found: dict[Changes, SetupForecast] = {}
    for job in (today, *_list_others(today, model)):
        changes = _list_changes(today, job)
        found.setdefault(
            changes,
            SetupForecast(
                setup=ServerSetup.model_validate(job.model_dump(include=set(ServerSetup.model_fields))),
                changes=changes,
                effect=job.find_effect(today),
                largest_share=find_traffic(job).largest_share,
                step_time_s=model.predict_step_s(job),
            ),
        )
    return tuple(sorted(found.values(), key=lambda told: told.step_time_s))


def choose_setup(setups: Sequence[SetupForecast], allowed: Allow, doubt: float) -> SetupForecast:
    """Return the fastest allowed setup; today's where none is faster by more than the model's doubt."""
    today = next(told for told in setups if not told.changes)
    best = next(told for told in setups if told.effect.rank <= allowed.rank)
    return best if best.step_time_s * (1.0 + doubt) < today.step_time_s else today


def compare_architectures(setups: Sequence[SetupForecast], allowed: Allow, doubt: float) -> str:
    """Return a sentence: servers, or none? By how much, or that the model cannot tell."""
    fastest: dict[Architecture, SetupForecast] = {}
    for told in setups:
        if told.effect.rank <= allowed.rank:
            fastest.setdefault(told.setup.architecture, told)
    if len(fastest) < 2:
        return ""
    first, second = list(fastest.values())[:2]
    lead = second.step_time_s / first.step_time_s
    names = f"{first.setup.describe()} against {second.setup.describe()}"
    if lead < 1.0 + doubt:
        return f"Too near to tell: {names} are {spell_share(lead - 1.0)} apart, and the model may be off by more."
    return f"The fastest two ways are {names}: the first is {lead:.2f} times as fast."


def _list_others(today: ParameterServers, model: ServerModel) -> Iterator[ParameterServers]:
    tables = tuple(TableKind) if today.table_rows else (today.table,)
    counts = _list_counts(today)
    plain = [_vary(today, architecture=Architecture.SERVERS, table=table) for table in tables]
    exact: list[ParameterServers] = []
    for place in ServerPlace:
        each = [_place_best(plain, count, place, model) for count in counts]
        fastest = _fastest(each, model)
        shown = {1, today.servers, fastest.servers, len(today.trainer_nodes)}
        exact += [job for job in each if job.servers in shown]
    served = _fastest(exact, model)
    exact.append(
        _fastest([_vary(job, architecture=Architecture.COLLECTIVE, mode=Mode.SYNC) for job in plain], model)
    )
    if today.table_rows:
        hybrid = _vary(today, architecture=Architecture.HYBRID, mode=Mode.SYNC, table=TableKind.ROWS)
        each = [_vary(hybrid, servers=count, place=place) for place in ServerPlace for count in counts]
        exact += [each[0], _fastest(each, model)]
    yield from exact
    if today.wire > 16:
        yield _vary(_fastest(exact, model), wire=16)
    for geo_k in _GEO:
        yield _vary(served, mode=Mode.GEO, geo_k=geo_k)


def _list_counts(today: ParameterServers) -> list[int]:
    """Today's, and doublings up to one server a trainer, where the documents draw the line."""
    most = min(len(today.trainer_nodes), _MOST_SERVERS)
    return sorted({today.servers, most, *(2**power for power in range(most.bit_length()))})


def _place_best(
    plain: Sequence[ParameterServers], count: int, place: ServerPlace, model: ServerModel
) -> ParameterServers:
    """The fastest placement of so many servers; today's where no other is faster."""
    kept = [_vary(job, servers=count, place=place) for job in plain]
    rules = [(size, rule) for size in _BLOCKS for rule in Placement] if count > 1 else []
    others = [_vary(job, min_block=size, placement=rule) for job in kept for size, rule in rules]
    return _fastest([*kept, *others], model)


def _fastest(jobs: Sequence[ParameterServers], model: ServerModel) -> ParameterServers:
    """The first of those that are fastest to a thousandth."""
    times = [model.predict_step_s(job) for job in jobs]
    return next(job for job, time_s in zip(jobs, times, strict=True) if time_s <= min(times) * 1.001)


def _vary(job: ParameterServers, **changes: object) -> ParameterServers:
    return lay_out(job.model_copy(update=changes))


def _list_changes(today: ParameterServers, job: ParameterServers) -> Changes:
    """What has to be set for `job`, without what means nothing there."""
    names = ["architecture", "wire"] + (["table"] if job.table_rows else [])
    if job.architecture is not Architecture.COLLECTIVE:
        names += ["servers", "place"]
    if job.architecture is Architecture.SERVERS:
        names += ["mode", *(["geo_k"] if job.mode is Mode.GEO else [])]
        names += ["placement", "min_block"] if job.servers > 1 else []
    told, before = job.model_dump(mode="json"), today.model_dump(mode="json")
    return Changes({name: told[name] for name in names if told[name] != before[name]})
