"""What is a step in a line of a program's output, and what is not."""

import json
import math

import pytest

from agent.backends.results import Results


def test_steps_of_several_ranks_are_whole_when_every_rank_has_told_them() -> None:
    results = Results("")
    for rank, seconds in ((0, 0.1), (1, 0.3), (0, 0.2)):
        assert results.read_line(json.dumps({"rank": rank, "step_time_s": seconds}))
    assert results.count_steps() == 1
    assert [[step.time_s for step in ranks] for ranks in results.list_steps(0, 100)] == [[0.1, 0.3]]


@pytest.mark.parametrize(
    ("line", "time_s", "samples"),
    [
        ('  {"step_time_s": 0.5, "samples": 8, "other": [1]}', 0.5, 8),
        ('{"step_time_ms": 20}', 0.02, None),
        ('{"samples_per_s": 50, "samples": 100}', 2.0, 100),
        ('{"samples_per_s": 50}', 0.02, 1),
        ('{"step_time_s": "0.25"}', 0.25, None),
    ],
)
def test_a_step_is_read_from_a_json_line(line, time_s, samples) -> None:
    results = Results("")
    assert results.read_line(line)
    step = results.list_steps(0, 1)[0][0]
    assert (step.time_s, step.samples) == (pytest.approx(time_s), samples)


@pytest.mark.parametrize(
    "line",
    [
        "", "epoch 3", "{", "[1]", '{"loss": 1}', '{"step_time_s": 0}', '{"step_time_s": -1}', '{"step_time_s": true}',
        '{"step_time_s": NaN}', '{"step_time_s": Infinity}', '{"step_time_s": 1' + "0" * 400 + "}", '{"a":' * 5000,
        '{"step_time_s": 1, "rank": -1}', '{"step_time_s": 1, "rank": 1e9}', '{"step_time_s": 1, "rank": NaN}',
        '{"step_time_s": 1}' + " " * 100_000,
    ],
    ids=range(16),
)  # fmt: skip
def test_nonsense_is_no_step(line) -> None:
    results = Results("")
    assert not results.read_line(line)
    assert results.count_steps() == 0


def test_a_pattern_takes_the_place_of_json_lines() -> None:
    results = Results(r"rank (?P<rank>\d): (?P<samples_per_s>[\d.]+)/s(?: loss (?P<loss>\S+))?")
    assert not results.read_line('{"step_time_s": 1}')
    assert results.read_line("[12:00] rank 1: 200.0/s loss nan")
    step = results.list_steps(0, 1)[0][0]
    assert (step.rank, step.time_s) == (1, pytest.approx(0.005))
    assert step.loss is not None
    assert math.isnan(step.loss)


def test_what_a_program_says_about_itself_is_cleaned_and_added_up() -> None:
    results = Results("")
    results.read_line(
        '{"consumed": ["num_threads"], "not_consumed": {"amp": "\\u001b[31mno GPU\\ud83d\\u0007"}}'
    )
    results.read_line(
        '{"consumed": {"dgc": "in force"}, "facts": {"world_size": 4}, "bucket_bytes": [1, "x", -3, 2]}'
    )
    results.read_line('{"facts": 3, "consumed": 7, "bucket_bytes": 1}')
    about = results.about
    assert about.consumed == {"num_threads": "The program says so.", "dgc": "in force"}
    assert about.not_consumed == {"amp": "no GPU"}
    assert about.facts == {"world_size": 4}
    assert about.bucket_bytes == (1, 2)


@pytest.mark.timeout(20)
def test_a_pattern_that_other_engines_never_finish_is_answered_at_once() -> None:
    results = Results(r"^(?P<step_time_s>(1+)+)$")
    for _ in range(100):
        assert not results.read_line("1" * 1000 + "!")
    assert results.read_line("1" * 3)
