"""The agent's log: lines for people, and JSON that says which agent, job and session each line is about."""

import io
import json

import pytest
import structlog
from structlog.contextvars import bound_contextvars

from advisor.protocol.logs import LogFormat
from agent.logs import configure_logs


def fail(stream: io.StringIO) -> str:
    """Log a failure in a function that knows a secret; return what was written."""
    secret = "adv_" + "agent_id_secret"
    try:
        int(secret[:3] + "?")
    except ValueError:
        structlog.get_logger("x").exception("It failed.")
    return stream.getvalue()


def test_json_names_agent_job_and_session() -> None:
    stream = io.StringIO()
    configure_logs(LogFormat.JSON, stream, "node-7")
    log = structlog.get_logger("x")
    with bound_contextvars(job_id="j", session_id="s"):
        log.warning("Slow.", seconds=3)
    log.info("Done.")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert first.pop("timestamp").endswith("Z")
    assert first == {
        "event": "Slow.", "level": "warning", "agent": "node-7", "job_id": "j", "session_id": "s", "seconds": 3,
    }  # fmt: skip
    assert "job_id" not in second


@pytest.mark.parametrize("chosen", list(LogFormat))
def test_failure_is_told_without_the_values_of_variables(chosen: LogFormat) -> None:
    stream = io.StringIO()
    configure_logs(chosen, stream, "node-7")
    told = fail(stream)
    assert "ValueError" in told
    assert "agent_id_secret" not in told


@pytest.mark.parametrize("chosen", list(LogFormat))
def test_what_a_script_said_stays_in_its_line(chosen: LogFormat) -> None:
    stream = io.StringIO()
    configure_logs(chosen, stream, "node-7")
    structlog.get_logger("x").warning("It said.", message="a\n12:00:00 forged\x1b[31m\udce9")
    assert stream.getvalue().encode().count(b"\n") == 1
    assert "\x1b" not in stream.getvalue()
