"""The answer on one screen of 80 columns and at most 20 lines: result, what to do, a step, what is left, cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from advisor.answers.answer import Answer, Step
from advisor.protocol.answers.why import spell_ms
from advisor.protocol.gains import spell_rate

_LABEL_COLUMNS = 7
_COLUMNS = 80
_MOST_LINES = 20
_LINES_TOLD = 3
_CAREFUL_TOLD = 2
_BAR_COLUMNS = 48
_GLYPHS = "█▓▒░"
_COLOURS = ("magenta", "cyan", "blue", "default")
TONES = {"good": "bold green", "caution": "bold yellow", "muted": "bold"}
"""How the result of each tone is printed."""


def render_first_screen(answer: Answer) -> RenderableType:
    """Return the answer, with blank lines between its parts where it is short enough for them."""
    result = Text(answer.result, style=TONES[answer.tone])
    if answer.certainty:
        is_long = _LABEL_COLUMNS + 1 + len(answer.result) + 2 + len(answer.certainty) + 2 > _COLUMNS
        result.append(f"{chr(10) if is_long else '  '}({answer.certainty})", style="default not bold")
    lead: list[RenderableType] = [_row("FIRST", Text(answer.first, style="bold red"))] if answer.first else []
    lead.append(_row("RESULT", result))
    if answer.moods:
        lead.append(_row("MOODS", Text(answer.moods, style="yellow")))
    if answer.careful:
        untold = len(answer.careful) - _CAREFUL_TOLD
        more = f" ({untold} more under -v)" if untold > 0 else ""
        lead.append(_row("CAREFUL", Text(" ".join(answer.careful[:_CAREFUL_TOLD]) + more)))
    left = [_row("LEFT", Text(answer.left))] if answer.left else []
    further = [
        _Pasted("MORE" if not at else "", *told) for at, told in enumerate((*answer.offers, answer.more))
    ]
    step = _draw_step(answer)
    groups = (
        lead,
        [
            *_draw_rates(answer),
            *(_row("", Text(told, style="dim")) for told in (answer.price, answer.energy) if told),
        ],
        _list_what_to_do(answer),
        step,
        left,
        [_row("COST", Text(answer.cost)), *further],
    )
    # -v and the page tell these as well.
    return _Screen(groups, (step[3:], left, step))


def _draw_rates(answer: Answer) -> list[RenderableType]:
    """Two bars on one axis; a single rate needs none."""
    if len(answer.rates) < 2:
        return []
    longest = max(rate for _, rate in answer.rates) or 1.0
    told = [spell_rate(rate) for _, rate in answer.rates]
    rows: list[RenderableType] = []
    for (name, rate), figure in zip(answer.rates, told, strict=True):
        bar = Text.assemble(
            f"{name:<7} {figure:>{max(map(len, told))}} ",
            ("█" * max(1, round(rate / longest * _BAR_COLUMNS)), "dim" if not rows else "green"),
            f" {answer.rate_unit}" if not rows else "",
        )
        rows.append(_row("", bar))
    return rows


def _list_what_to_do(answer: Answer) -> list[RenderableType]:
    rows: list[RenderableType] = []
    for line in answer.lines[:_LINES_TOLD]:
        note = ", ".join(filter(None, (line.where, line.saving)))
        rows.append(_Pasted("DO" if not rows else "", line.text, note))
    if answer.command or answer.command_note:
        other = "   all" if answer.open_changes or len(answer.lines) > _LINES_TOLD else "   or"
        rows.append(_Pasted(other if rows else "DO", answer.command, answer.command_note))
    if answer.exactness:
        rows.append(_row("", Text(answer.exactness, style="dim")))
    if answer.to_do:
        rows.append(_row("" if rows else "DO", Text(answer.to_do)))
    return rows


def _draw_step(answer: Answer) -> list[RenderableType]:
    """A bar of the step before and one of the step after, and which part is which."""
    step = answer.step
    if step is None:
        return [_row("STEP", Text(answer.bound))]
    sides = [(step.before_s, [part.before_s for part in step.parts])]
    if step.after_s is not None:
        sides.append((step.after_s, [part.after_s or 0.0 for part in step.parts]))
    longest = max(total for total, _ in sides)
    totals = [f"{spell_ms(total)} ms" for total, _ in sides]
    rows: list[RenderableType] = []
    for (_, parts), total in zip(sides, totals, strict=True):
        bar = Text(f"{total:>{max(map(len, totals))}} ")
        # Ends are rounded, not lengths: the parts of a bar then add up to the bar.
        ends = [round(sum(parts[: at + 1]) / longest * _BAR_COLUMNS) for at in range(len(parts))]
        for at, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            bar.append(_GLYPHS[at % len(_GLYPHS)] * (end - start), style=_COLOURS[at % len(_COLOURS)])
        rows.append(_row("STEP" if not rows else "", bar))
    return [*rows, _row("", _name_parts(step)), *(_row("", Text(note, style="dim")) for note in step.notes)]


def _name_parts(step: Step) -> Text:
    told = Text()
    for at, part in enumerate(step.parts):
        told.append("  " if at else "")
        told.append(_GLYPHS[at % len(_GLYPHS)], style=_COLOURS[at % len(_COLOURS)])
        told.append(f" {part.name}")
        if at < len(step.parts) - 1:  # the last is all the others, which its bar tells
            after = f"→{spell_ms(part.after_s)}" if part.after_s is not None else ""
            told.append(f" {spell_ms(part.before_s)}{after}")
    return told


def _row(label: str, told: RenderableType) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=_LABEL_COLUMNS, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(label, style="bold"), told)
    return _Trimmed(grid)


class _Screen:
    """Groups of rows, apart from one another as long as all of it is one screen; without some where it is more."""

    def __init__(
        self, groups: Sequence[Sequence[RenderableType]], dropped: Sequence[Sequence[RenderableType]]
    ) -> None:
        self._groups, self._dropped = groups, dropped

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        groups = [
            [(row, len(console.render_lines(row, options, pad=False))) for row in g] for g in self._groups
        ]
        for rows in self._dropped:
            if 1 + sum(lines for group in groups for _, lines in group) <= _MOST_LINES:
                break
            groups = [[one for one in group if one[0] not in rows] for group in groups]
        groups = [group for group in groups if group]
        lines = sum(lines for group in groups for _, lines in group)
        is_loose = lines + len(groups) <= _MOST_LINES
        for at, group in enumerate(groups):
            if not at or is_loose:
                yield Text("")
            yield Group(*(row for row, _ in group))


@dataclass(frozen=True)
class _Pasted:
    """Words to paste in one line, however narrow the terminal: what is pasted must hold no line break of ours."""

    label: str
    words: str
    note: str

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        if not self.words:
            yield _row(self.label, Text(self.note))
            return
        line = f"{self.label.ljust(_LABEL_COLUMNS)} {self.words}"
        yield Segment(line, Style(bold=True))
        if not self.note:
            yield Segment.line()
        elif len(line) + len(self.note) + 2 <= options.max_width:
            yield Segment(f"  {self.note}", Style(dim=True))
            yield Segment.line()
        else:
            yield Segment.line()
            yield _row("", Text(self.note, style="dim"))


class _Trimmed:
    """Lines without the blanks that fill a table's cells: what is copied from a terminal or a log has none."""

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self._inner, options, pad=False):
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                line[-1] = Segment(line[-1].text.rstrip(), line[-1].style)
            yield from line
            yield Segment.line()
