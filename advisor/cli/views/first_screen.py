"""The advice on one screen: the result, why, what to change, how to use it, what to watch, what it cost.

A pure function of the advice. Everything that is left out here is in `advice_view`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from advisor.cli.views.wording import EFFECT_WORDS, spell_duration, spell_rate, spell_value
from advisor.exporters.own_words import OwnLine
from advisor.protocol.answers.advice import Action, Advice, RungAdvice, Verdict, continue_command
from advisor.protocol.answers.moods import say_moods
from advisor.protocol.answers.why import say_rest, say_saving, say_why
from advisor.protocol.gains import (
    NOISY,
    Quality,
    say_launch_noise,
    spell_bound,
    spell_fraction,
    spell_likely,
    spell_range,
)
from advisor.protocol.kinds import Effect

_LABEL_COLUMNS = 7
_WATCHED = 2
_TOO_WIDE = 2.5
"""The ends of an interval this many times apart: more time would make it worth more."""


@dataclass(frozen=True)
class Use:
    """How the strategy is put in place, as it is typed in this folder."""

    command: str = ""
    """To paste; empty where nothing is to change."""
    note: str = ""
    """What the command carries and asks for."""
    lines: tuple[OwnLine, ...] = ()
    """What to write in place of it."""
    program: str = "advisor"
    """How `advisor` itself is typed."""
    tune: str = "tune"
    """The words after it that measure the job: `ray tune --nodes 2 --state DIR`."""
    before: str = ""
    """What stands before other commands where they do not find the job by themselves."""

    def describe(self) -> str:
        """The command with what it carries, as one line."""
        return f"{self.command}   ({self.note})" if self.command else self.note

    def say_what_to_do(self, advice: Advice) -> str:
        """The advice's sentence, with the command that this job goes on by."""
        own = continue_command(advice.job_id, advice.continue_s, f"{self.program} {self.tune}")
        return advice.what_to_do.replace(continue_command(advice.job_id, advice.continue_s), own)


def render_first_screen(advice: Advice, use: Use | None = None) -> RenderableType:
    """Return the answer as about 25 lines."""
    use = use or Use()
    style = {Verdict.CHANGE: "bold green", Verdict.UNDECIDED: "bold yellow"}.get(advice.verdict, "bold")
    result = Text(say_result(advice), style=style)
    if noise := _say_noise(advice):
        result.append(f"\n{noise}", style="yellow")
    rows: list[tuple[str, RenderableType] | None] = [("RESULT", result)]
    if told := say_moods(advice.moods):
        rows.append(("MOODS", Text(told, style="yellow")))
    if advice.first:
        rows = [("FIRST", Text(advice.first, style="bold red")), None, *rows]
    if why := say_why(advice):
        rows += [None, ("WHY", Text(why))]
    if advice.changes:
        rows += [None, ("CHANGE", _tabulate_changes(advice))]
    rows.append(None)
    parts: list[RenderableType] = [Text(""), _Trimmed(_label(rows))]
    rows = []
    told = use.describe()
    if advice.verdict is Verdict.CHANGE:
        if told:
            parts += [_Command("USE IT", use.command, use.note)]
        if use.lines:
            rows.append(("OR SET", _tabulate_lines(use.lines, len(advice.changes))))
    elif told:
        rows.append(("FILES", Text(told)))
    if advice.verdict is not Verdict.CHANGE and advice.action is Action.CONTINUE:
        command = continue_command(advice.job_id, advice.continue_s, f"{use.program} {use.tune}")
        where = "on every node, as before; " if use.tune.startswith("tune --here") else ""
        parts += [_Command("TO DO", command, f"{where}goes on where it stood")]
    elif to_do := _say_what_to_do(advice):
        rows.append(("TO DO", Text(to_do, style="bold")))
    rows.append(None)
    if watch := _list_watched(advice):
        rows.append(("WATCH", Text("\n".join(watch))))
    rows.append(("COST", Text(_say_cost(advice))))
    rows.append(("MORE", _list_more(advice, use.before + use.program)))
    return Group(*parts, _Trimmed(_label(rows)))


def _label(rows: Sequence[tuple[str, RenderableType] | None]) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=_LABEL_COLUMNS, no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        if row is None:
            grid.add_row("", "")
        else:
            grid.add_row(Text(row[0], style="bold"), row[1])
    return grid


@dataclass(frozen=True)
class _Command:
    """A command in one line, however narrow the terminal: what is pasted must hold no line break of ours."""

    label: str
    command: str
    note: str

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        if not self.command:
            yield _Trimmed(_label([(self.label, Text(self.note))]))
            return
        line = f"{self.label.ljust(_LABEL_COLUMNS)} {self.command}"
        yield Segment(line, Style(bold=True))
        if len(line) + len(self.note) + 5 <= options.max_width:
            yield Segment(f"   ({self.note})")
            yield Segment.line()
            return
        yield Segment.line()
        yield _Trimmed(_label([("", Text(self.note))]))


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


def say_result(advice: Advice) -> str:
    """Return the result in one line: what is sure first, then the likeliest, then the rates."""
    gain = advice.gain
    if advice.verdict is not Verdict.CHANGE or gain is None:
        return f"{advice.headline[:1].lower()}{advice.headline[1:]}"
    figures = (gain.ratio, gain.low, gain.high)
    bound = spell_bound(*figures)
    if gain.quality is not Quality.KNOWN:
        rate = spell_rate(advice.baseline_samples_per_s)
        return f"{gain.describe()}: more minutes tell (your settings: {rate} {advice.rate_unit})"
    likely = f"{bound}, most likely {spell_likely(*figures)}" if bound else spell_likely(*figures)
    rates = (
        f"{spell_rate(advice.baseline_samples_per_s)} → {spell_rate(advice.strategy_samples_per_s)} "
        f"{advice.rate_unit}"
    )
    doubt = "; wide: more minutes narrow it" if gain.high > _TOO_WIDE * gain.low else ""
    return f"{likely}: {rates} (95 % CI {spell_range(*figures)}{doubt})"


def _say_noise(advice: Advice) -> str:
    """How far the baseline's launches were apart, where a gain of the size told could hide in that."""
    noise = advice.launch_noise
    if noise is None or noise < NOISY:
        return ""
    if advice.verdict is Verdict.CHANGE and advice.gain is not None and math.log(advice.gain.low) > 2 * noise:
        return ""
    return f"{say_launch_noise(noise)}: a quieter machine or more minutes show smaller gains."


def _tabulate_lines(lines: tuple[OwnLine, ...], changes: int) -> RenderableType:
    """The lines that do the same by hand, each with its place."""
    grid = Table.grid(padding=(0, 3))
    grid.add_column(overflow="fold")
    grid.add_column(overflow="fold")
    for line in lines:
        grid.add_row(Text(line.text, style="bold"), Text(line.where, style="dim"))
    if left := changes - sum(len(line.knobs) for line in lines):
        return Group(
            grid,
            Text(
                f"{left} of {changes} changes need{'s' if left == 1 else ''} more than a line: use the command.",
                style="dim",
            ),
        )
    return grid


def _say_what_to_do(advice: Advice) -> str:
    """The one line that says what to do; a change has its command above it, and only a reservation here."""
    if advice.verdict is Verdict.CHANGE:
        inexact = [name for name in advice.changes if advice.catalogue[name].effect is not Effect.EXACT]
        return "Compare the accuracy of one full training before you rely on it." if inexact else ""
    return advice.what_to_do


def _tabulate_changes(advice: Advice) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", overflow="fold")
    table.add_column("yours", overflow="fold")
    table.add_column("use", overflow="fold")
    table.add_column("saves a step", overflow="fold")
    reasons = {reason.knob: reason for reason in advice.reasons}
    savings: dict[tuple[float, float, float], str] = {}
    for knob, after in advice.changes.items():
        reason = reasons.get(knob)
        before = reason.before if reason else advice.baseline.get(knob, "")
        name = advice.catalogue.spell_name(knob, advice.software)
        saving = say_saving(reason) or "not known alone"
        if reason and (effect := reason.effect) is not None:
            # Knobs that only go back together have one saving, which is not to be added up.
            first = savings.setdefault((effect.saved_s, effect.low_s, effect.high_s), name)
            saving = saving if first == name else f"that, with {first}"
        table.add_row(Text(name, style="bold"), spell_value(knob, before), spell_value(knob, after), saving)
    parts: list[RenderableType] = [table]
    if rest := say_rest(advice):
        parts.append(Text(rest, style="dim"))
    parts.append(Text(_say_effects(advice), style="dim"))
    fleet = [knob for knob in advice.changes if advice.catalogue.spell_name(knob, advice.software) != knob]
    if fleet:
        told = "name" if len(fleet) == 1 else "names, in this order"
        parts.append(Text(f"PaddlePaddle Fleet's {told}: {', '.join(fleet)}.", style="dim"))
    return Group(*parts)


def _say_effects(advice: Advice) -> str:
    inexact = {
        name: effect
        for name in advice.changes
        if (effect := advice.catalogue[name].effect) is not Effect.EXACT
    }
    if advice.certificate:
        return advice.certificate
    if not inexact:
        return "All keep the mathematics exact."
    return " ".join(
        f"{advice.catalogue.spell_name(name, advice.software)} {EFFECT_WORDS[effect]}."
        for name, effect in inexact.items()
    )


def _list_watched(advice: Advice) -> list[str]:
    """What no knob mends, each said once; what would stop a training comes first, and all of it."""
    sentences = list(dict.fromkeys(flag.sentence for flag in advice.diagnosis.flags))
    return [*advice.watch, *sentences[:_WATCHED]]


def _say_cost(advice: Advice) -> str:
    cost = advice.cost
    parts = [spell_duration(cost.wall_s)]
    if cost.pays_back_after_s is not None:
        parts.append(f"pays back after {spell_duration(cost.pays_back_after_s)} of training")
    elif advice.smallest_gain is not None and advice.action is not Action.CHECK_ACCURACY:
        parts.append(f"enough to find gains from {spell_fraction(advice.smallest_gain)} on")
    return " · ".join(parts)


def _list_more(advice: Advice, program: str) -> RenderableType:
    lines = [_say_rung(rung) for rung in advice.list_offers()]
    grid = Table.grid(padding=(0, 3))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for command, meaning in [
        *lines,
        (f"{program} advice {advice.job_id} -v", "everything that was measured"),
    ]:
        grid.add_row(command, Text(meaning, style="dim"))
    return grid


def _say_rung(rung: RungAdvice) -> tuple[str, str]:
    gain = rung.gain
    told = spell_likely(gain.ratio, gain.low, gain.high) if gain else ""
    return f"--allow {rung.effect}", f"measured {told}, but {EFFECT_WORDS[rung.effect]}"
