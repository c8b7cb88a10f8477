"""A prototxt that PaddlePaddle's `DistributedStrategy.load_from_prototxt` reads; `paddle_fields` says what is in it."""

from advisor.exporters.comments import comment, head_lines, one_line
from advisor.exporters.exported import Exported
from advisor.exporters.paddle.fields import PaddleField
from advisor.exporters.paddle.servers import choose_for_job
from advisor.protocol.answers.advice import Advice, name_provenance
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value


def export_paddle(advice: Advice, job: Job, target: str | None = None) -> Exported:
    """Return the prototxt for Paddle `target` (3.3.1 unless given); raises ExportError for another version.

    Load it into a fresh `fleet.DistributedStrategy()`: Paddle merges, so loading twice doubles repeated fields.
    """
    chosen = choose_for_job(advice, job, target)
    title = f"DistributedStrategy for PaddlePaddle {chosen.target}: strategy.load_from_prototxt(this file)."
    head = head_lines(advice, job, title, chosen.provenance(), chosen.warnings, chosen.unmapped)
    text = comment([*head, "Every field that is not written here stays at Paddle's own default."]) + "\n"
    for block, entries in chosen.blocks().items():
        if block:
            text += f"{block} {{\n" + "".join(f"  {_line(entry)}" for entry in entries) + "}\n"
        else:
            text += "".join(_line(entry) for entry in entries)
    return Exported(
        format="paddle",
        target=chosen.target,
        filename="strategy.prototxt",
        media_type="text/plain; charset=utf-8",
        content=text,
        provenance=chosen.provenance(),
        left=chosen.left,
        unmapped=chosen.unmapped,
        warnings=tuple(chosen.warnings),
    )


def _line(entry: PaddleField) -> str:
    known = name_provenance(entry.provenance) + (f"; {entry.note}" if entry.note else "")
    return f"{entry.path[-1]}: {_literal(entry.value)}  # {one_line(known)}\n"


def _literal(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.encode("unicode_escape").decode("ascii").replace('"', '\\"')
        return f'"{escaped}"'
    return repr(value)
