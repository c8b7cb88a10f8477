"""Telemetry on the pages: the job's devices over time, a trial's devices, and the agent that is flagged."""

import json
import re
from collections.abc import Callable
from dataclasses import replace

from starlette.testclient import TestClient

from advisor.dashboard.figures.utilisation import draw_utilisation
from advisor.dashboard.views.server.site import find_objection
from advisor.dashboard.views.trials.page import view_trial_page
from advisor.protocol.measured.telemetry import NodeTelemetry, SessionTelemetry, Spread, TelemetrySeries
from advisor.tuning.measure.utilisation import MOST_STRETCHES, make_series
from tests.samples.job import make_agents, make_finished_story
from tests.samples.stored import NOW, Stories, read_words
from tests.samples.telemetry import make_points


def test_every_device_is_a_line_and_a_row() -> None:
    telemetry = make_series("s1", make_points(("node01", "node02")))
    figure = draw_utilisation(telemetry)
    cells, slowed = json.loads(figure.plot)["data"]
    assert list(dict.fromkeys(cells["y"])) == [row[0] for row in figure.table.rows]
    assert len(figure.table.rows) == 16
    assert len(cells["y"]) == len(cells["base"]) == 16 * MOST_STRETCHES - 8 * 3  # one node has a gap
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


def test_trial_shows_its_devices_and_each_ranks_own_work(sign_in: Callable[[str], TestClient]) -> None:
    history = make_finished_story(NOW).history
    assert view_trial_page(history.trial(5), history).ranks[3][2:] == ("130.6", "+10.7 %")
    page = sign_in("adv_viewer_3_x").get("/jobs/sample/trials/5").text
    assert page.count(" MHz</td>") == 16
    (hot,) = [words for words in map(read_words, page.split("<tr>")) if "HwThermalSlowdown" in words]
    assert hot.startswith("node02 GPU 5reduced clocks: HwThermalSlowdown 85 %")
    assert "1275 MHz" in hot


def test_node_without_devices_tells_its_cpus_and_its_network(
    stories: Stories, sign_in: Callable[[str], TestClient]
) -> None:
    story = make_finished_story(NOW)
    told = NodeTelemetry(
        agent="<b>a0</b>", samples=3, cpu=Spread(mean=0.6, median=0.6, max=0.7),
        session_cpu=Spread(mean=0.5, median=0.5, max=0.625), memory_bytes=2**31, network_bytes_per_s=2**20,
    )  # fmt: skip
    blocks = tuple(block.model_copy(update={"telemetry": (told,)}) for block in story.history.blocks)
    stories.tell(replace(story, history=story.history.model_copy(update={"blocks": blocks})))
    page = sign_in("adv_viewer_3_x").get("/jobs/sample/trials/5").text
    row = next(row for row in page.split("<tr>") if "&lt;b&gt;a0" in row)
    assert "<b>a0" not in row
    words = re.findall(r"<td[^>]*>([^<]*)</td>", row)
    assert "2 GiB" in words
    assert words[0] == "50 % (most 62 %)"
    assert words[-1] == "network 1.05 MB/s"


def test_flagged_agent_says_why() -> None:
    said = {agent.name: find_objection(agent) for agent in make_agents(NOW)}
    assert "GPU 5 of node02 ran with reduced clocks" in said["node02"]
    assert said["laptop"] == ""
