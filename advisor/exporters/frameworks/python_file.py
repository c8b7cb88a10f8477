"""The one shape of the frameworks' Python files: `strategy_arguments()`, a dictionary to pass on with `**`."""

from collections.abc import Mapping

from advisor.exporters.comments import comment, head_lines
from advisor.exporters.exported import Exported
from advisor.exporters.frameworks.settings import Settings
from advisor.exporters.selection import idle_because, typed_values
from advisor.exporters.torch.ddp_code import write_body, write_imports, write_process_code
from advisor.exporters.torch.ddp_plan import PROCESS
from advisor.protocol.answers.advice import Advice, Provenance
from advisor.protocol.asked.jobs import Job


def write_python_file(
    advice: Advice,
    job: Job,
    chosen: Settings,
    *,
    format: str,
    filename: str,
    title: str,
    extra: str = "",
    imports: set[str] | None = None,
    arguments: Mapping[str, str] | None = None,
) -> Exported:
    """Return the file for the chosen settings; `arguments` are Python expressions by argument, else their values.

    What concerns the whole process (threads) and has no setting is done by the call itself.
    """
    values = typed_values(advice)
    ours = {
        knob: values[knob]
        for knob in advice.changes
        if knob in PROCESS and knob not in chosen.provenance and idle_because(knob, values) is None
    }
    for knob in ours:
        chosen.unmapped.pop(knob, None)
        chosen.provenance[knob] = advice.provenance.get(knob, Provenance.CARRIED)
    needed, lines = write_process_code(ours)
    if arguments is None:
        arguments = {name: repr(value) for name, value in chosen.entries.items()}
    head = head_lines(advice, job, title, chosen.provenance, chosen.warnings, chosen.unmapped)
    if extra:
        head.append(extra)
    words = write_imports(frozenset((imports or set()) | needed)) if imports or needed else ""
    body = "".join(f'        "{name}": {text},\n' for name, text in arguments.items())
    entries = f"{{\n{body}    }}" if body else "{}"
    return Exported(
        format=format,
        filename=filename,
        media_type="text/x-python; charset=utf-8",
        content=comment(head)
        + (f"\n{words}" if words else "")
        + "\n\ndef strategy_arguments():\n"
        + '    """Call it in every rank, before the model is built."""\n'
        + write_body(lines)
        + f"    return {entries}\n",
        provenance=chosen.provenance,
        unmapped=chosen.unmapped,
        warnings=tuple(chosen.warnings),
    )
