"""Scripts that cannot be measured: the agent is told why, and the script is left to end by itself."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from advisor.protocol.measured.trials import Outcome
from agent.sessions.outcome import Cause, Ending, Evidence, judge

from .fake_agent import SCRIPTS, launch, measure

pytest.importorskip("torch")
pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(
    ("script", "code", "words", "ranks"),
    [
        (["no_ddp.py"], "too_short", "after 5 training steps", 0),
        (["no_ddp.py", "--bare"], "no_module", "ended (5 optimizer steps)", 0),
        (["no_ddp.py", "--in-a-group"], "alone", "no exchange between its ranks was seen", 2),
        (["no_ddp.py", "--in-a-group", "--by-hand"], "no_ddp", "(8 of rank 0", 2),
        (["-m", "this"], "no_torch", "without importing torch", 0),
        (["own_engine.py"], "own_engine", "DeepSpeed's engine", 0),
        (["joins_alone.py"], "joins_alone", "Each of the 2 ranks joins a process group of one rank", 2),
        (["spawning.py"], "spawns_own_ranks", "torchrun", 0),
        (["plain.py", "--steps", "12"], "too_short", "after 12 training steps", 2),
        (["plain.py", "--steps", "3"], "too_short", "after 3 training steps", 2),
        (["sharded.py", "--by-method"], "fsdp", "fully_shard", 2),
        (
            ["plain.py", "--steps", "20", "--forget", "_set_ddp_runtime_logging_sample_rate"],
            "private_torch",
            "has no DistributedDataParallel._set_ddp_runtime_logging_sample_rate",
            2,
        ),
        (["plain.py", "--steps", "60", "--capture-at", "2"], "cuda_graph", "CUDA graph", 2),
        (["plain.py", "--steps", "60", "--capture-at", "20"], "cuda_graph", "CUDA graph", 2),
        (["unusual.py", "all_anew", "100"], "made_anew", "closes a training step", 2),
        (["hand_made_steps.py"], "never_steps", "optimizer", 2),
        (["pipeline.py"], "pipeline", "a stage of a pipeline", 2),
    ],
)
def test_trouble_is_told(script: list[str], code: str, words: str, ranks: int, tmp_path: Path) -> None:
    session = launch(
        tmp_path, script, [measure("a", max_steps=50, min_steps=50)], ranks=ranks, torchrun=ranks > 0
    )
    assert session.code == 0, session.log
    trouble = session.find("trouble")
    assert trouble["code"] == code
    assert words in trouble["sentence"]
    assert sum(message["kind"] == "trouble" for message in session.messages) == 1


@pytest.mark.parametrize("how", [["as_module.py", "one", "--two"], ["-m", "as_module", "one", "--two"]])
def test_script_sees_itself_as_if_run_directly(how: list[str], tmp_path: Path) -> None:
    session = launch(tmp_path, how, torchrun=False)
    assert session.code == 0, session.log
    seen = ast.literal_eval((tmp_path / "seen").read_text())
    assert seen == {
        "agent": "the user's own agent",
        "argv": ["as_module.py", "one", "--two"],
        "path": str(SCRIPTS.resolve()),
        "indices": [float(index) for index in range(8)],
        "patched_in_worker": False,
        "in_child": True,
        "wandb": "disabled",
        "threads_variable_honoured": True,
    }


def test_agent_that_hangs_up_ends_the_session_with_a_message(tmp_path: Path) -> None:
    session = launch(tmp_path, ["plain.py", "--steps", "5000"], [{"kind": "hang_up"}])
    assert session.code != 0
    assert "The agent closed the control socket" in session.log


def test_a_lever_that_fails_is_the_runtimes_fault_and_not_the_scripts(tmp_path: Path) -> None:
    script = ["plain.py", "--steps", "5000", "--break-threads"]
    session = launch(tmp_path, script, [measure("a", {"num_threads": 2})])
    assert session.code != 0
    assert "the runtime failed, not the script: ZeroDivisionError" in session.log
    judgement = judge(Ending(Cause.EXITED), Evidence(log_text=session.log, exit_code=1, steps=9))
    assert judgement.outcome is Outcome.CRASHED
    assert "The script crashed" not in judgement.reason
    assert "The strategy is left out" in judgement.reason
