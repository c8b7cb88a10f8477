"""What an exported file carries of a strategy, in one line of its own head, so that the file alone can be verified."""

import json

from pydantic import Field

from advisor.protocol.answers.advice import Interval
from advisor.protocol.answers.strategy_file import read_strategy_file
from advisor.protocol.base import Message, Value
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.training.own_knobs import OwnKnob
from advisor.protocol.training.workload import WorkloadKind

MARK = "Fleet Advisor carries: "
"""What the line begins with, after whatever the format makes a comment with."""
HEAD = "_fleet_advisor"
"""Key of the head's lines in a JSON file that others read."""


class Carried(Message):
    """The part of an advised strategy that one file puts in force."""

    job_id: str
    job_name: str = ""
    kind: WorkloadKind = WorkloadKind.PYTORCH
    """What was tuned."""
    changes: Changes
    """Knobs that the file sets."""
    baseline: dict[str, Value] = Field(default_factory=dict)
    """What the script as it stood had for them."""
    own: tuple[OwnKnob, ...] = ()
    """The job's own knobs."""
    gain: Interval | None = None
    """The confirmed throughput ratio; None where the file carries a part of what it was confirmed for."""


def write_line(carried: Carried) -> str:
    """Return the line for the head of the file."""
    return MARK + json.dumps(carried.model_dump(mode="json"), separators=(",", ":"))


def read_carried(text: str) -> Carried | None:
    """Return what an exported file carries, be it a `strategy.json` or any other format; None for other texts.

    Raises ValueError (pydantic's, or ours with a sentence) where a line or a strategy file is damaged.
    """
    lines = text.splitlines()
    if text.lstrip().startswith("{"):
        found = json.loads(text)
        if HEAD not in found:
            file = read_strategy_file(text)
            return Carried(
                job_id=file.job_id,
                job_name=file.job_name,
                kind=file.kind,
                changes=file.changes,
                baseline=file.baseline,
                own=file.own,
                gain=file.gain,
            )
        lines = found[HEAD]
    line = next((line for line in lines if MARK in line), None)
    return None if line is None else Carried.model_validate_json(line.partition(MARK)[2])
