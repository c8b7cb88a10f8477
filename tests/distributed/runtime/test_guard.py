"""What fails in ours, wherever the script's own calls lead into it: the script gets what it would get without us."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from advisor.protocol.measured.trials import Outcome
from agent.production.plan import make_plan
from agent.sessions.outcome import Cause, Ending, Evidence, judge

from .fake_agent import ABOUT_CPUS, launch, measure

pytest.importorskip("torch")
pytestmark = [pytest.mark.distributed, ABOUT_CPUS]
UNCALLED = ["patches.py:<lambda>", "patches.py:leave", "patches.py:measure_norm"]
"""What stands in for the script's clipping where a strategy holds it back, and for a name that old torch lacks."""
UNTOLD = ["finish_script", "go_on", "hang_up", "has_trained", "split_forward"]
"""Told where other signals answer otherwise, in forks, and by who ends the script."""


def test_script_gets_its_own_from_every_call_where_all_of_ours_fails(tmp_path: Path) -> None:
    """Fails for a patch or a signal that is new, until the script above drives it."""
    session = launch(tmp_path, ["guarded.py", "--all"], patched=False)
    assert session.code == 0, session.log
    for words, known in (("not called", UNCALLED), ("not told", UNTOLD)):
        found = [ast.literal_eval(line) for line in re.findall(rf"{words}: (.*)", session.log)]
        assert found == [known, known]


def test_script_trains_as_without_us_whichever_signal_fails(tmp_path: Path) -> None:
    session = launch(tmp_path, ["guarded.py", "--each"], patched=False, timeout_s=300.0)
    assert session.code == 0, session.log
    said = re.split(r"breaking: (\w+)\n", session.log)
    times: dict[str, int] = {}
    for name, text in zip(said[1::2], said[2::2], strict=True):
        times[name] = times.get(name, 0) + text.count(f"failed, not the script: Ours: {name}")
    # Once on each rank, and once more where it fails on one rank alone.
    alone = {"begin_forward", "end_forward", "begin_backward", "enter_join", "begin_collective"}
    assert all(count <= 2 + (name in alone) for name, count in times.items()), times
    assert times["end_forward"] == 3
    assert times["begin_optimizer_step"] == 2


def test_objects_of_the_script_are_asked_for_no_more_than_the_script_asks(tmp_path: Path) -> None:
    session = launch(tmp_path, ["odd_objects.py"], patched=False, timeout_s=200.0)
    assert session.code == 0, session.log
    assert "the runtime failed" not in session.log
    assert session.log.count("trained:") == 2 * 2 * 20


@pytest.mark.parametrize("where", ["full", "gone", "closed"])
def test_training_under_a_strategy_goes_on_wherever_its_standard_error_leads(
    where: str, tmp_path: Path
) -> None:
    plan = make_plan(None, ["num_threads=1"], ())
    words = ["plain.py", "--steps", "40"]
    variables = plan.build_environment({}, tmp_path / "report.json", None)
    session = launch(tmp_path, [*words, "--stderr", where, "--name", "ours"], variables=variables)
    assert session.code == 0, session.log
    assert "num_threads" in (tmp_path / "report.json").read_text()


def test_hook_that_fails_in_a_trial_is_the_runtimes_fault(tmp_path: Path) -> None:
    script = ["plain.py", "--steps", "5000", "--break-outputs"]
    session = launch(tmp_path, script, [measure("a")])
    assert session.code != 0
    assert "the runtime failed, not the script: ZeroDivisionError" in session.log
    judgement = judge(Ending(Cause.EXITED), Evidence(log_text=session.log, exit_code=1, steps=0))
    assert judgement.outcome is Outcome.CRASHED
    assert judgement.trouble is None
    assert "the runtime failed, not the script" in judgement.reason
