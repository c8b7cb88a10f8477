"""What-if: throughput and the best strategy as the cost model expects them on other nodes, links, or batches."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from advisor.protocol.answers.forecast import Forecast, WhatIf
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.gains import spell_share
from advisor.protocol.kinds import Part
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.knobs.strategy import Layout
from advisor.protocol.measured.trials import Block, JobHistory
from advisor.protocol.training.parameter_servers import ParameterServers
from advisor.tuning.explain.cases import list_compared, make_told_case
from advisor.tuning.explain.server_forecast import (
    choose_setup,
    compare_architectures,
    describe_memory,
    describe_waiting,
    fit_servers,
    list_setups,
    move,
)
from advisor.tuning.history.record import Record
from advisor.tuning.measure.contrast import mean_rate, mean_step_over
from advisor.tuning.measure.phases import explain_unclear
from advisor.tuning.model.cost_model import CostModel
from advisor.tuning.model.cost_priors import link_bits_per_s
from advisor.tuning.model.map_fit import band_of
from advisor.tuning.model.parameter_servers import find_traffic
from advisor.tuning.search.state import SearchState, look
from advisor.tuning.space.space import Space
from advisor.tuning.stages.confirmation import find_confirmed

_MOST_DOUBT = 0.25
"""A model that misses the measured step times by a larger share forecasts nothing."""
_FAR_BAND = 0.15
"""What the band of parameter servers grows by where a forecast is far: nothing else in their model tells it."""
_FAR = 4
"""Beyond this many times the measured nodes a forecast is an extrapolation of its physics, not of its data."""
_SWEEPS = 3
_WORTH = 0.005
"""Share of a step that a further changed knob must be predicted to save."""
_USUAL_NODES = (2, 4, 8)
_USUAL_RATES = (0.1, 10.0)


class ForecastImpossible(Exception):
    """Nothing can be predicted; the text says why and what to do."""


def forecast(job: Job, history: JobHistory, now: datetime, asked: WhatIf) -> Forecast:
    """Return what the cost model expects of this job on other nodes or links, or with another batch.

    The strategy is the best of the allowed rung by the model, started from
    the best measured one; knobs outside communication keep its values. Raises ForecastImpossible.
    """
    state = look(Record(job, history, now))
    if state is None:
        raise ForecastImpossible(
            f"Job {job.id} has not measured its baseline yet: ask again once its search has begun."
        )
    return forecast_from(state, list_compared(state.record, make_told_case(state))[0], asked)


def forecast_from(state: SearchState, measured: Sequence[Block], asked: WhatIf) -> Forecast:
    """Return the same of a search, with the baseline's blocks that are scaled. Raises ForecastImpossible."""
    job, facts = state.record.job, state.space.context.facts
    if facts.parameter_servers is not None:
        there = facts.parameter_servers.model_copy(update={"nodes": facts.nodes})
        return _forecast_servers(state, there, measured, asked)
    model = state.model
    if model is None:
        raise ForecastImpossible(
            f"Job {job.id} knows too little to predict from: its program told neither the bytes of its gradients nor "
            "how a step divides. Tune it as a PyTorch workload, whose runtime sees both."
        )
    _refuse_doubtful(job, _find_doubt(model.residual, model.predict_baseline_s(), mean_step_over(measured)))
    if (unclear := explain_unclear(measured)) is not None:
        raise ForecastImpossible(f"Nothing can be forecast for job {job.id}: {unclear}")
    found = find_confirmed(state.record)
    start = found.changes if found is not None else state.best_changes()
    return _forecast(job, state.space, model, start, asked, measured)


def _forecast_servers(
    state: SearchState, today: ParameterServers, measured: Sequence[Block], asked: WhatIf
) -> Forecast:
    """Return the same of a training with parameter servers, with the setups that could take the place of today's."""
    job = state.record.job
    bits_per_s = link_bits_per_s(state.space.context)
    if bits_per_s is None and find_traffic(today).busiest == 0.0:
        bits_per_s = asked.bits_per_s  # All roles are on one node: its link did nothing.
    if bits_per_s is None:
        raise ForecastImpossible(
            f"Nothing can be forecast for job {job.id}: what its nodes' links carry is not known, so that bytes say "
            "nothing of seconds. Measure it on a testbed, or on nodes whose network interface tells its speed; for a "
            "job on one node, give --rate."
        )
    model = fit_servers(today, state.record.usable, bits_per_s / 8)
    measured_s, here_s = mean_step_over(measured), model.predict_step_s(today)
    _refuse_doubtful(job, _find_doubt(model.residual, here_s, measured_s))
    there_bits = asked.bits_per_s or bits_per_s
    moved = move(today, asked.nodes, asked.batch)
    there = replace(model, bytes_per_s=there_bits / 8)
    memory_bytes = min((n.memory_bytes for n in state.space.context.cluster.nodes), default=math.inf)
    setups = tuple(
        told.model_copy(update={"step_time_s": told.step_time_s * measured_s / here_s})
        for told in list_setups(moved, there, memory_bytes)
    )
    grown, faster = len(moved.trainer_nodes) / len(today.trainer_nodes), there_bits / bits_per_s
    is_far = max(grown, asked.batch, 1 / asked.batch, faster, 1 / faster) > _FAR
    band = band_of(model.residual) + (_FAR_BAND if is_far else 0.0)
    chosen = choose_setup(setups, job.spec.allow, band)
    before = next(told for told in setups if not told.changes)
    rate = mean_rate(measured) * grown * asked.batch * measured_s / chosen.step_time_s
    silent_s = there.predict_silent_step_s(moved) * measured_s / here_s
    nodes = len(set(moved.trainer_nodes))
    return Forecast(
        nodes=nodes,
        bits_per_s=asked.bits_per_s,
        batch=asked.batch,
        changes=chosen.changes,
        step_time_s=chosen.step_time_s,
        baseline_step_time_s=before.step_time_s,
        samples_per_s=rate,
        rate_unit=job.rate_unit,
        low=rate / (1 + band),
        high=rate * (1 + band),
        scaling_efficiency=min(1.0, silent_s / chosen.step_time_s),
        caveat=" ".join(
            filter(
                None,
                (
                    compare_architectures(setups, job.spec.allow, band),
                    describe_waiting(setups, band),
                    describe_memory(setups, memory_bytes),
                    _reservations(job, len(set(today.trainer_nodes)), nodes, asked, model.residual),
                ),
            )
        ),
        setups=setups,
    )


def list_forecasts(
    state: SearchState | None, changes: Mapping[str, Value], measured: Sequence[Block]
) -> tuple[Forecast, ...]:
    """Return the what-ifs of an advice: twice, four and eight times the nodes, and links a tenth and ten times as fast.

    `changes` is the advised strategy, `measured` are the baseline's blocks that the advice tells of; empty where
    nothing can be predicted.
    """
    if state is None or state.model is None:
        return ()
    here_s, measured_s = state.model.predict_baseline_s(), mean_step_over(measured)
    if _find_doubt(state.model.residual, here_s, measured_s) > _MOST_DOUBT:
        return ()
    if explain_unclear(measured) is not None:
        return ()
    job, space, model, facts = state.record.job, state.space, state.model, state.space.context.facts
    usual = [WhatIf(nodes=facts.nodes * n) for n in _USUAL_NODES]
    if facts.nodes > 1 and model.bits_per_s:
        usual += [WhatIf(bits_per_s=model.bits_per_s * rate) for rate in _USUAL_RATES]
    found = []
    for asked in usual:
        with suppress(ForecastImpossible):
            found.append(_forecast(job, space, model, changes, asked, measured))
    return tuple(found)


def _forecast(
    job: Job,
    space: Space,
    model: CostModel,
    start: Mapping[str, Value],
    asked: WhatIf,
    measured: Sequence[Block],
) -> Forecast:
    """Scale what was measured: of the model only ratios count, between the cluster asked about and the one measured."""
    facts = space.context.facts
    count = asked.nodes or facts.nodes
    there = model.on(nodes=count, bits_per_s=asked.bits_per_s, batch=asked.batch)
    world = count * facts.local_world_size
    composer = replace(space.composer, layout=Layout(world_size=world, nodes=count))
    elsewhere = replace(space, composer=composer)
    changes = _favour(elsewhere, there, start)
    base = space.composer.own
    values = {**base, **changes}
    here_s = model.predict_baseline_s()
    times = asked.batch * world / facts.world_size
    measured_s = mean_step_over(measured)
    step_s, baseline_s = (measured_s * there.predict_step_s(each) / here_s for each in (values, base))
    rate = mean_rate(measured) * times * measured_s / step_s
    doubt = there.find_doubts([values], model)[0]
    if math.expm1(doubt) > _MOST_DOUBT:
        raise ForecastImpossible(
            f"Nothing can be forecast for job {job.id} so far from what it measured: there the cost model may miss a "
            f"step by {spell_share(math.expm1(doubt))}, and above {spell_share(_MOST_DOUBT)} its figures say nothing. "
            "Measure it on such a cluster, or ask about one that is nearer to the measured one."
        )
    band = band_of(doubt)
    return Forecast(
        nodes=count,
        bits_per_s=asked.bits_per_s,
        batch=asked.batch,
        changes=changes,
        step_time_s=step_s,
        baseline_step_time_s=baseline_s,
        samples_per_s=rate,
        rate_unit=job.rate_unit,
        low=rate / (1 + band),
        high=rate * (1 + band),
        scaling_efficiency=min(1.0, there.predict_silent_step_s(values) / step_s),
        caveat=_reservations(job, facts.nodes, count, asked, model.residual),
    )


def _refuse_doubtful(job: Job, doubt: float) -> None:
    if doubt > _MOST_DOUBT:
        raise ForecastImpossible(
            f"Nothing can be forecast for job {job.id}: the cost model misses the step times that were measured by "
            f"{spell_share(doubt)}, and above {spell_share(_MOST_DOUBT)} its figures say nothing. Tune on the cluster "
            "that you ask about."
        )


def _find_doubt(residual: float, here_s: float, step_s: float) -> float:
    """Share by which the model misses what was measured, of strategies or of the baseline, whichever is more."""
    if step_s <= 0.0:
        return math.inf
    return math.expm1(max(residual, abs(math.log(here_s / step_s))))


def _favour(space: Space, model: CostModel, start: Mapping[str, Value]) -> dict[str, Value]:
    """Coordinate descent of the predicted step time over the communication knobs, from `start` and from the script."""
    base = space.composer.own

    def time_of(changes: Mapping[str, Value]) -> float:
        values = {**base, **changes}
        return model.predict_step_s(values) if model.fits_in_memory(values) is None else math.inf

    best = Changes()
    best_s = time_of({})
    for begin in ({}, dict(start)):
        at = space.composer.compose(begin) or Changes()
        at_s = time_of(at)
        for _ in range(_SWEEPS):
            before = at_s
            for changes in _neighbours(space, at):
                if (seconds := time_of(changes)) < at_s * (1 - _WORTH):
                    at, at_s = changes, seconds
            if at_s == before:
                break
        if at_s < best_s * (1 - _WORTH):
            best, best_s = at, at_s
    return best


def _neighbours(space: Space, at: Mapping[str, Value]) -> Iterator[Changes]:
    for dimension in space.dimensions:
        if dimension.knob.part is not Part.COMMUNICATION:
            continue
        for value in dimension.values:
            changes = space.composer.compose({**at, dimension.knob.name: value})
            if changes is not None and space.composer.catalogue.effect_of(changes).rank <= _rank_of(space):
                yield changes


def _rank_of(space: Space) -> int:
    return max((d.knob.effect.rank for d in space.dimensions), default=0)


def _reservations(job: Job, measured: int, nodes: int, asked: WhatIf, residual: float) -> str:
    doubts = [
        f"A prediction of the cost model, which misses its own measurements by {spell_share(residual)}."
    ]
    if nodes > _FAR * measured:
        doubts.append(f"{nodes} nodes are more than {_FAR} times the {measured} that were measured.")
    if measured == 1 and nodes > 1 and not asked.bits_per_s:
        doubts.append(
            "Only one node was measured: the links between nodes are an assumption; give their rate to improve it."
        )
    if nodes > measured or asked.bits_per_s:
        doubts.append("Another switch level or a shared uplink is not foreseen.")
    if asked.batch != 1.0:
        doubts.append(
            "Computing and reading are taken to grow with the batch; memory is not foreseen, and another batch is "
            "another optimisation: its learning rate and final accuracy are yours to find."
        )
    if job.spec.testbed is not None:
        doubts.append("The testbed's nodes share one machine's CPUs.")
    return " ".join(doubts)


def describe_forecast(found: Forecast) -> str:
    """`8 nodes: 1 840 samples/s (1 700 … 1 990), 91 % of perfect scaling, with fuse_grad_size_in_MB 8`."""
    batch = f", {found.batch:g} times the batch" if found.batch != 1.0 else ""
    return (
        f"{found.nodes} nodes{batch}: {found.samples_per_s:.4g} {found.rate_unit} "
        f"({found.low:.4g} … {found.high:.4g}), "
        f"{spell_share(found.scaling_efficiency)} of a step without communication, with {found.changes.describe()}"
    )
