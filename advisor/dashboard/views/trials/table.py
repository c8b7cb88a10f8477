"""The table of a job's trials: its columns, how it is sorted and filtered, and the same as a CSV file."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from advisor.dashboard import formats
from advisor.dashboard.views.chips import chip_for_trial
from advisor.dashboard.views.evidence import describe_changes
from advisor.dashboard.views.trials.measured import MeasuredTrial
from advisor.errors import InvalidRequest
from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.measured.results import Phases
from advisor.protocol.measured.trials import Outcome
from advisor.protocol.nodes.cluster import spell_memory
from advisor.protocol.plain_text import clean_text

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "'")
"""A spreadsheet calculates a cell that begins with one of these."""
_ROWS = 100
"""Trials on one page."""


@dataclass(frozen=True)
class Column:
    """One column: what it shows, and how it sorts."""

    key: str
    title: str
    meaning: str
    read: Callable[[MeasuredTrial], float | str | None]
    """The value to sort by, and to write into a file."""
    show: Callable[[MeasuredTrial], str]
    is_number: bool = True
    is_usual: bool = False
    """Shown where the reader has chosen no columns."""
    is_wide: bool = False
    """Left out on a phone."""


def _say_state(found: MeasuredTrial) -> str:
    return chip_for_trial(found.trial, found.is_measuring).word


def _last_phases(found: MeasuredTrial) -> Phases | None:
    results = [block.result for block in found.blocks if block.result is not None]
    return results[-1].phases if results and results[-1].phases.total_s() > 0 else None


def _phase(field: str) -> Callable[[MeasuredTrial], float | None]:
    def read(found: MeasuredTrial) -> float | None:
        phases = _last_phases(found)
        return None if phases is None else getattr(phases, field)

    return read


def _peak(found: MeasuredTrial) -> float | None:
    peaks = [block.result.peak_memory_bytes for block in found.blocks if block.result is not None]
    return max(peaks, default=0) or None


def _last_loss(found: MeasuredTrial) -> float | None:
    finite = [
        loss
        for block in found.blocks
        if block.result is not None
        for loss in block.result.losses
        if loss == loss
    ]
    return finite[-1] if finite else None


def _time(
    key: str, title: str, meaning: str, read: Callable[[MeasuredTrial], float | None], **more: bool
) -> Column:
    """A column of seconds, shown in milliseconds."""
    return Column(key, title, meaning, read, lambda found: formats.milliseconds(read(found)), **more)


def _text(key: str, title: str, meaning: str, read: Callable[[MeasuredTrial], str], **more: bool) -> Column:
    return Column(key, title, meaning, read, read, is_number=False, **more)


def _figure(
    key: str,
    title: str,
    meaning: str,
    read: Callable[[MeasuredTrial], float | None],
    show: Callable[[float], str],
    **more: bool,
) -> Column:
    def spell(found: MeasuredTrial) -> str:
        value = read(found)
        return formats.NO_VALUE if value is None else show(value)

    return Column(key, title, meaning, read, spell, **more)


COLUMNS: tuple[Column, ...] = (
    Column("number", "#", "Its number, in the order of creation", lambda found: found.trial.number,
           lambda found: str(found.trial.number), is_usual=True),
    _text("state", "state", "How it ended, or what it is doing", _say_state, is_usual=True),
    Column("samples", "rate", "Samples a second, or steps where nothing tells samples, with the 95 % interval",
           lambda found: found.estimate.samples_per_s if found.estimate else None,
           lambda found: found.throughput, is_usual=True),
    _figure("interval", "± rate", "Half of that interval",
            lambda found: found.estimate.half_width if found.estimate else None, formats.number),
    Column("gain", "gain", "Over trial 0, in their common races where there are any",
           lambda found: found.ratio, lambda found: found.gain_words, is_usual=True),
    _time("step", "step ms", "Median step time",
          lambda found: found.estimate.step_time_s if found.estimate else None, is_usual=True, is_wide=True),
    _time("exposed", "exposed ms", "Communication that computation does not hide",
          lambda found: found.estimate.exposed_comm_s if found.estimate else None, is_usual=True, is_wide=True),
    _figure("busy", "busy", "Share of the time in which any kernel ran",
            lambda found: found.estimate.utilisation if found.estimate else None, formats.percent,
            is_usual=True, is_wide=True),
    _time("data", "data ms", "Waiting for the next batch, last block", _phase("data_wait_s"), is_wide=True),
    _time("forward", "forward ms", "Forward pass, last block", _phase("forward_s"), is_wide=True),
    _time("backward", "backward ms", "Backward pass without exposed communication, last block",
          _phase("backward_s"), is_wide=True),
    _time("optimizer", "optimizer ms", "Optimizer step, last block", _phase("optimizer_s"), is_wide=True),
    _figure("memory", "peak memory", "Largest peak of any rank", _peak, spell_memory, is_wide=True),
    _figure("loss", "last loss", "Loss of its last timed step", _last_loss, lambda loss: f"{loss:.4g}", is_wide=True),
    _figure("blocks", "blocks", "Blocks measured", lambda found: len(found.blocks), lambda count: f"{count:.0f}",
            is_wide=True),
    _text("rung", "rung", "What it may change besides the speed", lambda found: found.trial.effect.value, is_wide=True),
    _text("purpose", "purpose", "Why it was measured", lambda found: found.trial.purpose.value, is_wide=True),
    _text("changes", "changes", "Knobs that differ from the script as it stands",
          lambda found: describe_changes(found.trial.changes), is_usual=True),
)  # fmt: skip
_BY_KEY = {column.key: column for column in COLUMNS}
STATES: Mapping[str, tuple[str, Callable[[MeasuredTrial], bool]]] = {
    "ok": ("finished", lambda found: found.trial.outcome is Outcome.FINISHED),
    "failed": ("failed", lambda found: found.has_failed),
    "idle": ("no effect", lambda found: found.trial.outcome is Outcome.INEFFECTIVE),
    "pruned": ("pruned", lambda found: found.trial.outcome is Outcome.PRUNED),
    "open": ("open", lambda found: found.trial.outcome is None),
}
"""States to filter by: the word for people, and who belongs."""


@dataclass(frozen=True)
class TrialQuery:
    """What of the table is wanted."""

    sort: str = "-number"
    state: str = ""
    rung: str = ""
    changes: str = ""
    """Words that all have to stand in the changes."""
    columns: tuple[str, ...] = ()
    """Keys; empty takes the usual ones."""
    page: int = 1
    """Which hundred of the trials, from 1."""

    @classmethod
    def read(cls, parameters: Sequence[tuple[str, str]]) -> "TrialQuery":
        """Return the query of an address. Raises InvalidRequest with what there is instead."""
        given = dict(parameters)
        sort, state = given.get("sort", "-number"), given.get("state", "")
        rung, changes = given.get("rung", ""), given.get("changes", "")
        columns = [text for name, text in parameters if name == "columns"]
        keys = tuple(dict.fromkeys(key for text in columns for key in text.split(",") if key))
        for what, wanted, known in (
            ("sort by", [sort.removeprefix("-")], _BY_KEY),
            ("column", keys, _BY_KEY),
            ("state", [state] if state else [], STATES),
            ("rung", [rung] if rung else [], [effect.value for effect in Effect]),
        ):
            if unknown := [key for key in wanted if key not in known]:
                hint = f"There are {', '.join(known)}."
                raise InvalidRequest(f"There is no {what} {clean_text(unknown[0])[:40]}.", hint=hint)
        page = given.get("page", "1")
        if not (page.isascii() and page.isdigit() and len(page) < 6):
            raise InvalidRequest(
                f"There is no page {clean_text(page)[:40]}.", hint="Pages have numbers from 1 on."
            )
        return cls(sort, state, rung, changes.strip()[:200], keys, max(1, int(page)))

    def address(self, **changed: object) -> str:
        """Return the query string of this query, with changes; "" for the usual table."""
        wanted = {**vars(self), "columns": ",".join(self.columns), **changed}
        usual = {**vars(TrialQuery()), "columns": ""}
        return urlencode({name: value for name, value in wanted.items() if value and value != usual[name]})

    def sort_by(self, column: Column) -> str:
        """Return the query string that sorts by a column, the other way where it is sorted by it already."""
        # Numbers are looked at from the largest on, texts from the first.
        first, second = (f"-{column.key}", column.key) if column.is_number else (column.key, f"-{column.key}")
        return self.address(sort=second if self.sort == first else first, page=1)

    def direction(self, column: Column) -> str:
        """Return how it is sorted by a column: ascending, descending or ""."""
        return {column.key: "ascending", f"-{column.key}": "descending"}.get(self.sort, "")

    @property
    def is_filtered(self) -> bool:
        """Whether it leaves trials out."""
        return bool(self.state or self.rung or self.changes)

    def admits(self, found: MeasuredTrial) -> bool:
        """Whether a trial belongs to the table."""
        words = self.changes.lower().split()
        text = describe_changes(found.trial.changes).lower()
        return (
            (not self.state or STATES[self.state][1](found))
            and (not self.rung or found.trial.effect.value == self.rung)
            and all(word in text for word in words)
        )

    def select(self, trials: Sequence[MeasuredTrial]) -> list[MeasuredTrial]:
        """Return the trials that belong, sorted; those without a value come last, whichever way."""
        column = _BY_KEY[self.sort.removeprefix("-")]
        chosen = [found for found in trials if self.admits(found)]
        known = [(value, found) for found in chosen if (value := column.read(found)) is not None]
        known.sort(key=lambda pair: pair[0], reverse=self.sort.startswith("-"))
        return [found for _, found in known] + [found for found in chosen if column.read(found) is None]


@dataclass(frozen=True)
class TrialTable:
    """The table as its page shows it."""

    columns: tuple[Column, ...]
    rows: tuple[MeasuredTrial, ...]
    """Of the page that is asked for."""
    matching: int
    """Trials on all pages."""
    total: int
    query: TrialQuery
    advised: Mapping[str, Value] | None
    """The advised changes: trials that carry them are marked."""

    @property
    def first(self) -> int:
        """Place of the page's first row among all, from 1."""
        return (self.query.page - 1) * _ROWS + 1

    @property
    def previous_page(self) -> int | None:
        """Number of the page before, None on the first one."""
        return min(self.query.page - 1, -(-self.matching // _ROWS)) or None

    @property
    def next_page(self) -> int | None:
        """Number of the page after, None on the last one."""
        return self.query.page + 1 if self.query.page * _ROWS < self.matching else None


def view_trial_table(
    trials: Sequence[MeasuredTrial], advised: Mapping[str, Value] | None, query: TrialQuery = TrialQuery()
) -> TrialTable:
    """Build the table; `advised` marks the trials that carry the advised strategy."""
    wanted = query.columns
    shown = tuple(column for column in COLUMNS if (column.key in wanted if wanted else column.is_usual))
    found = query.select(trials)
    rows = found[(query.page - 1) * _ROWS : query.page * _ROWS]
    return TrialTable(shown, tuple(rows), len(found), len(trials), query, advised)


def _guard(value: float | str | None) -> str:
    """A cell that no spreadsheet takes for a formula; numbers are written as they are."""
    if value is None:
        return ""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    return f"{value:.10g}"


def write_csv(trials: Sequence[MeasuredTrial], query: TrialQuery) -> str:
    """Return the trials that the query selects as CSV with every column: times in seconds, sizes in bytes."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    units = {"± rate": "half_width_samples_per_s", "rate": "samples_per_s", "gain": "throughput_ratio",
             "#": "trial", "peak memory": "peak_memory_bytes", "last loss": "last_loss"}  # fmt: skip
    names = [
        units.get(column.title, f"{column.title[:-3]}_s" if column.title.endswith(" ms") else column.title)
        for column in COLUMNS
    ]
    writer.writerow([*names, "because", "outcome_reason"])
    for found in query.select(trials):
        told = (clean_text(found.trial.because), clean_text(found.trial.outcome_reason))
        writer.writerow([*(_guard(column.read(found)) for column in COLUMNS), *map(_guard, told)])
    return file.getvalue()
