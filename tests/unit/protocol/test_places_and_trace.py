"""The line that stands for a finding, and the trace of all ranks, by the rules of its format."""

import json
from itertools import pairwise

from advisor.protocol.answers.places import find_place, say_kinds
from advisor.protocol.answers.trace import build_trace
from advisor.protocol.measured.results import LateRank, Place, RankTimeline, Span

PLACES = (
    Place("own_code_s", "train.py:20", 0.3),
    Place("logging", "train.py:22", 0.1),
    Place("data_wait_s", "data.py:7", 0.2),
    Place("evaluation", "train.py:30", 0.12),
    Place("saving", "train.py:40", 0.04),
    Place("backward_s", "", 0.2),
)


def test_a_finding_has_the_line_that_most_of_its_samples_were_in() -> None:
    late = LateRank(rank=1, waited_s=0.1, part="data_wait_s", excess_s=0.1)
    names = ("own_code", "input", "evaluation", "accumulation", "communication", "late_rank")
    found = [find_place(name, late, PLACES) for name in names]
    assert found == ["train.py:20", "data.py:7", "train.py:30", "", "", "data.py:7"]
    spread = tuple(Place("own_code_s", f"train.py:{line}", 0.05) for line in range(5))
    assert find_place("own_code", None, spread) == ""


def test_evaluation_checkpoints_and_logging_are_told_by_their_share_of_all_time() -> None:
    assert say_kinds("evaluation", PLACES) == "evaluation 12 %, checkpoints 4 %"
    assert say_kinds("own_code", PLACES) == "logging 10 %"
    assert say_kinds("input", PLACES) == ""


def test_a_trace_keeps_the_rules_of_its_format_and_all_ranks_on_one_timeline() -> None:
    spans = (Span("step", 5.0, 0.3), Span("data_wait_s", 5.0, 0.1), Span("forward_s", 5.1, 0.2))
    later = tuple(Span(span.name, span.start_s + 0.05, span.took_s) for span in spans)
    trace = json.loads(json.dumps(build_trace([RankTimeline(0, "a", spans), RankTimeline(1, "a", later)])))
    events = trace["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}
    assert all({"ph", "cat", "ts", "name", "pid", "tid"} <= set(event) for event in events)
    complete = [event for event in events if event["ph"] == "X"]
    for event in complete:
        assert set(event) == {"ph", "name", "cat", "ts", "dur", "pid", "tid"}
        assert event["ts"] >= 0
        assert event["dur"] > 0
    assert [(e["name"], e["ts"], e["dur"]) for e in complete if e["pid"] == 2] == [
        ("step 1", 50000.0, 300000.0), ("data wait", 50000.0, 100000.0), ("forward", 150000.0, 200000.0),
    ]  # fmt: skip
    for rank in (1, 2):
        row = [event for event in complete if event["pid"] == rank and event["tid"] == 2]
        assert all(one["ts"] + one["dur"] <= after["ts"] for one, after in pairwise(row))
        assert [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == rank] == [
            "steps", "parts of a step",
        ]  # fmt: skip
    assert build_trace([])["traceEvents"] == []
