"""Samples a second over time, race by race: your settings and the best arm, launches as bands, slow moods shaded.

It is drawn here as SVG, so that it stands on the page without JavaScript as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from advisor.dashboard import formats
from advisor.dashboard.figures.charts import Figure, Table
from advisor.protocol.answers.moods import Moods
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.estimates import rate_of
from advisor.protocol.measured.trials import Block, JobHistory

_MOST_RACES = 120
"""Races drawn, the latest: more of them would be a grey mass."""
_HEIGHT, _TOP, _BOTTOM = 200, 22, 190
"""CSS pixels: of the figure, of its largest rate, and of zero."""
_NARROWEST = 0.02
"""Share of the width that a launch has at least."""
_FOR_WORDS = 9.0
"""Per cent of the width from which a band has its name."""

_LEGEND = (
    '<svg width="10" height="10"><rect class="yours" x="1" y="1" width="8" height="8"/></svg> yours '
    '<svg width="10" height="10"><circle class="best" cx="5" cy="5" r="4"/></svg> best arm of the race'
)
_SLOW_LEGEND = ' <svg width="14" height="10"><rect class="slow" width="14" height="10"/></svg> slow mood'


@dataclass(frozen=True)
class _Race:
    number: int
    session_id: str
    began_at: datetime
    ended_at: datetime
    yours: float | None
    other: float | None
    changes: Changes | None
    """Of the arm that is shown beside yours."""

    @property
    def middle(self) -> datetime:
        return self.began_at + (self.ended_at - self.began_at) / 2


@dataclass(frozen=True)
class _Band:
    """A launch: when its races ran, and where it lies, in per cent of the width."""

    number: int
    began_at: datetime
    seconds: float
    left: float
    width: float

    def place(self, at: datetime) -> float:
        share = (at - self.began_at).total_seconds() / self.seconds if self.seconds else 0.5
        return self.left + min(1.0, max(0.0, share)) * self.width


def draw_rates(history: JobHistory, best: Changes | None, moods: Moods | None, unit: str) -> Figure | None:
    """Draw each race's rates; None before two. `best` is shown where it raced, elsewhere the fastest arm."""
    races = _list_races(history, best)[-_MOST_RACES:]
    if len(races) < 2:
        return None
    bands = _lay_bands(races, {session.id: session.generation for session in history.sessions})
    slow = _list_slow(bands, moods)
    rows = tuple(_tell_race(race, bands[race.session_id].number, moods) for race in races)
    columns = (
        "race",
        "launch",
        f"yours, {unit}",
        f"best arm, {unit}",
        "best arm",
        *(["mood"] if moods else []),
    )
    return Figure(
        id="rates",
        title=f"{unit[:1].upper()}{unit[1:]} over time",
        summary=_summarise(races, len(bands), unit, bool(slow)),
        table=Table(columns, rows),
        plot="",
        height=_HEIGHT,
        svg=_draw(races, bands, slow),
    )


def _list_races(history: JobHistory, best: Changes | None) -> list[_Race]:
    trials = {trial.number: trial.changes for trial in history.trials}
    found: dict[tuple[str, int], list[Block]] = {}
    for block in history.done_blocks():
        if rate_of(block) > 0.0:
            found.setdefault((block.session_id, block.race), []).append(block)
    races = []
    for (session_id, number), blocks in found.items():
        yours = [rate_of(block) for block in blocks if not trials.get(block.trial_number)]
        others = [block for block in blocks if trials.get(block.trial_number)]
        other = max(others, key=lambda b: (trials[b.trial_number] == best, rate_of(b)), default=None)
        races.append(
            _Race(
                number=number,
                session_id=session_id,
                began_at=min(block.issued_at for block in blocks),
                ended_at=max(block.finished_at or block.issued_at for block in blocks),
                yours=yours[0] if yours else None,
                other=rate_of(other) if other else None,
                changes=trials[other.trial_number] if other else None,
            )
        )
    return sorted(races, key=lambda race: race.began_at)


def _lay_bands(races: Sequence[_Race], numbers: dict[str, int]) -> dict[str, _Band]:
    """Launches side by side, as wide as their races lasted: what lies between them is left out."""
    spans: dict[str, tuple[datetime, datetime]] = {}
    for race in races:
        began, ended = spans.get(race.session_id, (race.began_at, race.ended_at))
        spans[race.session_id] = (min(began, race.began_at), max(ended, race.ended_at))
    lasted = {session: (ended - began).total_seconds() for session, (began, ended) in spans.items()}
    least = _NARROWEST * sum(lasted.values()) or 1.0
    gap = min(1.0, 20.0 / len(spans))
    scale = (100.0 - gap * (len(spans) - 1)) / sum(max(least, seconds) for seconds in lasted.values())
    bands, left = {}, 0.0
    for session, (began, _) in spans.items():
        width = max(least, lasted[session]) * scale
        bands[session] = _Band(numbers.get(session, 0), began, lasted[session], left, width)
        left += width + gap
    return bands


def _list_slow(bands: dict[str, _Band], moods: Moods | None) -> list[tuple[float, float]]:
    """Left end and width of each stretch in which the script was slow."""
    found = []
    for span in moods.slow.spans if moods else ():
        if (band := bands.get(span.session_id)) is not None:
            left, right = band.place(span.began_at), band.place(span.ended_at)
            found.append((left, right - left))
    return [(left, width) for left, width in found if width > 0.0]


def _is_slow(race: _Race, moods: Moods) -> bool:
    return any(
        span.session_id == race.session_id and span.began_at <= race.middle <= span.ended_at
        for span in moods.slow.spans
    )


def _tell_race(race: _Race, launch: int, moods: Moods | None) -> tuple[str, ...]:
    rates = [formats.NO_VALUE if rate is None else formats.number(rate) for rate in (race.yours, race.other)]
    arm = formats.NO_VALUE if race.changes is None else race.changes.describe()
    mood = ["slow" if _is_slow(race, moods) else "fast"] if moods else []
    return (str(race.number), str(launch), *rates, arm, *mood)


def _summarise(races: Sequence[_Race], launches: int, unit: str, has_slow: bool) -> str:
    def spell(rates: Sequence[float]) -> str:
        low, high = formats.number(min(rates)), formats.number(max(rates))
        return low if low == high else f"{low} … {high}"

    yours = [race.yours for race in races if race.yours is not None]
    others = [race.other for race in races if race.other is not None]
    told = [
        f"{name} made {spell(rates)} {unit}"
        for name, rates in (("your settings", yours), ("the best arm of each race", others))
        if rates
    ]
    text = ", ".join(told)
    where = f"{formats.plural(len(races), 'race')} of {launches} launch{'es' if launches != 1 else ''}"
    shade = " Shaded: your settings in their slow mood." if has_slow else ""
    return f"In {where} {text}.{shade}"


def _draw(races: Sequence[_Race], bands: dict[str, _Band], slow: Sequence[tuple[float, float]]) -> str:
    ticks, most = _choose_ticks(max(rate for race in races for rate in (race.yours, race.other) if rate))

    def level(rate: float) -> str:
        return f"{_BOTTOM - rate / most * (_BOTTOM - _TOP):.1f}"

    parts = []
    for band in bands.values():
        parts.append(
            f'<rect class="band" x="{band.left:.2f}%" width="{band.width:.2f}%" y="0" height="{_HEIGHT}"/>'
        )
    for left, width in slow:
        parts.append(
            f'<rect class="slow" x="{left:.2f}%" width="{width:.2f}%" y="{_TOP - 4}" height="{_HEIGHT - _TOP + 4}"/>'
        )
    for tick in ticks:
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{level(tick)}" y2="{level(tick)}"/>')
    for band in bands.values():
        if band.width >= _FOR_WORDS:
            parts.append(f'<text x="{band.left + 0.5:.2f}%" y="13">launch {band.number}</text>')
    points: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for race in races:
        band = bands[race.session_id]
        for kind, rate in (("yours", race.yours), ("best", race.other)):
            if rate is not None:
                title = f"race {race.number}: {kind} {formats.number(rate)}"
                points.setdefault((kind, race.session_id), []).append(
                    (f"{band.place(race.middle):.2f}%", level(rate), title)
                )
    for (kind, _), line in points.items():
        for (x1, y1, _), (x2, y2, _) in pairwise(line):
            parts.append(f'<line class="{kind}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>')
        for x, y, title in line:
            if kind == "yours":
                mark = (
                    f'<rect class="yours" x="{x}" y="{y}" width="8" height="8" transform="translate(-4 -4)">'
                )
            else:
                mark = f'<circle class="best" cx="{x}" cy="{y}" r="4">'
            parts.append(f"{mark}<title>{title}</title></{'rect' if kind == 'yours' else 'circle'}>")
    axis = "".join(
        f'<text x="100%" y="{level(tick)}" dy="4" text-anchor="end">{formats.amount(tick)}</text>'
        for tick in ticks
    )
    return (
        f'<div class="rates"><svg class="axis" height="{_HEIGHT}">{axis}</svg>'
        f'<svg class="races" height="{_HEIGHT}">{"".join(parts)}</svg></div>'
        f'<p class="legend">{_LEGEND}{_SLOW_LEGEND if slow else ""}</p>'
    )


def _choose_ticks(most: float) -> tuple[list[float], float]:
    """Return round marks from zero on, three to six, and the end of the axis."""
    power = 10.0 ** (len(f"{int(most)}") - 1) if most >= 1 else 1.0
    while most < power:
        power /= 10
    step = next(size * power for size in (0.2, 0.5, 1, 2) if most / (size * power) <= 5)
    return [step * place for place in range(int(most / step) + 1)], most * 1.03
