"""When a launch without a step is given up, and what is said of one that compiles or waits for a build."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.protocol.measured.messages import Assignment
from advisor.protocol.training.workload import Workload
from agent.guard.caches import Cache
from agent.guard.processes import list_descendants
from agent.guard.stacks import RankStack
from agent.sessions.starting import Start, Starts, explain_lock, find_compilers

BATON = (
    "Thread 0x1 (most recent call first):\n"
    '  File "/v/lib/python3.11/site-packages/torch/utils/file_baton.py", line 50 in wait\n'
    '  File "/home/me/train.py", line 11 in <module>\n'
)


def give_up_at(
    builds: dict[int, list[str]], patience_s: float = 40.0, limit_s: float = 100.0
) -> tuple[int, str]:
    """Return the second at which the launch is given up, and why; `builds`: what compiles at which."""
    ages: list[int] = []
    start = Start(patience_s, limit_s, lambda _: builds.get(ages[-1], []))
    for age_s in range(200):
        ages.append(age_s)
        if because := start.give_up_because(age_s, 1):
            return age_s, because
    raise AssertionError("It is never given up.")


@pytest.mark.parametrize(("patience_s", "given_up_s"), [(40.0, 41), (900.0, 76)])
def test_a_start_has_the_agents_patience_and_most_of_the_sessions_life(
    patience_s: float, given_up_s: int
) -> None:
    age_s, because = give_up_at({}, patience_s)
    assert age_s == given_up_s
    assert because.startswith(
        f"Not every rank of this node made a step within {given_up_s} s from the launch."
    )


def test_a_start_after_others_of_its_job_has_twice_the_longest_and_as_long_as_a_step_may_take() -> None:
    starts = Starts()

    def limit(job_id: str) -> int:
        assignment = Assignment(
            session_id="s", generation=1, job_id=job_id, node_rank=0, nnodes=1, hang_timeout_s=20.0,
            workload=Workload(command=("torchrun", "t.py")),
        )  # fmt: skip
        start = starts.make(assignment, 900.0)
        given_up = next(age for age in range(1000) if start.give_up_because(age, os.getpid()))
        if given_up < 900:
            assert "other launches of the job took 15 s" in start.give_up_because(given_up, os.getpid())
        start.begin(15.0)
        start.begin(500.0)
        return given_up

    assert [limit("one"), limit("one"), limit("two")] == [901, 51, 901], "15 s twice, and 20 s"


def test_time_spent_compiling_is_no_hang() -> None:
    age_s, because = give_up_at({age: ["cc1plus"] for age in range(50)})
    assert age_s == 48 + 41
    assert "within 41 s from compiling ended" in because


def test_compiling_lasts_no_longer_than_the_session() -> None:
    age_s, because = give_up_at({age: ["cc1plus", "ninja"] for age in range(200)})
    assert age_s == 101
    assert because.startswith(
        "The launch still compiled (cc1plus, ninja) after 101 s, all the time that it had."
    )


def test_compilers_are_found_among_descendants_only(tmp_path: Path) -> None:
    program = tmp_path / "cc1plus"
    program.symlink_to("/bin/sleep")
    outer = ["import subprocess, sys", f"subprocess.run([{str(program)!r}, '60'])"]
    with subprocess.Popen([sys.executable, "-c", "; ".join(outer)]) as process:
        while not find_compilers(process.pid):
            assert process.poll() is None
        assert find_compilers(process.pid) == ["cc1plus"]
        (inner,) = list_descendants(process.pid)
        assert find_compilers(inner) == []
        os.kill(inner, signal.SIGKILL)


def test_ranks_that_stand_before_a_lock_are_told_which_file_to_remove(tmp_path: Path) -> None:
    lock = tmp_path / "torch_extensions" / "py311_cpu" / "op" / "lock"
    lock.parent.mkdir(parents=True)
    caches = [Cache("XDG_CACHE_HOME", str(tmp_path), "")]
    waits, trains = RankStack(1, BATON), RankStack(0, BATON.replace("file_baton", "other"))

    assert explain_lock([trains, waits], caches, ["ninja"]) == ""
    assert explain_lock([trains], caches, []) == ""
    assert explain_lock([trains, waits], caches, []).endswith(
        "remove the file `lock` in the extension's build folder."
    )
    lock.touch()
    assert explain_lock([trains, waits], caches, []).endswith(
        f"a start that was ended left its lock. If none is, remove {lock}."
    )
