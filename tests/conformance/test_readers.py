"""torchdata's own readers, unchanged: their waits are told as such, and their settings stay the script's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from advisor.protocol.knobs.loading import find_reader
from advisor.protocol.training.workload import WorkloadFacts
from tests.distributed.runtime.fake_agent import END, launch, measure

from .conftest import HERE, provide_environment

pytestmark = [pytest.mark.conformance, pytest.mark.distributed, pytest.mark.timeout(600)]
NAMES = {"nodes": "torchdata's nodes", "stateful": "StatefulDataLoader"}


@pytest.mark.parametrize(
    ("reader", "refusal"), [("nodes", "torchdata's nodes"), ("stateful", "the position that it saves")]
)
def test_torchdatas_readers_are_timed_and_left_as_they_are(reader: str, refusal: str, tmp_path: Path) -> None:
    python = provide_environment("torchdata", HERE / "requirements-torchdata.txt", beside=sys.prefix)
    session = launch(
        tmp_path, [str(HERE / "train_by_reader.py"), reader], [measure("own"), END], python=str(python),
        timeout_s=200.0,
    )  # fmt: skip
    assert session.code == 0, session.log
    phases = session.result("own")["phases"]
    # Eight samples of 3 ms; the rest of such a step is small, and its own code smaller.
    assert phases["data_wait_s"] > 0.5 * 8 * 0.003 > phases["own_code_s"]
    assert refusal in session.hello["refusals"]["loader_num_workers"]
    told = find_reader(WorkloadFacts.model_validate(session.hello["facts"]))
    assert (told.name if told else "StatefulDataLoader") == NAMES[reader]
