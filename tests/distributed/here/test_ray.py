"""`advisor ray tune` with a real Ray: three nodes, all of them on this host."""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from .conftest import COMMAND, MARK, ROOT, SHORT, WAITS, Started, processes_of, ranks_of, wait_for

ray = pytest.importorskip("ray", reason="ray is not installed")
pytestmark = [pytest.mark.distributed, pytest.mark.calm, pytest.mark.timeout(600)]
NODES = 3
TOGETHER = os.pathsep.join((str(ROOT), str(Path(ray.__file__).parents[1])))
"""Where Python finds the advisor and Ray."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Its address, and by which mark all that it ever starts is known."""
    from ray.cluster_utils import Cluster

    mark = tmp_path_factory.mktemp("cluster")
    small = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 80 << 20}
    with pytest.MonkeyPatch.context() as patch:
        ours = {MARK: str(mark), "PYTHONPATH": TOGETHER, "NO_COLOR": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        for name, value in ours.items():
            patch.setenv(name, value)
        patch.delenv("OMP_NUM_THREADS", raising=False)
        started = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
        for _ in range(NODES - 1):
            started.add_node(**small)
    yield started.address, mark
    started.shutdown()
    for process in processes_of(mark):
        with suppress(psutil.Error):
            process.kill()


@pytest.fixture
def tune(cluster: tuple[str, Path], folder: Path) -> Callable[..., Started]:
    def begin(*options: str) -> Started:
        verb = (sys.executable, "-m", "advisor", "ray", "tune", *options, "--", *COMMAND)
        variables = {"RAY_ADDRESS": cluster[0], "PYTHONPATH": TOGETHER}
        return Started(verb, folder, variables, folder / "log")

    return begin


def words_of(processes: Iterable[psutil.Process]) -> list[str]:
    found = []
    for process in processes:
        with suppress(psutil.Error):
            found.append(" ".join(process.cmdline()))
    return found


def nothing_of_ours_is_left(mark: Path) -> None:
    def left() -> list[str]:
        # An actor's title lies over its environment, so it is known by that.
        of_ray = (str(Path(ray.__file__).parent), "ray::")
        ours = [words for words in words_of(processes_of(mark)) if not any(each in words for each in of_ray)]
        return [
            *ours,
            *(words for words in words_of(psutil.process_iter()) if words.startswith("ray::NodeActor")),
        ]

    wait_for(lambda: not left(), "nothing is left but Ray")


def test_group_of_three_nodes_tunes_to_its_answer(
    cluster: tuple[str, Path], tune: Callable[..., Started], folder: Path
) -> None:
    started = tune(*SHORT)
    assert started.ends() == 0, started.told
    assert "Node 2 (" in started.told
    assert "node 2: Node 0 has ended with exit code 0" in started.told
    assert "Ray set them for itself" in started.told
    assert (folder / "advisor-train" / "strategy.json").exists()
    nothing_of_ours_is_left(cluster[1])


def test_interrupted_and_killed_drivers_leave_nothing_and_lose_nothing(
    cluster: tuple[str, Path], tune: Callable[..., Started], folder: Path
) -> None:
    (folder / "train.py").write_text(WAITS)
    started = tune("--nodes", "2")
    wait_for(lambda: len(ranks_of(cluster[1])) == 2, started.told)
    for rank in ranks_of(cluster[1]):
        assert not [name for name in rank if name.startswith("RAY_") or name == "OMP_NUM_THREADS"]
    started.process.send_signal(signal.SIGINT)
    assert started.ends() == 130, started.told
    assert "nothing is lost" in started.told
    nothing_of_ours_is_left(cluster[1])
    again = tune("--nodes", "2")
    again.says("Resuming job")
    wait_for(lambda: len(ranks_of(cluster[1])) == 2, again.told)
    again.process.kill()
    nothing_of_ours_is_left(cluster[1])
    # Node 0 takes it away when it ends in order.
    assert not (folder / "advisor-train-state" / "join.json").exists()
