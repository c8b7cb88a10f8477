"""`make gpu-check`: runs the checks, tells each as it ends, and writes the page anew with each."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from agent.devices.gpus import Gpus, open_gpus
from tests.gpu.catalogue import CHECKS
from tests.gpu.check import Outcome, Status, choose_checks
from tests.gpu.report import describe_machine, describe_outcome, describe_outcomes
from tests.gpu.run_checks import NoCard, find_machine, open_bench, run_checks

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
        print(error, file=sys.stderr)
        return USAGE
    except NoCard as reason:
        print(reason, file=sys.stderr)
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
        print("Stopped: what was found until then is kept.", file=sys.stderr)
        return INTERRUPTED
    return FAILED if any(outcome.status is Status.FAILED for outcome in outcomes) else 0


def _tell(outcome: Outcome) -> None:
    _say(*describe_outcome(outcome))


def _say(*lines: str) -> None:
    for line in lines:
        print(line)
    sys.stdout.flush()


def _log_errors_to_stderr() -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("error"),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, and return the exit code."""
    parser = argparse.ArgumentParser(
        description="Check the runtime on this machine's GPUs.",
        epilog="Exit codes: 0 nothing failed · 1 something did · 2 usage · 3 there is no GPU · 130 stopped.",
    )
    parser.add_argument("--checks", default="", metavar="NAME,…", help="these only, e.g. timing,memory")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write what was found as Markdown")
    parser.add_argument("--device", default="cuda", help="cpu: to test the checks themselves")
    given = parser.parse_args(words)
    gpus = open_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ)
    try:
        return check_gpus(given.checks, given.device, given.output, gpus, dict(os.environ))
    finally:
        gpus.close()
