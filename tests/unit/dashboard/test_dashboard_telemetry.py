"""Telemetry on the pages: the job's devices over time, a trial's devices, and the agent that is flagged."""

import json

from memory_source import NOW

from advisor.dashboard.figures.utilisation import draw_utilisation
from advisor.dashboard.samples.job import make_agents, make_finished_story
from advisor.dashboard.samples.telemetry import make_session_telemetry
from advisor.dashboard.views.server.site import view_agents
from advisor.dashboard.views.trials.page import view_trial_page
from advisor.protocol.measured.telemetry import SessionTelemetry, TelemetrySeries


def test_every_device_is_a_line_and_a_row() -> None:
    telemetry = make_session_telemetry(("node01", "node02"))
    figure = draw_utilisation(telemetry)
    cells, slowed = json.loads(figure.plot)["data"]
    assert list(dict.fromkeys(cells["y"])) == [row[0] for row in figure.table.rows]
    assert len(figure.table.rows) == 16
    assert len(cells["y"]) == len(cells["base"]) == 16 * 90 - 8 * 3  # one node has a gap
    assert set(slowed["y"]) == {"node02 GPU 5"}
    assert "least on node02 GPU 5" in figure.summary
    assert "1 device ran with reduced clocks" in figure.summary
    assert "SMs with work" in figure.summary


def test_cpu_node_says_what_its_share_is_and_a_gap_is_no_zero() -> None:
    series = TelemetrySeries(agent="<b>a0</b>", measure="cpu", share=(0.5, None, 0.7))
    figure = draw_utilisation(SessionTelemetry(session_id="s", stretch_s=1.0, series=(series,)))
    (cells,) = json.loads(figure.plot)["data"]
    assert list(zip(cells["base"], cells["marker"]["color"], strict=True)) == [(0.0, 50.0), (2.0, 70.0)]
    assert figure.summary == "On average 60 % (share of the node's CPUs that the session uses)."
    assert "<" not in figure.plot


def test_without_samples_there_is_no_figure() -> None:
    assert draw_utilisation(SessionTelemetry()) is None
    empty = TelemetrySeries(agent="a0", measure="busy", share=(None,))
    assert draw_utilisation(SessionTelemetry(series=(empty,))) is None


def test_trial_shows_its_devices_and_each_ranks_own_work() -> None:
    history = make_finished_story(NOW).history
    page = view_trial_page(history.trial(5), history)
    hot = next(line for line in page.devices if line.place == "node02 GPU 5")
    assert (hot.clock, hot.throttled) == ("1275 MHz", "HwThermalSlowdown 85 %")
    assert len(page.devices) == 16
    assert page.ranks[3][2:] == ("131.0", "+11.0 %")


def test_flagged_agent_says_why() -> None:
    rows = {row.name: row.flag for row in view_agents(make_agents(NOW), NOW)}
    assert "GPU 5 of node02 ran with reduced clocks" in rows["node02"]
    assert rows["laptop"] == ""
