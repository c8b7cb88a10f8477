"""A failed script's log shows the culprit's own traceback, in the script's own files."""

from pathlib import Path

import pytest

from advisor.protocol.culprit import excerpt_failure, find_culprit, is_library
from agent.sessions.outcome import Cause, Ending, Evidence, judge

LAUNCHER = """\
Traceback (most recent call last):
  File "/opt/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/opt/env/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 291, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
fleet advisor: local rank 1 ended with exitcode : 1 (pid: 13756); the node's other ranks are stopped.
"""
VICTIM = """\
Traceback (most recent call last):
  File "/home/ada/train.py", line 20, in <module>
    loss.backward()
  File "/src/agent/runtime/inject/patches.py", line 156, in backward
    original(tensors, *args, **kwargs)
RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:26857.
"""
STARTED = """\
epoch 1
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/src/agent/runtime/__main__.py", line 41, in <module>
    main()
    ~~~~^^
"""
OWN = """\
  File "/home/ada/agent/runtime/train.py", line 7, in <module>
    loss = 1 / 0
           ~~^~~
ZeroDivisionError: division by zero
"""
CAUSE = """\
Traceback (most recent call last):
  File "/home/ada/data.py", line 3, in read
    return index[key]
KeyError: 7
"""
MESSAGE = """\
  File "/home/ada/train.py", line 9, in <module>
    model.load_state_dict(state)
RuntimeError: Error(s) in loading state_dict for Linear:
\tMissing key(s) in state_dict: "bias".
"""


def _mark(rank: int, text: str) -> str:
    return "".join(f"[rank {rank}] [rank{rank}]: {line}\n" for line in text.splitlines())


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (STARTED + OWN, "Traceback (most recent call last):\n" + OWN),
        (STARTED + MESSAGE, "Traceback (most recent call last):\n" + MESSAGE),
        (
            CAUSE
            + "\nThe above exception was the direct cause of the following exception:\n\n"
            + STARTED[8:]
            + OWN,
            CAUSE
            + "The above exception was the direct cause of the following exception:\n"
            + "Traceback (most recent call last):\n"
            + OWN,
        ),
        (CAUSE + "tried again\nstep 9\n" + STARTED + OWN, "Traceback (most recent call last):\n" + OWN),
        (
            STARTED
            + OWN
            + "\nDuring handling of the above exception, another exception occurred:\n\n"
            + VICTIM,
            None,
        ),
    ],
)
def test_only_the_culprits_traceback_is_shown_and_of_it_the_scripts_frames(
    written: str, shown: str | None, order: int
) -> None:
    log = "".join([_mark(0, VICTIM), _mark(1, written)][::order]) + LAUNCHER
    assert excerpt_failure(log) == (shown or "Traceback (most recent call last):\n" + OWN).rstrip("\n")


def test_script_that_says_in_its_own_words_why_it_ends_is_shown_with_them_once() -> None:
    usage = "usage: train.py [-h] --data DIR\ntrain.py: error: the following arguments are required: --data\n"
    log = "".join(f"[rank {rank}] {line}\n" for line in usage.splitlines() for rank in (0, 1))
    assert excerpt_failure(log + LAUNCHER) == usage.rstrip("\n")
    assert excerpt_failure(usage) == usage.rstrip("\n")


def test_where_nothing_explains_it_the_last_lines_are_shown() -> None:
    lines = [f"step {number}" for number in range(50)]
    assert excerpt_failure("\n".join(lines)).splitlines() == lines[-20:]
    assert excerpt_failure("") == ""


def test_every_file_of_the_runtime_is_known_as_the_advisors() -> None:
    runtime = Path(__file__).parents[3] / "agent" / "runtime"
    own = [path for path in runtime.rglob("*.py") if path.name != "__init__.py"]
    assert [path for path in own if not is_library(str(path))] == []
    assert not is_library("/home/ada/agent/runtime/train.py")


@pytest.mark.parametrize(
    ("innermost", "is_ours"),
    [
        ("runtime.py", True),
        ("races/parts.py", True),
        ("inject/patches.py", False),
        ("guard.py", False),
        ("loading/feed.py", False),
        ("../../train.py", False),
    ],
)
def test_what_is_raised_in_the_runtime_itself_is_no_failure_of_the_script(
    innermost: str, is_ours: bool
) -> None:
    log = STARTED + '  File "/home/ada/own_group.py", line 13, in <module>\n    model(x)\n'
    log += f'  File "/src/agent/runtime/{innermost}", line 323, in _steer\n    if size() < 2:\nValueError: no group\n'
    culprit = find_culprit(_mark(0, log))
    assert culprit is not None
    assert culprit.is_ours == is_ours
    judgement = judge(Ending(Cause.EXITED), Evidence(log_text=log, exit_code=1, steps=0))
    assert judgement.reason.startswith("In a rank the runtime failed, not the script") == is_ours
    assert (judgement.trouble is None) == is_ours
