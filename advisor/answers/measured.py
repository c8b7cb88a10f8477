"""What the report shows of the measurement: a step before and after, other rungs, and every strategy that was tried."""

from collections import defaultdict
from collections.abc import Iterable
from html import escape

from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job
from advisor.protocol.measured.estimates import Estimate, estimate_blocks
from advisor.protocol.measured.so_far import gain_of
from advisor.protocol.measured.trials import Block, JobHistory, Outcome, Trial
from advisor.protocol.standing import SoFar

_SCALE = 200.0


def draw_step(advice: Advice) -> str:
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
    head = "".join(f"<th{_NUMBER if index in (1, 2) else ''}>{text}</th>" for index, text in enumerate(heads))
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


_NUMBER = ' class="number"'


def _row_of_step(name: str, was: float | None, now: float | None, changed: bool, longest: float) -> str:
    bars = [("was", was), *([("now", now)] if changed else [])]
    drawn = "".join(
        f'<rect class="{kind}" x="0" y="{index * 9}" height="7" width="{(seconds or 0.0) / longest * _SCALE:.0f}"/>'
        for index, (kind, seconds) in enumerate(bars)
        if longest > 0
    )
    figures = "".join(f"<td{_NUMBER}>{_ms(seconds)}</td>" for _, seconds in bars)
    chart = f'<svg viewBox="0 0 {_SCALE:.0f} 18" aria-hidden="true">{drawn}</svg>' if drawn else ""
    return f"<tr><td>{name}</td>{figures}<td>{chart}</td></tr>"


def list_ladder(advice: Advice) -> str:
    """Return what the rungs beside the verdict measured."""
    told = []
    for rung in advice.list_rungs():
        told.append(f"--allow {rung.effect}: {rung.sentence} {rung.caveat}".rstrip())
    return list_sentences("What more would cost", told)


def list_sentences(title: str, sentences: Iterable[str]) -> str:
    """Return a titled list; empty without sentences."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<h2>{escape(title)}</h2><ul>{items}</ul>" if items else ""


def tabulate_tried(job: Job, history: JobHistory) -> str:
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
        f"<tr><th{_NUMBER}>trial</th><th{_NUMBER}>{job.rate_unit}</th><th>95 % interval</th><th{_NUMBER}>gain</th>"
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
            max(0.0, value) / most * _SCALE
            for value in (found.samples_per_s - found.half_width, found.samples_per_s,
                          found.samples_per_s + found.half_width)
        )  # fmt: skip
        kind = "now" if trial.changes else "was"
        chart = (
            f'<svg viewBox="0 0 {_SCALE:.0f} 18" aria-hidden="true"><g class="{kind}">'
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="9" y2="9" stroke="var(--fill)" stroke-width="3"/>'
            f'<circle class="p" cx="{likely:.1f}" cy="9" r="4"/></g></svg>'
        )
    return (
        f"<tr><td{_NUMBER}>{trial.number}</td><td{_NUMBER}>{rate}</td><td>{chart}</td><td{_NUMBER}>{gain}</td>"
        f"<td class='text'>{escape(changes)}</td><td class='text'>{escape(ended)}</td></tr>"
    )


def _ms(seconds: float | None) -> str:
    return "not measured" if seconds is None else f"{seconds * 1e3:.1f} ms"
