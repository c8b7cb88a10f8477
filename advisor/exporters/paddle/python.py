"""A Python snippet that builds the same DistributedStrategy and initialises Fleet with it."""

from advisor.exporters.comments import comment, head_lines, one_line
from advisor.exporters.exported import Exported
from advisor.exporters.paddle.fields import PaddleField
from advisor.exporters.paddle.servers import choose_for_job
from advisor.protocol.answers.advice import Advice, name_provenance
from advisor.protocol.asked.jobs import Job

_ATTRIBUTES = {"fuse_grad_size_in_TFLOPS": "_fuse_grad_size_in_TFLOPS"}
"""Fields whose attribute is spelled otherwise; Paddle 3.3.1 accepts the field's name and silently ignores it."""
_OBJECTS = ("build_strategy", "execution_strategy")
"""Blocks that are objects in Python; the other blocks are dictionaries."""


def export_paddle_python(advice: Advice, job: Job, target: str | None = None) -> Exported:
    """Return the snippet for Paddle `target` (3.3.1 unless given); raises ExportError for another version."""
    chosen = choose_for_job(advice, job, target)
    title = (
        f"DistributedStrategy for PaddlePaddle {chosen.target}: call init_fleet() before building the model."
    )
    head = head_lines(advice, job, title, chosen.provenance(), chosen.warnings, chosen.unmapped)
    body: list[str] = []
    for block, entries in chosen.blocks().items():
        body += _assign(block, entries)
    text = (
        comment([*head, "Every field that is not set here stays at Paddle's own default."])
        + "\nimport paddle.distributed.fleet as fleet\n\n\n"
        + "def make_strategy():\n"
        + "    strategy = fleet.DistributedStrategy()\n"
        + "".join(f"    {line}\n" for line in body)
        + "    return strategy\n\n\n"
        + "def init_fleet():\n"
        + f"    fleet.init(is_collective={chosen.is_collective}, strategy=make_strategy())\n"
    )
    return Exported(
        format="paddle-python",
        target=chosen.target,
        filename="paddle_strategy.py",
        media_type="text/x-python; charset=utf-8",
        content=text,
        provenance=chosen.provenance(),
        left=chosen.left,
        unmapped=chosen.unmapped,
        warnings=tuple(chosen.warnings),
    )


def _assign(block: str, entries: list[PaddleField]) -> list[str]:
    if not block:
        return [f"strategy.{_attribute(entry)} = {entry.value!r}{_remark(entry)}" for entry in entries]
    if block in _OBJECTS:
        # Paddle's getter returns a copy made of the strategy's own values: a new object would overwrite all of them.
        lines = [f"{block}.{_attribute(entry)} = {entry.value!r}{_remark(entry)}" for entry in entries]
        return [f"{block} = strategy.{block}", *lines, f"strategy.{block} = {block}"]
    pairs = ", ".join(f'"{_attribute(entry)}": {entry.value!r}' for entry in entries)
    return [f"strategy.{block} = {{{pairs}}}  # {', '.join(dict.fromkeys(map(_known, entries)))}"]


def _attribute(entry: PaddleField) -> str:
    return _ATTRIBUTES.get(entry.path[-1], entry.path[-1])


def _remark(entry: PaddleField) -> str:
    return f"  # {_known(entry)}"


def _known(entry: PaddleField) -> str:
    return one_line(name_provenance(entry.provenance) + (f"; {entry.note}" if entry.note else ""))
