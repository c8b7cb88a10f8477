"""What the documentation takes from the code equals the code."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from advisor.cli.exits import CommandFailed
from advisor.cli.tuning.job_spec import spec_from_file
from tests.architecture.documents import ROOT, load_tool

make_reference = load_tool("make_reference")
reference_pages = load_tool("reference_pages")
notebook = load_tool("notebook")

REMEDY = "run: python docs/make_reference.py"


def test_code_map_has_a_purpose_for_every_module() -> None:
    rows = [line.split("|") for line in make_reference.describe_code().splitlines() if line.startswith("| `")]
    modules = [path for package in make_reference.PACKAGES for path in make_reference.list_modules(package)]
    assert len(rows) == sum(path.name != "__init__.py" for path in modules) > 400
    assert all(row[2].strip() for row in rows)


def test_published_schema_equals_the_code() -> None:
    assert (ROOT / "docs" / "strategy.schema.json").read_text() == make_reference.describe_schema(), REMEDY


def test_notebook_equals_the_guide() -> None:
    assert (ROOT / "docs" / "python-client.ipynb").read_text() == notebook.make_notebook(), REMEDY


def test_layout_in_contributing_equals_the_code() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert make_reference.place_layout(text) == text, REMEDY


@pytest.mark.parametrize("name", reference_pages.PAGES)
def test_reference_page_equals_the_code(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == reference_pages.PAGES[name](), REMEDY


JOBS = [
    reference_pages.EXAMPLE,
    "workload: {built_in: resnet50, nproc_per_node: 8, arguments: --size full --amp bf16}\nnodes: 2\n",
    "testbed: nodes=3,rate=200mbit\nworkload: {built_in: resnet50}\n",
    "workload: {command: [torchrun, train.py]}\nvalues: {num_threads: [1, 2]}\nbudget: {max_device_hours: 9}\n",
]


@pytest.mark.parametrize("text", JOBS)
def test_schema_of_job_files_takes_what_submit_takes(text: str, tmp_path: Path) -> None:
    schema = json.loads((ROOT / "docs" / "job.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(yaml.safe_load(text))
    path = tmp_path / "job.yaml"
    path.write_text(text)
    spec_from_file(path, ())


@pytest.mark.parametrize(
    "text",
    [
        "workload: {comand: x}",
        "workload: {command: x}\nbudgets: {}",
        "workload: {command: x}\nallow: everything",
        "{}",
    ],
)
def test_schema_of_job_files_refuses_what_submit_refuses(text: str, tmp_path: Path) -> None:
    schema = json.loads((ROOT / "docs" / "job.schema.json").read_text())
    assert not jsonschema.Draft202012Validator(schema).is_valid(yaml.safe_load(text))
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(CommandFailed):
        spec_from_file(path, ())
