"""What a format changes of what the script does today, and nothing else: `advisor export --diff`."""

from advisor.exporters.comments import describe_value
from advisor.exporters.exported import Exported
from advisor.protocol.answers.advice import Advice, Verdict


def describe_difference(advice: Advice, file: Exported) -> str:
    """Return the lines of a diff by knob: `-` as the script has it, `+` as the file has it, `!` what it cannot say."""
    lines = ["--- your script as it was measured", f"+++ {file.filename}"]
    for knob, value in advice.changes.items():
        if knob in file.provenance:
            lines += [
                f"-{knob} = {describe_value(advice.baseline[knob])}",
                f"+{knob} = {describe_value(value)}",
            ]
        else:
            lines.append(f"!{knob} = {describe_value(value)}: {file.unmapped.get(knob, 'not in this file.')}")
    if not advice.changes:
        lines.append(
            f" nothing: nothing is advised yet. {advice.what_to_do}".rstrip()
            if advice.verdict is Verdict.UNDECIDED
            else " nothing: the advice is to keep what your script does."
        )
    return "\n".join(lines)
