"""Writes what the documentation takes from the code: `python docs/make_reference.py`.

CONTRIBUTING.md carries the repository's layout between two markers; `docs/strategy.schema.json` is the JSON Schema of
`strategy.json`; `reference_pages.py` has the pages of the command line, the job file and the REST API,
`knob_reference.py` that of the knobs, `notebook.py` the client's guide as a notebook. Tests compare them with the code,
so that none goes stale. `docs/code-map.md` lists every module with its first line; it is made for the site only and not
committed.
"""

import ast
import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("advisor", "agent")
BEGIN, END = "<!-- layout: made by docs/make_reference.py -->", "<!-- end of layout -->"


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]


def list_modules(package: str) -> list[Path]:
    """Return a package's modules, each folder's own `__init__` before its files, migrations' versions left out."""
    modules = (path for path in (ROOT / package).rglob("*.py") if "versions" not in path.parts)
    return sorted(modules, key=lambda path: (path.parent.as_posix(), path.name != "__init__.py", path.name))


def describe_code() -> str:
    """Return the map of the code, which `write_code_map` writes."""
    lines = [
        "# Map of the code",
        "",
        "Made from the first line of every module when the site is built.",
        "",
    ]
    for package in PACKAGES:
        for path in list_modules(package):
            name = path.relative_to(ROOT)
            if path.name == "__init__.py":
                lines += ["", f"## `{name.parent.as_posix()}/`", "", first_line(path)]
                lines += ["", "| file | purpose |", "|---|---|"]
            else:
                lines.append(f"| `{name.name}` | {first_line(path)} |")
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def write_code_map() -> None:
    """Write `docs/code-map.md`, which the site needs and git ignores."""
    (ROOT / "docs" / "code-map.md").write_text(describe_code())


def describe_layout() -> str:
    """Return the table of the repository's folders: one row per package."""
    lines = ["| folder | what is in it |", "|---|---|"]
    for package in PACKAGES:
        for path in list_modules(package):
            if path.name == "__init__.py" and len(path.relative_to(ROOT).parts) <= 3:
                lines.append(f"| `{path.parent.relative_to(ROOT).as_posix()}/` | {first_line(path)} |")
    lines.append("| `web/` | Templates and static files of the dashboard: no Python, no build step. |")
    lines.append(
        "| `tests/` | Unit, contract, integration, distributed, browser and conformance tests; a testbed. |"
    )
    return "\n".join(lines)


def describe_schema() -> str:
    """Return `docs/strategy.schema.json`."""
    from advisor.protocol.answers.strategy_file import describe_schema as describe

    return json.dumps(describe(), indent=2, ensure_ascii=False) + "\n"


def place_layout(page: str) -> str:
    """Return a page's text with the table between its markers."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{describe_layout()}\n{END}{after}"


if __name__ == "__main__":
    write_code_map()
    (ROOT / "docs" / "strategy.schema.json").write_text(describe_schema())
    import knob_reference
    import notebook
    import reference_pages

    (ROOT / "docs" / "knobs.md").write_text(knob_reference.describe_knobs())
    (ROOT / "docs" / "python-client.ipynb").write_text(notebook.make_notebook())
    for name, describe in reference_pages.PAGES.items():
        (ROOT / "docs" / name).write_text(describe())
    contributing = ROOT / "CONTRIBUTING.md"
    contributing.write_text(place_layout(contributing.read_text()))
