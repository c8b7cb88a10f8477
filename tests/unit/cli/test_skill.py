"""`advisor skill install`: the skill in the open form, where agents look for it, and nobody's changes overwritten."""

from pathlib import Path

import pytest
import yaml

from advisor.cli.commands.tools.skill import NAME, read_skill

from .conftest import Run


def test_skill_has_the_front_matter_of_the_open_form() -> None:
    _, front, body = read_skill().split("---\n", 2)
    said = yaml.safe_load(front)
    assert set(said) <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert said["name"] == NAME
    assert 0 < len(said["description"]) <= 1024
    assert len(said["compatibility"]) <= 500
    assert len(body.splitlines()) < 500


@pytest.mark.parametrize(("there", "root"), [(".claude", ".claude"), ("src", ".agents")])
def test_it_lies_where_agents_of_this_folder_look_and_keeps_what_was_changed(
    there: str, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / there).mkdir()
    file = tmp_path / root / "skills" / NAME / "SKILL.md"
    for _ in range(2):
        assert run("skill", "install").exit_code == 0
        assert file.read_text() == read_skill()
    file.write_text("mine")
    refused = run("skill", "install")
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert file.read_text() == "mine"
    assert run("skill", "install", "--force").exit_code == 0
    assert file.read_text() == read_skill()
