"""How a session's end is read from exit code and log."""

from dataclasses import replace

import pytest

from advisor.protocol.culprit import find_culprit
from advisor.protocol.measured.messages import Trouble
from advisor.protocol.measured.trials import Outcome
from agent.sessions.outcome import Cause, Ending, Evidence, Judgement, judge

TORCHRUN_REPORT = """
Traceback (most recent call last):
  File "run.py", line 1, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
Root Cause (first observed failure):
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 77)
"""


def _exit(log, code=1, **more):
    return judge(
        Ending(Cause.EXITED), Evidence(log_text=log + TORCHRUN_REPORT.format(code=code), exit_code=1, **more)
    )


@pytest.mark.parametrize(
    ("log", "facts", "outcome"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            {},
            Outcome.OUT_OF_MEMORY,
        ),
        ("[rank1]: torch.cuda.OutOfMemoryError: CUDA out of memory.", {"steps": 3}, Outcome.OUT_OF_MEMORY),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED", {}, Outcome.OUT_OF_MEMORY),
        ("ncclUnhandledCudaError: Cuda failure 2 'out of memory'", {"steps": 3}, Outcome.OUT_OF_MEMORY),
        ("Failed to CUDA calloc async 608 bytes", {"steps": 3}, Outcome.OUT_OF_MEMORY),
        ("OSError: [Errno 12] Cannot allocate memory", {}, Outcome.OUT_OF_MEMORY),
        ("[rank0]: MemoryError", {}, Outcome.OUT_OF_MEMORY),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8 GiB", {}, Outcome.OUT_OF_MEMORY),
        ("cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 2 bytes", {}, Outcome.OUT_OF_MEMORY),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", {}, Outcome.LOST),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", {"steps": 9}, Outcome.LOST),
        ("torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected", {}, Outcome.LOST),
        ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", {}, Outcome.LOST),
        ("torch.distributed.DistNetworkError: EADDRINUSE, port: 29500", {}, Outcome.LOST),
        ("[rank0]: Watchdog caught collective operation timeout: ALLREDUCE", {"steps": 9}, Outcome.HUNG),
        ("RuntimeError: Connection closed by peer [10.0.0.2]:4", {"nnodes": 2}, Outcome.CRASHED),
        ("RuntimeError: Connection closed by peer [10.0.0.2]:4", {"steps": 9}, Outcome.CRASHED),
        ("ZeroDivisionError: division by zero", {"steps": 9}, Outcome.CRASHED),
        ("ZeroDivisionError: division by zero", {"launched_as_is": False}, Outcome.CRASHED),
    ],
)
def test_failure_is_classified(log, facts, outcome):
    judgement = _exit(log, **facts)
    assert judgement.outcome is outcome
    assert judgement.trouble is None
    assert judgement.reason.endswith(".")


def test_kernels_kill_for_memory_is_told_from_another_kill():
    assert _exit("", code=-9, steps=5, kernel_oom_kills=1).outcome is Outcome.OUT_OF_MEMORY
    assert _exit("", code=-9, steps=5).outcome is Outcome.LOST


def test_what_telemetry_saw_of_a_device_explains_a_failure_better_than_its_log():
    broken = Evidence(
        log_text="RuntimeError: CUDA error: unspecified launch failure", device_failure="Xid 79."
    )
    for cause in (Cause.EXITED, Cause.HUNG):
        assert judge(Ending(cause, "It hangs."), broken) == Judgement(Outcome.LOST, "Xid 79.")
    assert judge(Ending(Cause.INSTRUCTED, "Done."), broken).outcome is Outcome.FINISHED


def test_disk_that_the_session_filled_ends_the_job_and_a_full_one_does_not():
    filled = judge(Ending(Cause.DISK_FILLED, "Full."), Evidence())
    assert filled.outcome is Outcome.CRASHED
    assert filled.trouble == Trouble(code="disk_filled", sentence="Full.")
    assert judge(Ending(Cause.DISK_FULL, "Full."), Evidence()) == Judgement(Outcome.LOST, "Full.")


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("PermissionError: [Errno 13] Permission denied: '/root/data'", "run_as"),
        ("ModuleNotFoundError: No module named 'timm'", "environment that trains"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data'", "exists on every node"),
        ("usage: train.py\ntrain.py: error: unrecognized arguments: --x", "arguments"),
        (
            "ValueError: Error initializing: environment variable RANK expected, but not set",
            "torchrun --nproc-per-node 1",
        ),
        ("  File 'train.py', line 3\nSyntaxError: invalid syntax", "by hand"),
    ],
)
def test_failed_launch_says_what_to_do(log, words):
    judgement = _exit(log)
    assert judgement.outcome is Outcome.CRASHED
    assert judgement.trouble.code == "launch_failed"
    assert words in judgement.reason
    assert log.splitlines()[-1] in judgement.trouble.sentence


def test_ranks_exception_is_told_from_torchruns_report():
    log = "[rank0]: Traceback\n[rank0]: ValueError: too few\n" + TORCHRUN_REPORT.format(code=1)
    assert find_culprit(log).what == "ValueError: too few"
    assert find_culprit("all is well") is None


def _on(rank, text):
    return "".join(f"[rank {rank}] [rank{rank}]: {line}\n" for line in text.strip().splitlines())


CULPRIT = """
Traceback (most recent call last):
  File "/home/me/train.py", line 40, in <module>
    main()
  File "/home/me/train.py", line 12, in load
    raise ValueError("broken sample")
  File "/opt/python/site-packages/torch/utils/data.py", line 7, in read
    read()
ValueError: broken sample
"""
VICTIM = """
Traceback (most recent call last):
  File "/home/me/train.py", line 20, in <module>
    loss.backward()
  File "/opt/python/site-packages/torch/autograd/graph.py", line 979, in _engine_run_backward
    return run_backward()
RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:26857. This is typical.
"""
WATCHDOG = (
    "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  Watchdog timeout"
)
TERMINATED = (
    "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: illegal access"
)


@pytest.mark.parametrize("victim", [VICTIM, WATCHDOG, "torch.distributed.DistNetworkError: Broken pipe"])
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("culprit", "told"),
    [
        (CULPRIT, "ValueError: broken sample (train.py:12 (load), rank 1)"),
        (TERMINATED, "c10::Error: CUDA error: illegal access (rank 1)"),
        (CULPRIT + "\nDuring handling:\n" + VICTIM, "ValueError: broken sample (train.py:12 (load), rank 1)"),
    ],
)
def test_the_culprit_is_named_and_not_its_victims(culprit, told, victim, order):
    handled = "Traceback (most recent call last):\n  File 'a.py', line 1\nKeyError: 'tried again'\n"
    log = "".join([_on(0, handled + victim), _on(1, culprit)][::order])

    judgement = _exit(log, steps=120)

    assert judgement.outcome is Outcome.CRASHED
    assert not judgement.is_consequence
    if "During" not in culprit:
        assert judgement.reason == f"The script crashed after 120 steps: {told}."


@pytest.mark.parametrize(
    "said",
    ["tensorboard: Address already in use", "caught CUDA out of memory: a smaller batch", "13 Xid rows read"],
)
@pytest.mark.parametrize(
    "exception",
    ["ValueError: bad row", "__main__.BrokenSample: row 7", "StopIteration", "requests.Timeout: Broken pipe"],
)
def test_what_a_script_logged_before_explains_no_exception_of_its_own(said, exception):
    log = _on(0, said + VICTIM) + _on(1, CULPRIT.replace("ValueError: broken sample", exception))

    assert _exit(log, steps=120).reason == (
        f"The script crashed after 120 steps: {exception} (train.py:12 (load), rank 1)."
    )


def test_an_exception_that_a_rank_survived_is_not_the_one_that_ended_another():
    survived = "Traceback (most recent call last):\n  File 'a.py', line 1\nKeyError: 'tried again'\n"
    assert "broken sample" in _exit(_on(0, survived) + _on(1, CULPRIT), steps=120).reason


@pytest.mark.parametrize(
    "launcher",
    [
        "fleet advisor: local rank 1 ended with exitcode : 3 (pid: 7); the node's other ranks are stopped.",
        "Failures:\n  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 9)\n"
        + TORCHRUN_REPORT.format(code=3),
    ],
)
def test_a_rank_that_left_without_an_exception_is_named_and_not_who_lost_it(launcher):
    left = judge(
        Ending(Cause.EXITED),
        Evidence(log_text=f"[rank 1] no label 17\n{_on(0, VICTIM)}{launcher}\n", exit_code=1, steps=9),
    )
    assert left.reason == (
        "The script crashed after 9 steps: rank 1 ended by itself with exit code 3; it last said: no label 17."
    )
    assert not left.is_consequence


def test_a_signal_is_told_before_the_lost_connections_of_those_it_did_not_reach():
    assert "SIGSEGV" in _exit(_on(0, VICTIM), code=-11, steps=120).reason
    killed = _exit(_on(0, VICTIM), code=-9, steps=120)
    assert killed.outcome is Outcome.LOST
    assert "after 120 steps" in killed.reason


def test_a_rank_that_left_the_others_is_named_with_what_to_do():
    said = "Rank 1 has ended, or gave up waiting, before the first look. See the log of rank 1."
    log = f"[rank 0] fleet advisor: rank 0: {said}\n"
    judgement = _exit(log, code=75, steps=40)

    assert judgement.outcome is Outcome.HUNG
    assert judgement.reason.startswith(f"{said} Ranks that make different numbers of steps")
    assert _exit(log, code=3, steps=40).reason == (
        "The script crashed after 40 steps: rank 1 ended by itself with exit code 3."
    )


def test_script_that_ended_by_itself_is_launched_again():
    judgement = judge(Ending(Cause.SCRIPT_ENDED, "It ended."), Evidence(steps=40, exit_code=0))
    assert judgement.outcome is Outcome.FINISHED
    assert judgement.trouble == Trouble(code="script_ended", sentence="It ended.", fatal=False)


def test_missing_exit_code_means_a_killed_guard():
    assert judge(Ending(Cause.EXITED), Evidence(exit_code=None)).outcome is Outcome.LOST


@pytest.mark.parametrize(
    ("cause", "outcome"),
    [
        (Cause.INSTRUCTED, Outcome.FINISHED), (Cause.SERVER_ENDED, Outcome.FINISHED), (Cause.EXPIRED, Outcome.FINISHED),
        (Cause.AGENT_STOPPED, Outcome.LOST), (Cause.FENCED, Outcome.LOST), (Cause.HUNG, Outcome.HUNG),
        (Cause.NEVER_BEGAN, Outcome.HUNG), (Cause.TROUBLE, Outcome.CRASHED), (Cause.NONSENSE, Outcome.CRASHED),
        (Cause.UNLAUNCHABLE, Outcome.CRASHED),
    ],
)  # fmt: skip
def test_every_cause_has_an_outcome(cause, outcome):
    assert judge(Ending(cause, "Because."), Evidence()).outcome is outcome


def test_slow_start_is_the_scripts_fault_only_when_nothing_else_can_be():
    ending = Ending(Cause.NEVER_BEGAN, "Too slow.")
    assert judge(ending, Evidence()).trouble.code == "launch_failed"
    assert judge(ending, Evidence(nnodes=2)).trouble is None
    assert judge(ending, Evidence(launched_as_is=False)).trouble is None


def test_node_whose_command_is_silent_does_not_say_how_far_it_was():
    judgement = judge(Ending(Cause.EXITED), Evidence(exit_code=1, nnodes=2, node_rank=1, is_command=True))
    assert judgement.outcome is Outcome.CRASHED
    assert judgement.reason.startswith("The script failed on node 1: exit code 1.")
    assert judgement.trouble.code == "launch_failed"


def test_command_that_ends_without_an_exception_is_told_by_what_it_said_last():
    log = "The role server 0 was killed by signal 9.\n\n"
    evidence = Evidence(log_text=log, exit_code=1, steps=8, is_command=True)
    told = "The script crashed after 8 steps: exit code 1; it last said: The role server 0 was killed by signal 9."
    assert judge(Ending(Cause.EXITED), evidence).reason == told
    results = replace(evidence, log_text='{"step_time_s": 0.1}\n')
    assert judge(Ending(Cause.EXITED), results).reason == "The script crashed after 8 steps: exit code 1."
