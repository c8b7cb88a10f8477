"""What a search saw, as figures: each of them, or the reason why there is none."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from advisor.dashboard.figures.charts import Figure
from advisor.dashboard.figures.savings import Saving, draw_savings
from advisor.dashboard.figures.study import (
    draw_contour,
    draw_history,
    draw_importances,
    draw_losses,
    draw_parallel,
    draw_slice,
)
from advisor.dashboard.views.evidence import show_knob
from advisor.dashboard.views.trials.explore_query import ExploreQuery
from advisor.dashboard.views.trials.measured import MeasuredTrial, measure_trials
from advisor.protocol.answers.advice import Advice, KnobReason
from advisor.protocol.asked.jobs import Job
from advisor.protocol.kinds import Allow
from advisor.protocol.measured.trials import JobHistory
from advisor.tuning.history.study import study_job
from advisor.tuning.space.composition import list_own_values

_MOST_SLICES = 12
_FIRST_SLICES = 2
"""Slices that are seen at once; the others are folded."""
_MOST_DRAWN = 100
"""Trials that the figures draw; of more, a sample."""


@dataclass(frozen=True)
class Exploration:
    """The figures of the view; each reason is empty where its figures are there."""

    history: Figure | None
    importances: Figure | None
    slices: tuple[Figure, ...]
    """Of the knobs that matter most."""
    more_slices: tuple[Figure, ...]
    slices_left: tuple[str, ...]
    """Knobs that were varied and are not drawn, because the others matter more."""
    contour: Figure | None
    parallel: Figure | None
    savings: Figure | None
    pareto: Figure | None
    absent: tuple[tuple[str, str], ...]
    """Figures that are not there, each with its reason."""
    knobs: tuple[str, ...]
    """Every knob that was varied, whichever trials are shown: what can be chosen."""
    query: ExploreQuery
    """With the knobs of the contour that was drawn."""
    shown: int
    """Trials that fit the filter."""
    drawn: int
    """Those of them that the figures draw."""
    total: int


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


def explore(
    job: Job, history: JobHistory, advice: Advice | None, query: ExploreQuery = ExploreQuery()
) -> Exploration:
    """Build the figures from the trials that the query selects, and from the advice where there is one."""
    trials = measure_trials(history)
    fitting = query.select(trials, list_own_values(job))
    chosen = sample_trials(fitting, job.spec.allow, _MOST_DRAWN)
    numbers = {found.trial.number for found in chosen}
    study = study_job(job, history.model_copy(update={"trials": tuple(found.trial for found in chosen)}))
    drawn, importances = draw_history(study), draw_importances(study)
    # Optuna's ranking, so that the slices come in the order of the importances.
    names = [row[0] for row in importances.table.rows] if importances else []
    slices = tuple(draw_slice(study, name) for name in names[:_MOST_SLICES])
    pair = _choose_pair(query, names)
    savings = draw_savings(found) if advice and (found := _list_savings(advice)) else None
    pareto = _draw_pareto(job, advice, numbers) if advice else None
    contour = draw_contour(study, pair) if pair else None
    parallel = draw_parallel(study, names) if len(names) > 1 else None
    unfit = "Too few of the trials that fit the filter were measured." if query.is_filtered else ""
    few = unfit or "It needs two knobs with two values each, measured."
    no_pareto = (
        "No strategy with a loss of its own fits the filter." if unfit else _say_why_no_pareto(job, advice)
    )
    reasons = (
        ("Every trial in its order", drawn, unfit or _say_why_no_history(job)),
        ("Importances, and throughput against each knob", importances, unfit or _say_why_no_slices(job, chosen)),
        ("What each knob saves", savings, _say_why_no_savings(job, advice)),
        ("Speed against loss", pareto, no_pareto if advice else _say_why_no_pareto(job, advice)),
        ("Two knobs at once", contour, few), ("All knobs at once", parallel, few),
    )  # fmt: skip
    return Exploration(
        history=drawn,
        importances=importances,
        slices=slices[:_FIRST_SLICES],
        more_slices=slices[_FIRST_SLICES:],
        slices_left=tuple(names[_MOST_SLICES:]),
        contour=contour,
        parallel=parallel,
        savings=savings,
        pareto=pareto,
        absent=tuple((title, reason) for title, figure, reason in reasons if figure is None),
        knobs=tuple(sorted({name for found in trials if found.tells_speed for name in found.trial.changes})),
        query=replace(query, x=pair[0], y=pair[1]) if pair else query,
        shown=len(fitting),
        drawn=len(chosen),
        total=len(trials),
    )


def _choose_pair(query: ExploreQuery, names: Sequence[str]) -> tuple[str, str] | None:
    """The knobs of the contour: those asked for where they were varied, then those that matter most."""
    asked = [name for name in (query.x, query.y) if name in names]
    pair = list(dict.fromkeys([*asked, *names]))[:2]
    return (pair[0], pair[1]) if len(pair) == 2 else None


def _draw_pareto(job: Job, advice: Advice, shown: Collection[int]) -> Figure | None:
    placed = [point for point in advice.pareto if point.trial_number in shown]
    if not any(point.loss_change for point in placed):
        return None
    return draw_losses(placed, job.spec.loss_tolerance)


def _list_savings(advice: Advice) -> list[Saving]:
    """Knobs that are shown to help together share one measurement, and one line."""
    lines = []
    together: dict[tuple[float, float, float], list[KnobReason]] = {}
    for reason in advice.reasons:
        if reason.effect is not None:
            key = (reason.effect.saved_s, reason.effect.low_s, reason.effect.high_s)
            together.setdefault(key, []).append(reason)
    for found in together.values():
        effect = found[0].effect
        if effect is not None:
            label = " + ".join(f"{reason.knob} {show_knob(reason.knob, reason.after)}" for reason in found)
            ms = (effect.saved_s * 1000, effect.low_s * 1000, effect.high_s * 1000)
            lines.append(Saving(label, *ms, effect.rounds))
    return lines


def _say_why_no_history(job: Job) -> str:
    ended = job.state.is_final
    return (
        "The job ended before a block was measured." if ended else "Drawn once the first block is measured."
    )


def _say_why_no_slices(job: Job, trials: Sequence[MeasuredTrial]) -> str:
    if not any(found.estimate for found in trials):
        return "Nothing is measured yet." if not job.state.is_final else "Nothing was measured."
    return "They need two values of a knob: no trial that changes one has been measured without a failure."


def _say_why_no_savings(job: Job, advice: Advice | None) -> str:
    if advice is None:
        ends = "the job ended before that" if job.state.is_final else "the job is not that far"
        return f"Measured by the verdict's launches, which race the strategy without each knob: {ends}."
    if not advice.changes:
        return "Nothing is advised, so there is nothing that saves."
    return "The budget ended before it was shown what each knob saves."


def _say_why_no_pareto(job: Job, advice: Advice | None) -> str:
    if advice is None:
        ends = "the job ended without one" if job.state.is_final else "the job is not that far"
        return f"Drawn with the advice, from strategies that change rounding or convergence: {ends}."
    if any(point.loss_change is None for point in advice.pareto):
        return "No strategy that changes rounding or convergence showed a loss beside the baseline's."
    return "Only exact strategies were measured: they compute the same numbers, so the loss is the same."
