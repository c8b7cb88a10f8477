"""One server on a data directory, found again by its record; one measurement at a time."""

import threading
from pathlib import Path

import pytest

from advisor.local.record import ServerRunning, hold_server, measuring_turn, running_server, starting_turn

URL = "http://127.0.0.1:1234"


def test_server_is_found_while_it_runs_and_not_after(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    assert running_server(data_dir) is None
    with hold_server(data_dir, URL):
        record = running_server(data_dir)
        assert record is not None
        assert record.url == URL
    assert running_server(data_dir) is None


def test_second_server_is_refused_with_the_address_of_the_first(tmp_path: Path) -> None:
    with (
        hold_server(tmp_path, URL),
        pytest.raises(ServerRunning, match=URL),
        hold_server(tmp_path, "http://other"),
    ):
        pass


def test_record_of_a_killed_server_is_not_believed(tmp_path: Path) -> None:
    with hold_server(tmp_path, URL):
        left_over = (tmp_path / "server.json").read_text()
    (tmp_path / "server.json").write_text(left_over)
    assert running_server(tmp_path) is None


def test_who_starts_a_server_is_alone_until_it_shares_it(tmp_path: Path) -> None:
    with starting_turn(tmp_path, 0.0) as share:
        with pytest.raises(TimeoutError), starting_turn(tmp_path, 0.1):
            pass
        share()
        with starting_turn(tmp_path, 0.0):
            pass
    with starting_turn(tmp_path, 0.0):
        pass


def test_data_directory_is_private(tmp_path: Path) -> None:
    with hold_server(tmp_path / "data", URL):
        assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


def test_second_measurement_waits_for_the_first_and_says_so(tmp_path: Path) -> None:
    told: list[str] = []
    waiting, second_measures = threading.Event(), threading.Event()

    def hear(sentence: str) -> None:
        told.append(sentence)
        waiting.set()

    def measure_second() -> None:
        with measuring_turn(tmp_path, hear):
            second_measures.set()

    second = threading.Thread(target=measure_second)
    with measuring_turn(tmp_path, told.append):
        assert not told
        second.start()
        assert waiting.wait(20)
        assert not second_measures.is_set()
    assert second_measures.wait(20)
    second.join()
    assert "waiting for it to end" in told[0]
