"""What documents point to exists: links, anchors, commands with their options; and the site builds from them."""

import re
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from advisor.cli.exits import Exit
from tests.architecture.documents import (
    PAGES,
    ROOT,
    SOURCES,
    TEMPLATES,
    Command,
    list_anchors,
    list_commands,
    list_links,
    list_mentions,
    list_strings,
    list_template_commands,
    list_template_mentions,
    load_tool,
    name_of,
)

REPOSITORY = "https://github.com/fleet-advisor/fleet-advisor/blob/main/"
"""How pages link to files that are not documents, which the site does not hold."""
reference_pages = load_tool("reference_pages")
list_parsers = cache(reference_pages.list_commands)


@cache
def find_commands() -> list[Command]:
    """In documents, and where a page of the dashboard offers one to copy."""
    readers = [(path, list_commands) for path in PAGES] + [
        (path, list_template_commands) for path in TEMPLATES
    ]
    return [
        command for path, read in readers for command in read(path.read_text(encoding="utf-8"), name_of(path))
    ]


@cache
def find_mentions() -> set[Command]:
    """In documents, in every sentence and hint of the programs, and on the dashboard's pages."""
    return {
        *(one for page in PAGES for one in list_mentions(page.read_text(encoding="utf-8"), name_of(page))),
        *(
            one
            for path in SOURCES
            for string in list_strings(path.read_text(encoding="utf-8"))
            for one in list_mentions(string, name_of(path))
        ),
        *(
            one
            for path in TEMPLATES
            for one in list_template_mentions(path.read_text(encoding="utf-8"), name_of(path))
        ),
    }


def test_links_lead_somewhere() -> None:
    assert not {name_of(page): wrong for page in PAGES if (wrong := find_wrong_links(page))}


def find_wrong_links(page: Path) -> list[str]:
    """Those that lead nowhere."""
    wrong = []
    for link in list_links(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        if path.startswith(REPOSITORY):
            target = ROOT / path.removeprefix(REPOSITORY)
        elif re.match(r"[a-z]+:", link):
            continue
        else:
            target = (page.parent / path).resolve() if path else page
        there = target.exists() and target.is_relative_to(ROOT)
        if not there or (anchor and anchor not in list_anchors(target.read_text(encoding="utf-8"))):
            wrong.append(link)
    return wrong


def test_documents_hold_commands_to_check() -> None:
    pages = {command.page for command in find_commands()}
    assert {
        "README.md",
        "docs/jobs.md",
        "docs/operating.md",
        "docs/production.md",
        "docs/install.md",
    } <= pages
    assert {command.program for command in find_commands()} == {"advisor", "advisor-agent"}
    assert {"web/templates/jobs.html", "web/templates/export.html"} <= pages
    pages = {mention.page for mention in find_mentions()}
    assert {"advisor/errors.py", "advisor/cli/connection.py"} <= pages
    assert any(page.startswith("web/") for page in pages)


def test_command_of_a_document_is_one_that_its_parser_takes() -> None:
    assert not {str(command): fault for command in find_commands() if (fault := find_fault(command))}


def test_what_is_installed_is_the_source_because_no_index_has_the_package() -> None:
    files = [*PAGES, *(ROOT / "docs" / "cluster").rglob("*.y*ml")]
    by_name = re.compile(r"(?:install|--from) '?(fleet-advisor\S*)")
    assert not {
        name_of(path): named for path in files if (named := by_name.findall(path.read_text(encoding="utf-8")))
    }


def test_command_that_a_sentence_names_exists_with_its_options() -> None:
    assert not {str(mention): wrong for mention in find_mentions() if (wrong := find_unknown(mention))}


def find_unknown(mention: Command) -> set[str]:
    """The words of a mention that are neither a command nor one of its options."""
    parser, words = find_parser(mention)
    if not parser:
        return set() if words[0].isupper() else {words[0]}
    known = {
        option for param in getattr(parser, "params", ()) for option in (*param.opts, *param.secondary_opts)
    }
    mine = words[: words.index("--")] if "--" in words else words
    unknown = {word.partition("=")[0] for word in mine if word.startswith("-")} - known - {"-h", "--help"}
    return unknown if hasattr(parser, "params") else set()


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("tune --minute 3 -- torchrun train.py", "--minute"),
        ("tune --kind torch -- torchrun train.py", "torch"),
        ("tunes -- torchrun train.py", "tunes"),
        ("jobs --state running extra", "extra"),
        ("token create --role nobody", "nobody"),
        ("run --strategies x.json -- torchrun train.py", "--strategies"),
        ("export", "missing"),
        ("submit --nodes 2 -- torchrun train.py", "torchrun is no file of a job"),
    ],
)
def test_command_that_is_none_is_found(words: str, fault: str) -> None:
    assert fault in find_fault(Command("a page", "advisor", tuple(words.split())))


def find_parser(command: Command) -> tuple[Any, list[str]]:
    """The parser that the first words name, and the words for it; None and the word that is no command."""
    words = list(command.words)
    parser: Any = SimpleNamespace(commands=list_parsers()[command.program])
    while hasattr(parser, "commands") and words and words[0] not in {"-h", "--help", "…"}:
        if words[0] not in parser.commands:
            return None, words
        parser = parser.commands[words.pop(0)]
    return parser, words


def find_fault(command: Command) -> str:
    """Say what the real parser has against the words, "" for nothing. Nothing is run, and no file has to exist."""
    parser, words = find_parser(command)
    if parser is None:
        return f"{words[0]} is no command"
    if not hasattr(parser, "params"):
        return ""
    elided = "…" in words
    mine = words[: words.index("--")] if "--" in words else words
    # Words that a document leaves out stand for others that are right.
    words = [word for word in mine if word != "…"] + words[len(mine) :]
    context = parser.context_class(parser, info_name=command.program, **parser.context_settings)
    try:
        values, left, _ = parser.make_parser(context).parse_args(words)
    except Exception as error:
        return getattr(error, "message", "") or str(error)
    if left and not parser.allow_extra_args:
        return f"{left[0]} is too much"
    if parser.name == "submit" and not Path(str(values.get("path", "job.yaml"))).suffix:
        return f"{values['path']} is no file of a job"
    for param in parser.params:
        value = values.get(param.name)
        # An omitted value comes as the parser's own mark, and nothing is asked of what the document leaves out.
        given = isinstance(value, (str, int, list, tuple)) and value != ()
        if not given and param.required and not elided and not param.envvar:
            return f"{param.name} is missing"
        if given and param.callback is None and "…" not in str(value):
            try:
                param.process_value(context, value)
            except Exception as error:
                return str(error)
    return ""


class _Requests(HTMLParser):
    """What a browser asks for by itself when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        address = named.get("src") or (named.get("href") if tag == "link" else None)
        if address and named.get("rel") not in {"canonical", "prev", "next"}:
            self.addresses.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documents as `make docs` builds them, the map of the code made first: a warning is an error."""
    pytest.importorskip("mkdocs")
    import subprocess

    load_tool("make_reference").write_code_map()
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return folder


def test_every_document_is_a_page_of_the_site(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        made = page.with_stem("index") if page.name == "README.md" else page
        assert (site / made.relative_to(ROOT / "docs")).with_suffix(".html").exists(), name_of(page)


def test_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        found = _Requests()
        found.feed(page.read_text(encoding="utf-8"))
        elsewhere = [address for address in found.addresses if re.match(r"[a-z]+:|//", address)]
        assert not [address for address in elsewhere if not address.startswith("data:")], page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name


def test_every_exit_code_is_told() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| (\d+) \|", page, re.M)
    assert sorted(map(int, told)) == sorted(Exit)


def test_readme_is_short_and_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 80, "a screen and a half: move the rest to docs/"
    assert "\nmake demo " in text
    assert "advisor tune --minutes 5 -- torchrun" in text
    assert "`make test`" in text
