"""strategy.json: complete, versioned, and readable again."""

import json
from functools import cache

import hypothesis.strategies as st
import jsonschema
import pytest
from hypothesis import given

from advisor.exporters import export
from advisor.protocol.answers.advice import Provenance
from advisor.protocol.answers.strategy_file import describe_schema, read_strategy_file
from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.knob import Knob


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


def values_of(knob: Knob) -> st.SearchStrategy[Value]:
    if knob.choices:
        return st.sampled_from(knob.choices)
    by_kind: dict[type, st.SearchStrategy[Value]] = {
        bool: st.booleans(),
        int: st.integers(knob.low or 0, knob.high if knob.high is not None else 10**6),
        float: st.floats(knob.low, knob.high),
        str: st.from_regex(knob.form, fullmatch=True) if knob.form else st.text(max_size=30),
    }
    return by_kind[knob.kind]


@cache
def make_validator() -> jsonschema.Draft202012Validator:
    """Made for all examples, not for each."""
    jsonschema.Draft202012Validator.check_schema(describe_schema())
    return jsonschema.Draft202012Validator(describe_schema())


@given(st.fixed_dictionaries({}, optional={name: values_of(knob) for name, knob in CATALOGUE.items()}))
def test_any_strategy_survives_the_file_and_obeys_the_published_schema(advise, changes) -> None:
    advice, job = advise(changes)
    content = export(advice, job, "json").content
    make_validator().validate(json.loads(content))
    file = read_strategy_file(content)
    assert file.changes == changes
    assert file.strategy == advice.strategy


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
