"""Two to four trials, or jobs, side by side: what they change, how fast they are, where their steps go."""

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.dashboard import formats
from advisor.dashboard.figures.charts import Figure, draw_phases
from advisor.dashboard.views.evidence import show_knob
from advisor.dashboard.views.server.jobs import JobLine, tell_gain
from advisor.dashboard.views.trials.measured import MeasuredTrial
from advisor.errors import InvalidRequest, NotFound
from advisor.protocol.answers.advice import Advice
from advisor.protocol.measured.results import Phases
from advisor.protocol.nodes.cluster import spell_memory

MOST = 4


@dataclass(frozen=True)
class Row:
    """One line of the comparison."""

    label: str
    cells: tuple[str, ...]
    differs: bool
    """Whether the sides differ in it."""


@dataclass(frozen=True)
class Comparison:
    """The page's tables and figure."""

    sides: tuple[MeasuredTrial, ...]
    knobs: tuple[Row, ...]
    """Every knob that one of them changes; the script's own value where a trial leaves it."""
    measures: tuple[Row, ...]
    phases: tuple[Row, ...]
    figure: Figure | None
    no_figure: str
    """Why there is no figure; empty where there is one."""


def read_numbers(texts: Sequence[str]) -> list[int]:
    """Return the trials that an address names: `trials=0,3` or `trials=0&trials=3`. Raises InvalidRequest."""
    words = [word.strip() for text in texts for word in text.split(",") if word.strip()]
    if any(not word.isascii() or not word.isdigit() or len(word) > 6 for word in words):
        raise InvalidRequest("A trial is named by its number.", hint="Choose trials in the table of trials.")
    numbers = list(dict.fromkeys(int(word) for word in words))
    if not 2 <= len(numbers) <= MOST:
        told = "none was chosen" if not numbers else f"{len(numbers)} chosen"
        raise InvalidRequest(
            f"Two to {MOST} trials can be compared; {told}.",
            hint="Go back and choose them in the table of trials.",
        )
    return numbers


def compare_trials(trials: Sequence[MeasuredTrial], numbers: Sequence[int]) -> Comparison:
    """Build the comparison, in the order asked for. Raises NotFound for a trial that is not there."""
    by_number = {found.trial.number: found for found in trials}
    missing = [number for number in numbers if number not in by_number]
    if missing:
        raise NotFound(
            f"This job has no trial {missing[0]}.", hint=f"It has {formats.plural(len(trials), 'trial')}."
        )
    chosen = [by_number[number] for number in numbers]
    names = dict.fromkeys(name for found in chosen for name in found.trial.changes)
    phases = [_find_phases(found) for found in chosen]
    bars = [
        (f"trial {found.trial.number}", told)
        for found, told in zip(chosen, phases, strict=True)
        if told is not None
    ]
    return Comparison(
        sides=tuple(chosen),
        knobs=tuple(
            _row(name, [show_knob(name, found.trial.changes.get(name)) for found in chosen]) for name in names
        ),
        measures=tuple(_list_measures(chosen)),
        phases=tuple(_list_phases(phases)) if bars else (),
        figure=draw_phases(bars, "One step of each, phase by phase") if bars else None,
        no_figure="" if bars else "None of them has a block that shows the phases of a step.",
    )


def _row(label: str, cells: Sequence[str]) -> Row:
    return Row(label, tuple(cells), len(set(cells)) > 1)


def _tell_rate(advice: Advice, rate: float) -> str:
    return f"{formats.number(rate)} {advice.rate_unit}"


def _list_measures(chosen: Sequence[MeasuredTrial]) -> list[Row]:
    estimates = [found.estimate for found in chosen]
    memory = [
        max((block.result.peak_memory_bytes for block in found.blocks if block.result is not None), default=0)
        for found in chosen
    ]
    none = formats.NO_VALUE
    return [
        _row("rate, 95 % interval", [found.throughput for found in chosen]),
        _row("against trial 0", [found.gain_words for found in chosen]),
        _row("median step, ms", [formats.milliseconds(e.step_time_s if e else None) for e in estimates]),
        _row("device busy", [formats.percent(e.utilisation if e else None) for e in estimates]),
        _row("peak memory", [spell_memory(peak) if peak else none for peak in memory]),
        _row("blocks", [str(len(found.blocks)) for found in chosen]),
    ]


def _find_phases(found: MeasuredTrial) -> Phases | None:
    for block in reversed(found.blocks):
        if block.result is not None and block.result.phases.total_s() > 0:
            return block.result.phases
    return None


def _list_phases(phases: Sequence[Phases | None]) -> list[Row]:
    told = [known for known in phases if known is not None]
    named = [dict(known.list_shown(*told)) if known is not None else {} for known in phases]
    rows = [
        _row(name, [formats.milliseconds(known.get(name)) for known in named])
        for name, _ in Phases().list_shown(*told)
    ]
    return [*rows, _row("step", [formats.milliseconds(told.total_s() if told else None) for told in phases])]


def read_ids(texts: Sequence[str]) -> list[str]:
    """Return the jobs that an address names: `jobs=A,B` or `jobs=A&jobs=B`. Raises InvalidRequest."""
    ids = list(dict.fromkeys(word for text in texts for word in text.split(",") if word))
    if not 2 <= len(ids) <= MOST:
        told = "none was chosen" if not ids else f"{len(ids)} chosen"
        raise InvalidRequest(
            f"Two to {MOST} jobs can be compared; {told}.", hint="Go back and tick them in the list of jobs."
        )
    return ids


def compare_jobs(lines: Sequence[JobLine]) -> list[tuple[str, tuple[Row, ...]]]:
    """Build the groups of rows of two to four jobs: what was asked, what came of it, and what is advised."""
    jobs, advices = [line.job for line in lines], [line.advice for line in lines]
    spent, none = [line.device_hours for line in lines], formats.NO_VALUE
    names = dict.fromkeys(name for advice in advices if advice for name in advice.changes)
    phases = [
        (a.phases_before, a.phases_after if a.changes else a.phases_before) if a else None for a in advices
    ]
    return [
        ("Asked", (
            _row("cluster", [job.cluster.describe() for job in jobs]),
            _row("command", [" ".join(job.spec.workload.command) for job in jobs]),
            _row("may change", [job.spec.allow.value for job in jobs]),
        )),
        ("Measured", (
            _row("gain", [tell_gain(line) for line in lines]),
            _row("baseline", [_tell_rate(a, a.baseline_samples_per_s) if a else none for a in advices]),
            _row("advised", [_tell_rate(a, a.strategy_samples_per_s) if a else none for a in advices]),
            _row("step before, ms", [formats.milliseconds(told[0].total_s() if told else None) for told in phases]),
            _row("step after, ms", [formats.milliseconds(told[1].total_s() if told else None) for told in phases]),
            _row("strategies tried", [f"{line.trials} / {line.job.spec.budget.max_trials}" for line in lines]),
            _row("device-hours", [formats.device_hours(hours) if hours else none for hours in spent]),
        )),
        ("Advised", tuple(
            _row(name, [show_knob(name, a.changes.get(name)) if a else none for a in advices]) for name in names
        )),
    ]  # fmt: skip
