"""Where this machine's data lies: the user's own choice first, then the desktop's convention."""

from pathlib import Path

from advisor.data_dir import data_dir_of


def test_data_lies_where_the_environment_says() -> None:
    assert data_dir_of({"ADVISOR_DATA_DIR": "/a", "XDG_DATA_HOME": "/b"}) == Path("/a")
    assert data_dir_of({"XDG_DATA_HOME": "/b"}) == Path("/b/fleet-advisor")
    usual = Path.home() / ".local" / "share" / "fleet-advisor"
    assert data_dir_of({}) == usual.resolve()
    assert data_dir_of({"XDG_DATA_HOME": "relative"}) == usual.resolve()
