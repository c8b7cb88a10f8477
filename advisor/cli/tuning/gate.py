"""The gate of a CI: what was measured held against what was asked for, as exit code, JUnit XML and Markdown.

Three ends: passed, below, and no verdict, which is never a pass.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import typer

from advisor.cli.exits import CommandFailed, Exit
from advisor.protocol.gains import describe_ratio, judge_quality, spell_gain, spell_range

_COLUMNS = 61


@dataclass(frozen=True)
class Gate:
    """One measurement at the gate."""

    title: str
    """What was measured: `B against A`."""
    headline: str
    """What was found, in a sentence."""
    gain: tuple[float, float, float] | None
    """Lower end, likeliest value and upper end of the throughput ratio; None where nothing was measured."""
    fail_below: float | None
    """The ratio that was asked for; None where nothing was."""

    @property
    def passed(self) -> bool | None:
        """Whether the ratio that was asked for is reached: True where that is shown, False where the opposite is.

        That it is no less than a ratio of 1 or below is shown by an interval that lies above it. More than 1 is reached
        where a gain is shown and the likeliest value is as much.
        """
        if self.gain is None or self.fail_below is None:
            return None
        low, likely, high = self.gain
        if high < self.fail_below:
            return False
        reached = likely if judge_quality(low, high).value == "known" else low
        return True if low >= min(self.fail_below, 1.0) and reached >= self.fail_below else None

    @property
    def exit_code(self) -> Exit:
        """How the command ends; well where nothing was asked for."""
        if self.fail_below is None:
            return Exit.OK
        return {True: Exit.OK, False: Exit.BELOW, None: Exit.NOT_SHOWN}[self.passed]

    @property
    def word(self) -> str:
        """`passed`, `regression`, `below` (more than 1 was asked for), `no verdict`; `measured` without a question."""
        if self.fail_below is None:
            return "measured"
        below = "regression" if self.fail_below <= 1.0 else "below"
        return {True: "passed", False: below, None: "no verdict"}[self.passed]


def conclude_gate(gate: Gate, lines: Sequence[str], junit: Path | None, summary: Path | None) -> None:
    """Write what was asked for, and leave with the gate's exit code; `lines` are what people read of the result."""
    try:
        if junit is not None:
            junit.write_text(format_junit(gate))
        if summary is not None:
            with summary.open("a") as file:
                file.write(format_summary(gate, lines))
    except OSError as error:
        raise CommandFailed(
            Exit.USAGE,
            f"{error.filename} cannot be written: {error.strerror}. {gate.headline}",
            "Name a file in a folder that there is, in --junit and --summary.",
        ) from error
    if gate.exit_code is not Exit.OK:
        raise typer.Exit(gate.exit_code)


def format_junit(gate: Gate) -> str:
    """Return the result as JUnit XML: below what was asked for is a failure, no verdict is an error."""
    failures, errors = int(gate.exit_code is Exit.BELOW), int(gate.exit_code is Exit.NOT_SHOWN)
    suite = ElementTree.Element(
        "testsuite", name="advisor", tests="1", failures=str(failures), errors=str(errors)
    )
    case = ElementTree.SubElement(suite, "testcase", classname="advisor", name=gate.title)
    if failures or errors:
        told = "below" if failures else "the time did not tell whether it reaches"
        kind = "failure" if failures else "error"
        ElementTree.SubElement(case, kind, message=f"{told} {gate.fail_below:g}x").text = gate.headline
    ElementTree.SubElement(case, "system-out").text = gate.headline
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def format_summary(gate: Gate, lines: Sequence[str]) -> str:
    """Return the result as Markdown: what became of it, the interval as a picture of text, and the lines."""
    asked = f" (at least {gate.fail_below:g}x was asked for)" if gate.fail_below is not None else ""
    told = describe_ratio(gate.gain[1], gate.gain[0], gate.gain[2]) if gate.gain else gate.headline
    picture = draw_interval(gate)
    body = [f"### {gate.word}: {gate.title}{asked}", "", told, ""]
    if picture:
        body += ["```text", *picture, "```", ""]
    body += [
        "<details><summary>What was measured</summary>",
        "",
        "```text",
        *lines,
        "```",
        "",
        "</details>",
        "",
    ]
    return "\n".join(body) + "\n"


def draw_interval(gate: Gate) -> list[str]:
    """Return the interval on an axis of the throughput's ratio, with 1 and what was asked for; empty without one."""
    if gate.gain is None or judge_quality(gate.gain[0], gate.gain[2]).value != "known":
        return []
    low, likely, high = gate.gain
    marks = {1.0: "same speed"}
    if gate.fail_below is not None and gate.fail_below != 1.0:
        marks[gate.fail_below] = "asked for"
    ends = [low, high, *marks]
    first, last = math.log(min(ends)), math.log(max(ends))
    margin = max((last - first) * 0.05, 1e-3)

    def place(ratio: float) -> int:
        return round((math.log(ratio) - first + margin) / (last - first + 2 * margin) * (_COLUMNS - 1))

    bar = [" "] * _COLUMNS
    for column in range(place(low), place(high) + 1):
        bar[column] = "─"
    bar[place(low)], bar[place(high)] = "├", "┤"
    bar[place(likely)] = "●"
    rows = ["".join(bar).rstrip() + f"   {spell_range(likely, low, high)}"]
    axis = ["·"] * _COLUMNS
    for ratio in marks:
        axis[place(ratio)] = "│"
    rows.append("".join(axis))
    for ratio, word in sorted(marks.items()):
        label = word if ratio == 1.0 else f"{word}: {spell_gain(ratio)}"
        start = place(ratio)
        rows.append(" " * start + f"└ {label}" if start <= _COLUMNS // 2 else f"{label} ┘".rjust(start + 1))
    return rows
