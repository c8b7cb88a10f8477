"""Real trainings on the job's page: as advised, slow, or silent."""

from datetime import timedelta

import pytest

from advisor.dashboard.views.job.advice import judge_run
from advisor.protocol.measured.runs import ProductionRun
from tests.samples.stored import NOW

RUN = ProductionRun(
    id="a", host="gpu7", ranks=8, began_at=NOW - timedelta(hours=2), reported_at=NOW - timedelta(seconds=20), step=90,
    samples_per_s=410.0, low=400.0, sentence="Throughput is back at 410 samples/s.",
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "as advised"),
        ({"low": None}, "running"),
        ({"is_below": True}, "slow"),
        ({"is_below": True, "reported_at": NOW - timedelta(hours=1)}, "silent"),
    ],
)
def test_a_training_is_called_what_it_is(changes: dict[str, object], word: str) -> None:
    assert judge_run(RUN.model_copy(update=changes), NOW).word == word
