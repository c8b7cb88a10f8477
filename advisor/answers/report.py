"""The files of an answer, and the report: one page that opens anywhere; with a history, all that was measured."""

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from html import escape
from importlib.resources import files as package_files
from string import Template

from advisor.answers.answer import Answer, Use, make_answer
from advisor.exporters import FORMATS, Exported, ExportError, list_bundled
from advisor.exporters.format import describe_gain
from advisor.exporters.own_lines import list_own_lines
from advisor.protocol.answers.advice import Advice, Interval, Provenance
from advisor.protocol.asked.jobs import Job
from advisor.protocol.gains import End, spell_gain
from advisor.protocol.knobs.changes import spell_with_unit
from advisor.protocol.measured.estimates import Estimate, estimate_blocks
from advisor.protocol.measured.so_far import gain_of
from advisor.protocol.measured.trials import Block, JobHistory, Outcome, Trial
from advisor.protocol.standing import SoFar

KNOWN = {
    Provenance.MEASURED: "varied and timed as this very knob",
    Provenance.TRANSLATED: "timed through its PyTorch equivalent",
    Provenance.CARRIED: "a default or a rule of thumb, not timed",
}
"""What each provenance means."""
_WIDTH, _HEIGHT, _MARGIN = 600, 70, 60
SCALE = 200.0
NUMBER = ' class="number"'


def export_report(advice: Advice, job: Job, history: JobHistory) -> str:
    """Return the answer and everything that was measured as one HTML page that opens without a network."""
    return _write_report(advice, job, _export_all(advice, job), history)


def export_bundle(advice: Advice, job: Job) -> dict[str, bytes]:
    """Return the files of the export by name, for each default target, and a report for people.

    It holds what the training loads: `export` writes every other format when asked. Where nothing is advised no file
    would change anything, so that there are `strategy.json` and the report alone.
    """
    files = _export_all(advice, job)
    report = _write_report(advice, job, files)
    return {file.filename: file.data for file in files} | {"report.html": report.encode()}


def _export_all(advice: Advice, job: Job) -> list[Exported]:
    files = []
    for info in list_bundled(job):
        with suppress(ExportError):  # no parameter servers in what was advised
            files.append(info.export(advice, job))
    carried = set(advice.changes)
    return [file for file in files if file.format == "json" or carried & set(file.provenance)]


def _write_report(
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
    body = read_template("report.html").substitute(
        careful="".join(f"<p>{escape(told)}</p>" for told in (answer.moods, *answer.careful) if told),
        what_to_do=escape(_say_what_to_do(advice, job, starts, stands_alone=history is not None)),
        lines=_list_lines(answer),
        written_by="" if history is None else escape(f" (advisor export {job.id} writes them)"),
        interval=_draw_interval(advice.gain) if advice.gain and advice.changes else "",
        changes=_tabulate_changes(advice),
        diagnosis=escape(" ".join(filter(None, (advice.diagnosis.sentence, _say_limits(advice))))),
        step=_draw_step(advice),
        ladder=_list_ladder(advice),
        left=list_sentences("Left as you have it", filter(None, (answer.left,))),
        tried=_tabulate_tried(job, history) if history is not None else "",
        next_steps=list_sentences("What to do next", advice.next_steps),
        files=_list_files(files),
        facts="".join(
            f'<tr><th>{name}</th><td class="text">{escape(text)}</td></tr>'
            for name, text in facts.items()
            if text
        ),
    )
    return write_page(
        f"{name}: the advised strategy",
        f"Fleet Advisor, job {job.id} · {name}",
        f"{answer.first} {advice.headline}".strip(),
        body,
    )


def read_template(name: str) -> Template:
    """Return a template of this package."""
    return Template(package_files("advisor.answers").joinpath(name).read_text("utf-8"))


def write_page(title: str, about: str, headline: str, body: str) -> str:
    """Return a page that opens without a network; all but `body`, which is HTML, are escaped."""
    texts = {"title": escape(title), "about": escape(about), "headline": escape(headline)}
    return read_template("page.html").substitute(texts, body=body.strip())


def _say_limits(advice: Advice) -> str:
    return f"Against its limits: {advice.diagnosis.limits}." if advice.diagnosis.limits else ""


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
    if not gain.is_known:
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
        f"<tr><td>{_call(knob, advice)}</td><td>{escape(spell_with_unit(advice.baseline[knob]))}</td>"
        f'<td><strong>{escape(spell_with_unit(value))}</strong></td><td class="text">{escape(reasons.get(knob, ""))}'
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


def _draw_step(advice: Advice) -> str:
    """Return the phases of one step before and after as a table with bars; empty where they were not measured."""
    before, after = advice.phases_before, advice.phases_after
    if before.total_s() <= 0:
        return ""
    changed = bool(advice.changes) and after.total_s() > 0
    befores, afters = before.list_shown(after), after.list_shown(before)
    rows, longest = [], max(seconds or 0.0 for _, seconds in [*befores, *afters])
    for (name, was), (_, now) in zip(befores, afters, strict=True):
        rows.append(_row_of_step(name, was, now, changed, longest))
    rows.append(_row_of_step("one step", before.total_s(), after.total_s(), changed, 0.0))
    heads = ["of each step", "your script", *(["advised"] if changed else []), ""]
    head = "".join(f"<th{NUMBER if index in (1, 2) else ''}>{text}</th>" for index, text in enumerate(heads))
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _row_of_step(name: str, was: float | None, now: float | None, changed: bool, longest: float) -> str:
    bars = [("was", was), *([("now", now)] if changed else [])]
    drawn = "".join(
        f'<rect class="{kind}" x="0" y="{index * 9}" height="7" width="{(seconds or 0.0) / longest * SCALE:.0f}"/>'
        for index, (kind, seconds) in enumerate(bars)
        if longest > 0
    )
    figures = "".join(f"<td{NUMBER}>{_ms(seconds)}</td>" for _, seconds in bars)
    chart = f'<svg viewBox="0 0 {SCALE:.0f} 18" aria-hidden="true">{drawn}</svg>' if drawn else ""
    return f"<tr><td>{name}</td>{figures}<td>{chart}</td></tr>"


def _list_ladder(advice: Advice) -> str:
    """Return what the rungs beside the verdict measured."""
    told = []
    for rung in advice.list_rungs():
        told.append(f"--allow {rung.effect}: {rung.sentence} {rung.caveat}".rstrip())
    return list_sentences("What more would cost", told)


def list_sentences(title: str, sentences: Iterable[str]) -> str:
    """Return a titled list; empty without sentences."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<h2>{escape(title)}</h2><ul>{items}</ul>" if items else ""


def _tabulate_tried(job: Job, history: JobHistory) -> str:
    """Return every strategy that was measured, in its order, with its throughput and how it ended."""
    blocks: defaultdict[int, list[Block]] = defaultdict(list)
    for block in history.done_blocks():
        blocks[block.trial_number].append(block)
    trials = sorted(history.trials, key=lambda trial: trial.number)
    found = {trial.number: estimate_blocks(blocks[trial.number]) for trial in trials}
    measured = [estimate for estimate in found.values() if estimate is not None]
    if not trials:
        return ""
    most = max((each.samples_per_s + each.half_width for each in measured), default=1.0)
    rows = "".join(
        _row_of_trial(
            trial, found[trial.number], gain_of(trial, blocks[trial.number], lambda: found.get(0)), most
        )
        for trial in trials
    )
    head = (
        f"<tr><th{NUMBER}>trial</th><th{NUMBER}>{job.rate_unit}</th><th>95 % interval</th><th{NUMBER}>gain</th>"
        "<th>strategy</th><th>how it ended</th></tr>"
    )
    note = (
        "Rates are over all blocks of a trial, at whatever time they were measured; gains are from its races against "
        "your script. The search's best look better than they are: only the gain above is confirmed."
    )
    return (
        f'<h2>What was tried ({len(trials)} trials of job {escape(job.id)})</h2><p class="quiet">{note}</p>'
        f'<div class="wide"><table>{head}{rows}</table></div>'
    )


def _row_of_trial(trial: Trial, found: Estimate | None, gained: SoFar | None, most: float) -> str:
    changes = trial.changes.describe() if trial.changes else "your script as it stands"
    ended = ""
    if trial.outcome is not None and trial.outcome is not Outcome.FINISHED:
        ended = ": ".join(part for part in (trial.outcome.words, trial.outcome_reason) if part)
    rate = gain = chart = ""
    if found is not None:
        rate = f"{found.samples_per_s:.4g} ± {found.half_width:.2g}"
        gain = gained.likely if gained is not None and trial.changes else ""
        low, likely, high = (
            max(0.0, value) / most * SCALE
            for value in (found.samples_per_s - found.half_width, found.samples_per_s,
                          found.samples_per_s + found.half_width)
        )  # fmt: skip
        kind = "now" if trial.changes else "was"
        chart = (
            f'<svg viewBox="0 0 {SCALE:.0f} 18" aria-hidden="true"><g class="{kind}">'
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="9" y2="9" stroke="var(--fill)" stroke-width="3"/>'
            f'<circle class="p" cx="{likely:.1f}" cy="9" r="4"/></g></svg>'
        )
    return (
        f"<tr><td{NUMBER}>{trial.number}</td><td{NUMBER}>{rate}</td><td>{chart}</td><td{NUMBER}>{gain}</td>"
        f"<td class='text'>{escape(changes)}</td><td class='text'>{escape(ended)}</td></tr>"
    )


def _ms(seconds: float | None) -> str:
    return "not measured" if seconds is None else f"{seconds * 1e3:.1f} ms"
