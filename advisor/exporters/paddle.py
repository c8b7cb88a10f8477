"""A strategy for Paddle's Fleet: the prototxt that its DistributedStrategy loads, and Python that builds the same."""

from advisor.exporters.format import IN_PADDLE, PYTHON, TEXT, Format, Written, comment, one_line
from advisor.exporters.paddle_fields import PaddleField
from advisor.exporters.paddle_servers import choose_for_job, may_suit
from advisor.protocol.answers.advice import Advice, name_provenance
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.paddle import VERSIONS, explain_not_written
from advisor.protocol.training.workload import WorkloadKind

_ATTRIBUTES = {"fuse_grad_size_in_TFLOPS": "_fuse_grad_size_in_TFLOPS"}
"""Fields whose attribute is spelled otherwise; Paddle 3.3.1 accepts the field's name and silently ignores it."""
_OBJECTS = ("build_strategy", "execution_strategy")
"""Blocks that are objects in Python; the other blocks are dictionaries."""
_KNOBS = tuple(
    name for name in CATALOGUE if not all(explain_not_written(name, version) for version in VERSIONS)
)


def _write_prototxt(advice: Advice, job: Job, target: str | None) -> Written:
    """The prototxt for Paddle `target` (3.3.1 unless given); raises ExportError for another version.

    Load it into a fresh `fleet.DistributedStrategy()`: Paddle merges, so loading twice doubles repeated fields.
    """
    made = choose_for_job(advice, job, target)
    title = f"DistributedStrategy for PaddlePaddle {made.target}: strategy.load_from_prototxt(this file)."
    head = [
        *made.head(advice, job, title),
        "Every field that is not written here stays at Paddle's own default.",
    ]
    made.content = comment(head) + "\n"
    for block, entries in made.blocks().items():
        if block:
            made.content += f"{block} {{\n" + "".join(f"  {_line(entry)}" for entry in entries) + "}\n"
        else:
            made.content += "".join(_line(entry) for entry in entries)
    return made


def _write_python(advice: Advice, job: Job, target: str | None) -> Written:
    """Python for Paddle `target` (3.3.1 unless given); raises ExportError for another version."""
    made = choose_for_job(advice, job, target)
    title = (
        f"DistributedStrategy for PaddlePaddle {made.target}: call init_fleet() before building the model."
    )
    head = [*made.head(advice, job, title), "Every field that is not set here stays at Paddle's own default."]
    body = [line for block, entries in made.blocks().items() for line in _assign(block, entries)]
    made.content = (
        comment(head)
        + "\nimport paddle.distributed.fleet as fleet\n\n\n"
        + "def make_strategy():\n"
        + "    strategy = fleet.DistributedStrategy()\n"
        + "".join(f"    {line}\n" for line in body)
        + "    return strategy\n\n\n"
        + "def init_fleet():\n"
        + f"    fleet.init(is_collective={made.is_collective}, strategy=make_strategy())\n"
    )
    return made


def _line(entry: PaddleField) -> str:
    return f"{entry.path[-1]}: {_literal(entry.value)}  # {_known(entry)}\n"


def _literal(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.encode("unicode_escape").decode("ascii").replace('"', '\\"')
        return f'"{escaped}"'
    return repr(value)


def _assign(block: str, entries: list[PaddleField]) -> list[str]:
    if not block:
        return [f"strategy.{_attribute(entry)} = {entry.value!r}  # {_known(entry)}" for entry in entries]
    if block in _OBJECTS:
        # Paddle's getter returns a copy made of the strategy's own values: a new object would overwrite all of them.
        lines = [f"{block}.{_attribute(entry)} = {entry.value!r}  # {_known(entry)}" for entry in entries]
        return [f"{block} = strategy.{block}", *lines, f"strategy.{block} = {block}"]
    pairs = ", ".join(f'"{_attribute(entry)}": {entry.value!r}' for entry in entries)
    return [f"strategy.{block} = {{{pairs}}}  # {', '.join(dict.fromkeys(map(_known, entries)))}"]


def _attribute(entry: PaddleField) -> str:
    return _ATTRIBUTES.get(entry.path[-1], entry.path[-1])


def _known(entry: PaddleField) -> str:
    return one_line(name_provenance(entry.provenance) + (f"; {entry.note}" if entry.note else ""))


_BUNDLED = (WorkloadKind.PADDLE, WorkloadKind.COMMAND)
PROTOTXT = Format(
    name="paddle", filename="strategy.prototxt", media_type=TEXT, targets=VERSIONS, knobs=_KNOBS, kinds=IN_PADDLE,
    bundled=_BUNDLED, suits=may_suit, write=_write_prototxt,
    meaning="A file for PaddlePaddle's DistributedStrategy.load_from_prototxt.",
)  # fmt: skip
SCRIPT = Format(
    name="paddle-python", filename="paddle_strategy.py", media_type=PYTHON, targets=VERSIONS, knobs=_KNOBS,
    kinds=IN_PADDLE, bundled=_BUNDLED, suits=may_suit, write=_write_python,
    meaning="A Python file for PaddlePaddle: builds the DistributedStrategy and initialises Fleet with it.",
)  # fmt: skip
