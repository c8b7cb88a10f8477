"""The answer to a race of two commands: the ways in which its asker fools himself are told for what they are."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from advisor.protocol.answers.raced import RaceAnswer
from advisor.protocol.asked.jobs import Job, JobSpec, JobState
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import BlockResult, Phases, StepWork
from advisor.protocol.measured.trials import (
    Block,
    BlockPlan,
    BlockState,
    BlockSummary,
    JobHistory,
    Purpose,
    Session,
    SessionState,
    Trial,
)
from advisor.protocol.nodes.cluster import DeviceKind
from advisor.protocol.states import Verdict
from advisor.protocol.training.own_knob_texts import read_commands
from advisor.protocol.training.workload import Workload, WorkloadFacts, WorkloadKind
from advisor.tuning.explain.raced import build_race, find_command_knob
from tests.unit.cli import advices

NOW = datetime(2026, 11, 28, tzinfo=UTC)
B = Changes({"command": "B"})
PHASES = Phases(forward_s=0.004, backward_s=0.008, optimizer_s=0.001)


def facts(**changes: Any) -> WorkloadFacts:
    told: dict[str, Any] = {
        "backend": "gloo", "device": DeviceKind.CPU, "world_size": 2, "local_world_size": 2,
        "gradient_bytes": 4096, "parameter_tensors": 4, "layers": 2, "batch_size_per_rank": 8,
        "optimizers": ("SGD",), "numbers_per_step": 512.0, "sources": {"train.py": "aa"},
    }  # fmt: skip
    return WorkloadFacts.model_validate(told | changes)


def block(number: int, trial: int, session: str, **measured: Any) -> Block:
    told: dict[str, Any] = {"samples_per_step": 16.0, "phases": PHASES, "losses": (2.0, 1.9, 1.8, 1.7)}
    result = BlockResult(steps=40, **({"step_time_s": (0.06,) * 40, "wall_s": 2.4} | told | measured))
    summary = BlockSummary(
        samples_per_s=1200.0, log_step_time=-4.3, log_step_time_se=0.01, steady_steps=40, steady=True,
        median_step_time_s=0.013, p95_step_time_s=0.014,
    )  # fmt: skip
    return Block(
        id=f"b{number}", session_id=session, trial_number=trial, ordinal=0, race=number, state=BlockState.DONE,
        plan=BlockPlan(block_id=f"b{number}", trial_number=trial), result=result, summary=summary, issued_at=NOW,
        finished_at=NOW + timedelta(seconds=2.6),
    )  # fmt: skip


def session(name: str, **told: Any) -> Session:
    return Session(id=name, job_id="j1", generation=0, state=SessionState.ENDED, created_at=NOW, **told)


def answer(
    effect: Effect = Effect.EXACT,
    of_b: dict[str, Any] | None = None,
    kind: WorkloadKind = WorkloadKind.PYTORCH,
    of_a: dict[str, Any] | None = None,
    **measured_of_b: Any,
) -> RaceAnswer:
    """What is said of a B that looks faster, of which the runtime saw this."""
    own = read_commands(["torchrun train.py", "torchrun train.py --fast"], effect)
    spec = JobSpec.model_validate(
        {
            "name": "race",
            "workload": Workload.model_validate(
                {"command": ("torchrun", "train.py"), "own": [own], "kind": kind}
            ),
        }
    )
    job = Job(id="j1", spec=spec, state=JobState.FINISHED, created_at=NOW, facts=facts())
    trials = (
        Trial(number=0, purpose=Purpose.BASELINE, because="", created_at=NOW),
        Trial(number=1, purpose=Purpose.CONFIRM, changes=B, because="", created_at=NOW),
    )
    history = JobHistory(
        trials=trials,
        blocks=(
            block(0, 0, "a1", **(of_a or {})),
            block(1, 0, "a2", **(of_a or {})),
            block(2, 1, "b1", **measured_of_b),
        ),
        sessions=(session("a1"), session("a2"), session("b1", cold=B, facts=facts(**(of_b or {})))),
    )
    knob = find_command_knob(job)
    assert knob is not None
    return build_race(job, history, advices.a_change(), knob)


def test_a_plain_gain_is_told_with_both_accounts_and_how_to_ask_again() -> None:
    found = answer()
    assert found.verdict is Verdict.CHANGE
    assert found.is_like_for_like
    assert not found.differences
    assert found.a.account == found.b.account == PHASES
    assert "'torchrun train.py' 'torchrun train.py --fast'" in found.verify_again
    assert "--kind" not in found.verify_again
    assert "--kind command 'torchrun" in answer(kind=WorkloadKind.COMMAND).verify_again


@pytest.mark.parametrize(
    ("name", "of_b", "measured"),
    [
        ("batch", {}, {"samples_per_step": 8.0}),
        ("accumulation", {"microbatches_per_step": 2}, {}),
        ("parameters", {"gradient_bytes": 1024}, {}),
        ("gradients", {"gradient_dtype": "bfloat16"}, {}),
        ("optimizer", {"optimizers": ("AdamW",)}, {}),
        ("backward", {}, {"phases": Phases(forward_s=0.004, optimizer_s=0.001)}),
        ("input", {"numbers_per_step": 256.0}, {}),
        ("counting", {"tells_samples": True}, {}),
        ("data", {}, {"losses": (2.4, 1.9, 1.8, 1.7)}),
    ],
)
def test_other_work_is_no_exact_gain(name: str, of_b: dict[str, Any], measured: dict[str, Any]) -> None:
    found = answer(of_b=of_b, **measured)
    assert [one.name for one in found.differences if one.is_other_work] == [name]
    assert found.verdict is Verdict.UNDECIDED
    assert found.because.startswith("B was said to be exact, and it is other work than A: ")
    # Where losses are held against each other at equal samples, they decide.
    assert answer(Effect.CONVERGENCE, of_b, **measured).verdict is Verdict.CHANGE


WORK = StepWork(
    operations=(1600.0, 1610.0),
    number_format="float32",
    random_numbers=160.0,
    backward_passes=1.0,
    with_gradient=1.0,
    moved=1.0,
    numbers_with_gradient=0.6,
    numbers_moved=1.0,
    gradients_read=1.0,
    clipped=1.0,
    kept_beside=1.0,
    variety=0.9,
)


@pytest.mark.parametrize(
    ("name", "less"),
    [
        ("computation", {"operations": (1500.0, 1510.0)}),
        ("format", {"number_format": "bfloat16"}),
        ("learning", {"with_gradient": 0.9}),
        ("learning", {"moved": 0.0}),
        ("learning", {"numbers_with_gradient": 0.06}),
        ("learning", {"numbers_moved": 0.1}),
        ("clipping", {"gradients_read": 0.0, "clipped": 0.0}),
        ("averages", {"kept_beside": 0.0}),
        ("backward", {"backward_passes": 0.5}),
        ("exchange", {"ranks_apart": True}),
    ],
)
def test_a_step_that_does_less_is_other_work(name: str, less: dict[str, Any]) -> None:
    found = answer(of_a={"work": WORK}, work=replace(WORK, **less))
    assert [one.name for one in found.differences if one.is_other_work] == [name]
    assert found.verdict is Verdict.UNDECIDED
    # A step that does more is slower for it, and no fault of B's.
    assert answer(of_a={"work": replace(WORK, **less)}, work=WORK).is_like_for_like is (name != "format")


def test_what_varies_from_step_to_step_is_no_difference() -> None:
    assert answer(of_a={"work": WORK}, work=WORK).is_like_for_like
    varied = replace(WORK, operations=(1300.0, 1700.0))
    assert answer(of_a={"work": WORK}, work=varied).is_like_for_like
    unreached = replace(WORK, numbers_with_gradient=0.5, numbers_moved=0.9)
    assert answer(of_a={"work": WORK}, work=unreached).is_like_for_like
    # A step may find that its gradients are short enough; or nothing may be known of what B's steps do beside.
    rarely_clipped = replace(WORK, clipped=0.0, kept_beside=0.8, variety=0.6)
    assert answer(of_a={"work": WORK}, work=rarely_clipped).is_like_for_like
    losses = (2.0, 1.9, 1.8, 1.7) * 10
    (seen,) = answer(of_a={"losses": losses}, losses=losses[:30]).differences
    assert (seen.name, seen.is_other_work, seen.b) == ("backward", True, "75 %")
    (unknown,) = answer(
        of_a={"work": WORK},
        work=replace(WORK, operations=(), refusal="it is compiled", gradients_read=0.0, kept_beside=0.0),
    ).differences
    assert (unknown.name, unknown.is_other_work) == ("work", False)
    (unknown,) = answer(of_a={"work": WORK}).differences
    assert (unknown.name, unknown.is_other_work) == ("work", False)


@pytest.mark.parametrize(
    ("name", "measured"),
    [
        ("clock", {"wall_s": 1.2, "step_time_s": (0.03,) * 40}),
        ("evaluation", {"excluded_steps": 8}),
        ("batches", {"work": replace(WORK, repeated=0.5)}),
        ("batches", {"work": replace(WORK, variety=0.1)}),
        ("dropout", {"work": replace(WORK, random_numbers=80.0)}),
    ],
)
@pytest.mark.parametrize("effect", list(Effect))
def test_what_misleads_is_no_gain_whatever_b_may_change(
    name: str, measured: dict[str, Any], effect: Effect
) -> None:
    found = answer(effect, of_a={"work": WORK}, **{"work": WORK, **measured})
    assert [one.name for one in found.differences if one.misleads] == [name]
    assert found.verdict is Verdict.UNDECIDED
    assert found.what_to_do == "Let B do in a step what A does, and race it again."


@pytest.mark.parametrize(
    ("name", "of_b", "measured"),
    [
        ("script", {"sources": {"train.py": "bb"}}, {}),
        ("evaluation", {}, {"excluded_steps": 8, "phases": Phases(forward_s=0.004, backward_s=0.008)}),
        ("software", {"torch_version": "2.14.1"}, {}),
    ],
)
def test_what_else_differs_is_told(name: str, of_b: dict[str, Any], measured: dict[str, Any]) -> None:
    found = answer(of_b=of_b, **measured)
    assert [one.name for one in found.differences] == [name]
    assert found.verdict is Verdict.CHANGE


def test_a_script_that_only_lies_elsewhere_is_no_other_script() -> None:
    moved = answer(of_b={"sources": {"../idea/train.py": "aa"}})
    assert not [one for one in moved.differences if one.name == "script"]
    (other,) = answer(of_b={"sources": {"../idea/train.py": "bb"}}).differences
    assert (other.name, other.a) == ("script", "none, aa")
