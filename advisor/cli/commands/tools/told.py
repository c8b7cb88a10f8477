"""What a tool answers: at most sixty lines for a reader, and the JSON beside them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from advisor.cli.commands.measuring import race, verify
from advisor.cli.commands.tools.verb import Ended
from advisor.cli.views.advice_view import format_advice
from advisor.lab.ledger import Ledger
from advisor.lab.report import render_status
from advisor.protocol.answers.advice import Advice
from advisor.protocol.answers.diagnosed import Diagnosed, describe_diagnosed
from advisor.protocol.answers.raced import RaceAnswer

MOST_LINES = 60
_COLUMNS = 110
_OF_ADVICE = (
    "job_id",
    "verdict",
    "action",
    "headline",
    "gain",
    "baseline_samples_per_s",
    "rate_unit",
    "changes",
    "diagnosis",
    "next_steps",
    "cost",
)
"""Fields of an advice that a program needs to go on; `advisor advice JOB --json` has all."""


@dataclass(frozen=True)
class Told:
    """An answer, or why there is none."""

    lines: tuple[str, ...]
    json: dict[str, Any]
    is_error: bool = False

    @property
    def text(self) -> str:
        """The lines; of more than sixty it says how many are left out."""
        kept = list(self.lines)
        if len(kept) > MOST_LINES:
            left_out = len(kept) - MOST_LINES + 1
            kept[MOST_LINES - 1 :] = [f"… {left_out} more lines: they are in the JSON beside this text."]
        return "\n".join(kept)


Describe = Callable[[dict[str, Any]], Told]


def read_ended(ended: Ended, describe: Describe) -> Told:
    """Return what a verb that was run with --json came to: its result, whatever its exit code, or its error."""
    try:
        result = json.loads(ended.out)
    except ValueError:
        return _read_error(ended)
    if result.get("measured") is False:
        lines = [f"Nothing was measured: {result['reason']}", *ended.told]
        return Told(tuple(lines), {"exit_code": ended.exit_code, **result}, is_error=True)
    told = describe(result)
    return replace(told, json={"exit_code": ended.exit_code, **told.json})


def _read_error(ended: Ended) -> Told:
    last = ended.told[-1] if ended.told else ""
    try:
        error = json.loads(last)
    except ValueError:
        error = {
            "detail": "\n".join(ended.told[-MOST_LINES // 2 :]) or "It ended without a word.",
            "hint": "",
        }
    lines = [error["detail"], *str(error.get("details", "")).splitlines()]
    hint = [f"What to do: {error['hint']}"] if error["hint"] else []
    return Told(
        (*"\n".join(lines).splitlines(), *hint), {"exit_code": ended.exit_code, **error}, is_error=True
    )


def describe_race(result: dict[str, Any]) -> Told:
    """Return how a race is told."""
    return Told(tuple(race.describe(RaceAnswer.model_validate(result))), result)


def describe_verification(result: dict[str, Any]) -> Told:
    """Return how a verification is told."""
    return Told(tuple(verify.describe(verify.Verification.model_validate(result))), result)


def describe_diagnosis(command: Sequence[str]) -> Describe:
    """Return how a diagnosis of this command is told."""

    def describe(result: dict[str, Any]) -> Told:
        return Told(tuple(describe_diagnosed(Diagnosed.model_validate(result), command)), result)

    return describe


def describe_lab(folder: Path) -> Describe:
    """Return how the lab of this folder is told."""

    def describe(result: dict[str, Any]) -> Told:
        return Told(tuple(render_status(Ledger(folder).read()).splitlines()), result)

    return describe


def describe_tuning(result: dict[str, Any]) -> Told:
    """Return how a tuning's advice is told."""
    advice = Advice.model_validate(result)
    more = f"MORE  advisor advice {advice.job_id} -v   advisor export {advice.job_id}"
    lines = [*format_advice(advice, _COLUMNS).strip("\n").splitlines(), more]
    return Told(tuple(lines), {field: result[field] for field in _OF_ADVICE})


def describe_files(folder: Path) -> Describe:
    """Return how files are told that were written into this folder: by their paths."""

    def describe(result: dict[str, Any]) -> Told:
        files = [str(folder / name) for name in result["files"]]
        return Told(tuple(files), {"files": files})

    return describe


def describe_content(result: dict[str, Any]) -> Told:
    """Return how one file is told that nobody keeps: by what stands in it."""
    file = Path(result["files"][0])
    try:
        content = file.read_text()
    except UnicodeDecodeError:
        lines = (f"{file.name} is no text.", "What to do: the format `bundle` writes it to a folder.")
        return Told(lines, {"name": file.name}, is_error=True)
    return Told(tuple(content.splitlines()), {"name": file.name, "content": content})
