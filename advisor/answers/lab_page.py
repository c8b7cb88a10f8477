"""The page of a lab: its promise, and every race with its interval drawn, as one file that opens anywhere."""

from html import escape

from advisor.answers.report import NUMBER, SCALE, list_sentences, write_page
from advisor.lab.report import list_cells, list_seen, say_brought, say_counts
from advisor.lab.rules import Lab, state_promise
from advisor.protocol.answers.raced import Gain
from advisor.protocol.gains import Quality, judge_quality, spell_range

_FARTHEST = (0.8, 1.25)
"""What is drawn of B's throughput over the baseline's, so that one large gain leaves the others to be seen."""


def write_lab_page(lab: Lab) -> str:
    """Return the lab as one HTML page that opens without a network. What an asker wrote is escaped."""
    gains = [end.answer.gain for end in lab.ended.values() if end.answer and end.answer.gain]
    known = [gain for gain in gains if judge_quality(gain.low, gain.high) is Quality.KNOWN]
    low = max(_FARTHEST[0], min([0.95, *(gain.low for gain in known)]))
    high = min(_FARTHEST[1], max([1.05, *(gain.high for gain in known)]))
    rows = [
        f"<tr><th{NUMBER}>race</th><th>idea</th><th{NUMBER}>gain (95 % CI)</th><th></th><th>answer</th>"
        f"<th{NUMBER}>error</th><th{NUMBER}>minutes</th></tr>"
    ]
    for number, race in lab.started.items():
        place, idea, by, ratio, verdict, error, minutes = map(escape, list_cells(lab, race))
        end = lab.ended.get(number)
        gain = end.answer.gain if end and end.answer else None
        chart = _draw(gain, low, high, is_told=end.is_told) if end and gain in known else ""
        rows.append(
            f'<tr><td{NUMBER}>{place}</td><td class="text">{idea} <span class="quiet">by {by}</span></td>'
            f"<td{NUMBER}>{ratio}</td><td>{chart}</td><td>{verdict}</td><td{NUMBER}>{error}</td>"
            f"<td{NUMBER}>{minutes}</td></tr>"
        )
    sides = {"At the start": lab.opened.baseline, "Today": lab.baseline}
    facts = "".join(
        f'<tr><th>{name}</th><td><code>{escape(side.command)}</code></td><td class="text">in {escape(side.folder)}</td>'
        "</tr>"
        for name, side in sides.items()
    )
    body = (
        f"<p><strong>{escape(say_brought(lab))}</strong></p>"
        f'<h2>What was asked</h2><div class="wide"><table>{"".join(rows)}</table></div>'
        '<p class="quiet">The upright line is the baseline: right of it B is faster. In colour: told as a gain.'
        f" What lies beyond {spell_range(1.0, *_FARTHEST)} is drawn at the edge.</p>"
        f"{list_sentences('What else was seen', list_seen(lab))}"
        f'<h2>The baseline</h2><div class="wide"><table>{facts}</table></div>'
        f"<h2>What is promised</h2><p>{escape(state_promise(lab.opened.false_gains))}</p>"
    )
    title = f"Lab {lab.opened.lab}"
    return write_page(title, f"Fleet Advisor · {title.lower()}", say_counts(lab), body)


def _draw(gain: Gain, low: float, high: float, *, is_told: bool) -> str:
    """Return the interval on the scale of all, beside the line at no gain."""
    one, begin, likely, end = (
        5 + (min(max(ratio, low), high) - low) / (high - low) * (SCALE - 10)
        for ratio in (1.0, gain.low, gain.likely, gain.high)
    )
    return (
        f'<svg viewBox="0 0 {SCALE:.0f} 18" aria-hidden="true"><g class="{"now" if is_told else "was"}">'
        f'<line x1="{one:.1f}" x2="{one:.1f}" y1="0" y2="18" stroke="currentColor"/>'
        f'<line x1="{begin:.1f}" x2="{end:.1f}" y1="9" y2="9" stroke="var(--fill)" stroke-width="3"/>'
        f'<circle class="p" cx="{likely:.1f}" cy="9" r="4"/></g></svg>'
    )
