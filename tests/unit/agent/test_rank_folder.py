"""Where the folder lies through which ranks and agent meet: its socket's path has to be a short one."""

import socket
from pathlib import Path

import pytest

from agent.sessions.preparation import RankFolder, choose_temporary


def test_a_socket_that_would_be_too_long_in_the_temporary_folder_lies_in_tmp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, tmp = tmp_path / ("n" * 90), Path("/tmp")
    long.mkdir()
    for temporary, chosen in ((long, tmp), (tmp, tmp)):
        monkeypatch.setattr("tempfile.tempdir", str(temporary))
        assert choose_temporary() == chosen
        folder = RankFolder("marker", None)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(folder.path / "s"))
        folder.remove()
