"""The rules of the house that no linter knows."""

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("advisor", "agent")
MODULES = sorted(
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if "migrations/versions" not in path.as_posix()
)
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "core", "misc", "manager", "handler"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_modules_say_their_purpose_in_their_first_line() -> None:
    docstrings = {path: ast.get_docstring(ast.parse(path.read_text())) or "" for path in MODULES}
    silent = [name_of(path) for path, text in docstrings.items() if len(text.partition("\n")[0]) < 15]
    assert not silent, "say in a docstring's first line what the file is for"


def test_modules_stay_readable_in_length() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in MODULES}
    too_long = {name: length for name, length in lengths.items() if length > 400}
    assert not too_long, "which two things does it do?"


def test_modules_are_named_for_a_thing() -> None:
    vague = [name_of(path) for path in MODULES if path.stem.lower() in FORBIDDEN_NAMES]
    assert not vague, "name it for what it holds"


def test_web_holds_no_python_and_no_third_party_code() -> None:
    assert not list((ROOT / "web").rglob("*.py"))
    assert not [path for path in (ROOT / "web").rglob("*") if re.search(r"\.min\.(js|css)$", path.name)]


def test_pages_load_nothing_from_another_host() -> None:
    pattern = re.compile(r"""(?:src|href|action|url)\s*[=(]\s*["']?(?:https?:)?//""")
    for path in (ROOT / "web").rglob("*"):
        if path.suffix in {".html", ".css", ".js"}:
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if "<a " not in line:
                    assert not pattern.search(line), f"{name_of(path)}:{number} loads from another host"


def test_runtime_reads_as_python_3_9() -> None:
    for path in (ROOT / "agent" / "runtime").rglob("*.py"):
        tree = ast.parse(path.read_text(), filename=str(path), feature_version=(3, 9))
        # Python 3.10 came with zip(strict=…), which our own linter asks for elsewhere.
        keywords = [key.arg for node in ast.walk(tree) if isinstance(node, ast.Call) for key in node.keywords]
        assert "strict" not in keywords, f"{name_of(path)}: Python 3.9 has no zip(strict=…)"


def test_agent_counts_time_on_clocks_that_nobody_sets() -> None:
    """Leases, beats and deadlines must not move with the wall clock; only its log shows the time of day."""
    for path in (ROOT / "agent").rglob("*.py"):
        calls = {
            ast.unparse(node.func)
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
        }
        assert not calls & {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow"}, name_of(path)


def test_repository_names_no_machine() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    for name in tracked.stdout.split():
        path = ROOT / name
        if path.suffix in {".png", ".gz"} or not path.is_file():
            continue
        text = path.read_text(errors="ignore")
        assert "/wo" + "rk/" not in text, f"{name} names a path of one machine"


def test_sessions_write_into_their_folders_by_one_door() -> None:
    """The agent may be root and the scripts another user's, who may put a link wherever that user may write."""
    changes = {
        "write_text",
        "write_bytes",
        "mkdir",
        "chmod",
        "chown",
        "fchown",
        "give",
        "symlink_to",
        "touch",
    }
    doors = {"agent/guard/rank_folder.py", "agent/guard/isolation.py", "agent/guard/account.py"}
    own = {"agent/sessions/spool.py"}  # the agent's work directory, which no script sees
    for path in MODULES:
        if not name_of(path).startswith(("agent/backends/", "agent/sessions/", "agent/guard/")):
            continue
        if name_of(path) in doors | own or "/paddle_preload/" in name_of(path):
            continue
        called = {
            node.func.attr
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        }
        assert not called & changes, f"{name_of(path)}: lay it out by agent.guard.rank_folder"


def test_repository_holds_no_built_files() -> None:
    """What a build, a download or a test leaves in the folder is not a source."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    built = [name for name in tracked.splitlines() if re.search(r"\.(whl|gz|zip|pyc|so|db|log|pem)$", name)]
    assert not built, "remove it from git"
