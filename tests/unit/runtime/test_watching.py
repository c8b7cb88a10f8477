"""The watch over a real training: windows, alerts, and what it says the cause is."""

import hashlib
import hmac
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from advisor.protocol.measured.runs import RunReport
from agent.runtime.observe.recorder import INTERRUPTED, StepMarks
from agent.runtime.steering.watching import SECRET, Watch


class Training:
    """Steps of two ranks with eight samples each, on a clock of their own."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.said: list[str] = []
        self.path = folder / "watch.jsonl"
        self.now_s = 0.0
        asked = {"path": str(self.path), "every_s": 1.0, **settings}
        self.watch = Watch(asked, 2, self.said.append, lambda: self.now_s)

    def step(self, seconds: float, count: int = 1, data_s: float = 0.0, flag: int = 0) -> None:
        for _ in range(count):
            marks = StepMarks(None)
            marks.samples, marks.data_wait_s, marks.flag = 8, data_s, flag
            self.now_s += seconds
            self.watch.note(marks)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]


def test_windows_tell_the_throughput_of_all_ranks_with_stalls_and_without_evaluations(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.step(0.1)
    training.step(0.1, 10)
    training.step(30.0, flag=INTERRUPTED)
    training.step(0.1, 9)
    training.step(5.0)

    (window,) = training.lines
    assert window["steps"] == 20
    assert window["step_s"] == pytest.approx((19 * 0.1 + 5.0) / 20)
    assert window["samples_per_s"] == pytest.approx(16 / window["step_s"])
    assert window["stall_s"] == pytest.approx((5.0 - 0.15) / 20)
    assert not training.said


def test_two_windows_below_the_advised_interval_are_told_once_and_so_is_the_recovery(tmp_path: Path) -> None:
    training = Training(tmp_path, low=150.0, retune="advisor verify s.json -- train")
    training.step(0.1, 61)
    training.step(0.12, 20)
    assert not training.said
    training.step(0.12, 60)
    assert len(training.said) == 1
    assert "below what was advised (150)" in training.said[0]
    assert "advisor verify s.json -- train" in training.said[0]
    training.step(0.1, 20)
    assert "back at 160" in training.said[1]
    assert [line["event"] for line in training.lines if "event" in line] == ["below", "recovered"]


def test_without_an_advised_interval_the_first_windows_say_what_is_usual(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.step(0.1, 61)
    training.step(0.105, 60)
    assert not training.said
    training.step(0.15, 40, data_s=0.05)
    assert "below what was usual in this run" in training.said[0]
    assert "a step waits 50 ms for data, 0 ms when the run began" in training.said[0]


def test_an_alert_is_posted_with_a_signature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    posted: list[tuple[str, bytes]] = []
    came = threading.Event()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posted.append((self.headers["X-Advisor-Signature"], body))
            self.send_response(204)
            self.end_headers()
            came.set()

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv(SECRET, "key")
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        training = Training(tmp_path, low=500.0, webhook=f"http://127.0.0.1:{server.server_port}/")
        training.step(0.1, 41)
        assert came.wait(10)
    finally:
        server.shutdown()
    signature, body = posted[0]
    assert signature == "sha256=" + hmac.new(b"key", body, hashlib.sha256).hexdigest()
    assert json.loads(body)["event"] == "below"


@pytest.mark.parametrize("kept", ["token", "token_file"])
def test_every_window_goes_to_the_server_with_the_token_that_came_along(tmp_path: Path, kept: str) -> None:
    told: list[tuple[str, str, dict[str, Any]]] = []

    class Server(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told.append((self.path, self.headers["Authorization"], body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    (tmp_path / "token").write_text("adv_submitter_x_y\n")
    given = {"token": "adv_submitter_x_y", "token_file": str(tmp_path / "token")}
    server = HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        path = "/api/v1/jobs/j/runs/0123456789abcdef"
        training = Training(
            tmp_path, low=500.0, server=f"http://127.0.0.1:{server.server_port}{path}", **{kept: given[kept]}
        )
        training.step(0.1, 41)
        deadline = time.monotonic() + 10
        while len(told) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        server.shutdown()
    assert {(where, token) for where, token, _ in told} == {(path, "Bearer adv_submitter_x_y")}
    reports = sorted((report for _, _, report in told), key=lambda report: report["step"])
    assert [report["event"] for report in reports] == [None, "below"]
    for report in reports:
        assert RunReport.model_validate(report).low == 500.0


def test_a_file_that_cannot_be_written_is_told_once_and_ends_nothing(tmp_path: Path) -> None:
    training = Training(tmp_path / "missing")
    training.step(0.1, 61)
    assert len(training.said) == 1
    assert "not written any more" in training.said[0]
