"""The cells of the client's notebook, one after the other, against a real server and an agent that obeys.

It is made from docs/python-client.md, which tests/architecture compares it with.
"""

import json
import threading
from pathlib import Path

import httpx
import pytest

from advisor.protocol.asked.jobs import JobState
from tests.integration.server.served import FakeAgent, Served, start_gang

GUIDE = Path(__file__).parents[3] / "docs" / "python-client.ipynb"


class OverTheNetwork(Served):
    """A server that somebody else started, on a socket."""

    def __init__(self, url: str, data_dir: Path) -> None:
        self.http = httpx.Client(base_url=url)  # type: ignore[assignment]
        self.admin = (data_dir / "admin-token").read_text().strip()
        self.enrolment = (data_dir / "agent-token").read_text().strip()


def serve_a_job(server: Served) -> None:
    agent = FakeAgent(server, "one")
    start_gang(agent)
    agent.hello()
    agent.measure_all()
    agent.end()


def test_cells_of_the_guide_run_as_they_stand(
    served: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, _ = served
    monkeypatch.setenv("ADVISOR_URL", url)
    monkeypatch.setenv("ADVISOR_TOKEN_FILE", str(tmp_path / "admin-token"))
    monkeypatch.chdir(tmp_path)
    agent = threading.Thread(target=serve_a_job, args=[OverTheNetwork(url, tmp_path)], daemon=True)
    agent.start()
    notebook = json.loads(GUIDE.read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names: dict[str, object] = {"__name__": "guide"}
    for number, cell in enumerate(cells, 1):
        where = f"cell {number} of {GUIDE.name}"
        exec(compile(cell, where, "exec"), names)
    agent.join(30)
    assert len(cells) == 10
    printed = capsys.readouterr().out
    assert "keep" in printed
    assert "1 jobs, 1 agents" in printed
    assert names["found"].state is JobState.FINISHED  # type: ignore[attr-defined]
    assert (tmp_path / "strategy.json").exists()
