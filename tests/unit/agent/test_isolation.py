"""What is protected from a trial's writes."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from agent.guard import isolation
from agent.guard.account import find_account
from agent.guard.isolation import (
    Isolation,
    choose_targets,
    detect_isolation,
    list_argument_directories,
    plan_protection,
    remove_leftover_scratch,
)
from agent.guard.launcher import LaunchedSession
from agent.guard.lookups import Lookups
from agent.guard.mounts import MountPlan, Overlay
from agent.guard.shim import Order


@pytest.fixture
def tree(tmp_path):
    for name in ("home/runs/old", "project/src", "data/images", "scratch", "session"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data" / "list.txt").write_text("")
    return tmp_path


def _works(*roots, user_namespace=False):
    return Isolation(True, user_namespace, "It works.", roots)


def test_only_the_outermost_directories_are_covered(tree):
    targets, refused = choose_targets(
        [tree / "project" / "src", tree / "project", tree / "data", tree / "gone"]
    )
    assert targets == [tree / "data", tree / "project"]
    assert refused == []


def test_too_broad_directories_are_refused():
    assert choose_targets([Path("/"), Path("/tmp"), Path("/dev/shm"), Path("/proc/self")]) == (
        [],
        [Path("/"), Path("/tmp")],
    )


@pytest.mark.parametrize(
    ("argument", "directory"),
    [
        ("data/images", "data"),
        ("--data=data/images", "data"),
        ("data/list.txt", "data"),
        ("~/runs/new", "home/runs"),
        ("~/runs", "home/runs"),
        ("project/not/yet/there", "project"),
        ("project", "."),
        ("~/fresh", None),
        ("resnet50", None),
        ("--lr=0.1", None),
        ("https://host/data/images", None),
        ("/tmp/x", None),
    ],
)
def test_arguments_name_directories(tree, argument, directory):
    found = list_argument_directories([argument], tree, tree / "home")
    assert found == ([] if directory is None else [tree / directory])


def test_nothing_is_started_that_could_not_be_protected(tree, tmp_path):
    plan = MountPlan((Overlay(str(tree / "gone"), str(tree / "scratch"), str(tree / "scratch")),))
    order = Order(
        ("touch", str(tmp_path / "written")), dict(os.environ), str(tmp_path), str(tmp_path), plan, None, 60.0
    )
    with LaunchedSession(order, "agent", "session") as launched:
        assert launched.wait_exit(60.0)
        assert launched.unprotected == f"{tree / 'gone'}: No such file or directory"
    assert not (tmp_path / "written").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems")
def test_file_system_that_takes_no_overlay_is_named(tree, tmp_path):
    """Here one that lies below two overlays already, which is the kernel's limit."""
    nested = """
import os, sys
from agent.guard.mounts import MountPlan, Overlay, enter
for depth in range(4):
    scratch = f"{sys.argv[2]}/{depth}"
    os.mkdir(scratch)
    os.mkdir(f"{scratch}/upper")
    os.mkdir(f"{scratch}/work")
    try:
        enter(MountPlan((Overlay(sys.argv[1], f"{scratch}/upper", f"{scratch}/work"),)))
    except OSError as error:
        sys.exit(error.strerror)
"""
    if not detect_isolation([tree / "scratch"]).works:
        pytest.skip("no overlay can be mounted here")
    found = subprocess.run(
        [sys.executable, "-c", nested, str(tree / "data"), str(tree / "scratch")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stderr.strip() == f"overlay {tree / 'data'}: Invalid argument"


def test_scratch_inside_what_it_covers_is_refused(tree):
    protection = plan_protection(
        _works(tree / "project" / "x", tree / "scratch"), [tree / "project"], [tree / "project" / "src"], "me"
    )
    assert protection.scratch.parent == tree / "scratch"
    assert [overlay.target for overlay in protection.plan.overlays] == [str(tree / "project")]
    assert protection.plan.keep == (str(tree / "project" / "src"),)
    protection.remove_scratch()
    assert list((tree / "scratch").iterdir()) == []


def test_missing_scratch_is_said(tree):
    protection = plan_protection(_works(tree / "scratch"), [tree], [], "me")
    assert protection.plan == MountPlan()
    assert "--work-dir" in protection.warnings[0]


def test_machine_without_overlays_is_said(tree):
    protection = plan_protection(Isolation(False, False, "Not here."), [tree], [], "me")
    assert protection.plan == MountPlan()
    assert protection.warnings == ("Not here.",)


@pytest.mark.parametrize(("user", "way"), [(0, "the capability SYS_ADMIN"), (1000, "Run the agent as root")])
def test_where_nothing_can_be_mounted_each_user_is_told_what_it_can_do(monkeypatch, tree, user, way):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(isolation, "_try_overlay", lambda *_: "unshare: Operation not permitted")
    found = detect_isolation([tree / "scratch"])
    assert not found.works
    assert (
        f"(unshare: Operation not permitted). {'Give the container ' * (user == 0)}{way}, or" in found.because
    )


@pytest.mark.parametrize("user_namespace", [False, True])
def test_writes_vanish_and_kept_directories_stay_real(tree, user_namespace):
    found = detect_isolation([tree / "gone", tree / "scratch"])
    if not found.works:
        pytest.skip(found.because)
    assert found.scratch_roots == (tree / "scratch",)
    if user_namespace < found.user_namespace:
        pytest.skip("only root can mount without a user namespace")
    project = tree / "project"
    (project / "file").write_text("real")
    (project / "kept").mkdir()
    protection = plan_protection(
        _works(tree / "scratch", user_namespace=user_namespace), [project], [project / "kept"], "me"
    )
    program = (
        "import json, os, shutil, sys; from agent.guard import mounts;"
        "mounts.enter(mounts.MountPlan.from_json(json.loads(sys.argv[1]))); os.chdir(sys.argv[2]);"
        "assert open('file').read() == 'real';"
        "open('file', 'w').write('trial'); shutil.rmtree('src'); open('kept/beat', 'w').write('step');"
        "assert sorted(os.listdir()) == ['file', 'kept']"
    )
    plan = __import__("json").dumps(protection.plan.to_json())
    subprocess.run(
        [sys.executable, "-c", program, plan, str(project)],
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert (project / "file").read_text() == "real"
    assert (project / "src").is_dir()
    assert (project / "kept" / "beat").read_text() == "step"
    protection.remove_scratch()


def test_scratch_of_a_killed_agent_is_removed(tree):
    mine = plan_protection(_works(tree / "scratch"), [tree / "data"], [], "a b-1").scratch
    other = plan_protection(_works(tree / "scratch"), [tree / "data"], [], "a c-1").scratch
    remove_leftover_scratch([tree / "scratch", tree / "gone"], "a b-1")
    assert not mine.exists()
    assert other.exists()


CLOSED = 0o700, 0o711, 0o733
LOOK = 'for d in "$@"; do ls $d; cat $d/marker; echo mine > $d/new && cat $d/new; done'


@pytest.fixture
def shared(tree):
    """Directories of root's below the tree, which everybody may enter, by their modes."""
    for folder in (tree, *tree.parents):
        if folder.is_relative_to(tempfile.gettempdir()) and folder != Path(tempfile.gettempdir()):
            folder.chmod(0o755)
    for mode in (*CLOSED, 0o755):
        (tree / f"{mode:o}").mkdir()
        (tree / f"{mode:o}" / "marker").write_text(f"open{mode:o}" if mode == 0o755 else "closed")
        (tree / f"{mode:o}" / "marker").chmod(0o644 if mode == 0o755 else 0o600)
        (tree / f"{mode:o}").chmod(mode)
    return tree


def _look_as_nobody(tree, directories, *, in_between=lambda: None):
    """What a script of nobody's sees of the directories when all of them are named for protection."""
    found = detect_isolation([tree / "scratch"])
    if os.geteuid() != 0 or not found.works:
        pytest.skip("needs root, and an overlay that can be mounted")
    nobody = find_account("nobody")
    files = Lookups(nobody, "agent", lambda: False)
    protection = plan_protection(found, directories, [], "me", account=nobody, files=files)
    files.close()
    in_between()
    logs = tree / "logs"
    logs.mkdir(exist_ok=True)
    names = tuple(str(directory) for directory in directories)
    order = Order(
        ("sh", "-c", LOOK, "sh", *names), dict(os.environ), "/", str(logs), protection.plan, nobody, 60.0
    )
    with LaunchedSession(order, "agent", "session") as launched:
        assert launched.wait_exit(60.0)
    protection.remove_scratch()
    return (logs / "log").read_text(), launched.unprotected


def test_an_overlay_opens_no_directory_that_the_scripts_user_could_not_enter(shared):
    said, _ = _look_as_nobody(shared, [shared / f"{mode:o}" for mode in CLOSED])
    assert "closed" not in said
    assert "marker\n" not in said, said
    assert said.count("Permission denied") >= 2 * len(CLOSED)
    assert said.count("mine\n") == 1, "where everybody may write without looking"
    assert not (shared / "733" / "new").exists()
    said, _ = _look_as_nobody(shared, [shared / "755"])
    assert ("open755" in said, "mine\n" in said) == (True, True)
    assert not (shared / "755" / "new").exists()


def test_a_directory_that_is_exchanged_after_it_was_looked_at_is_not_opened(shared):
    """By its owner, the scripts' user, for a link to one that it may not enter."""
    mine = shared / "mine"
    mine.mkdir(mode=0o755)

    def exchange():
        mine.rmdir()
        mine.symlink_to(shared / "700")

    said, unprotected = _look_as_nobody(shared, [mine], in_between=exchange)
    assert said == ""
    assert unprotected == f"{mine}: Permission denied"
