"""What `advisor ray tune` says without Ray or a cluster, and what it asks of each node."""

import sys

import pytest

from .conftest import Run

SIZES = [{"CPU": 4.0}, {"CPU": 64.0, "GPU": 8.0}, {"CPU": 32.0, "GPU": 8.0}, {"memory": 1.0}]


def test_python_without_ray_is_told_to_install_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = run("ray", "tune", "--minutes", "3", "--", "torchrun", "train.py")
    assert done.exit_code == 2
    assert "pip install ray" in done.stderr


@pytest.mark.parametrize(
    ("nodes", "cpus", "gpus", "count", "each"),
    [
        (None, None, None, 2, {"CPU": 32.0, "GPU": 8.0}),
        (1, None, None, 1, {"CPU": 64.0, "GPU": 8.0}),
        (3, None, None, 3, {"CPU": 4.0}),
        (2, 1, 0, 2, {"CPU": 1.0}),
        (9, 8, 1, 9, {"CPU": 8.0, "GPU": 1.0}),
    ],
)
def test_each_node_gives_what_was_asked_or_what_the_smallest_has(
    nodes: int | None, cpus: int | None, gpus: int | None, count: int, each: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    ray = pytest.importorskip("ray", reason="ray is not installed")
    from advisor.here.ray_gang import share_out

    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": size} for size in SIZES])
    assert share_out(nodes, cpus, gpus) == [each] * count


def test_more_nodes_than_there_are_need_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed")
    from advisor.here.ray_gang import share_out
    from advisor.local.server import LocalModeFailed

    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": size} for size in SIZES])
    with pytest.raises(LocalModeFailed, match="has 3 nodes"):
        share_out(4, None, None)
