"""A training script that means harm: it finds no token, forges nothing absurd, and fills neither log nor disk."""

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from agent.guard.session_log import HEAD_BYTES, TAIL_BYTES

from .fake_server import OWN_TOKEN, TOKEN

pytestmark = pytest.mark.distributed

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
SYSTEM_PYTHON = "/usr/bin/python3"

TOKEN_SEARCH = """
import json, os, sys
from fake_advisor import Advisor

canary = b"adv_agent_" + b"canary"
found, looked = [], 0

def look(path):
    global looked
    try:
        with open(path, "rb") as file:
            looked += 1
            if canary in file.read(10**7):
                found.append(path)
    except OSError:
        pass

for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline"):
        look(f"/proc/{pid}/{name}")
    try:
        open(f"/proc/{pid}/mem", "rb").close()
        reached = b"--work-dir" in open(f"/proc/{pid}/cmdline", "rb").read()
        if reached:
            found.append(f"the memory of the agent {pid}")
    except OSError:
        pass
for top in sys.argv[1:]:
    for folder, _, names in os.walk(top):
        for name in names:
            look(os.path.join(folder, name))
    look(top)
print("FOUND", json.dumps(found), "LOOKED", looked, "AS", os.getuid(), flush=True)
"""


def _await_end(session, wait_for):
    end = wait_for(lambda: session.ends, timeout_s=60)[0]
    if "Trials can change real files" in session.log:
        pytest.skip("no private mounts on this machine")
    return end


@pytest.mark.parametrize("given", ["variable", "file"])
def test_token_is_found_nowhere(
    agents, server, session_id, make_workload, wait_for, tmp_path, request, given
):
    options = []
    if given == "file":
        secrets = tmp_path / "secrets"
        secrets.mkdir(mode=0o700)
        (secrets / "agent-token").write_text(TOKEN)
        options = ["--token-file", str(secrets / "agent-token")]
    # As local mode has it: everything in one directory right below /tmp, and the script's own argument names it.
    data_dir = Path(tempfile.mkdtemp(prefix="data-"))
    request.addfinalizer(lambda: shutil.rmtree(data_dir))
    (data_dir / "admin-token").write_text(OWN_TOKEN)
    command = agents.start_command("a0", *options, "--hide", str(data_dir))
    wait_for(lambda: server.agents)
    with suppress(PermissionError):  # root may look, and finds it erased
        assert TOKEN.encode() not in Path(f"/proc/{command.pid}/environ").read_bytes()
    work_dir = agents.folder / "a0"
    (work_dir / "left").write_text(OWN_TOKEN)  # whatever the agent may write there one day
    workload = make_workload(TOKEN_SEARCH, str(work_dir), str(tmp_path / "secrets"), str(data_dir))
    session = server.assign(session_id, workload, ("a0",))
    end = _await_end(session, wait_for)
    assert "FOUND [] LOOKED " in end["log_tail"], end["log_tail"]
    assert int(end["log_tail"].split("LOOKED ")[1].split()[0]) > 10
    assert (work_dir / "left").read_text() == OWN_TOKEN


def test_job_inside_of_the_agents_own_files_is_refused(agents, server, session_id, make_workload, wait_for):
    """It would have to see them."""
    agents.start()
    workload = make_workload("").model_copy(update={"working_dir": str(agents.folder / "a0" / "spool")})
    workload = workload.model_copy(update={"command": (sys.executable, str(agents.runtime))})
    session = server.assign(session_id, workload, ("a0",))
    assert "holds the agent's own files" in wait_for(lambda: session.ends)[0]["reason"]


@needs_root
@pytest.mark.skipif(not Path(SYSTEM_PYTHON).exists(), reason="no python that every user may run")
@pytest.mark.parametrize("isolate", [False, True])
def test_script_runs_as_the_configured_user(
    agents, server, session_id, make_workload, wait_for, tmp_path, facts, isolate
):
    """Not even the folder that holds the token can be entered, and a rank measures as before."""
    script = (
        TOKEN_SEARCH
        + f"""
import subprocess
parent = os.getppid()
try:
    os.kill(parent, 9)
    print("KILLED the shim")
except PermissionError:
    print("could not kill", parent)
for line in open("/proc/self/status"):
    if line.startswith("NoNewPrivs"):
        print(line.replace("\\t", " "), flush=True)
Advisor.stacks.arm(Advisor.directory, 0)
writer = Advisor.beat.BeatWriter(Advisor.directory, 0)
writer.write(3, Advisor.beat.WAITING)
open("out.txt", "w").write("x")
reply = Advisor.tell({{"kind": "hello", "protocol": 2, "facts": {facts!r}, "baseline": {{}}}})
result = {{"steps": 1, "step_time_s": [0.1], "samples_per_step": 8, "wall_s": 0.1}}
print(Advisor.tell({{"kind": "race", "race_id": reply["race_id"], "results": {{reply["race_id"]: result}}}}))
"""
    )
    _open_to_everybody(tmp_path)
    secret = tmp_path / "agent-token"
    secret.write_text(TOKEN)
    secret.chmod(0o600)
    workload = make_workload(script, "/proc/1", str(agents.folder), str(secret), launcher=(SYSTEM_PYTHON,))
    runtime = agents.runtime
    runtime.write_text(runtime.read_text().replace(str(_REPOSITORY_RUNTIME), str(_copy_runtime(tmp_path))))
    agents.start(run_as="nobody", isolate=isolate)
    session = server.assign(session_id, workload, ("a0",), plans=1)
    end = wait_for(lambda: session.ends, timeout_s=60)[0]
    assert end["outcome"] == "finished", end
    assert "FOUND [] " in session.log, session.log
    assert f"AS {pwd.getpwnam('nobody').pw_uid}" in session.log
    assert "could not kill" in session.log
    assert "NoNewPrivs: 1" in session.log
    assert session.blocks["b0"]["step_time_s"] == [0.1]
    if "Trials can change real files" not in session.log:
        assert (tmp_path / "project" / "out.txt").exists() is not isolate


_REPOSITORY_RUNTIME = Path(__file__).parents[3] / "agent" / "runtime"


def _copy_runtime(tmp_path):
    """The checkout may lie where another user cannot go."""
    return Path(shutil.copytree(_REPOSITORY_RUNTIME, tmp_path / "runtime"))


def _open_to_everybody(folder):
    for each in (folder, *folder.parents):
        if each.is_relative_to(tempfile.gettempdir()) and each != Path(tempfile.gettempdir()):
            each.chmod(0o755)
    project = folder / "project"
    project.mkdir(exist_ok=True)
    project.chmod(0o777)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (
            {"steps": 3, "step_time_s": [1e-9] * 3, "samples_per_step": 8, "wall_s": 1e-8},
            "a step took 1e-09 s",
        ),
        ({"steps": 1, "step_time_s": [3600.0], "samples_per_step": 8, "wall_s": 3600.0}, "passed since"),
        ({"steps": 1, "step_time_s": [0.1], "samples_per_step": "<b>", "wall_s": 0.1}, "samples_per_step"),
    ],
)
def test_absurd_result_is_not_taken(
    agents, server, session_id, make_workload, wait_for, facts, result, words
):
    script = f"""
from fake_advisor import Advisor
reply = Advisor.tell({{"kind": "hello", "protocol": 2, "facts": {facts!r}, "baseline": {{}}}})
Advisor.tell({{"kind": "race", "race_id": reply["race_id"], "results": {{reply["race_id"]: {result!r}}}}})
"""
    agents.start()
    session = server.assign(session_id, make_workload(script), ("a0",), plans=1)
    end = wait_for(lambda: session.ends)[0]
    assert end["outcome"] == "crashed"
    assert words in end["reason"]
    assert not session.blocks
    assert not list((agents.folder / "a0" / "spool").iterdir())


def test_process_outside_of_the_session_is_not_listened_to(
    agents, server, session_id, make_workload, wait_for, tmp_path
):
    """Another program of the same user finds the socket, and is turned away; the session goes on."""
    script = """
import os, pathlib, sys, time
from fake_advisor import Advisor
writer = Advisor.beat.BeatWriter(Advisor.directory, 0)
writer.write(1, Advisor.beat.TIMING)
pathlib.Path(sys.argv[1]).write_text(os.environ["ADVISOR_CONTROL"])
time.sleep(600)
"""
    note = tmp_path / "where"
    note.mkdir()
    agents.start(isolate=False)
    session = server.assign(session_id, make_workload(script, str(note / "socket")), ("a0",))
    path = wait_for(lambda: (note / "socket").exists() and (note / "socket").read_text())
    forge = f"""
import json, os, socket
line = socket.socket(socket.AF_UNIX)
line.connect({path!r})
try:
    line.sendall(json.dumps({{"kind": "trouble", "code": "no_ddp", "sentence": "forged"}}).encode() + b"\\n")
except OSError:
    pass
"""
    # An orphan of its own: a child of this process would be no descendant of the shim either.
    subprocess.run([sys.executable, "-c", forge], check=True, env={"ADVISOR_SESSION": f"{session_id}-1"})
    seen = len(session.beats)
    wait_for(lambda: len(session.beats) > seen + 2)
    assert not session.ends
    session.state = "ending"
    assert wait_for(lambda: session.ends)[0]["trouble"] is None


def test_flood_of_output_costs_little_disk_and_keeps_both_ends(
    agents, server, session_id, make_workload, wait_for
):
    script = """
import sys
print("the first line")
for _ in range(600):
    sys.stdout.write("x" * 127 + "\\n" * 1 + "y" * 10**5)
sys.stdout.write("\\nthe last line\\n")
raise SystemExit(3)
"""
    agents.start()
    session = server.assign(session_id, make_workload(script), ("a0",))
    end = wait_for(lambda: session.ends, timeout_s=60)[0]
    assert end["log_tail"].rstrip().endswith("the last line")
    folder = next((agents.folder / "a0" / "sessions").iterdir())
    assert sum(file.stat().st_size for file in folder.iterdir()) <= HEAD_BYTES + 2 * TAIL_BYTES + 4096
    assert (folder / "log").read_text().startswith("the first line")
    assert sum(len(json.dumps(beat)) for beat in session.beats) < 4 * TAIL_BYTES


@needs_root
def test_script_that_fills_the_disk_is_ended_before_it_is_full(
    agents, server, session_id, make_workload, wait_for
):
    script = """
import os, time
from fake_advisor import Advisor
with open("checkpoint.bin", "wb") as file:
    while True:
        file.write(b"x" * 2**20)
        file.flush()
        time.sleep(0.04)  # 25 MB/s: the share that an agent leaves to its node lasts longer than a look takes
"""
    disk = agents.folder / "a0"
    disk.mkdir(parents=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400m,mode=755", "tmpfs", disk], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no file system can be mounted: {made.stderr.decode()}")
    try:
        agents.start()
        session = server.assign(session_id, make_workload(script), ("a0",))
        end = _await_end(session, wait_for)
        agents.stop()
        agents.running.clear()
        left = shutil.disk_usage(disk).free
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
    assert end["outcome"] == "crashed"
    assert end["trouble"]["code"] == "disk_filled"
    assert "write less while it is tuned" in end["reason"]
    assert left > 390 * 2**20


@needs_root
def test_kernels_kill_for_memory_is_recognised(agents, server, session_id, make_workload, wait_for):
    """A real one: the script joins a memory cgroup of 64 MiB and wants more."""
    group = _make_memory_group(f"advisor-test-{session_id}")
    script = f"""
import os
open({str(group / "cgroup.procs")!r}, "w").write(str(os.getpid()))
hoard = [bytearray(os.urandom(2**20)) for _ in range(512)]
"""
    try:
        agents.start()
        session = server.assign(session_id, make_workload(script), ("a0",))
        end = wait_for(lambda: session.ends, timeout_s=60)[0]
    finally:
        agents.stop()
        agents.running.clear()
        wait_for(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()
    assert end["outcome"] == "out_of_memory"
    assert "memory was full" in end["reason"]


def _make_memory_group(name):
    for top, limit in (
        (Path("/sys/fs/cgroup"), "memory.max"),
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    ):
        group = top / name
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / limit).exists():
            (group / limit).write_text(str(64 * 2**20))
            return group
        group.rmdir()
    pytest.skip("no memory cgroup can be made")


def test_what_the_operator_does_not_allow_is_not_started(
    agents, server, session_id, make_workload, wait_for, tmp_path
):
    """The agent's file decides, and the command line wins over it."""
    root = tmp_path / "root"
    root.mkdir()
    config = tmp_path / "agent.toml"
    config.write_text(
        f'name = "unused"\n[allow]\nlaunchers = ["torchrun"]\nroots = ["{root}"]\nenvironment = ["NCCL_*"]\n'
    )
    command = agents.start_command("a0", "--config", str(config))
    plain, elsewhere, variable = (
        make_workload("print('ran')"),
        make_workload("", launcher=("torchrun",)),
        make_workload("", launcher=("torchrun",), environment={"LD_PRELOAD": "x.so"}).model_copy(
            update={"working_dir": str(root)}
        ),
    )
    (root / "train.py").write_text("print('ran')")
    for number, (workload, words) in enumerate(
        [(plain, "allow.launchers"), (elsewhere, "allow.roots"), (variable, "LD_PRELOAD")]
    ):
        session = server.assign(f"{session_id}-{number}", workload, ("a0",))
        end = wait_for(lambda session=session: session.ends)[0]
        assert end["trouble"]["code"] == "launch_failed"
        assert words in end["reason"]
        assert not end["log_tail"]
    assert command.poll() is None
