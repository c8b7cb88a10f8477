"""SUMMARY.txt: what was found, and what each file of a bundle does and cannot do, for people."""

from collections.abc import Iterable, Mapping

from advisor.exporters.comments import describe_gain, describe_value, one_line
from advisor.exporters.exported import Exported, FormatInfo
from advisor.exporters.own_words import OwnLine
from advisor.protocol.answers.advice import Advice, Provenance, Verdict
from advisor.protocol.answers.moods import say_moods
from advisor.protocol.asked.jobs import Job

KNOWN = {
    Provenance.MEASURED: "varied and timed as this very knob",
    Provenance.TRANSLATED: "timed through its PyTorch equivalent",
    Provenance.CARRIED: "a default or a rule of thumb, not timed",
}
"""What each provenance means."""


def write_summary(
    advice: Advice,
    job: Job,
    files: Iterable[Exported],
    formats: Mapping[str, FormatInfo],
    own_lines: Iterable[OwnLine],
) -> str:
    """Return the text, in plain ASCII."""
    when = job.finished_at or job.started_at or job.created_at
    lines = [
        one_line(f"Strategy of job {job.id} {job.spec.name}"),
        *([one_line(advice.first)] if advice.first else []),
        one_line(advice.headline),
        *([one_line(say_moods(advice.moods))] if advice.moods else []),
        "",
        one_line(f"Date:     {when:%Y-%m-%d %H:%M} UTC"),
        one_line(f"Cluster:  {advice.cluster or job.cluster.describe()}"),
        one_line(
            f"Software: {', '.join(f'{n} {v}' for n, v in sorted(advice.software.items())) or 'not recorded'}"
        ),
        one_line(f"Gain:     {describe_gain(advice)}"),
        one_line(f"To do:    {advice.what_to_do}"),
        "",
    ]
    if advice.verdict is Verdict.KEEP:
        lines.append("Nothing needs to change: these files are the baseline as it was measured.")
    elif advice.verdict is Verdict.UNDECIDED:
        lines.append("Undecided: these files are the baseline as it was measured.")
    for knob, value in advice.changes.items():
        known = advice.provenance.get(knob, Provenance.CARRIED)
        before = describe_value(advice.baseline[knob])
        title = advice.catalogue.spell_name(knob, advice.software)
        called = f"{title} ({knob})" if title != knob else knob
        lines.append(one_line(f"{called}: {before} -> {describe_value(value)} ({KNOWN[known]})"))
        lines += [f"    {one_line(reason.sentence)}" for reason in advice.reasons if reason.knob == knob]
    if own := [
        f"  {one_line(line.text)}{one_line(f' ({line.where})') if line.where else ''}" for line in own_lines
    ]:
        lines += ["", "In your own script, without a file", *own]
    lines += ["", "Files"]
    for file in files:
        target = f" (for {file.target})" if file.target else ""
        lines.append(f"  {file.filename}{target}: {one_line(formats[file.format].meaning)}")
        lines += [f"      not expressible: {knob}: {one_line(text)}" for knob, text in file.unmapped.items()]
        lines += [f"      note: {one_line(text)}" for text in file.warnings]
    return "\n".join(lines) + "\n"
