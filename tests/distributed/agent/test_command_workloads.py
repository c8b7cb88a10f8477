"""Command workloads: any program is started with the strategy, measured by its lines, and guarded like every other."""

import json
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from advisor.protocol.base import Value
from advisor.protocol.measured.results import RaceRules
from advisor.protocol.measured.trials import BlockPlan
from advisor.protocol.training.workload import Workload, WorkloadKind

pytestmark = pytest.mark.distributed

TRAIN = """
import json, os, sys, time
for step in range(int(sys.argv[1])):
    time.sleep(0.01)
    print(json.dumps({"step_time_s": 0.01 + step / 1000, "samples": 8, "loss": 2.0 - step / 100}))
"""


def make_plan(number: int = 0, overrides: Mapping[str, Value] | None = None, **fields: Any) -> BlockPlan:
    rules = RaceRules(**{"warmup_steps": 2, "min_steps": 5, "max_steps": 5, "target_s": 0.01, **fields})
    return BlockPlan(block_id=f"b{number}", trial_number=number, overrides=dict(overrides or {}), rules=rules)


@pytest.fixture
def run_session(agents, server, session_id, tmp_path, wait_for):
    """Run one session of a command to its end: a script, words behind it, plans, fields of workload and assignment."""

    def run(
        script: str,
        *words: str,
        plans=(),
        nodes: int = 1,
        fields: Mapping[str, Any] | None = None,
        **settings,
    ):
        folder = tmp_path / "project"
        folder.mkdir()
        (folder / "train.py").write_text(script)
        given = {"knobs": {"num_threads": 2}, **(fields or {})}
        workload = Workload(
            kind=WorkloadKind.COMMAND,
            command=(sys.executable, "train.py", *words),
            working_dir=str(folder),
            **given,
        )
        names = tuple(f"a{rank}" for rank in range(nodes))
        for name in names:
            agents.start(name)
        session = server.assign(session_id, workload, names, **settings)
        session.plans += plans
        wait_for(lambda: len(session.ends) == nodes, timeout_s=60)
        return session

    return run


def test_a_block_is_measured_from_the_lines_of_the_output(run_session) -> None:
    session = run_session(TRAIN, "1000", plans=[make_plan(0), make_plan(1)])
    hello = session.hellos[0]
    assert hello["baseline"] == {"num_threads": 2}
    assert hello["facts"]["world_size"] == 1
    first, second = (session.blocks[name] for name in ("b0", "b1"))
    # Warm-up and timed steps are those of the launch, in order: none is counted twice.
    assert first["step_time_s"] == pytest.approx([0.012, 0.013, 0.014, 0.015, 0.016])
    assert second["step_time_s"] == pytest.approx([0.019, 0.020, 0.021, 0.022, 0.023])
    assert first["samples_per_step"] == 8
    assert first["losses"] == pytest.approx([1.98, 1.97, 1.96, 1.95, 1.94])
    assert session.ends[0]["outcome"] == "finished"


RATE = """
import time
while True:
    time.sleep(0.05)
    print("speed 6400.0 samples/s")
"""


def test_a_block_of_lines_that_tell_a_rate_alone_lasts_by_the_clock(run_session) -> None:
    plan = make_plan(0, max_steps=10000, target_s=0.5)
    session = run_session(RATE, plans=[plan], fields={"pattern": r"speed (?P<samples_per_s>[\d.]+)"})
    result = session.blocks["b0"]
    assert result["step_time_s"] == pytest.approx([1 / 6400] * result["steps"])
    # By what they tell, half a second would be 3200 lines.
    assert 5 <= result["steps"] <= 50


READ_EVERYTHING = """
import json, os, sys, time
words = sys.argv[1:]
given = json.loads(os.environ["ADVISOR_STRATEGY"])
assert given == json.load(open(os.environ["ADVISOR_STRATEGY_FILE"])) == json.load(open(words[2]))
assert words[:2] == ["--bucket=4MB", "--half=0"], words
assert (os.environ["ADVISOR_KNOB_num_threads"], os.environ["NCCL_SOCKET_NTHREADS"]) == ("4", "8")
assert given == {"fuse_grad_size_in_MB": 4.0, "fp16_allreduce": False, "num_threads": 4, "nccl_comm_num": 3,
                 "NCCL_SOCKET_NTHREADS": 8}, given
print(json.dumps({"consumed": ["num_threads"]}))
while True:
    time.sleep(0.01)
    print("step took 12.5 ms, 4 samples")
"""


def test_the_strategy_reaches_the_program_by_every_way_and_the_proof_says_which(run_session) -> None:
    cold = {"fuse_grad_size_in_MB": 4.0, "num_threads": 4, "nccl_comm_num": 3}
    session = run_session(
        READ_EVERYTHING, "--bucket=${fuse_grad_size_in_MB:-25}MB", "--half=${fp16_allreduce}", "${strategy_file}",
        plans=[make_plan(0, cold), make_plan(1, {"num_threads": 8})], cold=cold,
        fields={"knobs": {"num_threads": 2, "nccl_comm_num": 1, "NCCL_SOCKET_NTHREADS": 8},
                "pattern": r"took (?P<step_time_ms>[\d.]+) ms, (?P<samples>\d+) samples"},
    )  # fmt: skip
    result = session.blocks["b0"]
    assert result["step_time_s"] == pytest.approx([0.0125] * 5)
    assert result["samples_per_step"] == 4
    assert "4 stands in the command" in result["consumed"]["fuse_grad_size_in_MB"]
    assert result["consumed"]["num_threads"] == "The program says so."
    assert "does not say that it used it" in result["not_consumed"]["nccl_comm_num"]
    # Another strategy needs another launch.
    assert "takes its knobs when it starts" in session.blocks["b1"]["relaunch_needed"]


RANKS = """
import json, os, sys, time
ends = [os.pipe(), os.pipe()]  # what rank 0 and rank 1 read
rank = int(os.fork() == 0)
results = os.open(os.environ["ADVISOR_RESULTS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while True:
    time.sleep(0.01 + 0.02 * rank)
    line = {"rank": rank, "step_time_s": 0.01 + 0.02 * rank, "samples": 3, "facts": {"gradient_bytes": 77}}
    os.write(results, (json.dumps(line) + "\\n").encode())
    print('{"step_time_s": 99}')  # nobody reads it: the file was written before
    os.write(ends[1 - rank][1], b"!")
    os.read(ends[rank][0], 1)  # ranks of a training wait for each other in every step
"""


def test_ranks_report_into_the_results_file_and_the_slowest_makes_the_step(run_session) -> None:
    session = run_session(RANKS, plans=[make_plan()])
    result = session.blocks["b0"]
    assert result["step_time_s"] == pytest.approx([0.03] * 5)
    assert result["per_rank_step_time_s"] == pytest.approx([0.01, 0.03])
    assert result["samples_per_step"] == 6
    assert session.hellos[0]["facts"]["gradient_bytes"] == 77
    assert session.hellos[0]["facts"]["world_size"] == 2


SHOW_NODE = """
import os, time
print("node", os.environ["ADVISOR_NODE_RANK"], "of", os.environ["ADVISOR_NODES"], os.environ["MASTER_ADDR"], flush=True)
while True:
    time.sleep(0.02)
    if os.environ["ADVISOR_NODE_RANK"] == "0":
        print('{"step_time_s": 0.02}')
"""


def test_on_several_nodes_the_command_knows_its_place_and_only_node_0_has_to_report(run_session) -> None:
    # Long enough that node 1's silence would be called a hang.
    session = run_session(SHOW_NODE, plans=[make_plan(min_steps=90, max_steps=90)], nodes=2, hang_timeout_s=1)
    said = "\n".join([session.log, *(end["log_tail"] for end in session.ends)])
    assert {"node 0 of 2", "node 1 of 2"} <= {line[:11] for line in said.splitlines()}
    assert session.hellos[0]["facts"]["nodes"] == 2
    assert {end["outcome"] for end in session.ends} == {"finished"}


@pytest.mark.parametrize(
    ("script", "outcome", "reason", "is_fatal"),
    [
        ("print('nothing of use')", "crashed", "told no training step: it wrote no line such as", True),
        (TRAIN + "time.sleep(600)", "hung", "wrote no line for", False),
        (TRAIN + "raise ValueError('bad data')", "crashed", "ValueError: bad data", False),
        (TRAIN + "os.mkfifo(os.environ['ADVISOR_RESULTS']); time.sleep(600)", "hung", "wrote no line", False),
        ("print('{\"facts\": {\"world_size\": \"many\"}, \"step_time_s\": 1}\\n' * 2)", "crashed", "world_size", False),
    ],
    ids=["silent", "hung", "failed", "pipe", "nonsense"],
)  # fmt: skip
def test_what_goes_wrong_is_told_in_a_sentence(run_session, script, outcome, reason, is_fatal) -> None:
    session = run_session(script, "10", plans=[make_plan(min_steps=100, max_steps=100)], hang_timeout_s=2)
    end = session.ends[0]
    assert end["outcome"] == outcome
    assert reason in end["reason"]
    assert bool(end["trouble"] and end["trouble"]["fatal"]) is is_fatal


def test_a_program_that_ends_too_early_says_how_far_it_came(run_session) -> None:
    session = run_session(TRAIN, "30", plans=[make_plan(min_steps=100, max_steps=100)])
    result = session.blocks["b0"]
    assert result["script_ended"] is True
    assert result["steps"] == 28
    assert session.ends[0]["total_steps"] == 30


def test_a_number_that_is_no_loss_makes_the_block_diverge(run_session) -> None:
    script = TRAIN.replace("2.0 - step / 100", "float('nan') if step == 4 else 1.0")
    result = run_session(script, "1000", plans=[make_plan()]).blocks["b0"]
    assert result["diverged"] is True
    assert json.dumps(result["losses"]) == "[1.0, 1.0, 1.0, 1.0]"
