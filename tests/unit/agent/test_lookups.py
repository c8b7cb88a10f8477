"""What a job names is looked at in a child: as its user, without waiting, and no longer than the agent will."""

import os
import signal
import socket
import tempfile
from pathlib import Path

import pytest

from agent.errors import AgentStopped, Unlaunchable
from agent.files import DIRECT
from agent.guard.account import find_account
from agent.guard.lookups import Lookups

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def lookups():
    made = Lookups(None, "marker", lambda: False)
    yield made
    made.close()


def test_child_answers_as_the_agent_itself_would(lookups, tmp_path):
    (tmp_path / "script.sh").write_text("#!/bin/sh\né\n")
    (tmp_path / "script.sh").chmod(0o755)
    (tmp_path / "link").symlink_to("script.sh")
    for files in (DIRECT, lookups):
        assert files.exists(tmp_path / "link")
        assert not files.exists(tmp_path / ("x" * 5000))
        assert files.is_file(tmp_path / "link")
        assert not files.is_file(tmp_path)
        assert files.resolve(tmp_path / "link" / ".." / "new") == tmp_path / "new"
        assert files.find_program("script.sh", f"/nowhere:{tmp_path}") == str(tmp_path / "script.sh")
        assert files.find_program("none", str(tmp_path)) is None
        assert files.read_beginning(tmp_path / "link", 100) == "#!/bin/sh\né\n"
        assert files.read_beginning(tmp_path / "link", 4) == "#!/b"
        assert files.find_directory(tmp_path).is_searchable
        assert files.find_directory(tmp_path / "link") is None
        with pytest.raises(ValueError if files is DIRECT else Unlaunchable, match="null"):
            files.resolve(tmp_path / "a\0b")


def test_a_configuration_file_is_changed_in_the_child(lookups, tmp_path):
    (tmp_path / "c.yaml").write_text("a: {b: 1}  # the first\n")
    (tmp_path / "c.json").write_text("[" * 100_000)
    for files in (DIRECT, lookups):
        assert files.change_keys(tmp_path / "c.yaml", {"a.b": 2}) == ("a: {b: 2}\n", "")
        assert "did you mean a.b?" in files.change_keys(tmp_path / "c.yaml", {"a.c": 2})[1]
        assert "nested too deeply" in files.change_keys(tmp_path / "c.json", {"a.c": 2})[1]
        assert "does not exist" in files.change_keys(tmp_path / "d.toml", {"a.c": 2})[1]


@needs_root
def test_a_configuration_file_is_read_as_the_scripts_user():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder, "c.toml")
        path.write_text("a = 1\n")
        lookups = Lookups(find_account("nobody"), "marker", lambda: False)
        try:
            path.chmod(0o644)
            assert lookups.change_keys(path, {"a": 2}) == ("a = 2\n", "")
            path.chmod(0o600)
            assert lookups.change_keys(path, {"a": 2})[0] == ""
        finally:
            lookups.close()


def test_nothing_but_a_regular_file_is_read(lookups, tmp_path):
    os.mkfifo(tmp_path / "torchrun", 0o777)
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0)
    names = [
        "torchrun",
        "folder",
        "loop",
        "s",
        "gone",
        "/dev/zero",
        "/dev/tty",
        "/proc/kmsg",
        "/proc/self/mem",
    ]
    assert [lookups.read_beginning(tmp_path / name, 100) for name in names] == [""] * len(names)
    assert lookups.read_beginning(tmp_path / "secret", 100) == ("x" if os.geteuid() == 0 else "")


def test_a_file_system_that_does_not_answer_holds_up_neither_the_session_nor_its_end(tmp_path):
    """Here a child that is stopped: only its death ends a wait in the kernel either."""
    stopping = iter([False] * 5 + [True] * 100)
    for is_stopping, limit_s, raised in (
        (lambda: False, 0.3, Unlaunchable),
        (lambda: next(stopping), 1e6, AgentStopped),
    ):
        lookups = Lookups(None, "marker", lambda: False)
        assert lookups.exists(tmp_path)
        child = lookups._child.process
        os.kill(child.pid, signal.SIGSTOP)
        lookups._is_stopping, lookups._left_s = is_stopping, limit_s
        with pytest.raises(raised):
            lookups.exists(tmp_path / ("x" * 200_000))  # more than the pipe to it holds
        assert child.wait(timeout=30) == -signal.SIGKILL


@needs_root
def test_child_may_do_what_the_scripts_user_may(tmp_path):
    for folder in (tmp_path, *tmp_path.parents):
        if folder.is_relative_to(tempfile.gettempdir()) and folder != Path(tempfile.gettempdir()):
            folder.chmod(0o755)
    for mode in (0o700, 0o711, 0o755, 0o777):
        (tmp_path / f"{mode:o}").mkdir()
        (tmp_path / f"{mode:o}" / "file").write_text("secret")
        (tmp_path / f"{mode:o}").chmod(mode)
    (tmp_path / "link").symlink_to("700/file")
    lookups = Lookups(find_account("nobody"), "marker", lambda: False)
    found = {mode: lookups.find_directory(tmp_path / mode) for mode in ("700", "711", "755", "777")}
    assert {mode: (d.is_readable, d.is_writable, d.is_searchable) for mode, d in found.items()} == {
        "700": (False, False, False),
        "711": (False, False, True),
        "755": (True, False, True),
        "777": (True, True, True),
    }
    assert not lookups.exists(tmp_path / "700" / "file")
    assert lookups.read_beginning(tmp_path / "link", 100) == ""
    assert lookups.read_beginning(Path(tmp_path / "711" / "file"), 100) == "secret"
    lookups.close()
