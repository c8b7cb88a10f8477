"""A report always fits into a request, and what was left of it is a shorter race that says the same."""

import random
from dataclasses import replace

import pytest

from advisor.protocol.measured.messages import MOST_MESSAGE_BYTES, RaceReport
from advisor.protocol.measured.results import BlockResult
from advisor.services.measuring.races import refuse_implausible
from advisor.tuning.measure.contrast import contrast_arms
from agent.sessions.fitting import fit_report


def _measure(seed, step_s, cycles, segment, *, losses=True, **fields):
    source = random.Random(seed)
    count = cycles * segment
    times = tuple(step_s * source.lognormvariate(0, 0.05) for _ in range(count))
    return BlockResult(
        steps=count,
        step_time_s=times,
        segments=(segment,) * cycles,
        samples_per_step=32,
        samples=32 * count,
        wall_s=sum(times),
        losses=tuple(source.random() for _ in times) if losses else (),
        **fields,
    )


def _read(body):
    return RaceReport.model_validate_json(body).results


def test_report_that_fits_is_left_as_it_is():
    results = {"a": _measure(1, 0.1, 10, 5), "b": _measure(2, 0.1, 10, 5)}
    assert _read(fit_report(1, results)) == results


def test_thirty_thousand_steps_fit_into_a_request():
    results = {"a": _measure(1, 0.01, 3000, 5), "b": _measure(2, 0.009, 3000, 5)}
    assert len(RaceReport(generation=1, results=results).model_dump_json()) > MOST_MESSAGE_BYTES
    body = fit_report(1, results)
    assert len(body.encode()) <= MOST_MESSAGE_BYTES
    kept = _read(body)
    assert [len(kept[arm].step_time_s) for arm in "ab"] == [15_000, 15_000], "seven digits are enough here"
    assert kept["a"].step_time_s == pytest.approx(results["a"].step_time_s, rel=1e-6)


def test_race_that_is_far_too_long_becomes_a_shorter_one():
    results = {"a": _measure(1, 0.01, 20_001, 5), "b": _measure(2, 0.009, 20_001, 5)}
    body = fit_report(1, results)
    assert MOST_MESSAGE_BYTES / 2 < len(body.encode()) <= MOST_MESSAGE_BYTES
    kept = _read(body)
    for arm, result in kept.items():
        refuse_implausible(result)
        assert result.steps == len(result.step_time_s) == sum(result.segments) == len(result.losses)
        assert len(result.segments) % 2 == 0
        assert result.wall_s == pytest.approx(sum(result.step_time_s))
        assert result.samples == 32 * result.steps
        assert result.step_time_s == pytest.approx(results[arm].step_time_s[: result.steps], rel=1e-6)
    whole, shorter = (contrast_arms(given["b"], given["a"]) for given in (results, kept))
    assert whole is not None
    assert shorter is not None
    assert abs(shorter.mean - whole.mean) < 4 * shorter.error
    assert whole.error < shorter.error < 4 * whole.error


def test_arms_that_were_given_up_early_stay_whole():
    early = _measure(3, 0.02, 4, 5)
    kept = _read(fit_report(1, {"a": _measure(1, 0.01, 40_000, 5), "b": early}))
    assert kept["b"].steps == early.steps
    assert kept["a"].steps < 200_000


def test_block_without_segments_keeps_whole_periods():
    result = replace(_measure(1, 0.001, 1, 100_001, period=8), segments=())
    kept = _read(fit_report(1, {"a": result}))["a"]
    assert kept.steps == len(kept.step_time_s) == len(kept.losses)
    assert kept.steps % 8 == 0


def test_report_that_is_not_long_by_its_steps_is_refused():
    result = _measure(1, 0.1, 10, 5, consumed={f"knob{n}": "x" * 2000 for n in range(600)})
    with pytest.raises(ValueError, match="sentences"):
        fit_report(1, {"a": result})
