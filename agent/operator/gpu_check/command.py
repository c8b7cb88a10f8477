"""`advisor-agent doctor --gpu`: runs the checks, tells each as it ends, and writes the page anew with each."""

import sys
from collections.abc import Mapping
from pathlib import Path

import structlog
import typer

from agent.devices.gpus import Gpus
from agent.operator.gpu_check.catalogue import CHECKS
from agent.operator.gpu_check.check import Outcome, Status, choose_checks
from agent.operator.gpu_check.report import describe_machine, describe_outcome, describe_outcomes
from agent.operator.gpu_check.run_checks import NoCard, find_machine, open_bench, run_checks

FAILED, USAGE, NO_CARD, INTERRUPTED = 1, 2, 3, 130


def check_gpus(
    names: str, device: str, output: Path | None, gpus: Gpus, environment: Mapping[str, str]
) -> int:
    """Run the checks of these names (all for ""), and return the command's exit code."""
    try:
        checks = choose_checks(CHECKS, names)
        if output is not None and not output.absolute().parent.is_dir():
            raise ValueError(f"--output {output}: there is no folder {output.absolute().parent}.")
        machine = find_machine(device, gpus, environment)
    except ValueError as error:
        typer.echo(str(error), err=True)
        return USAGE
    except NoCard as reason:
        typer.echo(str(reason), err=True)
        return NO_CARD
    _log_errors_to_stderr()
    _say(*describe_machine(machine))
    ended: list[Outcome] = []

    def tell(outcome: Outcome) -> None:
        ended.append(outcome)
        if output is not None:  # a machine that is lent may be taken away at any moment
            output.write_text(describe_outcomes(machine, ended, checks[len(ended) :]))
        _tell(outcome)

    with open_bench(machine, gpus, environment) as bench:
        outcomes = run_checks(checks, bench, tell)
    if output is not None:
        output.write_text(describe_outcomes(machine, outcomes, checks[len(outcomes) :]))
        _say(f"Written to {output}.")
    if len(outcomes) < len(checks):
        typer.echo("Stopped: what was found until then is kept.", err=True)
        return INTERRUPTED
    return FAILED if any(outcome.status is Status.FAILED for outcome in outcomes) else 0


def _tell(outcome: Outcome) -> None:
    _say(*describe_outcome(outcome))


def _say(*lines: str) -> None:
    for line in lines:
        typer.echo(line)
    sys.stdout.flush()


def _log_errors_to_stderr() -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("error"),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
