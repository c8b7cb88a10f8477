"""Figures: the chart, its sentence and its table say the same."""

import json
from html import unescape

from advisor.dashboard.figures.charts import (
    draw_phases,
    draw_waterfall,
)
from advisor.protocol.measured.estimates import estimate_blocks
from advisor.protocol.measured.results import PHASE_NAMES, Phases
from tests.samples.job import make_finished_story
from tests.samples.stored import NOW

BEFORE = Phases(forward_s=0.05, backward_s=0.07, exposed_comm_s=0.03, optimizer_s=0.01)
AFTER = Phases(forward_s=0.05, backward_s=0.07, exposed_comm_s=0.004, optimizer_s=0.01)


def test_waterfall_ends_at_the_new_step_time() -> None:
    figure = draw_waterfall(BEFORE, AFTER)
    trace, words = json.loads(figure.plot)["data"]
    # Every figure stands behind its bar, whichever way that goes: never on the axis.
    levels = [sum(trace["x"][: place + 1]) for place in range(len(trace["x"]) - 1)]
    bars = zip(words["x"][1:-1], levels, levels[1:], strict=False)
    assert all(place >= max(first, last) - 1e-9 for place, first, last in bars)
    assert abs(sum(trace["x"][:-1]) - trace["x"][-1]) < 1e-9
    assert figure.table.rows[-1] == ("step", "160.0", "134.0", "−26.0")
    assert "exposed communication, −26.0 ms" in figure.summary


def test_waterfall_says_where_its_axis_starts_when_that_is_not_zero() -> None:
    layout = json.loads(draw_waterfall(BEFORE, AFTER).plot)["layout"]
    start = layout["xaxis"]["range"][0]
    assert start > 0
    assert f"from {start:g}" in layout["xaxis"]["title"]["text"]
    whole = json.loads(draw_waterfall(BEFORE, Phases(forward_s=0.01)).plot)["layout"]
    assert whole["xaxis"]["range"][0] == 0


def test_phases_without_measured_communication_leave_it_open() -> None:
    figure = draw_phases([("median rank", Phases(forward_s=0.1))], "One step")
    assert ("exposed communication", "–") in figure.table.rows


def test_every_part_of_a_step_is_drawn() -> None:
    whole = Phases(**dict.fromkeys(PHASE_NAMES, 0.1))
    figure = draw_phases([("median rank", whole)], "One step")
    assert [name for name, _ in figure.table.rows] == list(PHASE_NAMES.values())


def test_figure_cannot_end_its_script_element() -> None:
    figure = draw_phases([("</script><img src=x>", BEFORE)], "One step")
    assert "<" not in figure.plot
    assert "</script>" in unescape(json.loads(figure.plot)["data"][0]["y"][0])


def test_estimate_grows_with_the_spread_between_blocks() -> None:
    history = make_finished_story(NOW).history
    blocks = [block for block in history.blocks if block.trial_number == 0]
    one, many = estimate_blocks(blocks[:1]), estimate_blocks(blocks)
    assert one is not None
    assert many is not None
    assert many.half_width < one.half_width
    assert many.blocks == 9
    assert estimate_blocks([]) is None
