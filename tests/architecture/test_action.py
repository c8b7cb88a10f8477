"""`action.yml`: its steps name only what the commands take, and end as the gate's three ends are told."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.architecture.documents import ROOT, load_tool

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEP = next(step for step in ACTION["runs"]["steps"] if step.get("id") == "measure")
SHIM = """#!/usr/bin/env python3
import json, os, sys
if sys.argv[1:2] == ["-c"]:
    exec(sys.argv[2])
else:
    with open(os.environ["TYPED"], "w") as file:
        json.dump(sys.argv[1:], file)
    print(os.environ["PRINTED"], end="")
    sys.exit(int(os.environ["CODE"]))
"""


@pytest.fixture
def measure(tmp_path: Path):
    """Run the step as GitHub's runner does; `advisor` is a program that notes its words, prints and leaves."""
    programs = tmp_path / "advisor" / "bin"
    programs.mkdir(parents=True)
    for name in ("advisor", "python"):
        (programs / name).write_text(SHIM)
        (programs / name).chmod(0o755)

    def run(code: int = 0, printed: str = "{}", **inputs: str) -> tuple[int, list[str], dict[str, str]]:
        given = {name: str(told.get("default", "")) for name, told in ACTION["inputs"].items()} | inputs
        environment = {
            name: given[value.split("inputs.")[1].rstrip(" }")] for name, value in STEP["env"].items()
        }
        environment |= {
            "RUNNER_TEMP": str(tmp_path), "GITHUB_OUTPUT": str(tmp_path / "output"), "PATH": os.environ["PATH"],
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"), "TYPED": str(tmp_path / "typed.json"),
            "PRINTED": printed, "CODE": str(code),
        }  # fmt: skip
        bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEP["run"]]
        ended = subprocess.run(bash, env=environment, cwd=tmp_path, check=False)
        typed = yaml.safe_load((tmp_path / "typed.json").read_text())
        told = dict(line.split("=", 1) for line in (tmp_path / "output").read_text().splitlines())
        return ended.returncode, typed, told

    return run


@pytest.mark.parametrize(
    "inputs",
    [
        {"a": "torchrun a.py", "b": "X='a b' torchrun b.py"},
        {"a": "torchrun --nproc-per-node 2 'my train.py'", "strategy": "strategy.json"},
    ],
)
def test_words_are_those_that_the_command_takes(measure, inputs: dict[str, str]) -> None:
    _, (verb, *words), _ = measure(**inputs)
    parser = load_tool("reference_pages").list_commands()["advisor"][verb]
    context = parser.make_context(verb, list(words))
    assert context.params["fail_below"] == 0.98
    assert context.params["minutes"] == 10.0
    assert context.params["junit"] == Path("advisor-junit.xml")
    assert context.params["summary"].name == "summary.md"
    if verb == "race":
        assert context.params["commands"] == ["torchrun a.py", "X='a b' torchrun b.py"]
    else:
        assert context.params["strategy"] == Path("strategy.json")
        assert context.params["command"] == ["torchrun", "--nproc-per-node", "2", "my train.py"]


@pytest.mark.parametrize(
    ("code", "printed", "verdict", "gain"),
    [
        (0, '{"gain": {"likely": 1.2505003366834686}}', "passed", "1.251"),
        (104, '{"gain": {"ratio": 0.9}}', "regression", "0.9"),
        (105, '{"gain": null}', "no verdict", ""),
        (3, "", "not measured", ""),
        (100, "", "not measured", ""),
    ],
)
def test_step_ends_as_the_command_did_and_says_what_that_means(
    measure,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    code: int,
    printed: str,
    verdict: str,
    gain: str,
) -> None:
    (tmp_path / "advisor-junit.xml").write_text("of an earlier job")
    ended, _, told = measure(code, printed, a="torchrun a.py", b="torchrun b.py")
    assert ended == code
    assert told == {"verdict": verdict, "gain": gain}
    assert not (tmp_path / "advisor-junit.xml").exists()
    # Where the command has an answer it writes the summary itself.
    assert (tmp_path / "summary.md").exists() == (verdict == "not measured")
    assert capfd.readouterr().err == ""
