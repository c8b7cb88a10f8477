"""Everything that an advice holds, for people: what `--verbose` shows in place of the first screen.

A pure function of the advice: verdict and interval, what to change and why, where the time went, what the riskier
rungs measured, what it cost, and what to do next. Knows nothing of servers and files.
"""

from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from advisor.cli.views.evidence_view import render_findings, render_forecasts, render_pareto, say_scaling
from advisor.cli.views.first_screen import Use, render_first_screen
from advisor.cli.views.step_view import LEGEND_CHANGE, render_phases
from advisor.cli.views.wording import (
    EFFECT_WORDS,
    count,
    spell_changes,
    spell_duration,
    spell_rate,
    spell_value,
)
from advisor.protocol.answers.advice import Advice, KnobReason, Provenance, RungAdvice, Verdict
from advisor.protocol.answers.why import say_unmeasured
from advisor.protocol.gains import End, Quality, spell_gain
from advisor.protocol.kinds import Allow
from advisor.protocol.training.workload import SAMPLES_PER_S


def render_advice(
    advice: Advice,
    job_name: str = "",
    files: Sequence[str] = (),
    verbose: bool = False,
    use: Use | None = None,
) -> RenderableType:
    """Return the advice for a terminal or a log of any width: the first screen, or with `verbose` everything.

    `files` are those that were written, `use` is how the strategy is put in place.
    """
    use = use or Use()
    if not verbose:
        return render_first_screen(advice, use)
    parts: list[RenderableType] = [_verdict(advice, job_name)]
    if advice.changes:
        parts += _section("What to change, and why", _changes(advice))
    if advice.taken_back:
        parts += _section("What was tried and taken back", _bullets(_say_once(advice.taken_back)))
    parts += _section("Where the time goes", _phases(advice))
    if advice.ladder:
        parts += _section("What riskier settings measured (not part of the result above)", _ladder(advice))
    if len(advice.pareto) > 1:
        parts += _section("Speed against loss, of what was measured", render_pareto(advice.pareto))
    if advice.forecasts:
        parts += _section("What if (predicted, not measured)", render_forecasts(advice.forecasts))
    parts += _section("What this cost", _cost(advice))
    if advice.dropped:
        parts += _section("What was not tried, and why", _dropped(advice))
    parts += _section("How well each exported value is known", _provenance(advice))
    to_do = [
        *([use.describe()] if use.describe() else []),
        *(" ".join(part for part in ("Or set", line.text, line.where) if part) for line in use.lines),
        use.say_what_to_do(advice),
        *advice.next_steps,
    ]
    if to_do:
        parts += _section("What to do next", _bullets(to_do))
    if files:
        parts += _section("Files for your framework", _bullets(files))
    return Group(*parts)


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


NO_SAMPLES = " Nothing tells how many samples a step has (--samples-per-step does), so steps are counted;"


def _verdict(advice: Advice, job_name: str) -> RenderableType:
    change = advice.verdict is Verdict.CHANGE
    lines = [Text(advice.first, style="bold red")] if advice.first else []
    lines += [Text(advice.headline, style="bold green" if change else "bold")]
    unit = advice.rate_unit
    rates = f"Your settings: {spell_rate(advice.baseline_samples_per_s)} {unit}."
    if change:
        rates += f" With the changes below: {spell_rate(advice.strategy_samples_per_s)} {unit}."
    rates += " A sample is one training example;" if unit == SAMPLES_PER_S else NO_SAMPLES
    rates += " more per second means the training is done sooner."
    lines.append(Text(rates))
    if certainty := _certainty(advice):
        lines.append(Text(certainty))
    if advice.launches:
        each = ", ".join(
            f"{spell_rate(told.baseline_samples_per_s)} → {spell_rate(told.strategy_samples_per_s)}"
            for told in advice.launches
        )
        lines.append(Text(f"Launch by launch: {each} {unit}."))
    about = " · ".join(part for part in (job_name, advice.cluster, _software(advice)) if part)
    if about:
        lines.append(Text(about, style="dim"))
    return Padding(Group(*lines), (1, 0, 0, 0))


def _certainty(advice: Advice) -> str:
    """What the interval means in everyday words; also when there is none."""
    gain = advice.gain
    if gain is None:
        return (
            "Nothing was measured often enough to promise a gain, so none is promised."
            if advice.verdict is not Verdict.KEEP
            else ""
        )
    if gain.quality is Quality.UNKNOWN:
        return f"{gain.describe_basis().capitalize()} were too few to tell anything."
    if gain.quality is Quality.BOUNDED:
        return f"{gain.describe_basis().capitalize()}: {gain.describe()}."
    between = f"between {spell_gain(gain.low, End.LOW)} and {spell_gain(gain.high, End.HIGH)}"
    what = "The gain" if advice.verdict is Verdict.CHANGE else "The best candidate's difference"
    return f"{what} lies {between} with 95 % confidence: {gain.describe_basis()}."


def _changes(advice: Advice) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    table.add_column("setting", overflow="fold")
    table.add_column("yours → advised", overflow="fold")
    table.add_column("why", overflow="fold", ratio=1)
    explained = {reason.knob: reason for reason in advice.reasons}
    for knob, after in advice.changes.items():
        reason = explained.get(knob)
        before = advice.baseline.get(knob, "") if reason is None else reason.before
        why = Text(reason.sentence if reason else "Part of the strategy that was measured as a whole.")
        if reason and reason.evidence:
            why.append(f" In force: {reason.evidence}", style="dim")
        name = advice.catalogue.spell_name(knob, advice.software)
        called = Text.assemble((name, "bold"), (f"\n{knob}" if name != knob else "", "dim"))
        table.add_row(called, f"{spell_value(knob, before)} → {spell_value(knob, after)}", why)
    others = say_unmeasured(advice)
    return Group(table, Text(others, style="dim")) if others else table


def _phases(advice: Advice) -> RenderableType:
    after = advice.phases_after if advice.verdict is Verdict.CHANGE else None
    bound = advice.diagnosis.title
    parts: list[RenderableType] = [Text.assemble((f"{bound}: ", "bold"), advice.diagnosis.sentence)]
    if scaling := say_scaling(advice.diagnosis):
        parts.append(Text(scaling))
    if advice.phases_before.total_s() > 0:
        parts += [Text(""), render_phases(advice.phases_before, after)]
        if after:
            parts.append(Text(LEGEND_CHANGE, style="dim"))
    if advice.diagnosis.findings:
        parts += [Text(""), render_findings(advice.diagnosis.findings)]
    return Group(*parts)


def _say_once(reasons: Sequence[KnobReason]) -> list[str]:
    """Knobs that went back together share a sentence."""
    return list(dict.fromkeys(reason.sentence for reason in reasons))


def _ladder(advice: Advice) -> RenderableType:
    return Group(*(_rung(rung, advice.allowed) for rung in advice.ladder))


def _rung(rung: RungAdvice, allowed: Allow) -> RenderableType:
    title = f"{rung.effect} ({EFFECT_WORDS[rung.effect]}): "
    if not rung.changes:
        return Text.assemble((title, "bold"), rung.sentence)
    gain = rung.gain.describe() if rung.gain else "tried, not confirmed"
    lines = [
        Text.assemble((title, "bold"), gain),
        Text(f"  {spell_changes(rung.changes)}"),
        Text(f"  {rung.sentence}"),
    ]
    if rung.goodput is not None:
        lines.append(Text(f"  Counting progress per sample as well: {rung.goodput.describe()}."))
    if rung.caveat:
        lines.append(Text(f"  But: {rung.caveat}", style="yellow"))
    if rung.effect.rank > allowed.rank:
        lines.append(Text(f"  To allow it: --allow {rung.effect}", style="dim"))
    return Group(*lines)


def _cost(advice: Advice) -> RenderableType:
    cost = advice.cost
    launches = count(cost.sessions, "launch", "launches")
    tried = count(cost.trials, "strategy", "strategies")
    sentence = (
        f"{spell_duration(cost.wall_s)} ({cost.device_hours:.2f} device-hours) for {tried} in {launches}."
    )
    if cost.pays_back_after_s is not None:
        sentence += f" Paid back after {spell_duration(cost.pays_back_after_s)} of training."
    if advice.search_ended_because:
        sentence += f" Why the search ended: {advice.search_ended_because}"
    return Text(sentence)


def _dropped(advice: Advice) -> RenderableType:
    alike: dict[str, list[str]] = {}
    for each in advice.dropped:
        alike.setdefault(each.reason, []).append(each.knob)
    return Group(
        *(Text.assemble("· ", (", ".join(names), "bold"), f": {reason}") for reason, names in alike.items())
    )


def _provenance(advice: Advice) -> RenderableType:
    meanings = {
        Provenance.MEASURED: "varied and timed",
        Provenance.TRANSLATED: "timed through its PyTorch equivalent",
        Provenance.CARRIED: "exported as it was, not timed",
    }
    lines = []
    for provenance, meaning in meanings.items():
        names = [name for name, known in advice.provenance.items() if known is provenance]
        if names:
            lines.append(Text.assemble((f"{meaning}: ", "bold"), ", ".join(names)))
    return Group(*lines)


def _software(advice: Advice) -> str:
    return ", ".join(f"{name} {version}" for name, version in advice.software.items() if version)


def _bullets(sentences: Sequence[str]) -> RenderableType:
    return Group(*(Text(f"· {sentence}") for sentence in sentences))


def _section(title: str, body: RenderableType) -> list[RenderableType]:
    return [Text(f"\n{title}", style="bold"), Padding(body, (0, 0, 0, 2))]


SCHEMA_VERSION = 1
"""Grows when a field goes or changes its meaning; a new field does not change it."""


def describe_advice(advice: Advice) -> dict[str, object]:
    """Return the document."""
    return {"schema_version": SCHEMA_VERSION, **advice.model_dump(mode="json")}
