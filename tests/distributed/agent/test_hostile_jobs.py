"""An agent in narrow roots answers through 120 hostile jobs, and what belongs to others stays unread."""

import json
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from advisor.protocol.training.workload import Workload
from agent.trust.allowance import Allowance

from .hostile_jobs import MARKER, lay_traps, make_job
from .test_hostile_scripts import _REPOSITORY_RUNTIME, SYSTEM_PYTHON, _copy_runtime, _open_to_everybody

pytestmark = pytest.mark.distributed

JOBS = 120
BEATS_SEEN = 3


@pytest.fixture
def traps(tmp_path):
    _open_to_everybody(tmp_path)
    laid = lay_traps(tmp_path / "traps")
    (tmp_path / "traps").chmod(0o755)
    yield laid
    laid.secret.chmod(0o700)


@pytest.fixture
def start(agents, tmp_path):
    """Start an agent whose scripts run as nobody, where that is possible."""

    def begin(**allowed):
        runtime = agents.runtime
        runtime.write_text(
            runtime.read_text().replace(str(_REPOSITORY_RUNTIME), str(_copy_runtime(tmp_path)))
        )
        more = {"run_as": "nobody"} if os.geteuid() == 0 else {}
        return agents.start(allow=Allowance(**allowed), end_grace_s=0.0, **more)

    return begin


def _hold_through(server, session_id, workload, wait_for):
    """Let the agent have a job, and end it where it runs: each end and each beat is an answer of the agent's."""
    session = server.assign(session_id, workload, ("a0",))
    wait_for(lambda: session.ends or len(session.beats) >= BEATS_SEEN)
    session.state = "ending"
    return wait_for(lambda: session.ends)[0]["reason"]


def _list_traces(server, agents):
    """Everything that the agent said or wrote, the scratch of its overlays included."""
    said = [json.dumps([session.beats, session.ends]) for session in server.sessions.values()]
    # What goes with its session while it is listed, os.walk leaves out.
    listed = [Path(folder, name) for folder, _, names in os.walk(agents.folder) for name in names]
    written = [path for path in listed if path.is_file()]
    return [*said, *map(_read, written)]


def _read(path):
    """What a file holds; nothing where it went with its session since it was listed."""
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""


@pytest.mark.skipif(not Path(SYSTEM_PYTHON).exists(), reason="no python that every user may run")
@pytest.mark.parametrize("part", range(2))
def test_agent_answers_through_hostile_jobs(agents, server, session_id, traps, start, wait_for, part):
    start(roots=(traps.root,))
    wait_for(lambda: server.agents)
    reasons = []
    for seed in range(part * JOBS // 2, (part + 1) * JOBS // 2):
        try:
            workload = make_job(seed, traps, SYSTEM_PYTHON)
        except ValidationError:
            continue  # the server takes none of these
        reasons.append(_hold_through(server, f"{session_id}-{seed}", workload, wait_for))
    assert len(reasons) > 35
    assert not [reason for reason in reasons if "took longer" in reason or "could not attend" in reason]
    assert any("allow." in reason for reason in reasons)
    assert not [trace for trace in _list_traces(server, agents) if MARKER in trace]
    assert (traps.root / "train.py").read_text().startswith("\nimport os, stat"), "what is in the roots stays"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.skipif(not Path(SYSTEM_PYTHON).exists(), reason="no python that every user may run")
@pytest.mark.parametrize("where", ["argument", "protect", "working_dir", "below", "link"])
def test_closed_directory_stays_closed_to_the_scripts_user(
    agents, server, session_id, traps, start, wait_for, where
):
    """Also where every root is allowed: only the account's own rights count."""
    start(roots=("/",))
    named = {
        "argument": str(traps.secret),
        "below": f"{traps.secret}/secret",
        "link": f"{traps.root}/way_out",
    }
    arguments = (named.get(where, "."), str(traps.secret), f"{traps.secret}/secret")
    workload = Workload(
        kind="command",
        command=(SYSTEM_PYTHON, f"{traps.root}/train.py", *arguments),
        working_dir=str(traps.secret if where == "working_dir" else traps.root),
        protect=(str(traps.secret),) if where == "protect" else (),
        knobs={"num_threads": 1},
    )
    session = server.assign(session_id, workload, ("a0",))
    reason = wait_for(lambda: session.ends, timeout_s=60)[0]["reason"]
    traces = _list_traces(server, agents)
    assert not [trace for trace in traces if MARKER in trace]
    assert (traps.secret / "secret").read_text() == MARKER
    if where == "working_dir":
        assert "may not enter it" in reason
    else:
        assert [trace for trace in traces if "Permission denied" in trace], "the script looked"
