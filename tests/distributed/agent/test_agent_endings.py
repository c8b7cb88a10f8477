"""However a session ends, its ranks are gone, the server hears why, and nothing else was touched."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from agent.guard.processes import AGENT_MARKER, list_descendants, list_marked

pytestmark = pytest.mark.distributed

RANKS = """
import os, sys, time
from fake_advisor import Advisor

def work(rank):
    os.setsid()
    Advisor.stacks.arm(Advisor.directory, rank)
    writer = Advisor.beat.BeatWriter(Advisor.directory, rank)
    step = 0
    while True:
        step += 1
        writer.write(step, Advisor.beat.TIMING)
        time.sleep(0.05)

children = []
for rank in range(2):
    pid = os.fork()
    if pid == 0:
        work(rank)
    children.append(pid)
print("\\x1b[31mtraining\\x1b[0m", *children, flush=True)
for pid in children:
    os.waitpid(pid, 0)
"""
"""Two "ranks" in OS sessions of their own, as torchrun makes them, without torch's start-up."""


def _wait_until_training(session, session_id, wait_for, list_session_processes):
    wait_for(lambda: any((beat["steps"] or 0) > 2 for beat in session.beats))
    processes = list_session_processes(session_id)
    assert len(processes) >= 3
    return processes


def test_ranks_die_when_the_agent_is_killed(
    agents, server, session_id, make_workload, wait_for, list_session_processes
):
    command = agents.start_command()
    session = server.assign(session_id, make_workload(RANKS), ("a0",))
    _wait_until_training(session, session_id, wait_for, list_session_processes)
    command.kill()
    wait_for(lambda: not list_session_processes(session_id), timeout_s=5)


def test_leftovers_are_swept_when_agent_and_shim_were_killed(
    agents, server, session_id, make_workload, wait_for, list_session_processes
):
    command = agents.start_command()
    session = server.assign(session_id, make_workload(RANKS), ("a0",))
    ranks = _wait_until_training(session, session_id, wait_for, list_session_processes)
    shim = next(pid for pid in list_descendants(command.pid) if pid not in ranks)
    command.kill()
    os.kill(shim, signal.SIGKILL)
    command.wait()
    agents.start_command()
    wait_for(lambda: not list_session_processes(session_id), timeout_s=10)
    end = wait_for(lambda: session.ends)[0]
    assert end["outcome"] == "lost"
    assert "restarted" in end["reason"]


def test_ranks_die_when_the_shim_is_killed(
    agents, server, session_id, make_workload, wait_for, list_session_processes
):
    agents.start()
    session = server.assign(session_id, make_workload(RANKS), ("a0",))
    ranks = _wait_until_training(session, session_id, wait_for, list_session_processes)
    mine = [pid for pid in list_descendants(os.getpid()) if pid not in ranks and _has_marker(pid)]
    shim = next(pid for pid in mine if b"agent.guard.shim" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(shim, signal.SIGKILL)
    assert wait_for(lambda: session.ends, timeout_s=10)[0]["outcome"] == "lost"
    assert not list_session_processes(session_id)


def _has_marker(pid):
    return AGENT_MARKER.encode() in Path(f"/proc/{pid}/environ").read_bytes()


def test_session_ends_as_hung_when_one_rank_is_stopped(
    agents, server, session_id, make_workload, wait_for, list_session_processes
):
    agents.start()
    session = server.assign(session_id, make_workload(RANKS), ("a0",), hang_timeout_s=1.0)
    _wait_until_training(session, session_id, wait_for, list_session_processes)
    stopped = int(wait_for(lambda: session.log).split()[2])
    os.kill(stopped, signal.SIGSTOP)
    end = wait_for(lambda: session.ends, timeout_s=15)[0]
    assert end["outcome"] == "hung"
    assert "Rank 1 made no step" in end["reason"]
    assert f"process {stopped} is stopped" in end["reason"]
    assert "Rank 1 is in train.py" in end["reason"]
    assert "training" in session.log
    assert "\x1b" not in session.log


def test_waiting_for_an_instruction_is_no_hang(agents, server, session_id, make_workload, wait_for, facts):
    script = f"""
from fake_advisor import Advisor
writer = Advisor.beat.BeatWriter(Advisor.directory, 0)
writer.write(3, Advisor.beat.WAITING)
print(Advisor.tell({{"kind": "hello", "protocol": 2, "facts": {facts!r}, "baseline": {{}}}}))
"""
    held = time.monotonic() + 3
    server.refuse = lambda path: 503 if path.endswith("/hello") and time.monotonic() < held else None
    agents.start()
    session = server.assign(session_id, make_workload(script), ("a0",), hang_timeout_s=0.5)
    end = wait_for(lambda: session.ends)[0]
    assert end["outcome"] == "finished"
    # The ranks are told with the reason, or the next beat says that it is over, whichever comes first.
    assert end["reason"] in {"Everything is measured.", "The server ended the session."}


def test_ranks_die_when_the_server_cancels(
    agents, server, session_id, make_workload, wait_for, list_session_processes
):
    agents.start()
    session = server.assign(session_id, make_workload(RANKS), ("a0",))
    _wait_until_training(session, session_id, wait_for, list_session_processes)
    session.state = "ending"
    wait_for(lambda: not list_session_processes(session_id), timeout_s=5)
    assert wait_for(lambda: session.ends)[0]["reason"] == "The server ended the session."


def test_ranks_die_when_the_agent_is_stopped(
    agents, server, session_id, make_workload, wait_for, list_session_processes
):
    command = agents.start_command()
    session = server.assign(session_id, make_workload(RANKS), ("a0",))
    _wait_until_training(session, session_id, wait_for, list_session_processes)
    command.send_signal(signal.SIGTERM)
    assert command.wait(timeout=10) == 0
    assert not list_session_processes(session_id)
    assert session.ends[0]["outcome"] == "lost"


def test_agent_fences_itself_when_the_server_is_silent(
    agents, server, session_id, make_workload, wait_for, list_session_processes
):
    server.registered = server.registered.model_copy(update={"fence_s": 1.0})
    agents.start()
    session = server.assign(session_id, make_workload(RANKS), ("a0",))
    _wait_until_training(session, session_id, wait_for, list_session_processes)
    server.refuse = lambda path: 503
    wait_for(lambda: not list_session_processes(session_id), timeout_s=6)
    server.refuse = lambda path: None
    end = wait_for(lambda: session.ends)[0]
    assert end["outcome"] == "lost"
    assert "acknowledged nothing" in end["reason"]


def test_session_ends_when_its_time_is_over(agents, server, session_id, make_workload, wait_for):
    agents.start()
    session = server.assign(session_id, make_workload(RANKS), ("a0",), session_timeout_s=8.0)
    end = wait_for(lambda: session.ends)[0]
    assert "longest life" in end["reason"]


def test_session_ends_when_it_never_begins(agents, server, session_id, make_workload, wait_for):
    agents.start(startup_timeout_s=1.0)
    session = server.assign(session_id, make_workload("import time; time.sleep(600)"), ("a0",))
    end = wait_for(lambda: session.ends)[0]
    assert end["outcome"] == "hung"
    assert end["trouble"]["code"] == "launch_failed"


def test_escaping_process_is_killed(
    agents, server, session_id, make_workload, wait_for, list_session_processes
):
    """A double fork with an OS session and an environment of its own is still a descendant of the shim."""
    script = """
import os, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], {"ESCAPED": sys.argv[1]})
    os._exit(0)
time.sleep(1)
"""
    agents.start()
    session = server.assign(session_id, make_workload(script, session_id), ("a0",))
    wait_for(lambda: list_marked(ESCAPED=session_id))
    wait_for(lambda: session.ends)
    assert not list_marked(ESCAPED=session_id)


@pytest.mark.parametrize(
    ("script", "outcome", "code", "words"),
    [
        ("import no_such_module", "crashed", "launch_failed", "No module named 'no_such_module'"),
        ("raise SystemExit(3)", "crashed", "launch_failed", "exit code 3"),
        ("pass", "crashed", "launch_failed", "no process made enough training steps"),
        ("raise RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')", "out_of_memory", None, "2 GiB"),
        ("x = 1\nraise MemoryError", "out_of_memory", None, "smaller batch"),
    ],
)
def test_exit_is_explained(agents, server, session_id, make_workload, wait_for, script, outcome, code, words):
    agents.start()
    session = server.assign(session_id, make_workload(script), ("a0",))
    end = wait_for(lambda: session.ends)[0]
    assert end["outcome"] == outcome
    assert words in end["reason"]
    assert (end["trouble"] or {}).get("code") == code


def test_missing_script_is_said_before_anything_starts(agents, server, session_id, make_workload, wait_for):
    agents.start()
    workload = make_workload("").model_copy(update={"command": ("torchrun", "missing.py")})
    session = server.assign(session_id, workload, ("a0",))
    end = wait_for(lambda: session.ends)[0]
    assert end["trouble"]["code"] == "launch_failed"
    assert "missing.py does not exist" in end["trouble"]["sentence"]
    assert not session.beats


def test_real_files_stay_and_the_token_is_not_inherited(
    agents, server, session_id, make_workload, wait_for, tmp_path, facts
):
    outside = tmp_path / "outside" / "runs"
    outside.mkdir(parents=True)
    (outside / "model.pt").write_text("precious")
    script = f"""
import os, shutil, sys
from pathlib import Path
from fake_advisor import Advisor
Path("notes.txt").write_text("overwritten")
Path("keep.txt").unlink()
Path("train.py").write_text("broken")
out = Path(sys.argv[1].partition("=")[2])
assert (out / "model.pt").read_text() == "precious"
shutil.rmtree(out)
out.mkdir()
(out / "new.pt").write_text("trial")
seen = {{"secret": any({"canary"!r} in value for value in os.environ.values()), "files": sorted(os.listdir(out))}}
Advisor.beat.BeatWriter(Advisor.directory, 0).write(1, Advisor.beat.TIMING)
facts = dict({facts!r}, device_name=repr(seen))
Advisor.tell({{"kind": "hello", "protocol": 2, "facts": facts, "baseline": {{}}}})
"""
    workload = make_workload(script, f"--out={outside}")
    project = Path(workload.working_dir)
    (project / "notes.txt").write_text("mine")
    (project / "keep.txt").write_text("mine")
    agents.start()
    session = server.assign(session_id, workload, ("a0",))
    end = wait_for(lambda: session.ends)[0]
    if "Trials can change real files" in session.log:
        pytest.skip("no private overlay can be mounted on this machine")
    assert end["outcome"] == "finished", end
    assert session.hellos[0]["facts"]["device_name"] == repr({"secret": False, "files": ["new.pt"]})
    assert (project / "notes.txt").read_text() == "mine"
    assert (project / "keep.txt").read_text() == "mine"
    assert (project / "train.py").read_text() == script
    assert [file.name for file in outside.iterdir()] == ["model.pt"]
    # What is written to caches stays with the job; the agent takes it along at its end.
    agents.stop()
    assert not list((agents.folder / "a0" / "scratch").iterdir())


def test_block_is_handed_in_later_when_the_server_is_away(
    agents, server, session_id, make_workload, wait_for, facts
):
    script = f"""
from fake_advisor import Advisor
writer = Advisor.beat.BeatWriter(Advisor.directory, 0)
writer.write(3, Advisor.beat.WAITING)
reply = Advisor.tell({{"kind": "hello", "protocol": 2, "facts": {facts!r}, "baseline": {{}}}})
result = {{"steps": 1, "step_time_s": [0.5], "samples_per_step": 8, "wall_s": 0.5}}
print(Advisor.tell({{"kind": "race", "race_id": reply["race_id"], "results": {{reply["race_id"]: result}}}}))
"""
    server.registered = server.registered.model_copy(update={"fence_s": 1.0})
    away = set()
    server.refuse = lambda path: (
        503 if "/races/" in path or away or (path.endswith("/beat") and away) else None
    )
    agents.start()
    session = server.assign(session_id, make_workload(script), ("a0",), plans=1)
    spool = agents.folder / "a0" / "spool"
    wait_for(lambda: list(spool.glob("*.report")))
    away.add("everything")
    wait_for(lambda: not _is_alive(session_id))
    assert not session.blocks
    server.refuse = lambda path: None
    wait_for(lambda: session.blocks)
    wait_for(lambda: not list(spool.iterdir()))
    assert session.blocks["b0"]["step_time_s"] == [0.5]


def _is_alive(session_id):
    return bool(list_marked(ADVISOR_SESSION=f"{session_id}-1"))


def test_runtime_that_talks_nonsense_ends_the_session(agents, server, session_id, make_workload, wait_for):
    script = """
from fake_advisor import Advisor
print(Advisor.tell({"kind": "hello", "facts": {"backend": 7}}))
"""
    agents.start()
    session = server.assign(session_id, make_workload(script), ("a0",))
    end = wait_for(lambda: session.ends)[0]
    assert end["outcome"] == "crashed"
    assert "cannot understand" in end["reason"]


def test_trouble_of_the_runtime_reaches_the_server(agents, server, session_id, make_workload, wait_for):
    message = {"kind": "trouble", "code": "no_ddp", "sentence": "Wrap the model."}
    script = f"from fake_advisor import Advisor\nAdvisor.tell({json.dumps(message)}, answered=False)"
    agents.start()
    session = server.assign(session_id, make_workload(script), ("a0",))
    end = wait_for(lambda: session.ends)[0]
    assert end["trouble"] == {"code": "no_ddp", "sentence": "Wrap the model.", "fatal": True}


def test_agent_survives_a_restart_of_the_server(agents, server, session_id, make_workload, wait_for):
    agents.start()
    wait_for(lambda: server.agents)
    server.refuse = lambda path: 503
    server.agents.clear()
    server.refuse = lambda path: 404 if path.endswith("/poll") and not server.agents else None
    session = server.assign(session_id, make_workload("pass", launcher=(sys.executable, "-u")), ("a0",))
    wait_for(lambda: session.ends)
    assert server.agents == {"a0"}


def test_agent_stops_at_once_when_it_waits_for_work(agents, server, wait_for):
    polled = threading.Event()

    def hold(path):
        if path.endswith("/poll"):
            polled.set()
            time.sleep(30)

    server.refuse = hold
    command = agents.start_command()
    assert polled.wait(30)
    command.send_signal(signal.SIGTERM)
    assert command.wait(timeout=10) == 0


def test_second_agent_in_a_work_dir_is_refused(agents, server, wait_for):
    agents.start_command()
    wait_for(lambda: server.agents)
    assert agents.start_command().wait(timeout=30) == 1


def test_wrong_token_is_not_tried_again(agents, server, monkeypatch):
    server.refuse = lambda path: 401
    assert agents.start_command().wait(timeout=30) == 3


def test_other_agents_ranks_are_not_touched(
    agents, server, session_id, make_workload, wait_for, list_session_processes
):
    """Two agents on one machine may hold two places in one session."""
    bystander = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], env={"ADVISOR_SESSION": f"{session_id}-1"}
    )
    try:
        agents.start()
        session = server.assign(session_id, make_workload("pass"), ("a0",))
        wait_for(lambda: session.ends)
        assert bystander.poll() is None
        assert list_session_processes(session_id) == [bystander.pid]
    finally:
        bystander.kill()
        bystander.wait()


def test_job_that_the_system_cannot_take_ends_its_session_and_not_the_agent(
    agents, server, session_id, make_workload, wait_for
):
    command = agents.start_command()
    workload = make_workload("", protect=("a" * 300, "loop"))
    (Path(workload.working_dir) / "loop").symlink_to("loop")
    session = server.assign(session_id, workload, ("a0",))
    wait_for(lambda: session.ends)
    assert session.ends[0]["outcome"] in {"crashed", "finished"}
    session = server.assign(f"{session_id}-2", make_workload("print('hello')"), ("a0",))
    wait_for(lambda: session.ends)
    assert command.poll() is None
