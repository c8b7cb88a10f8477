"""The answer for a terminal or a log of any width: one screen, or with `--verbose` how it is known, in 60 lines.

Pure functions of the advice. What neither tells is on the job's page, in `--json` and in the report.
"""

from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from advisor.answers.answer import Answer, Use, make_answer
from advisor.answers.wording import (
    EFFECT_WORDS,
    count,
    spell_changes,
    spell_duration,
    spell_value,
)
from advisor.cli.views.first_screen import TONES, render_first_screen
from advisor.protocol.answers.advice import Advice, RungAdvice, name_bound
from advisor.protocol.answers.why import say_unmeasured
from advisor.protocol.gains import spell_rate, spell_share
from advisor.protocol.measured.results import NOTICEABLE_S, Phases
from advisor.protocol.training.workload import SAMPLES_PER_S

_FEW = 3
"""Names that are told before they are counted."""
_MOST = 1
"""Findings and next steps that are told."""
_REASONS = 4
"""Reasons for which settings were not searched that are told; the last line counts the others."""
_LONGEST = 110
"""Characters of a sentence under `--verbose`; `--json` and the page have all of it."""
_BAR_COLUMNS = 24


def render_advice(
    advice: Advice,
    job_name: str = "",
    files: Sequence[str] = (),
    verbose: bool = False,
    use: Use | None = None,
) -> RenderableType:
    """Return the answer: the first screen, or with `verbose` how it is known.

    `files` are those that were written, `use` is how the strategy is put in place.
    """
    answer = make_answer(advice, use)
    return _render_grounds(advice, answer, job_name, files) if verbose else render_first_screen(answer)


def format_advice(
    advice: Advice,
    width: int,
    job_name: str = "",
    files: Sequence[str] = (),
    verbose: bool = False,
    use: Use | None = None,
) -> str:
    """Return the advice as plain text of `width` columns."""
    console = Console(width=width, color_system=None, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(render_advice(advice, job_name, files, verbose, use), crop=False)
    return captured.get()


def _render_grounds(advice: Advice, answer: Answer, job_name: str, files: Sequence[str]) -> RenderableType:
    parts: list[RenderableType] = [_verdict(advice, answer, job_name)]
    if advice.changes:
        parts += _section("What to change, and why", _changes(advice))
    if answer.left:
        parts += _section("What is left", Text(answer.left))
    parts += _section("Where the time goes", _phases(advice))
    if rungs := advice.list_rungs():
        parts += _section("What riskier settings measured", Group(*(_rung(rung) for rung in rungs)))
    if advice.dropped:
        parts += _section(
            "What the search left out, and why (advisor knobs lists every knob)", _dropped(advice)
        )
    parts += _section("What this cost", _cost(advice))
    to_do = [
        answer.command or answer.to_do,
        *(line.text for line in answer.lines),
        *advice.next_steps[:_MOST],
    ]
    parts += _section("What to do next", Group(*(_bullet(told, cut=False) for told in to_do if told)))
    if files:
        parts += _section("Files", Text(", ".join(files)))
    return Group(*parts)


def _verdict(advice: Advice, answer: Answer, job_name: str) -> RenderableType:
    lines = [Text(advice.first, style="bold red")] if advice.first else []
    lines.append(Text(advice.headline, style=TONES[answer.tone]))
    lines += [Text(told) for told in (answer.moods, *answer.careful) if told]
    each = [f"Your settings: {spell_rate(advice.baseline_samples_per_s)} {advice.rate_unit}."]
    if answer.price:
        each.append(f"It costs {answer.price}.")
    if answer.energy:
        each.append(f"Its devices use {answer.energy}.")
    if advice.launches:
        pairs = (
            f"{spell_rate(told.baseline_samples_per_s)} → {spell_rate(told.strategy_samples_per_s)}"
            for told in advice.launches
        )
        each.append(f"Launch by launch: {', '.join(pairs)}.")
    if advice.rate_unit != SAMPLES_PER_S:
        each.append("Nothing tells how many samples a step has (--samples-per-step does): steps are counted.")
    lines.append(Text(" ".join(each)))
    if answer.unpromised:
        lines.append(Text(answer.unpromised))
    software = ", ".join(f"{name} {version}" for name, version in advice.software.items() if version)
    lines.append(Text(" · ".join(filter(None, (job_name, advice.cluster, software))), style="dim"))
    return Padding(Group(*lines), (1, 0, 0, 0))


def _changes(advice: Advice) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    table.add_column("setting", overflow="fold")
    table.add_column("yours → advised", overflow="fold")
    table.add_column("why", overflow="fold", ratio=1)
    explained = {reason.knob: reason for reason in advice.reasons}
    for knob, after in list(advice.changes.items())[:_REASONS]:
        reason = explained.get(knob)
        before = advice.baseline.get(knob, "") if reason is None else reason.before
        why = _cut(reason.sentence) if reason else "Part of the strategy that was measured as a whole."
        name = advice.catalogue.spell_name(knob, advice.software)
        called = Text.assemble((name, "bold"), (f"\n{knob}" if name != knob else "", "dim"))
        table.add_row(called, f"{spell_value(knob, before)} → {spell_value(knob, after)}", why)
    told: list[RenderableType] = [table]
    if (more := len(advice.changes) - _REASONS) > 0:
        told.append(Text(f"… and {more} more: strategy.json has all.", style="dim"))
    if others := say_unmeasured(advice):
        told.append(Text(others, style="dim"))
    return Group(*told)


def _phases(advice: Advice) -> RenderableType:
    after = advice.phases_after if advice.changes else None
    diagnosis = advice.diagnosis
    parts: list[RenderableType] = [Text.assemble((f"{diagnosis.title}: ", "bold"), _cut(diagnosis.sentence))]
    if diagnosis.limits:
        parts.append(Text(f"Against its limits: {diagnosis.limits}."))
    if diagnosis.scaling_before is not None:
        told = "Scaling efficiency (a step without communication over the step): "
        told += spell_share(diagnosis.scaling_before)
        if diagnosis.scaling_after is not None:
            told += f" before, {spell_share(diagnosis.scaling_after)} after"
        parts.append(Text(f"{told}."))
    if advice.phases_before.total_s() > 0:
        parts.append(_tabulate_phases(advice.phases_before, after))
        if after:
            parts.append(Text("█ still there   ░ saved   ▒ added", style="dim"))
    for finding in [one for one in diagnosis.findings if one.evidence != diagnosis.sentence][:_MOST]:
        bounds = ", which it bounds" if finding.holds else ""
        share = f"{name_bound(finding.bound)}, {spell_share(finding.share)} of the step{bounds}"
        parts.append(_bullet(f"{share}: {finding.evidence}"))
    return Group(*parts)


def _tabulate_phases(before: Phases, after: Phases | None) -> Table:
    """The table of a step's phases; with `after`, what each gained or lost."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    table.add_column("of each step", no_wrap=True)
    table.add_column("before" if after else "time", justify="right", no_wrap=True)
    if after:
        table.add_column("after", justify="right", no_wrap=True)
        table.add_column("change", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    befores = before.list_shown(after or before)
    afters = after.list_shown(before) if after else befores
    longest = max([0.0, *(seconds or 0.0 for _, seconds in befores + afters)])
    for (name, was), (_, now) in zip(befores, afters, strict=True):
        cells = [name, _milliseconds(was)]
        if after:
            cells += [_milliseconds(now), _difference(was, now)]
        table.add_row(*cells, _bar(was or 0.0, now or 0.0, longest))
    table.add_section()
    total: list[RenderableType] = [Text("one step", style="bold"), _milliseconds(before.total_s())]
    if after:
        total += [_milliseconds(after.total_s()), _difference(before.total_s(), after.total_s())]
    table.add_row(*total, "")
    return table


def _milliseconds(seconds: float | None) -> str:
    return "not measured" if seconds is None else f"{seconds * 1000:.1f} ms"


def _difference(was: float | None, now: float | None) -> str:
    if was is None or now is None:
        return ""
    if abs(now - was) < NOTICEABLE_S:
        return "0.0"
    return f"{(now - was) * 1000:+.1f}".replace("-", "−")


def _bar(was: float, now: float, longest: float) -> Text:
    """`█` what is there before and after, `░` what went away, `▒` what came."""
    if longest <= 0:
        return Text("")
    first, last = (round(seconds / longest * _BAR_COLUMNS) for seconds in (was, now))
    both = min(first, last)
    return Text.assemble(
        ("█" * both, "cyan"), ("░" * (first - both), "green"), ("▒" * (last - both), "yellow")
    )


def _rung(rung: RungAdvice) -> RenderableType:
    gain = (
        rung.gain.describe() if rung.gain else rung.sentence if not rung.changes else "tried, not confirmed"
    )
    told = f"--allow {rung.effect} ({EFFECT_WORDS[rung.effect]}): {gain}"
    if rung.changes:
        told += f" with {spell_changes(rung.changes)}"
    if rung.goodput is not None:
        told += f"; counting progress per sample as well: {rung.goodput.describe()}"
    return _bullet(f"{told.rstrip('.')}. {rung.caveat}".rstrip())


def _dropped(advice: Advice) -> RenderableType:
    """How many settings each reason left out, the commonest first."""
    alike: dict[str, list[str]] = {}
    for each in advice.dropped:
        alike.setdefault(each.reason, []).append(each.knob)
    ordered = sorted(alike.items(), key=lambda told: -len(told[1]))
    lines = [_bullet(f"{_name_few(names)}: {reason}") for reason, names in ordered[:_REASONS]]
    if rest := ordered[_REASONS:]:
        left = sum(len(names) for _, names in rest)
        lines.append(_bullet(f"{count(left, 'setting')} for {count(len(rest), 'other reason')}"))
    return Group(*lines)


def _name_few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= _FEW else count(len(names), "setting")


def _cost(advice: Advice) -> RenderableType:
    cost = advice.cost
    tried, launches = count(cost.trials, "strategy", "strategies"), count(cost.sessions, "launch", "launches")
    told = f"{spell_duration(cost.wall_s)} ({cost.device_hours:.2f} device-hours) for {tried} in {launches}."
    if cost.pays_back_after_s is not None:
        told += f" Paid back after {spell_duration(cost.pays_back_after_s)} of training."
    if advice.search_ended_because:
        told += f" Why the search ended: {advice.search_ended_because}"
    return Text(told)


def _bullet(sentence: str, cut: bool = True) -> Text:
    return Text(f"· {_cut(sentence) if cut else sentence}")


def _cut(sentence: str) -> str:
    """A sentence, or its beginning up to the end of a word."""
    return sentence if len(sentence) <= _LONGEST else f"{sentence[:_LONGEST].rpartition(' ')[0]} …"


def _section(title: str, body: RenderableType) -> list[RenderableType]:
    return [Text(f"\n{title}", style="bold"), Padding(body, (0, 0, 0, 2))]


SCHEMA_VERSION = 1
"""Grows when a field goes or changes its meaning; a new field does not change it."""


def describe_advice(advice: Advice) -> dict[str, object]:
    """Return the document."""
    return {"schema_version": SCHEMA_VERSION, **advice.model_dump(mode="json")}
