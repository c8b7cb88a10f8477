"""Paddle's files for parameter servers: read by both versions' own classes, started and trained with under 2.6.2."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from advisor.exporters import export
from advisor.protocol.base import Value
from advisor.protocol.training.workload import WorkloadKind

pytestmark = pytest.mark.conformance
HERE = Path(__file__).parent
TRAINING = HERE / "train_paddle_servers.py"
OWN = (
    "mode=sync,async,geo", "geo_k=10,100", "placement=round_robin,hash_name", "min_block=8192,65536",
    "send_queue_size=10,20",
)  # fmt: skip
MODES = {"sync": 0, "async": 1, "geo": 3}
"""Paddle's numbers for them (DistributedMode)."""
READ = """
import json, runpy, sys
from paddle.distributed import fleet
from paddle.distributed.ps.utils.public import TrainerRuntimeConfig
from paddle.distributed.transpiler import DistributeTranspiler
seen = []
for path in sys.argv[1:]:
    if path.endswith("transpiler_config.py"):
        config = runpy.run_path(path)["make_transpiler_config"]()
        DistributeTranspiler(config)
        names = [name for name in dir(config) if not name.startswith("_")]
        seen.append({name: str(getattr(config, name)) for name in names})
        continue
    strategy = fleet.DistributedStrategy()
    if path.endswith(".py"):
        strategy = runpy.run_path(path)["make_strategy"]()
    else:
        strategy.load_from_prototxt(path)
    seen.append([TrainerRuntimeConfig(strategy).mode, strategy.a_sync_configs["k_steps"]])
print("SEEN", json.dumps(seen))
"""


@pytest.fixture
def write(advise, tmp_path: Path) -> Callable[..., Path]:
    """Give a function that writes the file of a format for an advised job, and returns its path."""

    def write_file(name: str, target: str | None, changes: Mapping[str, Value], **more) -> Path:
        server = {"kind": WorkloadKind.COMMAND, "command": ("python", "ps.py"), "own": OWN}
        file = export(*advise(changes, **(more or server)), name, target)
        path = tmp_path / "-".join([*map(str, changes.values()), file.filename])
        path.write_text(file.content)
        return path

    return write_file


@pytest.mark.parametrize("version", ["2.6.2", "3.3.1"])
def test_paddle_derives_the_advised_mode_and_its_transpiler_takes_the_file(
    version: str, write, paddle_python: Callable[[str], Path], clean_environment, tmp_path: Path
) -> None:
    paths, expected = [], []
    for mode, number in MODES.items():
        for name in ("paddle", "paddle-python"):
            paths.append(write(name, version, {"mode": mode, "geo_k": 100}))
            expected.append([number, 100 if mode == "geo" else 0])
    paths.append(
        write("paddle-transpiler", None, {"mode": "async", "placement": "hash_name", "min_block": 65536})
    )
    hierarchy = {"use_hierarchical_allreduce": True, "hierarchical_allreduce_inter_nranks": 4}
    paths.append(write("paddle-transpiler", None, hierarchy, world_size=8, nodes=2))
    done = subprocess.run(
        [paddle_python(version), "-c", READ, *paths], cwd=tmp_path, env=clean_environment, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    *read, servers, nccl2 = json.loads(done.stdout.split("SEEN ")[1])
    assert read == expected
    assert "HashName" in servers["split_method"]
    wanted = {
        "mode": "pserver",
        "sync_mode": "False",
        "runtime_split_send_recv": "True",
        "min_block_size": "65536",
    }
    assert servers | wanted == servers
    wanted = {
        "mode": "nccl2",
        "use_hierarchical_allreduce": "True",
        "hierarchical_allreduce_inter_nranks": "4",
    }
    assert nccl2 | wanted == nccl2


@pytest.mark.parametrize("mode", ["geo", "async"])
def test_the_exported_files_start_train_and_end(
    mode: str, write, paddle_python: Callable[[str], Path], clean_environment, tmp_path: Path
) -> None:
    changes: dict[str, Value] = {"mode": mode, "geo_k": 10, "send_queue_size": 20}
    strategy, launcher = write("paddle-python", None, changes), write("paddle-servers", None, changes)
    words = [paddle_python("2.6.2"), TRAINING, "--strategy", strategy, "--passes", "40"]
    done = subprocess.run(
        [sys.executable, launcher, "--", *words], cwd=tmp_path, capture_output=True, text=True, timeout=200,
        check=False, env={**clean_environment, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank"')]
    for rank in range(2):
        losses = [line["loss"] for line in lines if line["rank"] == rank and "loss" in line]
        assert len(losses) == 40
        assert losses[-1] < 0.9 * losses[0], losses
    assert [line["dense_moved"] for line in lines if "dense_moved" in line] == [True, True]
    assert ("'communicator_send_queue_size': '20'" in done.stdout) is (mode == "geo")
