"""The folder through which ranks and agent meet: where it lies, and that the agent writes in no folder of another's."""

import os
import socket
from pathlib import Path

import pytest

from agent.guard.account import acting_as, find_account
from agent.guard.rank_folder import RankFolder, choose_temporary, lay_out, open_socket

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_a_socket_that_would_be_too_long_in_the_temporary_folder_lies_in_tmp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, tmp = tmp_path / ("n" * 90), Path("/tmp")
    long.mkdir()
    for temporary, chosen in ((long, tmp), (tmp, tmp)):
        monkeypatch.setattr("tempfile.tempdir", str(temporary))
        assert choose_temporary() == chosen
        folder = RankFolder("marker", None)
        with open_socket(folder.path, "output", socket.SOCK_STREAM, None):
            assert (folder.path / "output").is_socket()
        folder.remove()
        assert not folder.path.exists()


@pytest.fixture
def given():
    """A session's folder whose scripts run as nobody."""
    account = find_account("nobody")
    folder = RankFolder("marker", account)
    yield folder, account
    folder.remove()


@needs_root
def test_the_scripts_user_reads_what_is_laid_out_and_puts_nothing_beside_it(given) -> None:
    folder, account = given
    folder.lay_out({"strategy.json": "{}", "changed0/c.yaml": "a: 1"})
    with open_socket(folder.path, "s", socket.SOCK_STREAM, account) as listening:
        listening.listen()
        with acting_as(account), socket.socket(socket.AF_UNIX) as line:
            assert (folder.path / "strategy.json").read_text() == "{}"
            assert (folder.path / "changed0" / "c.yaml").read_text() == "a: 1"
            line.connect(str(folder.path / "s"))
            (folder.ranks / "beat").touch()
            for place in (folder.path / "new", folder.path / "changed0" / "new"):
                with pytest.raises(PermissionError):
                    place.symlink_to("x")
            with pytest.raises(PermissionError):
                (folder.path / "s").unlink()


@needs_root
def test_nothing_is_written_through_a_link_or_into_a_folder_of_anothers(given, tmp_path: Path) -> None:
    folder, account = given
    mine = tmp_path / "mine"
    mine.write_text("as it was")
    before = mine.stat()
    (folder.path / "strategy.json").symlink_to(mine)
    with pytest.raises(FileExistsError):
        folder.lay_out({"strategy.json": "{}"})
    (folder.ranks / "s").symlink_to(mine)
    for act in (
        lambda: lay_out(folder.ranks, {"s": "{}"}, account),
        lambda: open_socket(folder.ranks, "s", socket.SOCK_STREAM, account),
    ):
        with pytest.raises(PermissionError):
            act()
    assert mine.read_text() == "as it was"
    assert (mine.stat().st_uid, mine.stat().st_mode) == (before.st_uid, before.st_mode)
