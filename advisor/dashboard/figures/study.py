"""Optuna's figures of a job's study (`optuna.visualization`, `optuna.importance`), in the looks of the pages.

What they draw is Optuna's: trials that were measured, greyed where the job does not allow them. The sentence and the
table beside each are ours, for those who cannot see it.
"""

from collections.abc import Sequence
from typing import Any

import optuna
import plotly.graph_objects as go
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import FrozenTrial, TrialState, create_trial
from optuna.visualization import (
    plot_contour,
    plot_optimization_history,
    plot_parallel_coordinate,
    plot_param_importances,
    plot_pareto_front,
    plot_slice,
)

from advisor.dashboard import formats
from advisor.dashboard.figures.charts import (
    ACCENT,
    BASELINE,
    SKY,
    Figure,
    Table,
    close_figure,
    lay_out,
)
from advisor.protocol.answers.advice import ParetoPoint
from advisor.protocol.gains import spell_gain, spell_likely, spell_range
from advisor.tuning.explain.pareto import told_loss
from advisor.tuning.history.study import VALUE

_SHADES = [[0.0, "#cfe3f2"], [0.5, SKY], [1.0, ACCENT]]
_LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
_ROWS = 24
_MOST_BARS = 12
_MOST_AXES = 6
"""Knobs of the parallel coordinates: of more, the names would stand on each other."""
_FASTEST = 5
"""So many of the fastest trials Optuna's documents want for an importance, where there are so many."""


def draw_history(study: optuna.Study) -> Figure | None:
    """Draw every measured trial in its order and the best so far; None before the first."""
    done = list_done(study)
    if not done:
        return None
    figure = plot_optimization_history(study, target_name=VALUE)
    numbers = [trial.user_attrs["trial"] for trial in study.trials]
    for trace in figure.data:
        trace.update(x=[numbers[place] for place in trace.x])
    _dress(figure, 300, showlegend=True, legend=_LEGEND, margin_t=40)
    figure.update_xaxes(dtick=max(1, round((max(numbers) + 1) / 10)), tickformat="d")
    states = [trial.state for trial in study.trials]
    counts = {
        "given up as slower": states.count(TrialState.PRUNED),
        "without a value (failed, lost or without effect)": states.count(TrialState.FAIL),
        "under way": states.count(TrialState.RUNNING),
    }
    told = [formats.plural(len(states), "trial"), *(f"{n} {word}" for word, n in counts.items() if n)]
    summary = ", ".join(told)
    best = max((t for t in done if _is_feasible(t)), key=lambda t: float(t.value), default=None)
    if best is not None and best.value != 1.0:
        summary += f"; the best so far is trial {best.user_attrs['trial']} with {_spell(best)}, unconfirmed"
    rows = [
        (
            str(trial.user_attrs["trial"]), trial.user_attrs["strategy"], _spell(trial), _spell(trial, spell_range),
            trial.user_attrs.get("ended") or trial.state.name.lower(),
        )
        for trial in study.trials
    ]  # fmt: skip
    columns = ("trial", "strategy", "gain", "95 % interval", "state")
    return _close("history", "Every trial in its order", f"{summary}.", (columns, rows), figure, 300)


def draw_importances(study: optuna.Study) -> Figure | None:
    """Draw how much each varied knob has to do with being among the fastest; None where nothing was varied."""
    done = list_done(study)
    varied = _list_varied(done)
    count = max(len(done) // 10, min(_FASTEST, len(done) // 2))
    if not varied or not count:
        return None
    figure = plot_param_importances(
        study, PedAnovaImportanceEvaluator(target_quantile=count / len(done)), params=varied
    )
    bar = figure.data[0].update(marker={"color": ACCENT})
    ranked = list(reversed(list(zip(bar.y, bar.x, strict=True))))
    height = next((size for size, most in ((200, 3), (240, 5), (300, 8)) if len(ranked) <= most), 340)
    _dress(figure, height, xaxis_title="share of the importance", yaxis_title="")
    figure.update_xaxes(range=[0, 1.2 * ranked[0][1]])
    figure.update_yaxes(range=[len(ranked) - min(len(ranked), _MOST_BARS) - 0.5, len(ranked) - 0.5])
    summary = (
        f"Optuna's PED-ANOVA, a hint and no gain: how far each knob's values in the fastest {count} of "
        f"{formats.plural(len(done), 'trial')} differ from its values in all of them, as a share of 1; most for "
        f"{ranked[0][0]}."
    )
    rows = [(name, f"{share:.2f}") for name, share in ranked]
    return _close("importances", "Importances", summary, (("knob", "importance"), rows), figure, height)


def draw_slice(study: optuna.Study, name: str) -> Figure:
    """Draw the trials against one knob's values."""
    figure = plot_slice(study, [name], target_name=VALUE)
    if figure.layout.xaxis.type == "category":
        # Optuna 5.0 leaves these out where the values are categories (findings/optuna_slice_infeasible.sh).
        barred = [trial for trial in list_done(study) if not _is_feasible(trial)]
        x, y = [repr(trial.params[name]) for trial in barred], [trial.value for trial in barred]
        figure.add_scatter(x=x, y=y, mode="markers", name="Infeasible Trial")
    _dress(figure, 240, xaxis_title="")
    return _close(f"slice-{name}", name, _say_best(study, [name]), _list_rows(study, [name]), figure, 240)


def draw_contour(study: optuna.Study, pair: Sequence[str]) -> Figure:
    """Draw the value over two knobs."""
    figure = plot_contour(study, list(pair), target_name=VALUE)
    _dress(figure, 340)
    return _close(
        "contour", " × ".join(sorted(pair)), f"{_say_best(study, pair)} Shades between marks are interpolated.",
        _list_rows(study, pair), figure, 340,
    )  # fmt: skip


def draw_parallel(study: optuna.Study, names: Sequence[str]) -> Figure:
    """Draw each trial as a line through its knobs' values, the fastest quarter blue."""
    names = names[:_MOST_AXES]
    figure = plot_parallel_coordinate(study, list(names), target_name=VALUE)
    lines = [trace for trace in figure.data if trace.mode == "lines" and trace.customdata is not None]
    front = lines[-max(1, len(lines) // 4) :]
    for trace in figure.data:
        is_front = trace in front
        trace.update(line={"color": ACCENT if is_front else BASELINE}, opacity=0.85 if is_front else 0.4)
    _dress(figure, 505, margin_t=40)
    figure.update_layout(margin={"l": 36, "r": 36})
    # In the page's own colour, which is that of its theme.
    figure.update_annotations(font={"color": None})
    figure.update_xaxes(tickangle=60, ticktext=["throughput", *figure.layout.xaxis.ticktext[1:]])
    summary = (
        f"A line for each of {formats.plural(len(lines), 'trial')}, the fastest {len(front)} of them blue."
    )
    return _close("parallel", "Parallel coordinates", summary, _list_rows(study, names), figure, 505)


def draw_losses(points: Sequence[ParetoPoint], tolerance: float) -> Figure:
    """Draw strategies in the plane of throughput and loss, those on the front apart.

    A loss change that cannot be told apart from none counts as none, as on the front. `tolerance` is the job's share.
    """
    study = optuna.create_study(directions=["maximize", "minimize"])
    placed = [(point, loss) for point in points if (loss := told_loss(point)) is not None]
    study.add_trials(
        [
            create_trial(values=[point.throughput_ratio, loss], user_attrs={"trial": point.trial_number})
            for point, loss in placed
        ]
    )
    figure = plot_pareto_front(study, target_names=[VALUE, "loss change"])
    for trace, name, colour in zip(
        figure.data, ("beaten in both", "on the front"), (BASELINE, ACCENT), strict=False
    ):
        trace.update(name=name, marker={"color": colour, "size": 10}, showlegend=True)
    _dress(figure, 300, showlegend=True, legend=_LEGEND, margin_t=40)
    fastest, _ = max(placed, key=lambda pair: pair[0].throughput_ratio)
    unseen = len(points) - len(placed)
    summary = (
        f"{formats.plural(len(placed), 'point')} with a known loss; the fastest is trial {fastest.trial_number}, "
        f"{spell_gain(fastest.throughput_ratio)} at a loss change of {_spell_loss(fastest)}. A change within two "
        f"standard errors is drawn as none. The job tolerates {tolerance * 100:g} % of the loss's drop."
    )
    summary += f" {unseen} more showed no loss: in the table only." if unseen else ""
    rows = [
        (
            f"trial {point.trial_number}: {point.changes.describe()}", spell_gain(point.throughput_ratio),
            _spell_loss(point), f"± {point.loss_error:.2g}" if point.loss_error else formats.NO_VALUE,
            "yes" if point.on_front else "no",
        )
        for point in points
    ]  # fmt: skip
    columns = ("strategy", "gain", "loss change", "standard error", "front")
    return _close("pareto", "Speed against loss", summary, (columns, rows), figure, 300)


def list_done(study: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that have a value and were not given up: those that Optuna draws."""
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))  # type: ignore[no-any-return,unused-ignore]


def _list_varied(done: Sequence[FrozenTrial]) -> list[str]:
    """Knobs with two values among them: PED-ANOVA gives a share to one that never changed, too."""
    return [name for name in (done[0].params if done else ()) if len({t.params[name] for t in done}) > 1]


def _is_feasible(trial: FrozenTrial) -> bool:
    return all(broken <= 0.0 for broken in trial.constraints.values())


def _dress(figure: go.Figure, height: int, margin_t: int = 8, **layout: Any) -> None:
    """Take Optuna's title, bars of colours and greys, which our themes have not, and give the looks of our figures."""
    figure.update_traces(
        {"marker": {"showscale": False, "colorscale": _SHADES, "size": 9}}, {"mode": "markers"}
    )
    figure.update_traces(
        {"showscale": False, "colorscale": _SHADES, "contours": {"showlabels": True, "labelformat": ".2f"}},
        {"type": "contour"},
    )
    barred = {"color": BASELINE, "symbol": "circle-open"}
    figure.update_traces(
        {"marker": barred, "name": "not allowed", "showlegend": True}, {"name": "Infeasible Trial"}
    )
    figure.update_traces({"marker": {"color": ACCENT}}, {"name": VALUE, "type": "scatter"})
    figure.update_traces(
        {"line": {"color": ACCENT, "shape": "hv"}, "name": "best so far"}, {"name": "Best Value"}
    )
    figure.layout.pop("title")
    lay_out(figure, height)
    figure.update_layout(margin={"t": margin_t}, **layout)
    figure.update_yaxes(title_standoff=10)


def _spell(trial: FrozenTrial, say: Any = spell_likely) -> str:
    bounds = trial.user_attrs.get("95 % interval")
    if trial.value is None:
        return formats.NO_VALUE
    return say(trial.value, *bounds) if bounds else spell_gain(trial.value)


def _say_best(study: optuna.Study, names: Sequence[str]) -> str:
    done = list_done(study)
    best = max(done, key=lambda trial: float(trial.value))
    at = formats.join_words([f"{name} {formats.knob_value(best.params[name])}" for name in names])
    return f"{formats.plural(len(done), 'trial')}; the fastest, trial {best.user_attrs['trial']}, had {at}."


def _list_rows(study: optuna.Study, names: Sequence[str]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    fastest = sorted(list_done(study), key=lambda trial: -float(trial.value))[:_ROWS]
    rows = [
        (str(t.user_attrs["trial"]), *(formats.knob_value(t.params[name]) for name in names), _spell(t))
        for t in fastest
    ]
    return ("trial", *names, "gain"), rows


def _spell_loss(point: ParetoPoint) -> str:
    if point.loss_change is None:
        return "not seen"
    return f"{point.loss_change:+.3g}".replace("-", "−") if point.loss_change else "same"


def _close(
    id: str, title: str, summary: str, table: tuple[Sequence[str], Sequence[tuple[str, ...]]], figure: go.Figure,
    height: int,
) -> Figure:  # fmt: skip
    return Figure(id, title, summary, Table(tuple(table[0]), tuple(table[1])), close_figure(figure), height)
