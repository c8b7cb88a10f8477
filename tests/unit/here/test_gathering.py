"""Nodes find node 0, prove themselves, and hear that it is over: over loopback, with real TLS."""

import asyncio
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from advisor.data_dir import NotPrivate, make_private
from advisor.here.attending import Attendance, attending
from advisor.here.environments import Place
from advisor.here.gathering import Gathering, gathering
from advisor.here.join import Meeting, find_meeting, leave_meeting, open_tls
from advisor.here.lines import NotProven, welcome
from advisor.local.relay import talking
from advisor.local.server import LocalModeFailed

SECRET = "a secret that nobody guesses"
HEAD = Place("by hand", 0, 2, "n")
NODE = Place("by hand", 1, 2, "n")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("advisor.here.gathering._LATE_S", 0.0)
    return []


@pytest.fixture
def meeting() -> Meeting:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Meeting(secret=SECRET, addresses=("127.0.0.1",), port=probe.getsockname()[1])


@contextmanager
def gather(
    meeting: Meeting, told: list[str], place: Place = HEAD, url: str = "http://127.0.0.1:9"
) -> Iterator[tuple[Gathering, Callable[[int], None]]]:
    with gathering(place, meeting, open_tls({}), told.append) as (gathered, open_to, end):
        open_to(url, "the agents' token")
        yield gathered, end
        end(0)


def wait_for(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def attend(stack: ExitStack, meeting: Meeting, place: Place = NODE) -> Attendance:
    attendance, _ = stack.enter_context(attending(place, lambda: meeting))
    return attendance


def test_node_gets_token_and_exit_code_and_both_know_of_each_other(meeting: Meeting, told: list[str]) -> None:
    with ExitStack() as stack, gather(meeting, told) as (gathered, end):
        attendance = attend(stack, meeting)
        wait_for(lambda: attendance.token, "the token has come")
        assert attendance.token == "the agents' token"
        assert (gathered.there(), gathered.missing(), gathered.own_address) == (2, {}, "127.0.0.1")
        assert attendance.away_since_s is None
        end(101)
        wait_for(lambda: attendance.over == 101, "the end is known")
        stack.close()
    assert told == ["Node 1 (n-1) is there: 2 of 2."]


def test_node_that_leaves_or_breaks_off_is_named_with_its_reason(meeting: Meeting, told: list[str]) -> None:
    with gather(meeting, told) as (gathered, _):
        with attending(NODE, lambda: meeting) as (_, leave):
            wait_for(lambda: gathered.there() == 2, "it is there")
            leave("it was asked to stop")
        wait_for(lambda: gathered.there() == 1, "it is gone")
        assert told[-1] == "Node 1 (n-1) has left: it was asked to stop. 1 of 2 are there."
        with attending(NODE, lambda: meeting):
            wait_for(lambda: gathered.there() == 2, "it is back")
        wait_for(lambda: gathered.there() == 1, "it is gone again")
    assert told[2:] == [
        "Node 1 (n-1) is back: 2 of 2.",
        "Node 1 (n-1) has left: the connection broke. 1 of 2 are there.",
    ]


def test_node_comes_back_to_a_node_0_that_was_started_again(meeting: Meeting, told: list[str]) -> None:
    with ExitStack() as stack:
        attendance = attend(stack, meeting)
        assert attendance.over is None
        for _ in range(2):
            with talking() as begin:  # and without a word of an end
                gathered = Gathering(HEAD, told.append)
                begin(gathered.serve(*open_tls({}), meeting)).result()
                wait_for(lambda gathered=gathered: gathered.there() == 2, "it is there")
        stack.close()


@pytest.mark.parametrize(
    ("other", "told_to_node"),
    [
        (replace(NODE, rank=2), "node 0 is one of 2, and this is node 2 of 2"),
        (replace(NODE, count=3), "and this is node 1 of 3"),
        (replace(NODE, allocation="8"), "node 0 belongs to by hand allocation none"),
        (replace(NODE, host="m"), "node 1 is there already, and is n-1"),
    ],
)
def test_node_that_does_not_belong_here_is_told_why(
    other: Place, told_to_node: str, meeting: Meeting, told: list[str]
) -> None:
    with ExitStack() as stack, gather(meeting, told) as (gathered, _):
        attend(stack, meeting)
        wait_for(lambda: gathered.there() == 2, "the right one is there")
        stranger = attend(stack, meeting, other)
        wait_for(lambda: told_to_node in stranger.trouble, "the other is refused")
        assert not stranger.token
        stack.close()


def test_who_does_not_know_the_secret_gets_nothing_and_gives_nothing(
    meeting: Meeting, told: list[str]
) -> None:
    with (
        ExitStack() as stack,
        gather(meeting.model_copy(update={"secret": "another one"}), told) as (gathered, end),
    ):
        attendance = attend(stack, meeting)
        wait_for(lambda: "does not know this gang's secret" in attendance.trouble, "node 0 is not believed")
        assert not attendance.token
        assert gathered.there() == 1
        end(0)
        stack.close()


def test_traffic_of_nodes_shows_neither_secret_nor_token(meeting: Meeting, told: list[str]) -> None:
    """What crosses the network is recorded by a relay in the middle, which cannot stand in for node 0 either."""
    seen = bytearray()
    listener = socket.create_server(("127.0.0.1", 0))

    def record() -> None:

        def copy(source: socket.socket, sink: socket.socket) -> None:
            with suppress(OSError):
                while chunk := source.recv(65_536):
                    seen.extend(chunk)
                    sink.sendall(chunk)

        while True:
            client, _ = listener.accept()
            onward = socket.create_connection(("127.0.0.1", meeting.port))
            for pair in ((client, onward), (onward, client)):
                threading.Thread(target=copy, args=pair, daemon=True).start()

    with ExitStack() as stack, gather(meeting, told):
        threading.Thread(target=record, daemon=True).start()
        attendance = attend(stack, meeting.model_copy(update={"port": listener.getsockname()[1]}))
        wait_for(lambda: attendance.token, "the token has come")
        stack.close()
    assert len(seen) > 500
    assert SECRET.encode() not in seen
    assert b"token" not in seen


def test_agent_of_a_node_reaches_the_server_through_its_own_loopback(
    meeting: Meeting, told: list[str]
) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{server.getsockname()[1]}"
    with ExitStack() as stack, gather(meeting, told, url=url) as (gathered, _):
        attendance = attend(stack, meeting)
        wait_for(lambda: gathered.there() == 2, "it is there")

        def answer() -> None:
            client, _ = server.accept()
            client.recv(65_536)
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
            client.close()

        threading.Thread(target=answer, daemon=True).start()
        assert httpx.get(f"http://127.0.0.1:{attendance.port}/", timeout=30).text == "ok"
        stack.close()


def test_join_file_is_its_owners_and_a_given_secret_is_in_none(tmp_path: Path) -> None:
    path = tmp_path / "state" / "join.json"
    meeting = leave_meeting(path, {}, "n0")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert meeting.addresses[0] == "n0"
    assert find_meeting(path, {}, "") == meeting
    given = {"ADVISOR_JOIN_SECRET": SECRET}
    assert leave_meeting(path, given, "n0").secret == SECRET
    assert SECRET not in path.read_text()
    assert find_meeting(path, given, "") == leave_meeting(path, given, "n0")


def test_no_word_of_another_users_leads_a_node(tmp_path: Path) -> None:
    path = tmp_path / "join.json"
    leave_meeting(path, {}, "n0")
    path.chmod(0o666)
    with pytest.raises(NotPrivate, match="may be written to by others"):
        find_meeting(path, {}, "")
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        with pytest.raises(NotPrivate, match="belongs to another user"):
            find_meeting(path, {}, "")


def test_state_folder_is_closed_or_refused(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(0o777)
    make_private(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    folder.chmod(0o1777)
    with pytest.raises(NotPrivate, match="may be written to by others"):
        make_private(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777, "others share it"
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
        with pytest.raises(NotPrivate, match="belongs to another user"):
            make_private(folder)


class Deaf:
    """A writer whose other side reads nothing."""

    def write(self, data: bytes) -> None:
        """Drop it."""

    async def drain(self) -> None:
        """There is room."""


@pytest.mark.parametrize(
    "lines",
    [
        [rb'{"nonce": "\ud800"}', b"{}"],
        [b"[" * 60_000],
        [b'{"nonce": "00"}', '{"proof": "\u00e9"}'.encode()],
        [b'{"nonce": ["00"]}', b'{"proof": {}}'],
    ],
)
def test_lines_without_the_secret_are_turned_away_in_words(lines: list[bytes]) -> None:
    async def talk() -> None:
        said = asyncio.StreamReader()
        for line in lines:
            said.feed_data(line + b"\n")
        said.feed_eof()
        with pytest.raises((ConnectionError, NotProven)):
            await welcome(said, Deaf(), SECRET, b"certificate")  # type: ignore[arg-type]

    asyncio.run(talk())


def test_secret_of_the_environment_is_enough_where_node_0_is_known(tmp_path: Path) -> None:
    given, nowhere = {"ADVISOR_JOIN_SECRET": SECRET}, tmp_path / "none"
    found = find_meeting(nowhere, given, "n0")
    assert found is not None
    assert found.port == leave_meeting(tmp_path / "join.json", given, "n0").port
    assert find_meeting(nowhere, {}, "n0") is find_meeting(nowhere, given, "") is None
    with pytest.raises(LocalModeFailed, match="can be guessed"):
        find_meeting(nowhere, {"ADVISOR_JOIN_SECRET": "short"}, "n0")
