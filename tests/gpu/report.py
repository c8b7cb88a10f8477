"""What the checks found, as Markdown: the machine, a row for every check, and what failed. Pure functions."""

from collections.abc import Sequence

from tests.gpu.bench import Machine
from tests.gpu.check import Check, Outcome, Status


def describe_outcomes(machine: Machine, outcomes: Sequence[Outcome], not_run: Sequence[Check]) -> str:
    """Return the page; `not_run` are checks that were asked for and not come to."""
    counts = {status: sum(outcome.status is status for outcome in outcomes) for status in Status}
    total = (
        ", ".join(f"{count} {status.value}" for status, count in counts.items() if count) or "none was run"
    )
    lines = [
        "# The runtime on a GPU"
        if machine.has_card
        else "# The GPU checks on a CPU, which proves their scripts only",
        "",
        "Made by `make gpu-check`.",
        "",
        *describe_machine(machine),
        "",
        f"{len(outcomes)} checks in {sum(outcome.seconds for outcome in outcomes) / 60:.0f} minutes: {total}.",
    ]
    if not_run:
        lines += ["", f"Stopped before: {', '.join(check.name for check in not_run)}."]
    failed = [outcome for outcome in outcomes if outcome.status is Status.FAILED]
    if failed:
        lines += ["", "## What failed", ""]
        lines += [
            f"* **{outcome.check.name}**: {_flatten(' '.join(outcome.judgement.faults))}"
            for outcome in failed
        ]
    lines += ["", "## All checks", "", "| check | | expected | measured | s |", "|---|---|---|---|---:|"]
    lines += [_describe_row(outcome) for outcome in outcomes]
    return "\n".join(lines) + "\n"


def describe_machine(machine: Machine) -> list[str]:
    """Return the lines that say what was checked on what."""
    cards = [f"{machine.cards.count(name)} × {name}" for name in dict.fromkeys(machine.cards)]
    versions = {
        "driver": machine.driver, "torch": machine.torch, "CUDA": machine.cuda, "NCCL": machine.nccl,
        "cuDNN": machine.cudnn,
    }  # fmt: skip
    told = [f"{name} {version}" for name, version in versions.items() if version]
    return [f"{', '.join(cards) or 'no card'}; {', '.join(told)}."]


def describe_outcome(outcome: Outcome) -> list[str]:
    """Return one check's lines for a terminal."""
    lines = [f"{outcome.status.value:18} {outcome.check.name} ({outcome.seconds:.0f} s)"]
    lines += [
        f"    {text}"
        for text in (*outcome.judgement.measured, *outcome.judgement.left_out, outcome.because)
        if text
    ]
    if outcome.judgement.faults:
        lines.append(f"    expected: {outcome.check.expects}")
    return [*lines, *(f"    WRONG: {fault}" for fault in outcome.judgement.faults)]


def _describe_row(outcome: Outcome) -> str:
    measured = "; ".join((*outcome.judgement.measured, *outcome.judgement.left_out)) or outcome.because
    cells = (outcome.check.name, outcome.status.value, outcome.check.expects, measured)
    return f"| {' | '.join(_flatten(cell) for cell in cells)} | {outcome.seconds:.0f} |"


def _flatten(text: str) -> str:
    """On one line, and no end of a table's cell."""
    return " ".join(text.split()).replace("|", "\\|")
