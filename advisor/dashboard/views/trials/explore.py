"""What a search saw, as figures: each of them, or the reason why there is none."""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, pvariance

from advisor.dashboard.figures.charts import Figure, HistoryPoint, draw_history
from advisor.dashboard.figures.explore import (
    LossPoint,
    Saving,
    SlicePoint,
    draw_importance,
    draw_pareto,
    draw_slice,
)
from advisor.dashboard.figures.gains import Gain
from advisor.dashboard.figures.spaces import MOST_AXES, SpacePoint, draw_contour, draw_parallel
from advisor.dashboard.views.evidence import describe_changes, show_knob
from advisor.dashboard.views.trials.explore_query import ExploreQuery
from advisor.dashboard.views.trials.measured import MeasuredTrial
from advisor.protocol.answers.advice import Advice, KnobReason
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.kinds import Allow
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.measured.trials import Outcome, Purpose

_MOST_SLICES = 12
_FIRST_SLICES = 2
"""Slices that are seen at once; the others are folded."""
_MOST_DRAWN = 300
"""Trials that the figures draw; of more, a sample."""
_GROUPS = 4
"""Into so many groups of about equal size the values of a knob are put that has more of them."""


@dataclass(frozen=True)
class Exploration:
    """The figures of the view; each reason is empty where its figures are there."""

    history: Figure | None
    no_history: str
    slices: tuple[Figure, ...]
    """Of the knobs that go along with most of the differences between trials."""
    more_slices: tuple[Figure, ...]
    no_slices: str
    twins: tuple[str, ...]
    """Knobs that were changed with one of those and never without it: their figures would look the same."""
    slices_left: tuple[str, ...]
    """Knobs that were varied and are not drawn, because the others go along with more of the differences."""
    importance: Figure | None
    no_importance: str
    pareto: Figure | None
    no_pareto: str
    contour: Figure | None
    no_contour: str
    parallel: Figure | None
    no_parallel: str
    knobs: tuple[str, ...]
    """Every knob that was varied, whichever trials are shown: what can be chosen."""
    query: ExploreQuery
    """With the knobs of the contour that was drawn."""
    shown: int
    """Trials that fit the filter."""
    drawn: int
    """Those of them that the figures draw."""
    total: int


def _kind(found: MeasuredTrial) -> str:
    if found.has_failed:
        return "failed"
    if found.trial.outcome is Outcome.INEFFECTIVE:
        return "idle"
    return "baseline" if found.trial.purpose is Purpose.BASELINE else found.trial.effect.value


def _gain(found: MeasuredTrial) -> Gain | None:
    """The trial's gain in its races; the baseline's is none, with the interval of its own blocks."""
    if found.gain is not None:
        return Gain(found.gain.ratio, found.gain.low, found.gain.high)
    if found.estimate is None or found.trial.purpose is not Purpose.BASELINE:
        return None
    off = found.estimate.half_width / found.estimate.samples_per_s
    return Gain(1.0, max(0.0, 1.0 - off), 1.0 + off)


def sample_trials(trials: Sequence[MeasuredTrial], allow: Allow, most: int) -> list[MeasuredTrial]:
    """Return at most about `most` trials: the baseline, each that became the best so far, and others evenly between."""
    if len(trials) <= most:
        return list(trials)
    kept, best = {trials[0].trial.number}, 0.0
    for found in trials:
        if found.counts(allow) and (found.ratio or 0.0) > best:
            best = found.ratio or 0.0
            kept.add(found.trial.number)
    every = len(trials) / most
    kept |= {trials[int(place * every)].trial.number for place in range(most)}
    return [found for found in trials if found.trial.number in kept]


def draw_search(job: Job, trials: Sequence[MeasuredTrial]) -> Figure | None:
    """Draw every trial of the search in its order; None before the first block."""
    searched = [found for found in trials if found.trial.purpose in {Purpose.BASELINE, Purpose.SEARCH}]
    if not any(found.tells_speed and _gain(found) for found in searched):
        return None
    return draw_history(
        [
            HistoryPoint(
                number=found.trial.number,
                label=describe_changes(found.trial.changes),
                kind=_kind(found),
                gain=_gain(found) if found.tells_speed else None,
                outcome=found.trial.outcome.value.replace("_", " ") if found.trial.outcome else "open",
                counts=found.counts(job.spec.allow),
            )
            for found in searched
        ]
    )


def _list_usable(trials: Sequence[MeasuredTrial]) -> list[tuple[MeasuredTrial, Gain]]:
    return [(found, gain) for found in trials if found.tells_speed and (gain := _gain(found)) is not None]


def _list_varied(trials: Sequence[MeasuredTrial]) -> list[str]:
    return list(dict.fromkeys(name for found in trials for name in found.trial.changes))


def _list_points(
    names: Sequence[str], baseline: Mapping[str, Value], trials: Sequence[MeasuredTrial]
) -> list[SpacePoint]:
    """The trials for which a value of each of these knobs is known."""
    points = []
    for found, gain in _list_usable(trials):
        values = {name: found.trial.changes.get(name, baseline.get(name)) for name in names}
        known = {name: value for name, value in values.items() if value is not None}
        if len(known) == len(names):
            points.append(SpacePoint(found.trial.number, known, gain.ratio, _kind(found)))
    return points


def _choose_pair(query: ExploreQuery, names: Sequence[str]) -> tuple[str, str] | None:
    """The knobs of the contour: those asked for where they were varied, then those with most of the differences."""
    asked = [name for name in (query.x, query.y) if name in names]
    pair = list(dict.fromkeys([*asked, *names]))[:2]
    return (pair[0], pair[1]) if len(pair) == 2 else None


def _explain(points: Sequence[SlicePoint]) -> float:
    """The share of the differences between gains that goes along with the knob's value, less what chance would give.

    That is 1 - (variance within groups of values) / (variance of all), each over its degrees of freedom.
    """
    values = sorted({point.value for point in points}, key=lambda value: (isinstance(value, str), value))
    size = max(1, math.ceil(len(values) / _GROUPS)) if len(values) > _GROUPS else 1
    group_of = {value: place // size for place, value in enumerate(values)}
    groups: defaultdict[int, list[float]] = defaultdict(list)
    for point in points:
        groups[group_of[point.value]].append(math.log(point.gain.ratio))
    logs = [each for group in groups.values() for each in group]
    free = len(logs) - len(groups)
    total = pvariance(logs) * len(logs) / max(1, len(logs) - 1)
    if free < 1 or total <= 0.0:
        return 0.0
    return 1.0 - sum(pvariance(group) * len(group) for group in groups.values()) / free / total


def _part(points: Sequence[SlicePoint]) -> frozenset[frozenset[int]]:
    """How a knob's values part the trials."""
    by_value: defaultdict[Value, set[int]] = defaultdict(set)
    for point in points:
        by_value[point.value].add(point.trial)
    return frozenset(map(frozenset, by_value.values()))


def _draw_slices(
    baseline: Mapping[str, Value], trials: Sequence[MeasuredTrial]
) -> tuple[tuple[Figure, ...], tuple[str, ...], tuple[str, ...]]:
    """The figures of the knobs with two values and more, those that explain most first, their twins, and the rest."""
    usable = _list_usable(trials)
    drawn: list[tuple[float, str, list[SlicePoint]]] = []
    for name in _list_varied([found for found, _ in usable]):
        points = [
            SlicePoint(found.trial.number, value, gain, _kind(found))
            for found, gain in usable
            if (value := found.trial.changes.get(name, baseline.get(name))) is not None and gain.ratio > 0
        ]
        if len({point.value for point in points}) > 1:
            drawn.append((_explain(points), name, points))
    drawn.sort(key=lambda made: -made[0])
    parted: dict[frozenset[frozenset[int]], str] = {}
    twins = {name for _, name, points in drawn if parted.setdefault(_part(points), name) != name}
    unlike = [(name, points) for _, name, points in drawn if name not in twins]
    figures = tuple(draw_slice(name, points) for name, points in unlike[:_MOST_SLICES])
    return figures, tuple(sorted(twins)), tuple(name for name, _ in unlike[_MOST_SLICES:])


def _list_savings(advice: Advice) -> list[Saving]:
    """Knobs that only go back together share one measurement, and one line."""
    lines = []
    for reasons, was_kept in ((advice.reasons, True), (advice.taken_back, False)):
        together: dict[tuple[float, float, float], list[KnobReason]] = {}
        for reason in reasons:
            if reason.effect is not None:
                key = (reason.effect.saved_s, reason.effect.low_s, reason.effect.high_s)
                together.setdefault(key, []).append(reason)
        for found in together.values():
            effect = found[0].effect
            if effect is not None:
                label = " + ".join(
                    f"{reason.knob} {show_knob(reason.knob, reason.after)}" for reason in found
                )
                ms = (effect.saved_s * 1000, effect.low_s * 1000, effect.high_s * 1000)
                lines.append(Saving(label, *ms, effect.rounds, was_kept))
    return lines


def _measure_drop(trials: Sequence[MeasuredTrial]) -> float | None:
    """How far the baseline's loss fell from its first timed step to the median of its last block."""
    losses = [
        block.result.losses
        for found in trials
        if found.trial.number == 0
        for block in found.blocks
        if block.result is not None and block.result.losses
    ]
    if not losses:
        return None
    drop = losses[0][0] - median(losses[-1])
    return drop if drop > 0 else None


def _draw_pareto(
    job: Job, advice: Advice, trials: Sequence[MeasuredTrial], shown: Collection[int]
) -> Figure | None:
    placed = [point for point in advice.pareto if point.trial_number in shown]
    if not any(point.loss_change for point in placed):
        return None
    drop = _measure_drop(trials)
    share = job.spec.loss_tolerance
    points = [
        LossPoint(
            trial=point.trial_number,
            label=describe_changes(point.changes),
            kind=point.effect.value if point.changes else "baseline",
            gain_percent=(point.throughput_ratio - 1) * 100,
            loss_change=point.loss_change,
            loss_error=point.loss_error or 0.0,
            on_front=point.on_front,
        )
        for point in placed
    ]
    return draw_pareto(points, drop * share if drop else None, share)


def explore(
    job: Job, advice: Advice | None, trials: Sequence[MeasuredTrial], query: ExploreQuery = ExploreQuery()
) -> Exploration:
    """Build the figures from the trials that the query selects, and from the advice where there is one."""
    own = (
        dict(advice.baseline) if advice else {name: k.default for name, k in CATALOGUE.items()} | job.baseline
    )
    fitting = query.select(trials, own)
    chosen = sample_trials(fitting, job.spec.allow, _MOST_DRAWN)
    slices, twins, left = _draw_slices(own, chosen)
    savings = _list_savings(advice) if advice else []
    numbers = {found.trial.number for found in chosen}
    pareto = _draw_pareto(job, advice, trials, numbers) if advice else None
    history = draw_search(job, chosen)
    names = [figure.title for figure in slices] + [*twins, *left]
    pair = _choose_pair(query, names)
    points = _list_points(names[:MOST_AXES], own, chosen)
    contour = draw_contour(pair, _list_points(pair, own, chosen)) if pair else None
    parallel = draw_parallel(names, points) if len(names) > 1 and len(points) > 2 else None
    ended = job.state.is_final
    waits = (
        "The job ended before a block was measured." if ended else "Drawn once the first block is measured."
    )
    no_slices, no_pareto = _say_why_no_slices(job, chosen), _say_why_no_pareto(job, advice)
    if query.is_filtered:
        waits = no_slices = "Too few of the trials that fit the filter were measured."
        no_pareto = "No strategy with a loss of its own fits the filter." if advice else no_pareto
    few = "It needs two knobs with two values each." if slices and not query.is_filtered else no_slices
    return Exploration(
        history=history,
        no_history="" if history else waits,
        slices=slices[:_FIRST_SLICES],
        more_slices=slices[_FIRST_SLICES:],
        no_slices="" if slices else no_slices,
        twins=twins,
        slices_left=left,
        importance=draw_importance(savings) if savings else None,
        no_importance="" if savings else _say_why_no_savings(job, advice),
        pareto=pareto,
        no_pareto="" if pareto else no_pareto,
        contour=contour,
        no_contour="" if contour else few,
        parallel=parallel,
        no_parallel="" if parallel else few,
        knobs=tuple(sorted(_list_varied([found for found in trials if found.tells_speed]))),
        query=replace(query, x=pair[0], y=pair[1]) if pair else query,
        shown=len(fitting),
        drawn=len(chosen),
        total=len(trials),
    )


def _say_why_no_slices(job: Job, trials: Sequence[MeasuredTrial]) -> str:
    if not any(found.estimate for found in trials):
        return "Nothing is measured yet." if not job.state.is_final else "Nothing was measured."
    return (
        "A slice needs two values of a knob: no trial that changes one has been measured without a failure."
    )


def _say_why_no_savings(job: Job, advice: Advice | None) -> str:
    if advice is None:
        ends = "the job ended before that" if job.state.is_final else "the job is not that far"
        return f"Measured at the end, when each knob of the winner is taken back on its own: {ends}."
    if not advice.changes and not advice.taken_back:
        return "Nothing is advised, so there was no winner whose knobs could be taken back one by one."
    return (
        "The budget ended before the winner's knobs could be taken back one by one, or it has a single one."
    )


def _say_why_no_pareto(job: Job, advice: Advice | None) -> str:
    if advice is None:
        ends = "the job ended without one" if job.state.is_final else "the job is not that far"
        return f"Drawn with the advice, from strategies that change rounding or convergence: {ends}."
    if any(point.loss_change is None for point in advice.pareto):
        return "No strategy that changes rounding or convergence showed a loss beside the baseline's."
    return "Only exact strategies were measured: they compute the same numbers, so the loss is the same."
