"""The Markdown files of the repository: their headings, links and commands, and the tools of docs/."""

import ast
import html
import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "benchmarks", "skills")
PAGES = sorted([*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))])
SOURCES = sorted(path for folder in ("advisor", "agent") for path in (ROOT / folder).rglob("*.py"))
TEMPLATES = sorted((ROOT / "web").rglob("*.html"))
PROGRAMS = ("advisor", "advisor-agent")

_FENCE = re.compile(r"^( *)(```+)(\w*)[^\n]*\n(.*?)^\1\2 *$", re.M | re.S)
_CODE = re.compile(r"(`+)(.+?)\1", re.S)
_HTML_CODE = re.compile(r"<code\b[^>]*>(.*?)</code>", re.S)
_SNIPPET = re.compile(r"snippet\(\"[\w-]+\", (\".*?)(?:, is_file=true)?\) *\}\}")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?)#* *$", re.M)
_SHELLS = {"", "sh", "bash", "console"}


@dataclass(frozen=True)
class Command:
    """A command line of ours in a document."""

    page: str
    program: str
    words: tuple[str, ...]
    """What stands behind the program's name; "…" where the document leaves words out."""

    def __str__(self) -> str:
        return f"{self.page}: {self.program} {' '.join(self.words)}"


def name_of(page: Path) -> str:
    """The page's path from the repository's root."""
    return page.relative_to(ROOT).as_posix()


def load_tool(name: str) -> ModuleType:
    """Import a module of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def list_links(text: str) -> list[str]:
    """Where a page's links lead, those in code left out."""
    return _LINK.findall(_CODE.sub("code", _FENCE.sub("", text)))


def list_anchors(text: str) -> set[str]:
    """A page's anchors, as GitHub and the site make them from its headings."""
    anchors: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
        again = sum(1 for one in anchors if re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", one))
        anchors.add(f"{anchor}-{again}" if again else anchor)
    return anchors


def list_commands(text: str, page: str) -> Iterator[Command]:
    """The command lines of our programs in a page's shell blocks."""
    for indent, _, language, body in _FENCE.findall(text):
        if language not in _SHELLS:
            continue
        for given in re.sub(r"\\\n\s*", " ", body).splitlines():
            line = given.removeprefix(indent)
            # What is indented is something printed.
            if not line.startswith(" ") and (command := _read(line, page)):
                yield command


def list_mentions(text: str, page: str) -> Iterator[Command]:
    """The commands of ours that a page's sentences and tables name, often without what they need."""
    for _, code in _CODE.findall(_FENCE.sub("", text)):
        words = code.replace("\\|", "|").split()
        if words[0] in PROGRAMS and len(words) > 1:
            yield Command(page, words[0], tuple(words[1:]))


def list_strings(source: str) -> Iterator[str]:
    """The strings of a module, its docstrings among them; "…" stands for what is only known when it runs."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)


def list_template_mentions(template: str, page: str) -> Iterator[Command]:
    """The commands of ours that a page of the dashboard names."""
    for code in _HTML_CODE.findall(template):
        text = re.sub(r"\{%.*?%\}|<[^>]*>", "", re.sub(r"\{\{.*?\}\}", "…", code))
        yield from list_mentions(f"`{html.unescape(text)}`", page)


def list_template_commands(template: str, page: str) -> Iterator[Command]:
    """The commands of ours that a page of the dashboard offers to copy."""
    for offered in _SNIPPET.findall(template):
        line = re.sub(
            r"\"([^\"]*)\"|([^\s~\"]+)", lambda part: part[1] if part[2] is None else "known-later", offered
        )
        if command := _read(line.replace(" ~ ", ""), page):
            yield command


def _read(line: str, page: str) -> Command | None:
    try:
        words = shlex.split(line.removeprefix("$ "), comments=True)
    except ValueError:  # An apostrophe: a sentence.
        return None
    for position, word in enumerate(words):
        program = Path(word).name
        if program in PROGRAMS and "=" not in word and (position == 0 or not _is_output(words[:position])):
            return Command(page, program, tuple(words[position + 1 :]))
    return None


def _is_output(before: list[str]) -> bool:
    """Whether the words before our program's name show that this line is something printed, and no command."""
    first = next((word for word in before if "=" not in word), "sudo")
    return first not in {"sudo", "srun", "uvx", "docker", "ssh", "env", "nohup"}
