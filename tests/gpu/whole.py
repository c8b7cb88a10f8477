"""The whole on a card: an agent that is killed, the runtime's tests, a tuning from the launch command to the advice."""

import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.gpu.bench import Bench
from tests.gpu.check import Judgement
from tests.gpu.launches import LaunchFailed, count_options, need_card
from tests.gpu.real_bench import ROOT

GIVEN_BACK_BYTES = 100 * 2**20
SUITE = Path("tests") / "distributed" / "runtime"
SUITE_LIMIT_S = 1500.0
TUNE_MINUTES, DEMO_MINUTES = 3, 4
_BEYOND_BUDGET_S = 240.0
"""What a tuning takes besides what it measures."""
_LAST_LINES = 1500
_WORKLOADS = ROOT / "agent" / "workloads"
_DEMO = ("--width", "1024", "--layers", "12", "--heads", "16", "--length", "256", "--batch", "16")


def check_kill(bench: Bench) -> Judgement:
    """SIGKILL to the agent in mid-session."""
    struck = bench.strike_agent(count_options(bench.machine, {"width": 1024}, {"width": 64}))
    judgement = Judgement()
    judgement.expect(
        struck.processes >= 2, f"{struck.processes} processes struck", "There were no ranks to lose."
    )
    judgement.expect(not struck.left, f"{len(struck.left)} left", f"Processes {list(struck.left)} were left.")
    names = ", ".join(struck.shared_memory)
    judgement.expect(not names, "", f"Shared memory has new entries: {names}.")
    if bench.machine.has_card:
        text = f"{struck.on_cards} on the cards, {struck.memory_bytes / 2**20:+.0f} MiB in use"
        judgement.expect(struck.on_cards == 0, text, f"{text}: processes were left on the cards.")
        judgement.expect(struck.memory_bytes <= GIVEN_BACK_BYTES, "", f"{text}: memory was not given back.")
    return judgement


def check_suite(bench: Bench) -> Judgement:
    """The runtime's own tests with models, data and collectives on the cards."""
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(ROOT),
        str(ROOT / SUITE),
        f"--ignore={ROOT / SUITE / 'test_gpu_checks.py'}",
    ]
    code, output = bench.run(words, SUITE_LIMIT_S, {"FLEET_TEST_DEVICE": bench.machine.device})
    return judge_suite(code, output)


def judge_suite(code: int, output: str) -> Judgement:
    """Return pytest's counts, and every test that failed."""
    judgement = Judgement()
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)(?: - (.*))?$", output, re.MULTILINE)
    counts = re.findall(
        r"\d+ (?:passed|failed|skipped|errors?|rerun)", output.splitlines()[-1] if output else ""
    )
    judgement.note(", ".join(counts) or "no counts")
    judgement.faults += [f"{name}: {why or 'see its output'}" for name, why in failed]
    if code and not failed:
        judgement.faults.append(f"pytest ended with {code}: {output[-_LAST_LINES:].strip()}")
    return judgement


def check_tune(bench: Bench) -> Judgement:
    """`advisor tune` of the built-in decoder with small layers: an advice with a verdict."""
    return _tune(bench, "gpu-check", TUNE_MINUTES, ())


def check_demo(bench: Bench) -> Judgement:
    """The demo's training at the size that `make demo` gives it on cards."""
    need_card(bench)
    return _tune(bench, "gpu-demo", DEMO_MINUTES, _DEMO)


def _tune(bench: Bench, name: str, minutes: float, options: tuple[str, ...]) -> Judgement:
    folder, ranks = bench.make_folder(name), max(2, len(bench.machine.cards))
    words = [
        sys.executable, "-P", "-c", "from advisor.cli import main; main()",
        "tune", "--name", name, "--minutes", str(minutes), "--block-seconds", "1.2", "--nodes", "1",
        "--output", str(folder / "advice"), "--json", "--", "torchrun", "--nproc-per-node", str(ranks),
        str(_WORKLOADS / "decoder.py"), *options,
    ]  # fmt: skip
    variables = {"ADVISOR_DATA_DIR": str(folder / "data")}
    code, output = bench.run(words, 60 * minutes + _BEYOND_BUDGET_S, variables)
    return judge_advice(code, output)


def judge_advice(code: int, output: str) -> Judgement:
    """Return the advice's headline; a tuning that ends without one has failed."""
    judgement, found = Judgement(), _find_advice(output)
    if found is None:
        raise LaunchFailed(f"The tuning gave no advice (exit code {code}): {output[-_LAST_LINES:].strip()}")
    judgement.note(f"{found['verdict']}: {found['headline']}")
    judgement.note(f"bound by {(found.get('diagnosis') or {}).get('bound', 'nobody could tell')}")
    judgement.expect(code == 0, "", f"`advisor tune` ended with exit code {code}.")
    return judgement


def _find_advice(output: str) -> dict[str, Any] | None:
    """The advice among what the command wrote; None where there is none."""
    for begin in re.finditer(r"^\{", output, re.MULTILINE):
        try:
            found, _ = json.JSONDecoder().raw_decode(output, begin.start())
        except ValueError:
            continue
        if isinstance(found, dict) and {"verdict", "headline"} <= found.keys():
            return found
    return None
