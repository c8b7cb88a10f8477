"""What a job would do, before anything is measured: what is promised holds, and the rest is said to be unknown."""

from datetime import UTC, datetime
from typing import Any

from advisor.protocol.answers.previews import PlanPreview
from advisor.protocol.asked.jobs import Job, JobSpec, JobState
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.tuning.explain.preview import preview_plan

NOW = datetime(2026, 1, 1, tzinfo=UTC)
COMMAND = {"kind": "command", "command": ["python", "t.py", "${num_threads:-2}", "${fp16_allreduce}"]}


def preview(workload: dict[str, Any] | None = None, **fields: Any) -> PlanPreview:
    spec = JobSpec.model_validate({"workload": workload or {"command": ["torchrun", "train.py"]}, **fields})
    return preview_plan(Job(id="", spec=spec, state=JobState.QUEUED, created_at=NOW), NOW)


def test_every_knob_is_searched_or_left_out_with_its_reason() -> None:
    plan = preview(freeze=["num_threads"])
    searched = [planned.knob for planned in plan.knobs]
    dropped = {knob.knob: knob.reason for knob in plan.dropped}
    assert sorted([*searched, *dropped]) == sorted(CATALOGUE)
    assert dropped["num_threads"].startswith("Frozen")
    assert all(dropped.values())
    assert {"fuse_grad_size_in_MB", "amp"} <= set(searched)


def test_values_are_told_where_the_job_or_the_catalogue_fixes_them() -> None:
    plan = preview(
        values={"fuse_grad_size_in_MB": [4, 16]}, knobs=["fuse_grad_size_in_MB", "amp", "num_threads"]
    )
    knobs = {planned.knob: planned for planned in plan.knobs}
    assert list(knobs) == [
        name for name in CATALOGUE if name in {"fuse_grad_size_in_MB", "amp", "num_threads"}
    ]
    assert knobs["fuse_grad_size_in_MB"].values == (4.0, 16.0)
    assert (knobs["amp"].values, knobs["amp"].for_verdict) == ((False, True), False)
    assert (knobs["num_threads"].values, knobs["num_threads"].low) == ((), CATALOGUE["num_threads"].low)
    (chosen_later,) = [sentence for sentence in plan.unknown if "chosen after that launch" in sentence]
    assert chosen_later.endswith(": num_threads.")
    assert {p.knob: p.for_verdict for p in preview(allow="numeric", knobs=["amp"]).knobs} == {"amp": True}


def test_command_takes_only_its_own_knobs_and_its_smallest_gain_is_known() -> None:
    plan = preview(COMMAND, allow="numeric")
    assert [planned.knob for planned in plan.knobs] == [
        name for name in CATALOGUE if name in {"num_threads", "fp16_allreduce"}
    ]
    assert plan.smallest_gain is not None
    assert not any("smallest gain" in sentence for sentence in plan.unknown)
    assert preview().smallest_gain is None
    assert any("smallest gain" in sentence for sentence in preview().unknown)


def test_more_time_holds_more_strategies_up_to_the_limit() -> None:
    def count(seconds: float, workload: dict[str, Any] | None = None) -> int:
        plan = preview(workload, budget={"max_seconds": seconds, "max_trials": 100})
        assert plan.most_trials == 100
        return plan.likely_trials

    assert 0 <= count(5) < count(120) < count(240) < count(36_000) == 100
    assert count(240, workload=COMMAND) < count(240)


def test_limits_are_those_of_the_budget() -> None:
    plan = preview(budget={"max_seconds": 600, "max_device_hours": 2})
    assert (plan.most_seconds, plan.most_device_hours) == (600, 2)
    assert not any("Device-hours" in sentence for sentence in plan.unknown)
    assert any("at most 0.17 hours" in sentence for sentence in preview(budget={"max_seconds": 600}).unknown)


def test_verifying_searches_nothing() -> None:
    plan = preview(verify={"fuse_grad_size_in_MB": 8})
    assert (plan.knobs, plan.most_trials, plan.likely_trials) == ((), 0, 0)
