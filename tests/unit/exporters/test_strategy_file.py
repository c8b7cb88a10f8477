"""strategy.json: complete, versioned, and readable again."""

import json

import pytest

from advisor.exporters import export
from advisor.protocol.advice import Provenance
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.knob import Effect
from advisor.protocol.strategy_file import read_strategy_file


def test_the_file_reads_back_as_the_advice(advise) -> None:
    changes = {"fuse_grad_size_in_MB": 50.0, "fp16_allreduce": True}
    advice, job = advise(changes, name="naïve\n名")
    file = read_strategy_file(export(advice, job, "json").content)
    assert (file.version, file.job_id, file.job_name, file.date) == (1, "job7", "naïve\n名", job.finished_at)
    assert (file.changes, file.strategy, file.baseline) == (changes, advice.strategy, advice.baseline)
    assert file.gain == advice.gain
    assert (file.allowed, file.effect) == (Effect.CONVERGENCE, Effect.NUMERIC)
    assert set(file.provenance) == set(CATALOGUE)
    assert file.provenance["fp16_allreduce"] is Provenance.TRANSLATED


def test_a_kept_baseline_has_no_gain_and_no_changes(advise) -> None:
    file = read_strategy_file(export(*advise({}), "json").content)
    assert file.gain is None
    assert file.changes == {}
    assert file.strategy == file.baseline


def test_a_field_of_a_newer_program_is_ignored(advise) -> None:
    content = json.loads(export(*advise({}), "json").content) | {"novelty": 1}
    assert read_strategy_file(json.dumps(content)).job_id == "job7"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [({"version": 2}, "has version 2; this program reads up to 1"), ({"schema_name": "x"}, "'x'")],
)
def test_another_file_is_refused(change, complaint, advise) -> None:
    content = json.loads(export(*advise({}), "json").content) | change
    with pytest.raises(ValueError, match=complaint):
        read_strategy_file(json.dumps(content))
