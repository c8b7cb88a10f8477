"""Trials read the caches below the home folder and write to their job's own, with no lock left in the real one."""

import os
from pathlib import Path

import pytest

from agent.files import DIRECT
from agent.guard.caches import Cache, find_locks, list_caches, settle_caches
from agent.guard.isolation import Isolation, JobLayers, Protection, detect_isolation, plan_protection
from agent.guard.launcher import LaunchedSession
from agent.guard.shim import Order

BUILD = "torch_extensions/py311_cpu/op"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a build that another process has locked, and a model that was downloaded."""
    for name in (f".cache/{BUILD}", ".cache/huggingface/hub", "scratch", "shown", "logs"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".cache" / BUILD / "op.so").write_text("built")
    (tmp_path / ".cache" / BUILD / "lock").touch()
    return tmp_path


def find(home: Path, **variables: str) -> dict[str, Cache]:
    found = list_caches({"TMPDIR": str(home), **variables}, str(home), "me", home / "shown", DIRECT)
    return {cache.variable: cache for cache in found}


def test_each_cache_is_where_its_library_has_it(home: Path) -> None:
    found = find(home, TRITON_CACHE_DIR="/elsewhere", HF_HOME="~/models")
    assert {name: cache.place for name, cache in found.items()} == {
        "XDG_CACHE_HOME": f"{home}/.cache",
        "TRITON_CACHE_DIR": "/elsewhere",
        "TORCHINDUCTOR_CACHE_DIR": f"{home}/torchinductor_me",
        "CUDA_CACHE_PATH": f"{home}/.nv/ComputeCache",
        "CLEARML_CACHE_DIR": f"{home}/.clearml/cache",
        "HF_HOME": f"{home}/models",
    }
    assert find_locks(list(found.values()), DIRECT) == [f"{home}/.cache/{BUILD}/lock"]


def test_without_an_overlay_builds_are_copied_and_all_else_is_linked(home: Path) -> None:
    (home / "torchinductor_me").mkdir()
    variables: dict[str, str] = {}
    for _ in range(2):
        settle_caches(list(find(home).values()), (), variables)
        own = home / "shown" / "XDG_CACHE_HOME"
        assert os.listdir(own / BUILD) == ["op.so"]
        assert not (own / BUILD / "op.so").is_symlink()
        assert (own / "huggingface").resolve() == home / ".cache" / "huggingface"
        (own / BUILD / "lock").touch()  # a launch that is killed as it builds
    assert (home / ".cache" / BUILD / "lock").exists()
    assert variables == {
        name: str(home / "shown" / name)
        for name in ("XDG_CACHE_HOME", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "CLEARML_CACHE_DIR")
    }
    assert sorted(entry.name for entry in home.iterdir()) == [
        ".cache", "logs", "scratch", "shown", "torchinductor_me",
    ]  # fmt: skip


def launch(home: Path, layers: JobLayers, job_id: str, code: str) -> str:
    """Return what a launch of the job says that is killed at its end."""
    isolation = detect_isolation([home / "scratch"])
    if not isolation.works:
        pytest.skip("no overlay can be mounted here")
    layers.begin(job_id)
    protection = plan_protection(
        isolation, [], [], "me", caches=list(find(home).values()),
        provide=lambda root: layers.provide(root, "layer-"),
    )  # fmt: skip
    return run(home, protection, code)


def run(home: Path, protection: Protection, code: str) -> str:
    (home / "logs" / "log").unlink(missing_ok=True)
    order = Order(
        ("sh", "-c", code), {"HOME": str(home), "PATH": os.environ["PATH"]}, "/", str(home / "logs"),
        protection.plan, None, 60.0, caches=protection.caches,
    )  # fmt: skip
    with LaunchedSession(order, "agent", "session") as launched:
        assert launched.wait_exit(60.0)
    protection.remove_scratch()
    return (home / "logs" / "log").read_text()


BUILDS = f"cd ~/.cache/{BUILD}; ls; touch lock new.so; touch ~/.cache/huggingface/hub/model; kill -9 $$"


def test_a_jobs_launches_share_what_they_built_and_leave_nothing_in_the_real_cache(home: Path) -> None:
    layers = JobLayers()
    assert launch(home, layers, "a", BUILDS).split() == ["op.so"], "nobody waits for another's lock"
    assert launch(home, layers, "a", BUILDS).split() == ["new.so", "op.so"]
    assert launch(home, layers, "b", BUILDS).split() == ["op.so"]
    layers.remove()
    assert sorted(os.listdir(home / ".cache" / BUILD)) == ["lock", "op.so"]
    assert os.listdir(home / ".cache" / "huggingface" / "hub") == ["model"]
    assert list((home / "scratch").iterdir()) == []


def test_a_cache_that_takes_no_overlay_is_moved(home: Path) -> None:
    protection = plan_protection(
        Isolation(False, False, "Not here."), [], [], "me", caches=list(find(home).values())
    )
    said = run(home, protection, f"echo $XDG_CACHE_HOME; ls $XDG_CACHE_HOME/{BUILD}")
    assert said.split() == [f"{home}/shown/XDG_CACHE_HOME", "op.so"]


def test_a_home_without_caches_stays_without(home: Path) -> None:
    bare = home / "bare"
    for name in ("scratch", "logs", "shown"):
        (bare / name).mkdir(parents=True)
    said = launch(bare, JobLayers(), "a", "echo $XDG_CACHE_HOME; touch $XDG_CACHE_HOME/x")
    assert said == f"{bare}/shown/XDG_CACHE_HOME\n"
    assert sorted(entry.name for entry in bare.iterdir()) == ["logs", "scratch", "shown"]
