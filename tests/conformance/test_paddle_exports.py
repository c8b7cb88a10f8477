"""The Paddle exports, read by the real PaddlePaddle: every intended field arrives, and nothing else."""

import json
import math
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from advisor.exporters import Exported, export
from advisor.protocol.base import Value
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.knob import Knob
from advisor.protocol.knobs.strategy import DistributedStrategy, broken_rules

pytestmark = pytest.mark.conformance
READER = Path(__file__).with_name("read_with_paddle.py")
TIMEOUT_S = 120
INVALID = {
    "unknown": ("thread_num: 3\n", 'no field named "thread_num"'),
    "nested": ("localsgd_configs {\n  k_step: 4\n}\n", 'no field named "k_step"'),
    "fraction": ("fuse_grad_size_in_MB: 16.5\n", "Couldn't parse integer"),
}
"""Files that Paddle has to refuse: the proof that the others were read at all."""
CHOSEN: tuple[dict[str, Value], ...] = (
    {},
    {"fuse_grad_size_in_MB": 4.5, "last_comm_group_size_MB": 0.5},
    {"fuse_all_reduce_ops": False, "num_threads": 4},
    {"nccl_comm_num": 2, "sync_nccl_allreduce": False, "fp16_allreduce": True},
    {"use_hierarchical_allreduce": True, "hierarchical_allreduce_inter_nranks": 2},
    {"localsgd": True, "localsgd_k_steps": 4, "localsgd_begin_step": 100},
)


def values_of(knob: Knob) -> st.SearchStrategy[Value]:
    if knob.kind is bool:
        return st.booleans()
    if knob.kind is int:
        return st.integers(knob.low, knob.high)
    return st.floats(knob.low, knob.high, width=32)


def draw_changes(count: int) -> list[dict[str, Value]]:
    """Return sound sets of changes among all knobs that Paddle has a field for; the same ones every time."""
    knobs = [knob for knob in CATALOGUE.values() if knob.paddle_field and knob.name != "a_sync"]
    drawn: list[dict[str, Value]] = []

    @settings(
        max_examples=count * 10, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.fixed_dictionaries({}, optional={knob.name: values_of(knob) for knob in knobs}))
    def collect(changes: dict[str, Value]) -> None:
        if changes and not broken_rules(DistributedStrategy.from_changes(changes)):
            drawn.append(changes)

    collect()
    return sorted(drawn, key=len)[-count:]


def intend(file: Exported, strategy: Mapping[str, Value]) -> dict[str, Value]:
    """Return what Paddle has to see: the knobs that the export says it sets, at the strategy's values."""
    fields: dict[str, Value] = {}
    # The factory's model has 10 layers with 20 gradients of 10,000,000 bytes together.
    layers, megabytes = float(strategy["fuse_grad_size_in_TFLOPS"]), 10_000_000 / 2**20
    is_limited = "fuse_grad_size_in_TFLOPS" in file.provenance and layers < 10
    limit = layers / 10 * megabytes if is_limited else math.inf
    for name in file.provenance:
        value = strategy[name]
        if name == "fuse_grad_size_in_MB":
            size = min(float(value), limit)
            held = 20 * size / megabytes
            number = math.floor(held + 1e-6) if size == limit else round(held)
            value = max(1, math.ceil(size))
            fields.setdefault("fuse_grad_size_in_num", min(20, max(1, number)))
        if name == "last_comm_group_size_MB":
            value = min(float(value), limit) if limit < float(strategy["fuse_grad_size_in_MB"]) else value
        if name != "fuse_grad_size_in_num" or value != CATALOGUE[name].default:
            fields[str(CATALOGUE[name].paddle_field)] = value
    if any(strategy[name] for name in ("localsgd", "adaptive_localsgd") if name in file.provenance):
        fields["without_graph_optimization"] = False
    return {**fields, "a_sync": False}


@pytest.mark.parametrize("version", ["3.3.1", "2.6.2"])
def test_paddle_reads_every_intended_field(
    version: str, advise: Callable, paddle_python: Callable[[str], Path], tmp_path: Path, clean_environment
) -> None:
    drawn = draw_changes(20)
    assert len(drawn) >= 10
    files: list[Exported] = []
    intended: list[dict[str, Value]] = []
    paths: list[str] = []
    for number, changes in enumerate((*CHOSEN, *drawn)):
        advice, job = advise(changes, name="evil\n}\nthread_num: 1 é …", world_size=4)
        for name in ("paddle", "paddle-python"):
            file = export(advice, job, name, version)
            files.append(file)
            intended.append(intend(file, advice.strategy))
            paths.append(str(tmp_path / f"{number}-{file.filename}"))
            Path(paths[-1]).write_text(file.content)
    for name, (text, _) in INVALID.items():
        paths.append(str(tmp_path / f"{name}.prototxt"))
        Path(paths[-1]).write_text(text)
    reports = read_with_paddle(paddle_python(version), paths, tmp_path, clean_environment)

    for file, fields, report in zip(files, intended, reports, strict=False):
        assert "error" not in report, (report, file.content)
        seen = report["fields"]
        if file.format == "paddle":
            assert seen == pytest.approx(fields)
        assert {path: seen.get(path) for path in fields} == pytest.approx(fields), file.content
    for (_, complaint), report in zip(INVALID.values(), reports[len(files) :], strict=False):
        assert complaint in report["error"]
    assert reports[-1] == {"fields": {"worker_num": 1}}


def test_a_field_of_one_version_is_refused_by_the_other(
    paddle_python: Callable[[str], Path], tmp_path: Path, clean_environment
) -> None:
    older = tmp_path / "older.prototxt"
    older.write_text("execution_strategy {\n  num_threads: 4\n}\n")
    (report,) = read_with_paddle(paddle_python("3.3.1"), [str(older)], tmp_path, clean_environment)
    assert 'no field named "execution_strategy"' in report["error"]


def read_with_paddle(
    python: Path, paths: list[str], folder: Path, environment: Mapping[str, str]
) -> list[dict[str, dict[str, Value]]]:
    """Start Paddle once and return its report on each file."""
    asked, answered = folder / "asked.json", folder / "answered.json"
    asked.write_text(json.dumps(paths))
    done = subprocess.run(
        [str(python), str(READER), str(asked), str(answered)], cwd=folder, env=dict(environment),
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(answered.read_text())
