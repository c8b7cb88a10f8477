"""Which patterns may be submitted, and that the rest is refused with a sentence, by server and agent alike."""

import pytest
from pydantic import ValidationError

from advisor.protocol.patterns import compile_pattern
from advisor.protocol.training.workload import Workload, WorkloadKind


def _submit(pattern):
    return Workload(kind=WorkloadKind.COMMAND, command=("./train", "${num_threads}"), pattern=pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"iteration \d+: (?P<step_time_ms>[\d.]+) ms, loss (?P<loss>\S+)",
        r"(?i)^rank (?P<rank>\d+).*?(?P<samples_per_s>\d+(?:\.\d+)?)/s$",
        r"é (?P<step_time_s>[0-9.]{1,1000})",
    ],
)
def test_ordinary_patterns_are_taken(pattern):
    assert _submit(pattern).pattern == pattern


@pytest.mark.parametrize(
    ("pattern", "word"),
    [
        ("(", "missing )"),
        (r"(?=x)(?P<step_time_s>1)", "no looking ahead"),
        (r"(?P<step_time_s>1)(?P=step_time_s)", "no back references"),
        (r"(?P<step_time_s>a{1,4294967296})", "1000 repetitions"),
        (r"(?P<step_time_s>a{4294967296})", "1000 repetitions"),
        (r"(?P<step_time_s>((a{100}){100}){100})", "1000 repetitions"),
        (r"(?P<step_time_s>(\pL?){900})", "too large"),
        (r"(?P<step_time_s>1)|(?P<step_time_s>2)", "twice"),
        (r"(?P<seconds>1)", "have no meaning"),
        (r"(?P<loss>1)", "finds no time"),
    ],
)
def test_pattern_that_cannot_be_used_is_refused_with_a_sentence(pattern, word):
    with pytest.raises(ValidationError) as failure:
        _submit(pattern)
    assert word in failure.value.errors()[0]["msg"]


def test_braces_that_mean_themselves_are_no_repetition():
    assert compile_pattern(r"\{4294967296\} x{2,3}").search("{4294967296} xx")
