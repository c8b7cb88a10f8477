"""A node that the server cannot hear ends its ranks itself, and one that comes back too late harms nobody."""

import os
import signal
import threading
import time

import pytest

pytestmark = pytest.mark.distributed

RANK = """
import time
from fake_advisor import Advisor
writer = Advisor.beat.BeatWriter(Advisor.directory, 0)
for step in range(1, 10**6):
    writer.write(step, Advisor.beat.TIMING)
    time.sleep(0.05)
"""


@pytest.fixture
def training(server, session_id, make_workload, wait_for):
    """A session of an agent that was started already, with a short fence."""

    def start():
        session = server.assign(session_id, make_workload(RANK), ("a0",))
        wait_for(lambda: any((beat["steps"] or 0) > 2 for beat in session.beats))
        return session

    server.registered = server.registered.model_copy(update={"fence_s": 4.0})
    return start


def test_ranks_die_when_answers_are_swallowed(
    agents, server, training, session_id, wait_for, list_session_processes
):
    """One way: the server hears every beat, its answers never arrive, and no connection is refused."""
    agents.start()
    session = training()
    healed = threading.Event()
    server.refuse = lambda path: healed.wait(60) and None
    wait_for(lambda: not list_session_processes(session_id), timeout_s=30)
    healed.set()
    end = wait_for(lambda: session.ends)[0]
    assert end["outcome"] == "lost"
    assert "acknowledged nothing" in end["reason"]


def test_ranks_of_a_stopped_agent_die_without_it(
    agents, server, training, session_id, wait_for, list_session_processes
):
    """An agent that is stopped (a debugger, a swapping node) fences nothing; its shim does."""
    command = agents.start_command()
    session = training()
    os.kill(command.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: not list_session_processes(session_id), timeout_s=30)
        assert not session.ends
    finally:
        os.kill(command.pid, signal.SIGCONT)
    end = wait_for(lambda: session.ends)[0]
    assert end["outcome"] == "lost"
    assert "acknowledged nothing" in end["reason"]


def test_agent_whose_session_was_given_to_others_lets_go_and_serves_on(
    agents, server, training, session_id, make_workload, wait_for, list_session_processes
):
    """A zombie: every word about its old generation is answered with 409."""
    agents.start()
    session = training()
    server.refuse = lambda path: 409 if f"sessions/{session_id}/" in path else None
    wait_for(lambda: not list_session_processes(session_id), timeout_s=30)
    assert not session.ends
    later = server.assign("later" + session_id, make_workload("pass"), ("a0",))
    assert wait_for(lambda: later.ends)[0]["reason"]


def test_clock_that_is_set_back_changes_nothing(
    agents, training, monkeypatch, session_id, list_session_processes
):
    """Leases are counted on a clock that nobody sets; an hour's jump of the wall clock ends no session."""
    agents.start()
    session = training()
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() - 3600)
    seen = len(session.beats)
    deadline = time.monotonic() + 30
    while len(session.beats) < seen + 10:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert list_session_processes(session_id)
    assert not session.ends
