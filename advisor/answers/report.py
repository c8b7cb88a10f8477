"""report.html: the answer on one page that opens anywhere, without a network; with a history, what was measured."""

from collections.abc import Iterable
from html import escape
from importlib.resources import files as package_files
from string import Template

from advisor.answers.answer import Answer, Use, make_answer
from advisor.answers.measured import (
    draw_step,
    list_ladder,
    list_sentences,
    tabulate_tried,
)
from advisor.answers.own_words import list_own_lines
from advisor.exporters.comments import describe_gain, describe_value
from advisor.exporters.exported import Exported
from advisor.exporters.formats import FORMATS
from advisor.protocol.answers.advice import Advice, Interval, Provenance
from advisor.protocol.asked.jobs import Job
from advisor.protocol.gains import End, Quality, spell_gain
from advisor.protocol.measured.trials import JobHistory

KNOWN = {
    Provenance.MEASURED: "varied and timed as this very knob",
    Provenance.TRANSLATED: "timed through its PyTorch equivalent",
    Provenance.CARRIED: "a default or a rule of thumb, not timed",
}
"""What each provenance means."""
_WIDTH, _HEIGHT, _MARGIN = 600, 70, 60


def write_report(
    advice: Advice,
    job: Job,
    files: Iterable[Exported],
    history: JobHistory | None = None,
) -> str:
    """Return the page; with `history`, every strategy that was tried. What a user or a job wrote is escaped."""
    when = job.finished_at or job.started_at or job.created_at
    name = job.spec.name or job.id
    facts = {
        "Gain": describe_gain(advice),
        "Cost": f"{advice.cost.wall_s / 60:.1f} minutes, {advice.cost.trials} strategies tried in "
        f"{advice.cost.sessions} launches",
        "Cluster": advice.cluster or job.cluster.describe(),
        "Software": ", ".join(f"{part} {version}" for part, version in sorted(advice.software.items())),
        "Date": f"{when:%Y-%m-%d %H:%M} UTC",
    }
    files = list(files)
    answer = make_answer(advice, Use(lines=list_own_lines(advice, job)))
    starts = bool(advice.changes) and any(file.filename == "run.sh" for file in files)
    template = package_files("advisor.answers").joinpath("report.html").read_text("utf-8")
    return Template(template).substitute(
        title=escape(f"{name}: the advised strategy"),
        about=escape(f"Fleet Advisor, job {job.id} · {name}"),
        headline=escape(f"{answer.first} {advice.headline}".strip()),
        careful="".join(f"<p>{escape(told)}</p>" for told in (answer.moods, *answer.careful) if told),
        what_to_do=escape(_say_what_to_do(advice, job, starts, stands_alone=history is not None)),
        lines=_list_lines(answer),
        written_by="" if history is None else escape(f" (advisor export {job.id} writes them)"),
        interval=_draw_interval(advice.gain) if advice.gain and advice.changes else "",
        changes=_tabulate_changes(advice),
        diagnosis=escape(advice.diagnosis.sentence),
        step=draw_step(advice),
        ladder=list_ladder(advice),
        left=list_sentences("Left as you have it", filter(None, (answer.left,))),
        tried=tabulate_tried(job, history) if history is not None else "",
        next_steps=list_sentences("What to do next", advice.next_steps),
        files=_list_files(files),
        facts="".join(
            f'<tr><th>{name}</th><td class="text">{escape(text)}</td></tr>'
            for name, text in facts.items()
            if text
        ),
    )


def _say_what_to_do(advice: Advice, job: Job, starts: bool, stands_alone: bool) -> str:
    """A report that stands alone has no run.sh beside it."""
    if not starts:
        return advice.what_to_do
    started = (
        f"advisor export {job.id} -o strategy && bash strategy/run.sh" if stands_alone else "bash run.sh"
    )
    return f"Start your training with: {started}"


def _list_lines(answer: Answer) -> str:
    """Return the lines for the user's own script or command; empty without any."""
    told = (
        f'<tr><td><code>{escape(line.text)}</code></td><td class="text">{escape(line.where)}</td>'
        f'<td class="text">{escape(line.saving)}</td></tr>'
        for line in answer.lines
    )
    rows = "".join(told)
    return f'<h2>Or in your own script</h2><div class="wide"><table>{rows}</table></div>' if rows else ""


def _draw_interval(gain: Interval) -> str:
    """Return the confidence interval on a line that begins at no gain; empty where its far end says nothing."""
    if gain.quality is not Quality.KNOWN:
        return ""
    left, right = min(1.0, gain.low), max(gain.high, 1.0)
    scale = (_WIDTH - 2 * _MARGIN) / (right - left or 1.0)
    at = {name: _MARGIN + (ratio - left) * scale for name, ratio in
          {"one": 1.0, "low": gain.low, "likely": gain.ratio, "high": gain.high}.items()}  # fmt: skip
    low, high = spell_gain(gain.low, End.LOW), spell_gain(gain.high, End.HIGH)
    words = f"{spell_gain(gain.ratio)}, 95 % confidence interval {low} to {high}"
    marks = "".join(
        f'<text x="{at[name]:.0f}" y="60" text-anchor="middle" font-size="13" fill="currentColor">{escape(text)}</text>'
        for name, text in (("one", "now"), ("low", low), ("high", high))
        if name == "one" or abs(at[name] - at["one"]) > _MARGIN
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(words)}">'
        f'<line x1="{at["one"]:.0f}" x2="{at["one"]:.0f}" y1="8" y2="44" stroke="currentColor"/>'
        f'<line x1="{at["low"]:.0f}" x2="{at["high"]:.0f}" y1="26" y2="26" stroke="var(--mark)" stroke-width="6"/>'
        f'<circle cx="{at["likely"]:.0f}" cy="26" r="8" fill="var(--mark)"/>{marks}</svg>'
    )


def _call(knob: str, advice: Advice) -> str:
    title, name = advice.catalogue.spell_name(knob, advice.software), f"<code>{escape(knob)}</code>"
    return f'{escape(title)}<br><span class="quiet">{name}</span>' if title != knob else name


def _tabulate_changes(advice: Advice) -> str:
    if not advice.changes:
        return "<p>Nothing changes: these files are the baseline as it was measured.</p>"
    reasons = {reason.knob: reason.sentence for reason in advice.reasons}
    rows = "".join(
        f"<tr><td>{_call(knob, advice)}</td><td>{escape(describe_value(advice.baseline[knob]))}</td>"
        f'<td><strong>{escape(describe_value(value))}</strong></td><td class="text">{escape(reasons.get(knob, ""))}'
        f'<br><span class="quiet">{KNOWN[advice.provenance.get(knob, Provenance.CARRIED)]}</span></td></tr>'
        for knob, value in advice.changes.items()
    )
    head = "<tr><th>Knob</th><th>Your script</th><th>Advised</th><th>Why</th></tr>"
    return f'<h2>What changes</h2><div class="wide"><table>{head}{rows}</table></div>'


def _list_files(files: Iterable[Exported]) -> str:
    rows = []
    for file in files:
        told = [*(f"not expressible: {knob}: {text}" for knob, text in file.unmapped.items()), *file.warnings]
        notes = f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in told)}</ul>" if told else ""
        target = f" (for {escape(file.target)})" if file.target else ""
        rows.append(
            f"<tr><td><code>{escape(file.filename)}</code>{target}</td>"
            f'<td class="text">{escape(FORMATS[file.format].meaning)}{notes}</td></tr>'
        )
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'
